//! The count while an answer runs.

use super::place::{Family, Place};
use super::scan::Seen;
use super::usage::Usage;
use crate::estimate::Weight;

/// Longer names of models aren't kept.
const MODEL: usize = 256;

/// What was seen so far.
#[derive(Debug)]
pub(super) struct Tally {
    family: Family,
    pub(super) usage: Usage,
    pub(super) text: Weight,
    pub(super) model: Option<String>,
    /// Whether the counts are the last ones: nothing will be added to them.
    pub(super) settled: bool,
    /// Whether the answer came to its end.
    pub(super) complete: bool,
    pub(super) failed: bool,
    finished: bool,
    event: Event,
    calls: Vec<(String, u64)>,
}

/// What the event or answer being read said.
#[derive(Debug, Default)]
struct Event {
    kind: Option<String>,
    item: Option<String>,
    status: Option<String>,
    usage: bool,
    choices: bool,
}

impl Tally {
    pub(super) fn new(family: Family) -> Tally {
        Tally {
            family,
            usage: Usage::default(),
            text: Weight::default(),
            model: None,
            settled: false,
            complete: false,
            failed: false,
            finished: false,
            event: Event::default(),
            calls: Vec::new(),
        }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// Whether the event being read holds a part of an answer.
    pub(super) fn shows_choice(&self) -> bool {
        self.event.choices
    }

    /// Whether the event being read holds nothing but counts.
    pub(super) fn only_usage(&self) -> bool {
        self.event.usage && !self.event.choices
    }

    /// Chat's `[DONE]`.
    pub(super) fn done(&mut self) {
        self.complete |= self.family == Family::Chat && !self.failed;
    }

    /// An event of a stream ended; `whole` if it was whole JSON.
    pub(super) fn event_ends(&mut self, whole: bool) {
        let event = std::mem::take(&mut self.event);
        let kind = event.kind.as_deref().unwrap_or("");
        match self.family {
            Family::Chat => {
                self.settled |= event.usage && self.finished;
                self.complete |= whole && self.finished && !self.failed;
            }
            Family::Messages => {
                self.settled |= event.usage && kind == "message_delta";
                self.complete |= whole && kind == "message_stop" && !self.failed;
                self.failed |= kind == "error";
            }
            Family::Responses => {
                self.settled |= event.usage;
                match kind {
                    "response.completed" | "response.incomplete" => self.complete |= whole,
                    "response.failed" | "response.cancelled" | "error" => self.failed = true,
                    "response.output_item.done" => self.called(event.item.as_deref()),
                    _ => {}
                }
            }
            Family::Gemini => {
                self.settled |= event.usage && self.finished;
                self.complete |= self.finished;
            }
        }
    }

    /// An answer that wasn't a stream of events ended; `whole` if it was whole JSON.
    pub(super) fn answer_ends(&mut self, whole: bool, embeds: bool) {
        let event = std::mem::take(&mut self.event);
        self.called(event.item.as_deref());
        self.settled = event.usage && whole;
        self.failed |= matches!(event.status.as_deref(), Some("failed" | "cancelled"));
        let ended = match self.family {
            Family::Gemini | Family::Chat if !embeds => self.finished,
            _ => true,
        };
        self.complete = whole && ended && !self.failed;
    }

    /// What server tools were used beside those the counts name.
    pub(super) fn take_calls(&mut self) {
        for (name, count) in std::mem::take(&mut self.calls) {
            self.usage.unit(&name, count);
        }
    }

    /// An item of a response; those of tools that OpenAI runs have a price each.
    fn called(&mut self, item: Option<&str>) {
        let name = match item {
            Some("web_search_call") => "web_search",
            Some("file_search_call") => "file_search",
            Some("code_interpreter_call") => "code_interpreter",
            _ => return,
        };
        match self.calls.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count = count.saturating_add(1),
            None => self.calls.push((name.to_owned(), 1)),
        }
    }
}

impl Seen for Tally {
    fn text(&mut self, piece: &[u8]) {
        self.text.add(piece);
    }

    fn value(&mut self, place: Place, raw: &[u8]) {
        match place {
            Place::Usage => self.event.usage |= self.usage.read(self.family, raw),
            Place::Model => self.model = string(raw).or_else(|| self.model.take()),
            Place::Kind => self.event.kind = string(raw),
            Place::Status => self.event.status = string(raw),
            Place::Finish => self.finished |= raw != b"null",
            Place::Error => self.failed |= raw != b"null",
            // Of a whole response the items come one behind the other, in an event alone.
            Place::ItemKind => {
                let before = std::mem::replace(&mut self.event.item, string(raw));
                self.called(before.as_deref());
            }
            Place::Query => {
                let queries =
                    serde_json::from_slice::<Vec<serde::de::IgnoredAny>>(raw).map_or(0, |list| list.len());
                self.usage.unit("google_search", u64::try_from(queries).unwrap_or(0));
            }
            _ => {}
        }
    }

    fn choice(&mut self) {
        self.event.choices = true;
    }
}

fn string(raw: &[u8]) -> Option<String> {
    let text: String = serde_json::from_slice(raw).ok()?;
    (text.len() <= MODEL).then_some(text)
}
