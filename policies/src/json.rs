//! JSON as it was written: what tools are called with is judged, shown and sent as one and the same text.
//!
//! Takes bytes of a run's or a server's; gives a tree that keeps the order of keys and every number as spelled, so
//! that writing it again changes no meaning. Refuses what two readers could read differently: a key twice, half a
//! surrogate pair, data behind the end; and what is too large, too deep or has too many parts.

mod number;

use std::{
    cell::{Cell, RefCell},
    fmt,
};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

pub use self::number::Number;

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it was spelled.
    Number(Number),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    /// An object: keys are unique, in the order they were written.
    Object(Vec<(String, Json)>),
}

/// How much is read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the text.
    pub bytes: usize,
    /// Arrays and objects inside of each other; at most 100.
    pub depth: usize,
    /// Values of any kind.
    pub nodes: usize,
}

/// Why a text is not read. Always the fault of who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not UTF-8.
    #[error("it isn't UTF-8 text")]
    NotText,
    /// Longer than [`Limits::bytes`].
    #[error("it is longer than {0} bytes")]
    TooLong(usize),
    /// Deeper than [`Limits::depth`].
    #[error("it is nested deeper than {0} levels")]
    TooDeep(usize),
    /// More values than [`Limits::nodes`].
    #[error("it has more than {0} values")]
    TooMany(usize),
    /// A key stands twice in one object: readers differ in which one counts.
    #[error("the key `{0}` stands twice in one object")]
    Duplicate(String),
    /// Not JSON, or not only JSON.
    #[error("it isn't JSON: {0}")]
    Malformed(String),
}

impl Json {
    /// Reads all of `bytes` as one value.
    ///
    /// # Errors
    /// See [`JsonError`].
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self, JsonError> {
        if bytes.len() > limits.bytes {
            return Err(JsonError::TooLong(limits.bytes));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| JsonError::NotText)?;
        let walk = Walk {
            numbers: RefCell::new(number::literals(text).into_iter()),
            nodes: Cell::new(0),
            fault: RefCell::new(None),
            limits: Limits { depth: limits.depth.min(100), ..*limits },
        };
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = Seed { walk: &walk, depth: 0 }.deserialize(&mut reader);
        let read = read.and_then(|value| reader.end().map(|()| value));
        let left_over = walk.numbers.into_inner().next().is_some();
        match (read, walk.fault.into_inner()) {
            (_, Some(fault)) => Err(fault),
            (Err(error), None) => Err(JsonError::Malformed(error.to_string())),
            // INVARIANT: each number has its own text.
            (Ok(_), None) if left_over => {
                Err(JsonError::Malformed("its numbers can't be told apart".to_owned()))
            }
            (Ok(value), None) => Ok(value),
        }
    }

    /// The value of a key, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_object()?.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The string, if this is one.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The elements, if this is an array.
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    /// Keys and values, if this is an object.
    pub fn as_object(&self) -> Option<&[(String, Self)]> {
        match self {
            Self::Object(fields) => Some(fields),
            _ => None,
        }
    }

    /// The text with the keys of every object in order: equal for values that differ in order, spacing and escapes
    /// only. Numbers stay as spelled, since `82` and `82.0` can mean different things to who reads them.
    pub fn to_sorted_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, true);
        text
    }

    fn write(&self, out: &mut String, sorted: bool) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(number) => out.push_str(number.as_str()),
            Self::Text(text) => quote(text, out),
            Self::List(list) => {
                out.push('[');
                for (at, value) in list.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    value.write(out, sorted);
                }
                out.push(']');
            }
            Self::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if sorted {
                    fields.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                }
                out.push('{');
                for (at, (key, value)) in fields.into_iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    quote(key, out);
                    out.push(':');
                    value.write(out, sorted);
                }
                out.push('}');
            }
        }
    }

    /// How many values it holds, itself included, and how deep they are; `None` beyond `limits`.
    pub(crate) fn fits(&self, limits: &Limits) -> Result<(), JsonError> {
        let mut nodes = 0_usize;
        self.count(1, limits, &mut nodes)
    }

    fn count(&self, depth: usize, limits: &Limits, nodes: &mut usize) -> Result<(), JsonError> {
        *nodes = nodes.saturating_add(1);
        if *nodes > limits.nodes {
            return Err(JsonError::TooMany(limits.nodes));
        }
        let inside: Box<dyn Iterator<Item = &Self>> = match self {
            Self::List(list) => Box::new(list.iter()),
            Self::Object(fields) => Box::new(fields.iter().map(|(_, value)| value)),
            _ => return Ok(()),
        };
        if depth > limits.depth {
            return Err(JsonError::TooDeep(limits.depth));
        }
        inside.into_iter().try_for_each(|value| value.count(depth.saturating_add(1), limits, nodes))
    }
}

/// JSON in one line, keys in the order they came.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text, false);
        f.write_str(&text)
    }
}

fn quote(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// What one reading keeps.
struct Walk<'t> {
    /// The spellings of all numbers, in the order in which they are met.
    numbers: RefCell<std::vec::IntoIter<&'t str>>,
    nodes: Cell<usize>,
    /// Why it stopped, if not for the grammar.
    fault: RefCell<Option<JsonError>>,
    limits: Limits,
}

impl Walk<'_> {
    fn fail<E: de::Error>(&self, fault: JsonError) -> E {
        let error = E::custom(&fault);
        self.fault.replace(Some(fault));
        error
    }
}

#[derive(Clone, Copy)]
struct Seed<'w, 't> {
    walk: &'w Walk<'t>,
    /// Arrays and objects around it.
    depth: usize,
}

impl Seed<'_, '_> {
    fn number<E: de::Error>(self) -> Result<Json, E> {
        match self.walk.numbers.borrow_mut().next() {
            Some(text) => Ok(Json::Number(Number::new(text))),
            None => Err(self.walk.fail(JsonError::Malformed("its numbers can't be told apart".to_owned()))),
        }
    }

    fn inside<E: de::Error>(self) -> Result<Self, E> {
        let depth = self.depth.saturating_add(1);
        let most = self.walk.limits.depth;
        if depth > most { Err(self.walk.fail(JsonError::TooDeep(most))) } else { Ok(Self { depth, ..self }) }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        let nodes = self.walk.nodes.get().saturating_add(1);
        self.walk.nodes.set(nodes);
        if nodes > self.walk.limits.nodes {
            return Err(self.walk.fail(JsonError::TooMany(self.walk.limits.nodes)));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Json, E> {
        self.number()
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Json, E> {
        self.number()
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Json, E> {
        self.number()
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let seed = self.inside()?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(seed)? {
            values.push(value);
        }
        Ok(Json::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let seed = self.inside()?;
        let mut fields = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            fields.push((key, map.next_value_seed(seed)?));
        }
        let mut keys: Vec<&str> = fields.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        if let Some((twice, _)) = keys.iter().zip(keys.iter().skip(1)).find(|(a, b)| a == b) {
            return Err(self.walk.fail(JsonError::Duplicate((*twice).to_owned())));
        }
        Ok(Json::Object(fields))
    }
}

#[cfg(test)]
mod tests;
