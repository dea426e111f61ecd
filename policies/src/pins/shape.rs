//! The arguments of a tool as Cedar can type them, from their JSON Schema.
//!
//! What Cedar has no type for (unions, mixed arrays, free objects) is [`Kind::Free`]: it may be sent, and rules
//! see it in `context.flat` only.

use std::cell::Cell;

use crate::json::Json;

/// Levels of records and sets; deeper ones are free.
const DEPTH: usize = 8;
/// Arguments of one tool in all; more of them are free.
const MADE: usize = 4096;

/// A record of arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// By name.
    pub(crate) fields: Vec<Field>,
    /// Whether others than these may be sent: only if the schema says so itself.
    pub(crate) open: bool,
}

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// A call without it is refused.
    pub(crate) required: bool,
    /// `null` may stand for it.
    pub(crate) nullable: bool,
}

/// The type of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Bool,
    /// An integer of 64 bits.
    Long,
    /// A number of four places; one that isn't exact is left out.
    Decimal,
    Record(Shape),
    Set(Box<Kind>),
    /// Anything.
    Free,
}

impl Field {
    /// Whether a rule has to ask for it with `has`: it may be left out of a call, or of what rules see.
    pub(crate) fn optional(&self) -> bool {
        !self.required || self.nullable || self.kind.may_be_inexact()
    }
}

impl Kind {
    /// Whether a value of it may not be exact as a whole.
    pub(crate) fn may_be_inexact(&self) -> bool {
        match self {
            Self::Decimal => true,
            Self::Set(kind) => kind.may_be_inexact(),
            _ => false,
        }
    }
}

impl Shape {
    /// The arguments that `schema` describes.
    ///
    /// # Errors
    /// It doesn't describe an object.
    pub(crate) fn of(schema: &Json) -> Result<Self, String> {
        let reader = Reader { root: schema, made: Cell::new(0) };
        match reader.kind(schema, 0) {
            (Kind::Record(shape), _) => Ok(shape),
            // `{"type":"object"}` says nothing about what is in it.
            (Kind::Free, _) if is_object(schema) => Ok(Self { fields: Vec::new(), open: true }),
            _ => Err("it doesn't say `\"type\":\"object\"`".to_owned()),
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        let at = self.fields.binary_search_by(|field| field.name.as_str().cmp(name)).ok()?;
        self.fields.get(at)
    }

    /// Whether a call can have a value at this dotted path of `context.flat`.
    pub(crate) fn may_hold(&self, path: &str) -> bool {
        self.open
            || self.fields.iter().any(|field| match path.strip_prefix(field.name.as_str()) {
                Some("") => true,
                Some(rest) => rest.strip_prefix('.').is_some_and(|rest| field.kind.may_hold(rest)),
                None => false,
            })
    }
}

impl Kind {
    fn may_hold(&self, path: &str) -> bool {
        match self {
            Self::Record(shape) => shape.may_hold(path),
            Self::Set(kind) => kind.may_hold(path),
            Self::Free => true,
            Self::Text | Self::Bool | Self::Long | Self::Decimal => false,
        }
    }
}

fn is_object(schema: &Json) -> bool {
    schema.get("type").and_then(Json::as_text) == Some("object")
}

struct Reader<'a> {
    root: &'a Json,
    /// Types made so far: references may multiply.
    made: Cell<usize>,
}

impl Reader<'_> {
    /// The type that `schema` describes, and whether `null` fits as well.
    fn kind(&self, schema: &Json, depth: usize) -> (Kind, bool) {
        let free = (Kind::Free, true);
        self.made.set(self.made.get().saturating_add(1));
        if depth > DEPTH || self.made.get() > MADE {
            return free;
        }
        if let Some(reference) = schema.get("$ref").and_then(Json::as_text) {
            let found = reference.strip_prefix("#/").and_then(|path| self.find(path));
            return found.map_or(free, |schema| self.kind(schema, depth.saturating_add(1)));
        }
        let nullable = schema.get("nullable") == Some(&Json::Bool(true));
        let (kind, null) = match schema.get("type") {
            Some(Json::Text(name)) => (self.named(name, schema, depth), name == "null"),
            Some(Json::List(names)) => self.several(names, schema, depth),
            Some(_) => free,
            None if schema.get("properties").is_some() => (self.named("object", schema, depth), false),
            None => self.untyped(schema, depth),
        };
        (kind, nullable || null)
    }

    /// What a JSON pointer without `~` points to.
    fn find(&self, path: &str) -> Option<&Json> {
        path.split('/').try_fold(self.root, |schema, key| schema.get(key))
    }

    /// `"type": ["string", "null"]`
    fn several(&self, names: &[Json], schema: &Json, depth: usize) -> (Kind, bool) {
        let null = names.iter().any(|name| name.as_text() == Some("null"));
        let mut others = names.iter().filter_map(Json::as_text).filter(|name| *name != "null");
        match (others.next(), others.next()) {
            (Some(name), None) => (self.named(name, schema, depth), null),
            _ => (Kind::Free, true),
        }
    }

    fn named(&self, name: &str, schema: &Json, depth: usize) -> Kind {
        match name {
            "string" => Kind::Text,
            "boolean" => Kind::Bool,
            "integer" => Kind::Long,
            "number" => Kind::Decimal,
            "array" => match schema.get("items").map(|items| self.kind(items, depth.saturating_add(1))) {
                // Cedar has no null that a set could hold.
                None | Some((Kind::Free, _) | (_, true)) => Kind::Free,
                Some((kind, false)) => Kind::Set(Box::new(kind)),
            },
            "object" => self.record(schema, depth).map_or(Kind::Free, Kind::Record),
            _ => Kind::Free,
        }
    }

    /// An enumeration, or a union that is one type or null.
    fn untyped(&self, schema: &Json, depth: usize) -> (Kind, bool) {
        let one = schema.get("const").map(std::slice::from_ref);
        if let Some(values) = schema.get("enum").and_then(Json::as_list).or(one) {
            let null = values.contains(&Json::Null);
            let mut kinds = values.iter().filter(|value| **value != Json::Null).map(|value| match value {
                Json::Text(_) => Kind::Text,
                Json::Bool(_) => Kind::Bool,
                Json::Number(number) if number.as_long().is_some() => Kind::Long,
                _ => Kind::Free,
            });
            let first = kinds.next().unwrap_or(Kind::Free);
            return if kinds.all(|kind| kind == first) { (first, null) } else { (Kind::Free, true) };
        }
        let union = ["anyOf", "oneOf", "allOf"].into_iter().find_map(|key| schema.get(key)?.as_list());
        let kinds = union.unwrap_or_default().iter().map(|schema| self.kind(schema, depth.saturating_add(1)));
        let (nulls, others): (Vec<_>, Vec<_>) = kinds.partition(|kind| *kind == (Kind::Free, true));
        // A part that says only `null` is free as well; a free part beside others makes all of it free.
        let only_nulls = union.unwrap_or_default().iter().filter(|part| is_null(part)).count();
        match <[_; 1]>::try_from(others) {
            Ok([(kind, null)]) if nulls.len() == only_nulls => (kind, null || only_nulls > 0),
            _ => (Kind::Free, true),
        }
    }

    /// `None` if nothing is said about what is in it.
    fn record(&self, schema: &Json, depth: usize) -> Option<Shape> {
        let extra = schema.get("additionalProperties");
        let open = extra.is_some_and(|extra| *extra != Json::Bool(false))
            || schema.get("patternProperties").is_some();
        let properties = match schema.get("properties") {
            Some(properties) => properties.as_object()?,
            None if extra == Some(&Json::Bool(false)) && !open => &[],
            None => return None,
        };
        let required = schema.get("required").and_then(Json::as_list).unwrap_or_default();
        let is_required = |name: &str| required.iter().any(|one| one.as_text() == Some(name));
        let mut fields: Vec<Field> = properties
            .iter()
            .map(|(name, schema)| {
                let (kind, nullable) = self.kind(schema, depth.saturating_add(1));
                Field { name: name.clone(), required: is_required(name), kind, nullable }
            })
            .collect();
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        Some(Shape { fields, open })
    }
}

fn is_null(schema: &Json) -> bool {
    schema.get("type").and_then(Json::as_text) == Some("null")
}
