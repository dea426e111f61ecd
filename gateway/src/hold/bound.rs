//! What an approval is bound to: everything of a call that gives it its meaning, in one digest, and shown whole.
//!
//! A body is read before anybody is asked and sent afterwards from memory, so that nothing can be exchanged in between.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName,
    header::{CONTENT_ENCODING, CONTENT_TYPE, UPGRADE},
};
use sha2::{Digest, Sha256};
use strait_contract::{
    approval::{CallDigest, Content, MAX_CONTENT, Shown},
    code::Code,
    redact::redact_text,
};
use strait_policies::json::{Json, Limits};

use crate::{
    call::{Call, HttpCall, What},
    decide::Refusal,
    forward,
    gateway::Gateway,
    protocol::http::{
        body::{Collect, Payload},
        headers,
    },
};

/// Most bytes of everything that is shown but the content: it travels in one packet.
const MAX_SHOWN: usize = 96 * 1024;

/// How much JSON is compared by its meaning; more is compared by its bytes.
const JSON: Limits = Limits { bytes: MAX_CONTENT, depth: 64, nodes: 65_536 };

/// Fields that don't change what a request means: about the connection, the client, or this one attempt. Every other
/// field is bound and shown.
const UNBOUND: [&str; 33] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "baggage",
    "cache-control",
    "connection",
    "content-length",
    "date",
    "dnt",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "origin",
    "pragma",
    "priority",
    "proxy-authorization",
    "proxy-connection",
    "referer",
    "save-data",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-version",
    "te",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "upgrade-insecure-requests",
    "user-agent",
    "x-correlation-id",
    "x-request-id",
    "x-trace-id",
];
/// Beginnings of the names of such fields: what browsers and client libraries say of themselves.
const UNBOUND_FAMILIES: [&str; 4] = ["sec-ch-", "sec-fetch-", "x-b3-", "x-stainless-"];

/// What is sent besides what a [`Call`] holds.
#[derive(Debug)]
pub enum Carried<'a> {
    /// Nothing: what follows is a stream that nobody reads.
    Nothing,
    /// The fields and the body of an HTTP request.
    Http {
        /// Fields.
        head: &'a HeaderMap,
        /// Body; read into memory once a person must be asked.
        body: &'a mut Payload,
    },
}

impl Carried<'_> {
    /// The fields, if it has some.
    pub(crate) fn fields(&self) -> Option<&HeaderMap> {
        match self {
            Self::Nothing => None,
            Self::Http { head, .. } => Some(head),
        }
    }
}

/// A call ready to be asked about.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) digest: CallDigest,
    pub(super) shown: Shown,
    pub(super) content: Bytes,
}

/// Binds a call and what it carries.
pub(super) async fn bind(
    gateway: &Gateway,
    call: &Call,
    carried: &mut Carried<'_>,
    rules: &[String],
    why: &str,
) -> Result<Bound, Refusal> {
    let (action, target) = match &call.what {
        What::Http(http) => (http.method.as_str().to_owned(), http.target.url().to_owned()),
        What::Mcp(mcp) => (mcp.method.clone(), mcp.target()),
        What::Stream(to) => ("connect".to_owned(), to.text()),
        What::Dns(question) => (question.record_type.clone(), question.name.clone()),
    };
    // Two tools may have one URL and different credentials.
    let via = call
        .tool()
        .map_or_else(|| call.via.as_str().to_owned(), |tool| format!("{} {}", call.via.as_str(), tool.name));
    let mut fields = HeaderMap::new();
    let mut content = None;
    if let (Carried::Http { head, body }, What::Http(http)) = (carried, &call.what) {
        fields = sent_fields(call, http, head);
        content = read(gateway, call, body).await?;
    }
    let mut meaning = None;
    if let Some(shown) = call.mcp().and_then(|mcp| mcp.shown.as_ref()) {
        content = Some(written(shown)?);
        meaning = Some(shown.to_sorted_text());
    }
    let bound = Fields::of(&fields);
    let bytes = content.clone().unwrap_or_default();
    let content = content.map(|bytes| Content {
        bytes: u64::try_from(bytes.len()).unwrap_or(u64::MAX),
        digest: CallDigest(Sha256::digest(&bytes).into()),
    });
    let mut sum = Sum::new();
    for part in [&action, &target, &via, why] {
        sum.add(part.as_bytes());
    }
    sum.count(rules.len());
    rules.iter().for_each(|rule| sum.add(rule.as_bytes()));
    sum.count(bound.raw.len());
    for (name, value) in &bound.raw {
        sum.add(name.as_str().as_bytes());
        sum.add(value);
    }
    match content.map(|_| meaning.or_else(|| sorted_json(&fields, &bytes))) {
        None => sum.add(b"nothing"),
        Some(Some(json)) => {
            sum.add(b"json");
            sum.add(json.as_bytes());
        }
        Some(None) => {
            sum.add(b"bytes");
            sum.add(&bytes);
        }
    }
    let shown = Shown { action, target, via, fields: bound.shown(), content };
    if size(&shown, rules, why) > MAX_SHOWN {
        let reason = format!(
            "its URL and fields are longer than the {MAX_SHOWN} bytes that a person can be asked about"
        );
        return Err(Refusal::new(Code::ApprovalUnavailable, reason));
    }
    Ok(Bound { digest: sum.finish(), shown, content: bytes })
}

/// The fields that are sent, and the one that makes a stream of another protocol of it.
fn sent_fields(call: &Call, http: &HttpCall, head: &HeaderMap) -> HeaderMap {
    let mut fields = forward::fields(&call.caller.run, http, head);
    if let Some(protocol) = headers::upgrade(head) {
        fields.insert(UPGRADE, protocol);
    }
    fields
}

/// A body of JSON without what gives it no meaning: the order of keys, spaces, escapes (case 85). Numbers stay as spelled.
/// `None` if it isn't JSON that every reader reads alike: then each byte counts.
fn sorted_json(fields: &HeaderMap, bytes: &[u8]) -> Option<String> {
    let mut told = fields.get_all(CONTENT_TYPE).iter();
    let told = told.next().filter(|_| told.next().is_none())?.to_str().ok()?.to_ascii_lowercase();
    let (essence, parameters) = told.split_once(';').unwrap_or((&told, ""));
    let essence = essence.trim();
    // In another charset the same bytes are another text.
    if !matches!(parameters.trim(), "" | "charset=utf-8" | "charset=\"utf-8\"") {
        return None;
    }
    if (essence != "application/json" && !essence.ends_with("+json")) || fields.contains_key(CONTENT_ENCODING)
    {
        return None;
    }
    Json::parse(bytes, &JSON).ok().map(|json| json.to_sorted_text())
}

/// What a message to an MCP server asks for, as a person is shown it.
fn written(shown: &Json) -> Result<Bytes, Refusal> {
    let text = shown.to_string();
    if text.len() > MAX_CONTENT {
        let reason =
            format!("a person must be asked about this call, and it is longer than {MAX_CONTENT} bytes");
        return Err(Refusal::new(Code::ApprovalUnavailable, reason));
    }
    Ok(Bytes::from(text))
}

/// The whole body, which stays in `body` to be sent; `None` if there is none.
async fn read(gateway: &Gateway, call: &Call, body: &mut Payload) -> Result<Option<Bytes>, Refusal> {
    let patience = gateway.settings().map_or(60, |settings| settings.limits.idle_seconds);
    let patience = std::time::Duration::from_secs(patience.into());
    let read = tokio::time::timeout(patience, body.collect(MAX_CONTENT, &call.caller.run.held_bytes));
    let failed = match read.await {
        Ok(Ok(bytes)) => return Ok(Some(bytes).filter(|bytes| !bytes.is_empty())),
        Ok(Err(why)) => why,
        Err(_) => Collect::Late,
    };
    let code = match &failed {
        Collect::Source(_) => Code::ClientGone,
        Collect::Late => Code::MalformedRequest,
        Collect::TooLarge(_) | Collect::Full | Collect::Trailers => Code::ApprovalUnavailable,
    };
    Err(Refusal::new(code, format!("a person must be asked about this call, and {failed}")))
}

fn size(shown: &Shown, rules: &[String], why: &str) -> usize {
    let fields =
        shown.fields.iter().map(|(name, value)| name.len().saturating_add(value.len()).saturating_add(8));
    let rules = rules.iter().map(|rule| rule.len().saturating_add(4));
    [shown.action.len(), shown.target.len(), why.len(), 256]
        .into_iter()
        .chain(fields)
        .chain(rules)
        .fold(0, usize::saturating_add)
}

/// The fields that are bound, in the order of their names.
#[derive(Default)]
struct Fields<'a> {
    raw: Vec<(&'a HeaderName, &'a [u8])>,
}

impl<'a> Fields<'a> {
    fn of(head: &'a HeaderMap) -> Self {
        let mut raw: Vec<_> = head
            .iter()
            .filter(|(name, _)| is_bound(name.as_str()))
            .map(|(name, value)| (name, value.as_bytes()))
            .collect();
        // Stable: the values of one name keep their order.
        raw.sort_by_key(|(name, _)| name.as_str());
        Self { raw }
    }

    fn shown(&self) -> Vec<(String, String)> {
        self.raw
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), for_people(name.as_str(), value)))
            .collect()
    }
}

fn is_bound(name: &str) -> bool {
    !UNBOUND.contains(&name) && !UNBOUND_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// The value, or its mark if it is a secret: a person who approves has no need of the client's keys.
fn for_people(name: &str, value: &[u8]) -> String {
    let value = String::from_utf8_lossy(value).into_owned();
    let plain = format!("{name}: {value}");
    let redacted = redact_text(&plain, plain.len().saturating_add(64));
    if redacted.contains("[hidden:") {
        return redacted.split_once(": ").map_or_else(|| redacted.clone(), |(_, mark)| mark.to_owned());
    }
    value
}

/// SHA-256 over parts that can't run into each other.
struct Sum(Sha256);

impl Sum {
    fn new() -> Self {
        let mut sum = Self(Sha256::new());
        sum.add(b"strait approval 1");
        sum
    }

    fn count(&mut self, count: usize) {
        self.0.update(u64::try_from(count).unwrap_or(u64::MAX).to_le_bytes());
    }

    fn add(&mut self, part: &[u8]) {
        self.count(part.len());
        self.0.update(part);
    }

    fn finish(self) -> CallDigest {
        CallDigest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn fields_that_change_the_meaning_are_bound_in_any_order_and_others_are_not() {
        let one = fields(&[
            ("x-amz-target", "Delete"),
            ("content-type", "text/plain"),
            ("user-agent", "a"),
            ("x-stainless-retry-count", "0"),
        ]);
        let two = fields(&[("user-agent", "b"), ("content-type", "text/plain"), ("x-amz-target", "Delete")]);
        assert_eq!(Fields::of(&one).raw, Fields::of(&two).raw);
        let names: Vec<_> = Fields::of(&one).raw.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content-type", "x-amz-target"]);
    }

    #[test]
    fn a_key_is_bound_and_shown_by_its_mark() {
        let head = fields(&[("authorization", "Bearer ghp_0123456789abcdefghijklmnopqrstuvwxyz")]);
        let fields = Fields::of(&head);
        assert_eq!(fields.raw.len(), 1);
        let (_, value) = &fields.shown()[0];
        assert!(value.contains("[hidden:") && !value.contains("ghp_0123"), "{value}");
    }

    #[test]
    fn json_is_compared_by_its_meaning_and_all_else_by_its_bytes() {
        let json = fields(&[("content-type", "application/json; charset=utf-8")]);
        let sorted = |text: &str| sorted_json(&json, text.as_bytes());
        assert_eq!(sorted(r#"{"to": "x", "amount": 82}"#), sorted("{\"amount\":82,\n\"\\u0074o\":\"x\"}"));
        for other in
            [r#"{"amount":82.0,"to":"x"}"#, r#"{"amount":"82","to":"x"}"#, r#"{"amount":8.2e1,"to":"x"}"#]
        {
            assert_ne!(sorted(other), sorted(r#"{"amount":82,"to":"x"}"#), "{other}");
        }
        assert_ne!(sorted("[1,2]"), sorted("[2,1]"));
        assert_eq!(sorted(r#"{"a":1,"a":2}"#), None, "readers differ");
        assert_eq!(sorted("{} {}"), None);
        for head in [
            &[("content-type", "text/plain")][..],
            &[],
            &[("content-type", "application/json"), ("content-encoding", "gzip")],
            &[("content-type", "application/json"), ("content-type", "text/plain")],
            &[("content-type", "application/json; charset=utf-16le")],
        ] {
            assert_eq!(sorted_json(&fields(head), b"{}"), None);
        }
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let sum = |parts: &[&str]| {
            let mut sum = Sum::new();
            parts.iter().for_each(|part| sum.add(part.as_bytes()));
            sum.finish()
        };
        assert_ne!(sum(&["ab", "c"]), sum(&["a", "bc"]));
        assert_eq!(sum(&["ab", "c"]), sum(&["ab", "c"]));
    }
}
