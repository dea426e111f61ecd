//! What the head of a request must say, and what of it must agree with the body (MCP 2026-07-28, *header
//! standardization*): a server, or something before it, may act on either.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, StatusCode, header};
use strait_policies::json::Json;

use super::message::{Fault, Message, rpc};

/// Protocol version of a request.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// Session of a request.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const PARAM: &str = "mcp-param-";

/// Versions with sessions.
const SESSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
/// The version without.
const STATELESS: &str = "2026-07-28";
/// Where the body of a request says its version.
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// Whether a client takes server-sent events.
pub(crate) fn takes_events(headers: &HeaderMap) -> bool {
    accepts(headers, "text", "event-stream")
}

/// Checks the media types of a request with a body.
///
/// # Errors
/// 406 and 415, as servers answer.
pub(crate) fn check_media(headers: &HeaderMap) -> Result<(), Fault> {
    if !accepts(headers, "application", "json") && !takes_events(headers) {
        let reason = "`Accept` lists neither application/json nor text/event-stream";
        return Err(Fault::malformed(rpc::INVALID, reason).status(StatusCode::NOT_ACCEPTABLE));
    }
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let json = types.next().is_some_and(|value| is_media(value.as_bytes(), b"application/json"));
    if !json || types.next().is_some() || headers.contains_key(header::CONTENT_ENCODING) {
        let reason = "the body is not plain application/json";
        return Err(Fault::malformed(rpc::INVALID, reason).status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    Ok(())
}

/// Whether a content type is this one, whatever its parameters.
pub(crate) fn is_media(value: &[u8], media: &[u8]) -> bool {
    let essence = value.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(media)
}

fn accepts(headers: &HeaderMap, kind: &str, sub: &str) -> bool {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges = values.flat_map(|value| value.split(','));
    ranges.any(|range| {
        let range = range.split(';').next().unwrap_or_default().trim();
        let (one, two) = range.split_once('/').unwrap_or((range, ""));
        (one == "*" || one.eq_ignore_ascii_case(kind)) && (two == "*" || two.eq_ignore_ascii_case(sub))
    })
}

/// The only value of a field.
///
/// # Errors
/// If there are two, or it isn't text: readers differ in which one counts.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Fault> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    let reason = || format!("`{name}` stands twice, or isn't text");
    if values.next().is_some() {
        return Err(Fault::malformed(rpc::HEADERS, reason()));
    }
    first.map(|value| value.to_str().map_err(|_| Fault::malformed(rpc::HEADERS, reason()))).transpose()
}

/// Checks the protocol version of a request; tells whether it is the stateless one.
///
/// # Errors
/// A version that isn't spoken here, or another in the body.
pub(crate) fn check_version(headers: &HeaderMap, message: Option<&Message>) -> Result<bool, Fault> {
    let told = single(headers, &VERSION)?;
    let meta = message.and_then(|message| message.param("_meta")?.get(META_VERSION));
    let stateless = match told {
        None => false,
        Some(STATELESS) => true,
        Some(version) if SESSIONS.contains(&version) => false,
        Some(version) => {
            let reason = format!("the protocol version `{version}` isn't spoken here");
            return Err(Fault::malformed(rpc::VERSION, reason));
        }
    };
    if meta.is_some_and(|meta| meta.as_text() != told) {
        return Err(mismatch("MCP-Protocol-Version", META_VERSION));
    }
    if stateless
        && meta.is_none()
        && message.is_some_and(|message| matches!(message.kind, super::message::Kind::Request { .. }))
    {
        return Err(Fault::malformed(rpc::PARAMS, format!("`params._meta` has no `{META_VERSION}`")));
    }
    Ok(stateless)
}

/// Checks that mirrored fields say what the body says. In the stateless version they must be there.
///
/// # Errors
/// [`rpc::HEADERS`].
pub(crate) fn check_mirrored(headers: &HeaderMap, message: &Message, stateless: bool) -> Result<(), Fault> {
    let method = single(headers, &METHOD)?;
    if method != message.method() && (stateless || method.is_some()) {
        return Err(mismatch("Mcp-Method", "method"));
    }
    let key = match message.method() {
        Some("tools/call" | "prompts/get") => Some("name"),
        Some("resources/read") => Some("uri"),
        _ => None,
    };
    let body = key.and_then(|key| message.param(key)).and_then(Json::as_text);
    let told =
        single(headers, &NAME)?.map(|value| decoded(value).ok_or_else(|| mismatch("Mcp-Name", "params")));
    let told = told.transpose()?;
    if told.as_deref() != body && (stateless || told.is_some()) {
        return Err(mismatch("Mcp-Name", key.unwrap_or("params")));
    }
    for name in headers.keys().filter(|name| name.as_str().starts_with(PARAM)) {
        // Which argument it mirrors only the schema says; a value that no argument has mirrors none.
        let value = single(headers, name)?.and_then(decoded);
        let mirrors =
            |value: &str| message.param("arguments").is_some_and(|arguments| has_value(arguments, value));
        if !value.is_some_and(|value| mirrors(&value)) {
            return Err(mismatch(name.as_str(), "params.arguments"));
        }
    }
    Ok(())
}

fn mismatch(header: &str, body: &str) -> Fault {
    Fault::malformed(
        rpc::HEADERS,
        format!("the header `{header}` doesn't say what the body says in `{body}`"),
    )
}

/// A value as it was before it was made fit for a field; `None` if it can't have been.
fn decoded(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

fn has_value(json: &Json, wanted: &str) -> bool {
    match json {
        Json::Null => false,
        Json::Bool(value) => wanted == if *value { "true" } else { "false" },
        Json::Number(number) => number.as_str() == wanted,
        Json::Text(text) => text == wanted,
        Json::List(list) => list.iter().any(|value| has_value(value, wanted)),
        Json::Object(fields) => fields.iter().any(|(_, value)| has_value(value, wanted)),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    fn call(meta: &str) -> Message {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"pay","arguments":{{"to":"Zoë","amount":82}},"_meta":{meta}}}}}"#
        );
        Message::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn versions_are_those_that_are_spoken_here() {
        let stateless = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        for (told, meta, expect) in [
            (None, "{}", Ok(false)),
            (Some("2025-03-26"), "{}", Ok(false)),
            (Some("2025-11-25"), "{}", Ok(false)),
            (Some("2026-07-28"), stateless, Ok(true)),
            (Some("2026-07-28"), "{}", Err(rpc::PARAMS)),
            (Some("2025-11-25"), stateless, Err(rpc::HEADERS)),
            (None, stateless, Err(rpc::HEADERS)),
            (Some("2099-01-01"), "{}", Err(rpc::VERSION)),
        ] {
            let told: Vec<_> = told.map(|told| ("mcp-protocol-version", told)).into_iter().collect();
            let got = check_version(&headers(&told), Some(&call(meta))).map_err(|fault| fault.rpc);
            assert_eq!(got, expect, "{told:?} {meta}");
        }
        let twice =
            headers(&[("mcp-protocol-version", "2025-11-25"), ("mcp-protocol-version", "2025-06-18")]);
        assert_eq!(check_version(&twice, None).unwrap_err().rpc, rpc::HEADERS);
    }

    #[test]
    fn mirrored_fields_say_what_the_body_says() {
        let message = call("{}");
        let good: &[&[(&'static str, &'static str)]] = &[
            &[("mcp-method", "tools/call"), ("mcp-name", "pay")],
            &[
                ("mcp-method", "tools/call"),
                ("mcp-name", "=?base64?cGF5?="),
                ("mcp-param-to", "=?base64?Wm/Dqw==?="),
            ],
            &[("mcp-method", "tools/call"), ("mcp-name", "pay"), ("mcp-param-amount", "82")],
        ];
        for fields in good {
            assert!(check_mirrored(&headers(fields), &message, true).is_ok(), "{fields:?}");
            assert!(check_mirrored(&headers(fields), &message, false).is_ok(), "{fields:?}");
        }
        let bad: &[&[(&'static str, &'static str)]] = &[
            &[("mcp-method", "tools/list"), ("mcp-name", "pay")],
            &[("mcp-method", "tools/call"), ("mcp-name", "read")],
            &[("mcp-method", "tools/call"), ("mcp-name", "Pay")],
            &[("mcp-method", "tools/call"), ("mcp-name", "=?base64?%%?=")],
            &[("mcp-method", "tools/call"), ("mcp-name", "pay"), ("mcp-name", "pay")],
            &[("mcp-method", "tools/call"), ("mcp-name", "pay"), ("mcp-param-amount", "83")],
        ];
        for fields in bad {
            assert_eq!(
                check_mirrored(&headers(fields), &message, false).unwrap_err().rpc,
                rpc::HEADERS,
                "{fields:?}"
            );
        }
        assert!(check_mirrored(&HeaderMap::new(), &message, false).is_ok());
        assert!(check_mirrored(&HeaderMap::new(), &message, true).is_err(), "there they must be");
    }

    #[test]
    fn media_types_are_checked() {
        let json = ("content-type", "application/json; charset=utf-8");
        for accept in
            ["application/json, text/event-stream", "*/*", "text/event-stream;q=0.5", "application/*"]
        {
            let mut fields = headers(&[json]);
            fields.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert!(check_media(&fields).is_ok(), "{accept}");
        }
        let both = ("accept", "application/json, text/event-stream");
        for (fields, status) in [
            (headers(&[json, ("accept", "text/html")]), StatusCode::NOT_ACCEPTABLE),
            (headers(&[json]), StatusCode::NOT_ACCEPTABLE),
            (headers(&[both]), StatusCode::UNSUPPORTED_MEDIA_TYPE),
            (headers(&[both, ("content-type", "text/plain")]), StatusCode::UNSUPPORTED_MEDIA_TYPE),
            (headers(&[both, json, json]), StatusCode::UNSUPPORTED_MEDIA_TYPE),
            (headers(&[both, json, ("content-encoding", "gzip")]), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ] {
            assert_eq!(check_media(&fields).unwrap_err().status, Some(status), "{fields:?}");
        }
    }
}
