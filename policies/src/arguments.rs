//! What a tool is called with: read once, judged, shown to approvers, and sent as the same text.

#[cfg(any(test, fuzzing))]
pub mod properties;

use std::collections::{BTreeMap, BTreeSet};

use crate::json::{Json, JsonError, Limits};

/// Most that a tool is called with.
pub const LIMITS: Limits = Limits { bytes: 256 * 1024, depth: 32, nodes: 4096 };
/// Bytes of all dotted paths together: a long key over many values makes many long paths.
const PATHS: usize = 1 << 20;

/// The arguments of a call: a JSON object within [`LIMITS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments(Json);

/// Why they aren't taken. The fault of who calls: to be refused as malformed, before policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// Not readable, or beyond a limit.
    #[error("the arguments can't be taken: {0}")]
    Json(#[from] JsonError),
    /// Not an object.
    #[error("the arguments are not a JSON object")]
    NotObject,
    /// Long keys over many values.
    #[error("the keys of the arguments are too long for so many values")]
    LongPaths,
}

impl Arguments {
    /// Reads the text of an object.
    ///
    /// # Errors
    /// See [`ArgumentsError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ArgumentsError> {
        Self::checked(Json::parse(bytes, &LIMITS)?)
    }

    /// Takes them out of a message that was read by [`Json::parse`] with limits of its own.
    ///
    /// # Errors
    /// See [`ArgumentsError`].
    pub fn from_json(json: Json) -> Result<Self, ArgumentsError> {
        json.fits(&LIMITS)?;
        if json.to_string().len() > LIMITS.bytes {
            return Err(JsonError::TooLong(LIMITS.bytes).into());
        }
        Self::checked(json)
    }

    /// No arguments: `{}`.
    pub fn none() -> Self {
        Self(Json::Object(Vec::new()))
    }

    fn checked(json: Json) -> Result<Self, ArgumentsError> {
        if json.as_object().is_none() {
            return Err(ArgumentsError::NotObject);
        }
        let mut room = 0_usize;
        leaves(&json, &mut String::new(), &mut |path, _| room = room.saturating_add(path.len()));
        if room > PATHS { Err(ArgumentsError::LongPaths) } else { Ok(Self(json)) }
    }

    /// As JSON, to be sent: keys in their order, numbers as spelled.
    pub fn json(&self) -> &Json {
        &self.0
    }

    /// What tells these arguments from others, whatever the order of their keys: the input of an approval's digest
    /// and what an approver is shown.
    pub fn to_sorted_text(&self) -> String {
        self.0.to_sorted_text()
    }

    /// Every value by its dotted path, as `context.flat` has it. Elements of an array share its path; an empty array
    /// or object has no value at its path; numbers are in one spelling, and also in that of the nearest double.
    pub fn flat(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut flat: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        leaves(&self.0, &mut String::new(), &mut |path, value| {
            let texts = flat.entry(path.to_owned()).or_default();
            match value {
                Json::Null => texts.extend(["null".to_owned()]),
                Json::Bool(value) => texts.extend([value.to_string()]),
                Json::Number(number) => {
                    texts.insert(number.canonical());
                    texts.extend(number.canonical_double());
                }
                Json::Text(text) => texts.extend([text.clone()]),
                Json::List(_) | Json::Object(_) => {}
            }
        });
        flat
    }
}

/// Calls `each` with every value that has no others in it, and its path.
fn leaves(value: &Json, path: &mut String, each: &mut dyn FnMut(&str, &Json)) {
    match value {
        Json::List(list) if !list.is_empty() => list.iter().for_each(|value| leaves(value, path, each)),
        Json::Object(fields) if !fields.is_empty() => {
            let length = path.len();
            for (key, value) in fields {
                if length > 0 {
                    path.push('.');
                }
                path.push_str(key);
                leaves(value, path, each);
                path.truncate(length);
            }
        }
        // The root itself has no path.
        _ if path.is_empty() && matches!(value, Json::Object(_)) => {}
        _ => each(path, value),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_refused_or_read_written_and_decided_alike(
            fields in prop::collection::btree_map("[sinbaof]|\\PC{0,3}", prop_oneof![
                "[0-9-]{1,3}(\\.[0-9]{1,6})?(e[0-9]{1,3})?",
                "\"[x-z\\PC]{0,5}\"",
                Just("null".to_owned()),
                Just("true".to_owned()),
                "\\[(\"x\"|1|\\{\\})\\]",
                "\\{\"(i|n|x)\":(7|1|1\\.23456|null|\"1\")\\}",
            ], 0..5),
        ) {
            let fields: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
            properties::what_is_read_is_decided(format!("{{{}}}", fields.join(",")).as_bytes());
        }
    }

    fn flat(text: &str) -> Vec<(String, Vec<String>)> {
        let flat = Arguments::parse(text.as_bytes()).unwrap().flat();
        flat.into_iter().map(|(path, values)| (path, values.into_iter().collect())).collect()
    }

    fn row(path: &str, values: &[&str]) -> (String, Vec<String>) {
        (path.to_owned(), values.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_value_is_found_at_its_path_in_one_spelling() {
        let text = r#"{"repo":"a/b","n":1e2,"big":9007199254740993,"flag":true,"none":null,"labels":["b","a","b"],
            "nested":{"x":{"y":1.50}},"items":[{"id":1},{"id":2,"name":"z"}],"empty":[],"hollow":{}}"#;
        assert_eq!(
            flat(text),
            [
                row("big", &["9007199254740992", "9007199254740993"]),
                row("empty", &[]),
                row("flag", &["true"]),
                row("hollow", &[]),
                row("items.id", &["1", "2"]),
                row("items.name", &["z"]),
                row("labels", &["a", "b"]),
                row("n", &["100"]),
                row("nested.x.y", &["1.5"]),
                row("none", &["null"]),
                row("repo", &["a/b"]),
            ]
        );
        assert_eq!(flat("{}"), []);
        assert_eq!(flat(r#"{"":1,"a.b":1,"a":{"b":2}}"#), [row("", &["1"]), row("a.b", &["1", "2"])]);
    }

    #[test]
    fn what_is_too_much_is_refused_whichever_way_it_comes() {
        let nested = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let many = |count: usize| format!("{{\"a\":[{}]}}", vec!["1"; count].join(","));
        let long = |length: usize| format!("{{\"a\":\"{}\"}}", "a".repeat(length));
        let keys = format!("{{\"{}\":[{}]}}", "k".repeat(1000), vec!["1"; 2000].join(","));
        let wide = Limits { bytes: 1 << 24, depth: 100, nodes: 1 << 20 };
        let json = |text: &str| Json::parse(text.as_bytes(), &wide).unwrap();
        let too = |error| Err(ArgumentsError::Json(error));
        for (text, expected) in [
            (nested(33), too(JsonError::TooDeep(32))),
            (many(4095), too(JsonError::TooMany(4096))),
            (long(LIMITS.bytes), too(JsonError::TooLong(LIMITS.bytes))),
            (keys, Err(ArgumentsError::LongPaths)),
            ("[]".to_owned(), Err(ArgumentsError::NotObject)),
            ("null".to_owned(), Err(ArgumentsError::NotObject)),
        ] {
            assert_eq!(Arguments::parse(text.as_bytes()), expected);
            assert_eq!(Arguments::from_json(json(&text)), expected);
        }
        for text in [nested(32), many(4094), long(LIMITS.bytes - 8), "{}".to_owned()] {
            assert_eq!(Arguments::parse(text.as_bytes()), Arguments::from_json(json(&text)));
            Arguments::parse(text.as_bytes()).unwrap();
        }
    }
}
