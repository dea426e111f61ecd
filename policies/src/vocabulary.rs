//! What rules of a set can speak of: the shipped schema, and one action more for each pinned tool.

use std::sync::Arc;

use cedar_policy::{Entities, EntityUid, Schema, SchemaFragment};
use serde_json::Value;

use crate::{
    model::{BrokenSchema, Model, schema_text},
    pins::{Pin, Pins, fragment},
    problem::{Problem, Refused},
};

/// A schema and what was made from it.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    pub(crate) schema: Schema,
    /// The schema in Cedar's JSON form.
    pub(crate) schema_json: Value,
    pub(crate) action_entities: Entities,
    pub(crate) pins: Arc<Pins>,
}

impl Vocabulary {
    /// The shipped schema alone.
    pub(crate) fn shipped(fragment: SchemaFragment) -> Result<Self, BrokenSchema> {
        let broken = |error: &dyn std::fmt::Display| BrokenSchema(error.to_string());
        let schema_json = fragment.clone().to_json_value().map_err(|error| broken(&error))?;
        let schema = Schema::from_schema_fragments([fragment]).map_err(|error| broken(&error))?;
        let action_entities = schema.action_entities().map_err(|error| broken(&error))?;
        Ok(Self { schema, schema_json, action_entities, pins: Arc::default() })
    }

    /// The shipped schema and the tools of `pins`.
    ///
    /// # Errors
    /// Cedar doesn't take what was made of the pins; two pins of one server.
    pub(crate) fn of(model: &Model, pins: Vec<Pin>) -> Result<Arc<Self>, Refused> {
        if pins.is_empty() {
            return Ok(Arc::clone(&model.shipped));
        }
        let failed = |error: &dyn std::fmt::Display| {
            Refused::from(Problem::file("", format!("the pinned tools don't make a schema: {error}")))
        };
        let count = pins.len();
        let mut pins = Pins::of(pins);
        if pins.iter().count() != count {
            return Err(failed(&"a server is pinned twice"));
        }
        let made = fragment(&pins);
        let mut schema_json = model.shipped.schema_json.clone();
        let actions = |json: &mut Value| Some(json.get_mut("")?.get_mut("actions")?.as_object_mut()?.clone());
        if let (Some(more), Some(all)) = (
            actions(&mut made.clone()),
            schema_json.get_mut("").and_then(|all| all.get_mut("actions")?.as_object_mut()),
        ) {
            all.extend(more);
        }
        let fragment = SchemaFragment::from_json_value(made).map_err(|error| failed(&error))?;
        let schema = Schema::from_schema_fragments([model.fragment.clone(), fragment])
            .map_err(|error| failed(&error))?;
        let action_entities = schema.action_entities().map_err(|error| failed(&error))?;
        for (server, tool) in pins.tools_mut() {
            let uid = action(model, server, &tool.name);
            let entity = action_entities.get(&uid).cloned().ok_or_else(|| failed(&uid))?;
            tool.action = Some((uid, entity));
        }
        Ok(Arc::new(Self { schema, schema_json, action_entities, pins: Arc::new(pins) }))
    }
}

/// `Action::"<server>/<tool>"`
pub(crate) fn action(model: &Model, server: &str, tool: &str) -> EntityUid {
    crate::names::uid(&model.types.action, &format!("{server}/{tool}"))
}

/// The schema that a set with these pins is checked against, as text for editors.
///
/// # Errors
/// As [`crate::Snapshot::compile`] for the pins.
pub fn schema_with(pins: &[Pin]) -> Result<String, Refused> {
    let mut text = schema_text().to_owned();
    if !pins.is_empty() {
        let failed = |error: &dyn std::fmt::Display| Refused::from(Problem::file("", error.to_string()));
        let made = SchemaFragment::from_json_value(fragment(&Pins::of(pins.to_vec())));
        let made = made.map_err(|error| failed(&error))?.to_cedarschema().map_err(|error| failed(&error))?;
        text.push_str("\n// Pinned tools, each an action of its own.\n");
        text.push_str(&made);
    }
    Ok(text)
}
