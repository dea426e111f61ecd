//! One API's words in another's: OpenAI chat completions and Anthropic messages, both ways (A18): requests, answers,
//! streams, errors.
//!
//! What the other API can't say is refused with its JSON pointer. What is only a hint to the provider and changes no
//! answer (a cache mark, an image's detail) is left out and named in `left_out`, for the record.
//!
//! Architecture invariant: an object is read by taking its known members; whatever is left over is refused (requests)
//! or named (answers), so nothing can be dropped because nobody thought of it.

mod answer;
mod chat_request;
mod error;
mod members;
mod messages_request;
mod request;
mod sse;
mod stream;

pub use error::{ErrorBody, error};
pub use stream::Stream;

use crate::api::{Dialect, Operation};

/// The `anthropic-version` header that messages translated from chat are sent with.
pub const ANTHROPIC_VERSION: &str = "2023-06-01";
/// The most names kept in `left_out`.
const MAX_LEFT_OUT: usize = 32;

/// What the client speaks and what the provider does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A chat request to a provider of messages; its answer comes back as chat.
    ChatToMessages,
    /// A messages request to a provider of chat; its answer comes back as messages.
    MessagesToChat,
}

impl Direction {
    /// The translation that takes a call of `operation` to a provider of `to`; `None`: there's none (or none needed).
    #[must_use]
    pub fn between(operation: Operation, to: Dialect) -> Option<Self> {
        match (operation, to) {
            (Operation::Chat, Dialect::Anthropic) => Some(Self::ChatToMessages),
            (Operation::Messages, Dialect::OpenAi) => Some(Self::MessagesToChat),
            _ => None,
        }
    }

    /// What the provider is asked for.
    #[must_use]
    pub fn operation(self) -> Operation {
        match self {
            Self::ChatToMessages => Operation::Messages,
            Self::MessagesToChat => Operation::Chat,
        }
    }
}

/// Why something wasn't translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The other API has no word for it. The route's fault (or the client's, who asked for it by that route).
    #[error("`{at}` can't be said in {to}: {why}; leave it out or route this call within its own api")]
    Untranslatable {
        /// JSON pointer of the member.
        at: String,
        /// The other API.
        to: &'static str,
        /// What it lacks.
        why: &'static str,
    },
    /// It isn't what its own API has. The fault of who sent it.
    #[error("`{at}` is not as its api has it: {why}")]
    Malformed {
        /// JSON pointer of the member; `/` is the whole.
        at: String,
        /// What was expected.
        why: &'static str,
    },
    /// A stream's event was longer than is kept.
    #[error("an event of the provider's stream is longer than {0} bytes")]
    TooLong(usize),
    /// A stream ended before its end (case 75).
    #[error("the provider's stream ended before the answer did")]
    Cut,
    /// The provider reported an error inside of a stream.
    #[error("the provider reported `{kind}`: {message}")]
    Upstream {
        /// The provider's type of error.
        kind: String,
        /// The provider's message.
        message: String,
    },
}

/// A translated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The body to send.
    pub body: Vec<u8>,
    /// Pointers of hints that were left out, at most 32.
    pub left_out: Vec<String>,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// Whether the client wants a stream's usage (chat: `include_usage`; messages: always).
    pub usage: bool,
}

/// A translated answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The body for the client.
    pub body: Vec<u8>,
    /// Pointers of what the client's API has no place for, at most 32.
    pub left_out: Vec<String>,
}

/// Translates a request. `model` is the provider's; `max_output` is the bound on output tokens put where chat gives
/// none and messages must have one.
///
/// # Errors
/// [`Refused::Untranslatable`], [`Refused::Malformed`].
pub fn request(direction: Direction, body: &[u8], model: &str, max_output: u64) -> Result<Request, Refused> {
    let mut left_out = LeftOut::default();
    let raw = members::whole(body)?;
    let (read, body) = match direction {
        Direction::ChatToMessages => {
            let read = chat_request::read(raw, &mut left_out)?;
            let body = messages_request::write(&read, model, max_output);
            (read, body)
        }
        Direction::MessagesToChat => {
            let read = messages_request::read(raw, &mut left_out)?;
            let body = chat_request::write(&read, model);
            (read, body)
        }
    };
    Ok(Request { body, left_out: left_out.0, stream: read.stream, usage: read.usage })
}

/// Translates a whole (not streamed) answer of a request of `direction` back. `now`: seconds since the epoch, for
/// chat's `created`.
///
/// # Errors
/// [`Refused::Untranslatable`], [`Refused::Malformed`]: the provider's.
pub fn answer(direction: Direction, body: &[u8], now: u64) -> Result<Answer, Refused> {
    let mut left_out = LeftOut::default();
    let raw = members::whole(body)?;
    let body = match direction {
        Direction::ChatToMessages => answer::write_chat(&answer::read_messages(raw, &mut left_out)?, now),
        Direction::MessagesToChat => answer::write_messages(&answer::read_chat(raw, &mut left_out)?),
    };
    Ok(Answer { body, left_out: left_out.0 })
}

/// Pointers of what was left out: the first few, each once.
#[derive(Debug, Default)]
struct LeftOut(Vec<String>);

impl LeftOut {
    fn name(&mut self, at: impl Into<String>) {
        let at = at.into();
        if self.0.len() < MAX_LEFT_OUT && !self.0.contains(&at) {
            self.0.push(at);
        }
    }
}

/// Serialises what can't fail to: structs of texts, numbers and valid raw JSON.
fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
