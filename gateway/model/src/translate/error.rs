//! Error bodies, whole and inside of streams.

use serde::Serialize;
use serde_json::value::RawValue;

use super::members::{Members, whole};
use super::{Direction, json};

/// The longest message taken over, bytes.
const MAX_MESSAGE: usize = 4096;

/// An error answer for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorBody {
    /// The HTTP status. The provider's own, but for 529, which only Anthropic's clients know: chat gets 503.
    pub status: u16,
    /// A body in the client's shape, `application/json`.
    pub body: Vec<u8>,
}

/// Translates an error answer of the provider's for the client of a request of `direction`. A body that isn't the
/// provider's shape (a proxy's HTML) is told as such; the text isn't taken over.
#[must_use]
pub fn error(direction: Direction, status: u16, body: &[u8]) -> ErrorBody {
    let read = whole(body).ok().and_then(read);
    let (kind, message) =
        read.unwrap_or_else(|| (String::new(), format!("the provider answered {status} without saying why")));
    match direction {
        Direction::ChatToMessages => ErrorBody {
            status: if status == 529 { 503 } else { status },
            body: chat(chat_kind(&kind, status), &message),
        },
        Direction::MessagesToChat => {
            ErrorBody { status, body: messages(messages_kind(&kind, status), &message) }
        }
    }
}

/// Type and message of either API's error: `{"error": {"type", "message"}}` in both.
pub(super) fn read(raw: &RawValue) -> Option<(String, String)> {
    let mut of = Members::read("", raw).ok()?;
    read_inner(of.object("error").ok()??)
}

pub(super) fn read_inner(mut error: Members<'_>) -> Option<(String, String)> {
    let mut message = error.text("message").ok()??;
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    let mut kind = error.text("type").ok().flatten().unwrap_or_default();
    kind.truncate(kind.floor_char_boundary(64));
    Some((kind, message))
}

fn chat_kind(kind: &str, status: u16) -> &'static str {
    match (kind, status) {
        ("invalid_request_error" | "not_found_error" | "request_too_large", _) => "invalid_request_error",
        ("authentication_error", _) => "authentication_error",
        ("permission_error", _) => "permission_error",
        ("rate_limit_error", _) | (_, 429) => "rate_limit_error",
        ("billing_error", _) => "insufficient_quota",
        ("overloaded_error" | "api_error" | "timeout_error", _) | (_, 500..) => "server_error",
        _ => "invalid_request_error",
    }
}

fn messages_kind(kind: &str, status: u16) -> &'static str {
    match (kind, status) {
        ("insufficient_quota", _) => "billing_error",
        (_, 401) => "authentication_error",
        (_, 403) => "permission_error",
        (_, 404) => "not_found_error",
        (_, 413) => "request_too_large",
        (_, 429) => "rate_limit_error",
        (_, 503 | 529) => "overloaded_error",
        (_, 504) => "timeout_error",
        (_, 400..500) => "invalid_request_error",
        ("rate_limit_error" | "rate_limit_exceeded" | "tokens" | "requests", _) => "rate_limit_error",
        ("invalid_request_error", _) => "invalid_request_error",
        _ => "api_error",
    }
}

#[derive(Serialize)]
struct Chat<'a> {
    error: ChatError<'a>,
}

#[derive(Serialize)]
struct ChatError<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<()>,
    code: Option<()>,
}

#[derive(Serialize)]
struct Messages<'a> {
    r#type: &'static str,
    error: MessagesError<'a>,
}

#[derive(Serialize)]
struct MessagesError<'a> {
    r#type: &'a str,
    message: &'a str,
}

fn chat(r#type: &str, message: &str) -> Vec<u8> {
    json(&Chat { error: ChatError { message, r#type, param: None, code: None } })
}

fn messages(r#type: &str, message: &str) -> Vec<u8> {
    json(&Messages { r#type: "error", error: MessagesError { r#type, message } })
}

/// An error event of a stream for the client.
pub(super) fn event(direction: Direction, kind: &str, message: &str, out: &mut Vec<u8>) {
    // A stream has no status of its own: 500 unless the type says better.
    match direction {
        Direction::ChatToMessages => {
            out.extend_from_slice(b"data: ");
            out.extend(chat(chat_kind(kind, 500), message));
        }
        Direction::MessagesToChat => {
            out.extend_from_slice(b"event: error\ndata: ");
            out.extend(messages(messages_kind(kind, 500), message));
        }
    }
    out.extend_from_slice(b"\n\n");
}
