//! The words of a refusal: one place for status, body and hint.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use strait_contract::code::Code;
use strait_policies::{Ask, Question};

use crate::decide::Refused;

/// Header that names the record of a refusal.
pub const RECORD_HEADER: &str = "x-strait-record";

/// HTTP status of a code.
pub fn status(code: Code) -> StatusCode {
    match code {
        Code::MalformedRequest | Code::UnknownProtocol => StatusCode::BAD_REQUEST,
        Code::NameMismatch => StatusCode::MISDIRECTED_REQUEST,
        Code::UpgradeRefused => StatusCode::UPGRADE_REQUIRED,
        Code::LimitExceeded | Code::BudgetExceeded => StatusCode::TOO_MANY_REQUESTS,
        Code::TokenMissing | Code::TokenUnknown => StatusCode::UNAUTHORIZED,
        Code::NotFound | Code::ToolUnknown => StatusCode::NOT_FOUND,
        Code::RecordUnavailable | Code::CredentialUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::UpstreamName | Code::UpstreamUnreachable | Code::UpstreamTls | Code::UpstreamProtocol => {
            StatusCode::BAD_GATEWAY
        }
        Code::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::FORBIDDEN,
    }
}

/// Body of a refusal over HTTP.
#[derive(Serialize)]
struct Body<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    code: &'static str,
    message: String,
    rule: Option<&'a str>,
    reason: &'a str,
    record: String,
    hint: Option<&'a str>,
}

/// One line with code, reason and record id, for clients that show nothing else.
pub fn message(refused: &Refused) -> String {
    let kind = if is_policy(refused.code) { "refused by policy" } else { "not done" };
    let rule = refused.rules.first().map(|rule| format!(" (rule `{rule}`)")).unwrap_or_default();
    format!("{}: {kind}: {}{rule} [record {}]", refused.code, refused.reason, refused.id)
}

/// Whether asking again is of no use until somebody changes policy or config.
fn is_policy(code: Code) -> bool {
    status(code) == StatusCode::FORBIDDEN
}

/// Whether the same call may do better later without anybody changing anything.
pub(crate) fn is_retryable(code: Code) -> bool {
    code != Code::BudgetExceeded
        && matches!(
            status(code),
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::BAD_GATEWAY
                | StatusCode::GATEWAY_TIMEOUT
        )
}

/// The JSON body of a refusal.
pub fn body(refused: &Refused) -> Bytes {
    let error = Error {
        code: refused.code.as_str(),
        message: message(refused),
        rule: refused.rules.first().map(String::as_str),
        reason: &refused.reason,
        record: refused.id.to_string(),
        hint: refused.hint.as_deref(),
    };
    let mut text = serde_json::to_vec(&Body { error }).unwrap_or_default();
    text.push(b'\n');
    Bytes::from(text)
}

/// A refusal as an HTTP answer.
pub fn response(refused: &Refused) -> Response<Bytes> {
    let body = body(refused);
    let mut response = Response::new(body);
    *response.status_mut() = status(refused.code);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(id) = HeaderValue::from_str(&refused.id.to_string()) {
        headers.insert(RECORD_HEADER, id);
    }
    if is_policy(refused.code) || refused.code == Code::BudgetExceeded {
        // Model clients stop retrying on this; nobody else minds it.
        headers.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    response
}

/// A refusal as the bytes of an HTTP/1.1 answer that ends its connection.
pub fn raw(refused: &Refused) -> Vec<u8> {
    let response = response(refused);
    let status = response.status();
    let mut text =
        format!("HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or_default())
            .into_bytes();
    for (name, value) in response.headers() {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    let body = response.body();
    text.extend_from_slice(format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()).as_bytes());
    text.extend_from_slice(body);
    text
}

/// The policy that would permit this call, and what else it would permit: a rule for a tool of an MCP server leaves its
/// arguments open.
pub(crate) fn how_to_allow(question: &Question<'_>) -> String {
    let what = match &question.ask {
        Ask::Tool(_) => "this tool with any arguments (a condition on `context.arguments` narrows it)",
        Ask::McpMethod { .. } => "this method with any parameters",
        Ask::ServerTool(_) => "this tool of the provider's, whatever it is asked",
        Ask::Http(_) | Ask::Connect { .. } | Ask::Dns { .. } => "exactly this call",
    };
    format!(
        "no policy permits this; to allow {what}, the operator adds to a file in /etc/strait/policies: {}",
        strait_policies::suggest(question)
    )
}
