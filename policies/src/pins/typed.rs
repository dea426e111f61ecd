//! Arguments as their tool's shape types them. Whatever doesn't fit refuses the call before a rule is asked: left out,
//! it would make a forbid about it weaker.

use cedar_policy::RestrictedExpression;
use cedar_policy_core::ast;

use super::shape::{Kind, Shape};
use crate::{arguments::Arguments, json::Json, request::evaluated};

/// A value as Cedar types it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Typed<'a> {
    Text(&'a str),
    Bool(bool),
    Long(i64),
    Decimal(String),
    Set(Vec<Self>),
    Record(Vec<(&'a str, Self)>),
}

/// What was read of a call's arguments.
#[derive(Clone, Debug)]
pub(crate) struct Reading<'a> {
    /// `context.arguments`.
    fields: Vec<(&'a str, Typed<'a>)>,
    /// Numbers that no decimal holds exactly and that were left out: path and spelling.
    pub(crate) inexact: Vec<(Vec<String>, String)>,
}

/// Arguments that don't fit the pinned schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("the argument `{path}` must be {expected}, not {found}")]
    Kind { path: String, expected: &'static str, found: &'static str },
    #[error("the argument `{0}` is an integer beyond 64 bits, which can't be judged")]
    Large(String),
    #[error("the pinned schema of this tool has no argument `{0}`")]
    Unknown(String),
    #[error("the argument `{0}` is missing")]
    Missing(String),
}

impl Shape {
    /// The arguments as this shape types them.
    ///
    /// # Errors
    /// [`Mismatch`].
    pub(crate) fn read<'a>(&self, arguments: &'a Arguments) -> Result<Reading<'a>, Mismatch> {
        let mut reader = Reader::default();
        let fields = arguments.json().as_object().unwrap_or_default();
        let fields = reader.record(self, fields)?;
        Ok(Reading { fields, inexact: reader.inexact })
    }
}

#[derive(Default)]
struct Reader<'a> {
    path: Vec<&'a str>,
    inexact: Vec<(Vec<String>, String)>,
}

impl<'a> Reader<'a> {
    fn record(
        &mut self,
        shape: &Shape,
        fields: &'a [(String, Json)],
    ) -> Result<Vec<(&'a str, Typed<'a>)>, Mismatch> {
        let mut typed = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            self.path.push(name);
            match shape.field(name) {
                None if shape.open => {}
                None => return Err(Mismatch::Unknown(self.here())),
                Some(field) if field.nullable && *value == Json::Null => {}
                Some(field) => {
                    typed.extend(self.value(&field.kind, value)?.map(|value| (name.as_str(), value)))
                }
            }
            self.path.pop();
        }
        let has = |name: &str| fields.iter().any(|(given, _)| given == name);
        match shape.fields.iter().find(|field| field.required && !has(&field.name)) {
            Some(field) => {
                let around = self.path.iter().map(|part| format!("{part}."));
                Err(Mismatch::Missing(format!("{}{}", around.collect::<String>(), field.name)))
            }
            None => Ok(typed),
        }
    }

    /// `None` for what rules see in `context.flat` only.
    fn value(&mut self, kind: &Kind, value: &'a Json) -> Result<Option<Typed<'a>>, Mismatch> {
        Ok(Some(match (kind, value) {
            (Kind::Free, _) => return Ok(None),
            (Kind::Text, Json::Text(text)) => Typed::Text(text),
            (Kind::Bool, Json::Bool(value)) => Typed::Bool(*value),
            (Kind::Long, Json::Number(number)) => match number.as_long() {
                Some(long) => Typed::Long(long),
                None if number.as_str().contains(['.', 'e', 'E']) => return Err(self.wrong(kind, value)),
                None => return Err(Mismatch::Large(self.here())),
            },
            (Kind::Decimal, Json::Number(number)) => match number.as_decimal() {
                Some(decimal) => Typed::Decimal(decimal),
                None => {
                    let path = self.path.iter().map(ToString::to_string).collect();
                    self.inexact.push((path, number.as_str().to_owned()));
                    return Ok(None);
                }
            },
            (Kind::Record(shape), Json::Object(fields)) => Typed::Record(self.record(shape, fields)?),
            (Kind::Set(kind), Json::List(list)) => {
                let mut values = Vec::with_capacity(list.len());
                let mut whole = true;
                for value in list {
                    match self.value(kind, value)? {
                        Some(value) => values.push(value),
                        None => whole = false,
                    }
                }
                if !whole {
                    return Ok(None);
                }
                Typed::Set(values)
            }
            _ => return Err(self.wrong(kind, value)),
        }))
    }

    fn here(&self) -> String {
        self.path.join(".")
    }

    fn wrong(&self, kind: &Kind, value: &Json) -> Mismatch {
        let expected = match kind {
            Kind::Text => "text",
            Kind::Bool => "true or false",
            Kind::Long => "an integer without point or exponent",
            Kind::Decimal => "a number",
            Kind::Record(_) => "an object",
            Kind::Set(_) => "an array",
            Kind::Free => "anything",
        };
        let found = match value {
            Json::Null => "null",
            Json::Bool(_) => "true or false",
            Json::Number(_) => "another number",
            Json::Text(_) => "text",
            Json::List(_) => "an array",
            Json::Object(_) => "an object",
        };
        Mismatch::Kind { path: self.here(), expected, found }
    }
}

impl Reading<'_> {
    /// `context.arguments` with those that are `wanted`, as Cedar takes it.
    ///
    /// # Errors
    /// Cedar's own, as text: a fault inside Strait.
    pub(crate) fn value(&self, wanted: &dyn Fn(&str) -> bool) -> Result<ast::Value, String> {
        record(self.fields.iter().filter(|(name, _)| wanted(name)))
    }
}

fn record<'f, 'a: 'f>(fields: impl Iterator<Item = &'f (&'a str, Typed<'a>)>) -> Result<ast::Value, String> {
    let fields: Result<Vec<_>, String> = fields.map(|(name, value)| Ok((*name, value.value()?))).collect();
    Ok(ast::Value::record(fields?, None))
}

impl Typed<'_> {
    fn value(&self) -> Result<ast::Value, String> {
        Ok(match self {
            Self::Text(text) => ast::Value::from(*text),
            Self::Bool(value) => ast::Value::from(*value),
            Self::Long(long) => ast::Value::from(*long),
            Self::Decimal(decimal) => evaluated(&RestrictedExpression::new_decimal(decimal))?,
            Self::Set(values) => {
                let values: Result<Vec<_>, _> = values.iter().map(Self::value).collect();
                ast::Value::set(values?, None)
            }
            Self::Record(fields) => record(fields.iter())?,
        })
    }
}
