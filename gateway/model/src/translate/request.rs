//! What a request says, in neither API's words: the normal form both are read to and written from.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::{LeftOut, Refused};
use crate::translate::members::{Members, malformed};

/// Stands first in the result of a failed tool call in chat, which has no member to say so; read back as what it means.
pub(super) const FAILED: &str = "The tool call failed:";

/// A request. `model` is left out: the route names it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Said {
    pub(super) system: Vec<String>,
    pub(super) turns: Vec<Turn>,
    pub(super) max_output: Option<u64>,
    pub(super) temperature: Option<Raw>,
    pub(super) top_p: Option<Raw>,
    pub(super) stop: Vec<String>,
    pub(super) stream: bool,
    pub(super) usage: bool,
    pub(super) tools: Vec<Tool>,
    pub(super) choice: Option<Choice>,
    /// At most one tool call at a time.
    pub(super) serial: bool,
    pub(super) user: Option<String>,
    pub(super) effort: Option<Effort>,
    /// The JSON schema an answer keeps to.
    pub(super) format: Option<Raw>,
}

/// What one side says until the other does.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Turn {
    pub(super) who: Who,
    pub(super) parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Who {
    User,
    Assistant,
    /// Instructions behind the first turn; those before it are `Said::system`.
    System,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Image(Image),
    Call { id: String, name: String, arguments: Raw },
    Result { of: String, parts: Vec<Part>, failed: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Image {
    Data { media_type: String, data: String },
    Url(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) schema: Raw,
    pub(super) strict: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Auto,
    None,
    Any,
    Tool(String),
}

/// How hard to think, where both APIs have the same word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Effort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// JSON kept as it's written, so that no number changes.
#[derive(Clone, Debug)]
pub(super) struct Raw(pub(super) Box<RawValue>);

impl PartialEq for Raw {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl Raw {
    /// An object from its text; nothing is an empty one.
    pub(super) fn object(text: &str) -> Option<Self> {
        let text = if text.trim().is_empty() { "{}" } else { text.trim() };
        let raw: Box<RawValue> = serde_json::from_str(text).ok()?;
        raw.get().starts_with('{').then_some(Self(raw))
    }
}

impl Said {
    /// Adds to the turn of `who`. Empty texts say nothing and are no part.
    pub(super) fn push(
        &mut self,
        who: Who,
        parts: Vec<Part>,
        at: &str,
        to: &'static str,
    ) -> Result<(), Refused> {
        if who == Who::System && self.turns.is_empty() {
            self.system.extend(texts(parts).filter(|text| !text.is_empty()));
            return Ok(());
        }
        let parts = parts.into_iter().filter(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        for part in parts {
            if self.turns.last().is_none_or(|turn| turn.who != who) {
                self.turns.push(Turn { who, parts: Vec::new() });
            }
            let Some(turn) = self.turns.last_mut() else { continue };
            let why = match (turn.parts.last(), &part) {
                (Some(Part::Call { .. }), Part::Text(_)) => {
                    Some("chat has an assistant's text before its tool calls only")
                }
                (Some(Part::Text(_) | Part::Image(_)), Part::Result { .. }) => {
                    Some("results of tools come before what else the user says")
                }
                _ => None,
            };
            if let Some(why) = why {
                return Err(Refused::Untranslatable { at: at.to_owned(), to, why });
            }
            turn.parts.push(part);
        }
        Ok(())
    }
}

/// The texts among parts.
fn texts(parts: Vec<Part>) -> impl Iterator<Item = String> {
    parts.into_iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None })
}

/// Reads a temperature that both APIs have: 0 to 1.
pub(super) fn temperature(of: &mut Members<'_>, to: &'static str) -> Result<Option<Raw>, Refused> {
    match of.decimal("temperature")? {
        Some((_, value)) if !(0.0..=1.0).contains(&value) => Err(Refused::Untranslatable {
            at: of.at("temperature"),
            to,
            why: "messages know temperatures from 0 to 1",
        }),
        value => Ok(value.map(|(raw, _)| Raw(raw.to_owned()))),
    }
}

/// Reads how hard to think.
pub(super) fn effort(of: &mut Members<'_>, name: &str, to: &'static str) -> Result<Option<Effort>, Refused> {
    let Some(word) = of.text(name)? else { return Ok(None) };
    match word.as_str() {
        "low" => Ok(Some(Effort::Low)),
        "medium" => Ok(Some(Effort::Medium)),
        "high" => Ok(Some(Effort::High)),
        "xhigh" => Ok(Some(Effort::Xhigh)),
        "max" => Ok(Some(Effort::Max)),
        _ => Err(Refused::Untranslatable {
            at: of.at(name),
            to,
            why: "low, medium, high, xhigh and max are known to both",
        }),
    }
}

/// A name that stands for a tool or a call in both APIs.
pub(super) fn name(text: String, longest: usize, at: String) -> Result<String, Refused> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if text.is_empty() || text.len() > longest || !text.bytes().all(plain) {
        return Err(malformed(at, "a name of letters, digits, `_` and `-`, at most 64 (an id: 128) long"));
    }
    Ok(text)
}

/// A text part, its hints left out.
pub(super) fn text_part(
    mut part: Members<'_>,
    to: &'static str,
    left_out: &mut LeftOut,
) -> Result<Part, Refused> {
    let text = part.need_text("text")?;
    part.hint("cache_control", left_out);
    part.only("citations", &["[]"], to, "texts there cite nothing")?;
    part.none_left(to)?;
    Ok(Part::Text(text))
}
