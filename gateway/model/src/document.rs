//! The JSON body of a model request: read strictly where two readers could differ, edited so that every byte outside
//! of an edit stays (case 77).
//!
//! Signed thinking, unknown beta fields, big integers and odd escapes survive because nothing is written again: an edit
//! replaces one span of the text.

use std::{collections::HashSet, fmt, ops::Range};

use serde::{
    Deserializer as _,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::api::Operation;

/// Arrays and objects inside of each other that a body may have.
const MAX_DEPTH: usize = 100;
/// Members of the body that the gateway or a provider acts on. Some servers read names in any case, so another case of
/// one of these is refused.
const KNOWN: &[&str] = &[
    "background",
    "best_of",
    "cachedContent",
    "container",
    "contents",
    "generateContentRequest",
    "generationConfig",
    "include",
    "input",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "mcp_servers",
    "messages",
    "model",
    "n",
    "parallel_tool_calls",
    "prompt",
    "stream",
    "stream_options",
    "system",
    "systemInstruction",
    "tool_choice",
    "toolConfig",
    "tools",
    "web_search_options",
];

/// Why a body isn't read. Always the fault of who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Not UTF-8.
    #[error("the body isn't UTF-8 text")]
    NotText,
    /// Not JSON, or not only JSON.
    #[error("the body isn't JSON: {0}")]
    Malformed(String),
    /// A list, a string…
    #[error("the body isn't a JSON object")]
    NotObject,
    /// Too many arrays and objects inside of each other.
    #[error("the body is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// Readers differ in which one counts (case 69).
    #[error("`{0}` stands twice")]
    Duplicate(String),
    /// Some servers read it as the member it resembles.
    #[error("`{found}` differs from `{known}` in spelling alone")]
    Spelling {
        /// As it stands.
        found: String,
        /// As it should.
        known: &'static str,
    },
    /// A member isn't of the type that its API says.
    #[error("`{member}` isn't {wanted}")]
    WrongType {
        /// Which.
        member: String,
        /// What it should be.
        wanted: &'static str,
    },
}

/// One member of an object, by its places in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its name, escapes resolved.
    pub(crate) name: String,
    /// Where its name stands, quotes and all.
    pub(crate) key: Range<usize>,
    /// Where its value stands.
    pub(crate) value: Range<usize>,
}

/// The body of a model request.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    text: String,
    members: Vec<Member>,
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What people tell models isn't for logs.
        write!(f, "Document({} bytes)", self.text.len())
    }
}

impl Document {
    /// Reads a body.
    ///
    /// # Errors
    /// See [`DocumentError`].
    pub fn read(body: Vec<u8>) -> Result<Self, DocumentError> {
        let text = String::from_utf8(body).map_err(|_| DocumentError::NotText)?;
        if deeper_than(&text, MAX_DEPTH) {
            return Err(DocumentError::TooDeep);
        }
        let members = members(&text)?;
        let mut spelled = HashSet::with_capacity(members.len());
        for member in &members {
            // Gemini reads names in camel and in snake case.
            if !spelled.insert(snake_case(&member.name)) {
                return Err(DocumentError::Duplicate(member.name.clone()));
            }
            let known = KNOWN.iter().find(|known| same_spelling(known, &member.name));
            if let Some(known) =
                known.filter(|known| **known != member.name && snake_case(known) != member.name)
            {
                return Err(DocumentError::Spelling { found: member.name.clone(), known });
            }
        }
        Ok(Self { text, members })
    }

    /// The text as it stands.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The text as it stands.
    pub fn into_bytes(self) -> Vec<u8> {
        self.text.into_bytes()
    }

    /// The text of a member's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        let member = self.members.iter().find(|member| member.name == name)?;
        self.text.get(member.value.clone())
    }

    /// Names of the members in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.name.as_str())
    }

    /// A member that is a string; `None` if it is absent or `null`.
    ///
    /// # Errors
    /// [`DocumentError::WrongType`].
    pub fn string(&self, name: &str) -> Result<Option<String>, DocumentError> {
        self.typed(name, "a string")
    }

    /// A member that is `true` or `false`; `None` if it is absent or `null`.
    ///
    /// # Errors
    /// [`DocumentError::WrongType`].
    pub fn flag(&self, name: &str) -> Result<Option<bool>, DocumentError> {
        self.typed(name, "`true` or `false`")
    }

    /// A member that is a whole number; `None` if it is absent or `null`.
    ///
    /// # Errors
    /// [`DocumentError::WrongType`].
    pub fn number(&self, name: &str) -> Result<Option<u64>, DocumentError> {
        self.typed(name, "a whole number")
    }

    /// The model that the body asks for.
    ///
    /// # Errors
    /// [`DocumentError::WrongType`].
    pub fn model(&self) -> Result<Option<String>, DocumentError> {
        self.string("model")
    }

    /// Whether the body asks for a stream.
    ///
    /// # Errors
    /// [`DocumentError::WrongType`].
    pub fn stream(&self) -> Result<bool, DocumentError> {
        Ok(self.flag("stream")?.unwrap_or(false))
    }

    /// Most tokens that the answer may have, if the body says; those of every choice together.
    ///
    /// # Errors
    /// [`DocumentError::WrongType`].
    pub fn max_output(&self, operation: Operation) -> Result<Option<u64>, DocumentError> {
        let most = match operation {
            Operation::Chat => {
                let newer = self.number("max_completion_tokens")?;
                let older = self.number("max_tokens")?;
                newer.max(older)
            }
            Operation::Completions | Operation::Messages => self.number("max_tokens")?,
            Operation::Responses => self.number("max_output_tokens")?,
            Operation::Generate | Operation::StreamGenerate => self.generation_limit()?,
            _ => None,
        };
        let choices = match operation {
            Operation::Chat => self.number("n")?.unwrap_or(1),
            Operation::Completions => {
                self.number("n")?.unwrap_or(1).max(self.number("best_of")?.unwrap_or(1))
            }
            _ => 1,
        };
        Ok(most.map(|most| most.saturating_mul(choices.max(1))))
    }

    /// Gemini's limit, of every candidate together.
    fn generation_limit(&self) -> Result<Option<u64>, DocumentError> {
        let config = self.get("generationConfig").or_else(|| self.get("generation_config"));
        let Some(config) = config.filter(|text| *text != "null") else { return Ok(None) };
        let parts = members(config)?;
        once_in_any_spelling(&parts, "generationConfig")?;
        let number = |name: &str| -> Result<Option<u64>, DocumentError> {
            let found = parts.iter().find(|member| snake_case(&member.name) == name);
            let text = found.and_then(|member| config.get(member.value.clone()));
            text.map_or(Ok(None), |text| {
                serde_json::from_str(text).map_err(|_| DocumentError::WrongType {
                    member: format!("generationConfig.{name}"),
                    wanted: "a whole number",
                })
            })
        };
        let candidates = number("candidate_count")?.unwrap_or(1).max(1);
        Ok(number("max_output_tokens")?.map(|most| most.saturating_mul(candidates)))
    }

    /// Puts `json`, which must be JSON, in the place of a member's value, or behind the last member.
    ///
    /// # Errors
    /// [`DocumentError::Malformed`] if it isn't.
    pub fn set(&mut self, name: &str, json: &str) -> Result<(), DocumentError> {
        let text = match self.members.iter().find(|member| member.name == name) {
            Some(member) => spliced(&self.text, &member.value, json),
            None => {
                let key = serde_json::to_string(name).map_err(malformed)?;
                let comma = if self.members.is_empty() { "" } else { "," };
                let end = self.members.last().map_or_else(
                    || self.text.find('{').map_or(0, |brace| brace.saturating_add(1)),
                    |member| member.value.end,
                );
                spliced(&self.text, &(end..end), &format!("{comma}{key}:{json}"))
            }
        };
        self.members = members(&text)?;
        self.text = text;
        Ok(())
    }

    /// Takes a member out, if it is there.
    ///
    /// # Errors
    /// None that a document which was read can have.
    pub fn remove(&mut self, name: &str) -> Result<(), DocumentError> {
        let text = without(&self.text, &spans(&self.members), |at| {
            self.members.get(at).is_some_and(|member| member.name == name)
        });
        self.members = members(&text)?;
        self.text = text;
        Ok(())
    }

    fn typed<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        wanted: &'static str,
    ) -> Result<Option<T>, DocumentError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        serde_json::from_str(text).map_err(|_| DocumentError::WrongType { member: name.to_owned(), wanted })
    }
}

/// Members of an object by their places; each name once.
///
/// # Errors
/// [`DocumentError::Malformed`], [`DocumentError::NotObject`], [`DocumentError::Duplicate`].
pub(crate) fn members(text: &str) -> Result<Vec<Member>, DocumentError> {
    if !text.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
        serde_json::from_str::<&RawValue>(text).map_err(malformed)?;
        return Err(DocumentError::NotObject);
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let pairs = reader.deserialize_map(Pairs).map_err(malformed)?;
    reader.end().map_err(malformed)?;
    let mut found: Vec<Member> = Vec::with_capacity(pairs.len());
    let mut seen = HashSet::with_capacity(pairs.len());
    for (key, value) in pairs {
        let name: String = serde_json::from_str(key.get()).map_err(malformed)?;
        if !seen.insert(name.clone()) {
            return Err(DocumentError::Duplicate(name));
        }
        found.push(Member { name, key: place(text, key.get()), value: place(text, value.get()) });
    }
    Ok(found)
}

/// Elements of an array by their places.
///
/// # Errors
/// [`DocumentError::Malformed`].
pub(crate) fn elements(text: &str) -> Result<Vec<Range<usize>>, DocumentError> {
    let list: Vec<&RawValue> = serde_json::from_str(text).map_err(malformed)?;
    Ok(list.into_iter().map(|element| place(text, element.get())).collect())
}

/// Gemini reads names in camel and in snake case: none may stand in both.
///
/// # Errors
/// [`DocumentError::Duplicate`], named as in the object `of`.
pub(crate) fn once_in_any_spelling(parts: &[Member], of: &str) -> Result<(), DocumentError> {
    let mut seen = HashSet::with_capacity(parts.len());
    match parts.iter().find(|member| !seen.insert(snake_case(&member.name))) {
        Some(twice) => Err(DocumentError::Duplicate(format!("{of}.{}", twice.name))),
        None => Ok(()),
    }
}

/// An array with each element that `edit` gives a text for replaced by it.
///
/// # Errors
/// [`DocumentError::Malformed`] and those of `edit`.
pub(crate) fn each(
    list: &str,
    mut edit: impl FnMut(&str) -> Result<Option<String>, DocumentError>,
) -> Result<String, DocumentError> {
    let mut text = list.to_owned();
    // From behind, so that the places before stay true.
    for range in elements(list)?.into_iter().rev() {
        if let Some(edited) = edit(list.get(range.clone()).unwrap_or_default())? {
            text.replace_range(range, &edited);
        }
    }
    Ok(text)
}

/// `text`, an object or array whose parts stand at `parts`, without those that `gone` picks. Parts that stay keep the
/// text before them, comma and all.
pub(crate) fn without(text: &str, parts: &[Range<usize>], gone: impl Fn(usize) -> bool) -> String {
    let piece = |range: Range<usize>| text.get(range).unwrap_or_default();
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return text.to_owned() };
    let mut out = String::with_capacity(text.len());
    out.push_str(piece(0..first.start));
    let mut kept_any = false;
    let mut end = first.start;
    for (at, part) in parts.iter().enumerate() {
        if !gone(at) {
            if kept_any {
                out.push_str(piece(end..part.start));
            }
            out.push_str(piece(part.clone()));
            kept_any = true;
        }
        end = part.end;
    }
    out.push_str(piece(last.end..text.len()));
    out
}

/// Where members stand, name and value.
pub(crate) fn spans(members: &[Member]) -> Vec<Range<usize>> {
    members.iter().map(|member| member.key.start..member.value.end).collect()
}

/// `text` with another text at `range`.
pub(crate) fn spliced(text: &str, range: &Range<usize>, with: &str) -> String {
    let before = text.get(..range.start).unwrap_or_default();
    let after = text.get(range.end..).unwrap_or_default();
    [before, with, after].concat()
}

/// Where a part of `text` stands in it.
fn place(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    start..start.saturating_add(part.len())
}

fn malformed(error: serde_json::Error) -> DocumentError {
    DocumentError::Malformed(error.to_string())
}

/// Whether two names are read as one by who ignores case and underscores.
fn same_spelling(one: &str, other: &str) -> bool {
    let plain = |name: &str| -> Vec<u8> {
        name.bytes().filter(|byte| *byte != b'_').map(|byte| byte.to_ascii_lowercase()).collect()
    };
    one.len().abs_diff(other.len()) < 8 && plain(one) == plain(other)
}

/// A name in snake case: `googleSearch` as `google_search`.
pub(crate) fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len().saturating_add(4));
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            if !out.is_empty() && !out.ends_with('_') {
                out.push('_');
            }
            out.push(letter.to_ascii_lowercase());
        } else {
            out.push(letter);
        }
    }
    out
}

/// Whether brackets are deeper inside of each other than `most`. One pass; strings are stepped over.
fn deeper_than(text: &str, most: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth = depth.saturating_add(1);
                if depth > most {
                    return true;
                }
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Members of an object as they are written.
struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Vec<(&'de RawValue, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests;
