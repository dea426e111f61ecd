//! The part of the schema that is made from pins: one action for each tool, with its own record of arguments.

use serde_json::{Map, Value, json};

use super::{
    Pins,
    shape::{Kind, Shape},
};

/// The actions of all pinned tools in Cedar's JSON form of a schema.
pub(crate) fn fragment(pins: &Pins) -> Value {
    let mut actions = Map::new();
    for pin in pins.sorted() {
        for tool in &pin.tools {
            let context = json!({"type": "Record", "attributes": {
                "time": {"type": "EntityOrCommon", "name": "Time"},
                "process": {"type": "EntityOrCommon", "name": "Process", "required": false},
                "flat": {"type": "EntityOrCommon", "name": "Values"},
                "arguments": record(&tool.shape),
            }});
            let action = json!({
                "memberOf": [{"id": "tools/call"}],
                "appliesTo": {"principalTypes": ["Run"], "resourceTypes": ["Tool"], "context": context},
            });
            actions.insert(format!("{}/{}", pin.server, tool.name), action);
        }
    }
    json!({"": {"entityTypes": {}, "actions": actions}})
}

fn record(shape: &Shape) -> Value {
    let typed = shape.fields.iter().filter(|field| field.kind != Kind::Free);
    let attributes: Map<String, Value> = typed
        .map(|field| {
            let mut kind = kind(&field.kind);
            if let (true, Some(kind)) = (field.optional(), kind.as_object_mut()) {
                kind.insert("required".to_owned(), Value::Bool(false));
            }
            (field.name.clone(), kind)
        })
        .collect();
    json!({"type": "Record", "attributes": attributes})
}

fn kind(kind: &Kind) -> Value {
    match kind {
        // No attribute is free; see `record`.
        Kind::Text | Kind::Free => json!({"type": "String"}),
        Kind::Bool => json!({"type": "Boolean"}),
        Kind::Long => json!({"type": "Long"}),
        Kind::Decimal => json!({"type": "Extension", "name": "decimal"}),
        Kind::Record(shape) => record(shape),
        Kind::Set(element) => json!({"type": "Set", "element": self::kind(element)}),
    }
}
