//! From a record to its line: borrowed structs, one pass, one hash.

use std::{io, net::IpAddr};

use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;
use sha2::{Digest, Sha256};
use strait_contract::{
    approval::Approval,
    budget::{Amount, Charge, Day},
    model::Usd,
    record::{
        Activity, Body, Decision, Destination, Dns, Event, Kind, Phase, Record, Request, Source, Step,
        ToolKind, Traffic,
    },
    redact::is_unprintable,
    run::Process,
    tool::ToolName,
};

mod model;

use model::{ModelLine, TokensLine};

/// A SHA-256.
pub(super) type Hash = [u8; 32];

/// What stands between a line's hashed bytes and its hash.
const HASH: &[u8] = b",\"hash\":\"";
/// Bytes from [`HASH`] to the end of the line with its line feed.
const TAIL: usize = HASH.len() + 64 + 3;
/// Longest text in a record, bytes; a longer one makes the record malformed.
const MAX_TEXT: usize = 8 * 1024;
/// Most rules or facts in a record.
const MAX_ITEMS: usize = 256;
/// Longest text of a whole record, bytes.
const MAX_TEXTS: usize = 16 * 1024;

/// What the log adds to a record.
#[derive(Debug)]
pub(super) struct Added<'a> {
    pub seq: u64,
    pub agent: Option<&'a str>,
    pub version: Option<&'a str>,
    pub policy: Option<&'a str>,
    pub boot_id: &'a str,
    pub prev: &'a Hash,
}

/// Whether every text of a record is within its bound.
pub(crate) fn is_acceptable(record: &Record) -> bool {
    let mut texts = 0;
    let mut fits = |text: &str| {
        texts += text.len();
        text.len() <= MAX_TEXT
    };
    let each = match &record.body {
        Body::Event(event) => {
            event.facts.len() <= MAX_ITEMS
                && fits(&event.name)
                && event.facts.iter().all(|(key, value)| fits(key) && fits(value))
        }
        Body::Activity(activity) => {
            let process = activity.process.as_ref();
            activity.rules.len() <= MAX_ITEMS
                && activity.placeholders.len() <= MAX_ITEMS
                && activity.rules.iter().all(|rule| fits(rule))
                && activity.reason.as_deref().is_none_or(&mut fits)
                && activity.dst.name.as_deref().is_none_or(&mut fits)
                && approved_by(activity.approval.as_ref()).is_none_or(&mut fits)
                && fits(&activity.proto)
                && fits(&activity.via)
                && activity.request.as_ref().is_none_or(|request| {
                    fits(&request.method) && fits(&request.url) && fits(&request.version)
                })
                && activity
                    .dns
                    .as_ref()
                    .is_none_or(|dns| fits(&dns.name) && fits(&dns.record_type) && fits(&dns.answer))
                && process.is_none_or(|process| {
                    fits(&process.comm)
                        && process.exe.as_deref().is_none_or(&mut fits)
                        && process.digest.as_deref().is_none_or(&mut fits)
                })
        }
        Body::Trace(step) => {
            step.rules.len() <= MAX_ITEMS
                && step.placeholders.len() <= MAX_ITEMS
                && step.rules.iter().all(|rule| fits(rule))
                && fits(&step.tool)
                && fits(&step.target)
                && [&step.args, &step.reason, &step.error]
                    .into_iter()
                    .all(|text| text.as_deref().is_none_or(&mut fits))
                && approved_by(step.approval.as_ref()).is_none_or(&mut fits)
                && step.model.as_deref().is_none_or(|step| model::is_acceptable(step, &mut fits))
                && step.process.as_ref().is_none_or(|process| {
                    fits(&process.comm)
                        && process.exe.as_deref().is_none_or(&mut fits)
                        && process.digest.as_deref().is_none_or(&mut fits)
                })
        }
    };
    each && texts <= MAX_TEXTS
}

fn approved_by(approval: Option<&Approval>) -> Option<&str> {
    approval.and_then(|approval| approval.by.as_deref())
}

/// Appends a record's line to `out` and gives its hash.
///
/// # Errors
/// The record can't be written as JSON; `out` is then to be cut back by the caller.
pub(super) fn write(
    record: &Record,
    added: &Added<'_>,
    clock: &mut Clock,
    out: &mut Vec<u8>,
) -> Result<Hash, serde_json::Error> {
    let start = out.len();
    let line = Line::new(record, added, clock);
    line.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, Plain))?;
    out.pop();
    out.extend_from_slice(b",\"prev\":\"");
    push_hex(added.prev, out);
    out.push(b'"');
    let hash: Hash = Sha256::digest(out.get(start..).unwrap_or_default()).into();
    out.extend_from_slice(HASH);
    push_hex(&hash, out);
    out.extend_from_slice(b"\"}\n");
    Ok(hash)
}

/// A line's own claim, checked: its hash is right. `line` has its line feed.
pub(super) fn checked_hash(line: &[u8]) -> Option<Hash> {
    let (body, tail) = line.split_at_checked(line.len().checked_sub(TAIL)?)?;
    let digits = tail.strip_prefix(HASH)?.strip_suffix(b"\"}\n")?;
    let claimed: Hash = unhex(std::str::from_utf8(digits).ok()?)?;
    let found: Hash = Sha256::digest(body).into();
    (claimed == found).then_some(found)
}

/// What a line says about its place in the chain: `(seq, prev, run)`. Call it on a line whose hash is right.
pub(super) fn place(line: &[u8]) -> Option<(u64, Hash, Option<String>)> {
    #[derive(serde::Deserialize)]
    struct Place {
        seq: u64,
        prev: String,
        run: Option<String>,
    }
    let place: Place = serde_json::from_slice(line).ok()?;
    Some((place.seq, unhex(&place.prev)?, place.run))
}

/// Lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len() * 2);
    push_hex(bytes, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for byte in bytes {
        let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
        out.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
}

/// Reads exactly `N` bytes of lower-case hex; one spelling only, so that no change of a digit goes unseen.
pub(super) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let bytes = text.as_bytes();
    if bytes.len() != N * 2 {
        return None;
    }
    for (to, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *to = digit(*pair.first()?)? << 4 | digit(*pair.last()?)?;
    }
    Some(out)
}

/// Formats times, remembering the second.
#[derive(Debug, Default)]
pub(super) struct Clock {
    second: Option<i64>,
    text: String,
}

impl Clock {
    /// RFC 3339 with milliseconds and `Z`.
    fn rfc3339(&mut self, ms: u64) -> String {
        let ms = i64::try_from(ms).unwrap_or(i64::MAX);
        let second = ms / 1000;
        if self.second != Some(second) {
            let at = jiff::Timestamp::from_second(second).unwrap_or_default();
            self.text = at.strftime("%Y-%m-%dT%H:%M:%S").to_string();
            self.second = Some(second);
        }
        let mut text = String::with_capacity(24);
        text.push_str(&self.text);
        text.push('.');
        for digit in [ms / 100 % 10, ms / 10 % 10, ms % 10] {
            text.push(char::from(b'0' + u8::try_from(digit).unwrap_or(0)));
        }
        text.push('Z');
        text
    }
}

/// Compact JSON in which nothing unprintable stands raw, whatever the reader thinks ends a line.
struct Plain;

impl Formatter for Plain {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, to: &mut W, fragment: &str) -> io::Result<()> {
        // Printable ASCII needs no look at characters.
        if fragment.bytes().all(|byte| byte < 0x7f) {
            return to.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_unprintable(*c)) {
            let (before, after) = rest.split_at(at);
            to.write_all(before.as_bytes())?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(to, "\\u{unit:04x}")?;
            }
            rest = after.get(c.len_utf8()..).unwrap_or_default();
        }
        to.write_all(rest.as_bytes())
    }
}

/// The members of a line, in their order, but for `prev` and `hash`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    id: strait_contract::ids::RecordId,
    seq: u64,
    stream: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<&'static str>,
    ts: String,
    boot: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "facts")]
    facts: Option<&'a [(String, String)]>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    activity: Option<ActivityLine<'a>>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    trace: Option<TraceLine<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TraceLine<'a> {
    step: strait_contract::ids::RecordId,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<strait_contract::ids::RecordId>,
    #[serde(rename = "type")]
    step_type: &'static str,
    tool: &'a str,
    kind: &'static str,
    target: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<&'a str>,
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    rules: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<ApprovalLine<'a>>,
    #[serde(skip_serializing_if = "<[ToolName]>::is_empty")]
    placeholders: &'a [ToolName],
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<ProcessLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    charge: Option<ChargeLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<TokensLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<Option<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_out: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_in: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ActivityLine<'a> {
    source: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<strait_contract::ids::RecordId>,
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    rules: &'a [String],
    #[serde(skip_serializing_if = "DstLine::is_empty")]
    dst: DstLine<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    proto: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    via: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<RequestLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<DnsLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<TrafficLine>,
    #[serde(skip_serializing_if = "<[ToolName]>::is_empty")]
    placeholders: &'a [ToolName],
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<ProcessLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<ApprovalLine<'a>>,
    #[serde(skip_serializing_if = "is_one")]
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<f64>,
}

#[derive(Serialize)]
struct DstLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestLine<'a> {
    method: &'a str,
    url: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_out: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_in: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApprovalLine<'a> {
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    outcome: &'static str,
    waited_ms: u64,
}

impl<'a> ApprovalLine<'a> {
    fn of(approval: &'a Approval) -> Self {
        let Approval { id, by, outcome, waited_ms } = approval;
        Self { id: id.as_str(), by: by.as_deref(), outcome: outcome.as_str(), waited_ms: *waited_ms }
    }
}

/// What a call is held or spent at, as a line has it.
#[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
pub(crate) struct ChargeLine {
    day: u32,
    calls: u64,
    tokens: u64,
    usd: f64,
}

impl ChargeLine {
    fn of(Charge { day, amount: Amount { calls, tokens, usd } }: Charge) -> Self {
        Self { day: day.0, calls, tokens, usd: usd.dollars() }
    }

    pub(crate) fn charge(&self) -> Charge {
        let usd = Usd::from_dollars(self.usd).unwrap_or_default();
        Charge { day: Day(self.day), amount: Amount { calls: self.calls, tokens: self.tokens, usd } }
    }
}

#[derive(Serialize)]
struct DnsLine<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    record_type: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    answer: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TrafficLine {
    bytes_out: u64,
    bytes_in: u64,
}

#[derive(Serialize)]
struct ProcessLine<'a> {
    pid: u32,
    uid: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    comm: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes references")]
fn is_one(count: &u64) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes references")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

fn facts<S: Serializer>(facts: &Option<&[(String, String)]>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(facts.unwrap_or_default().iter().map(|(key, value)| (key, value)))
}

impl DstLine<'_> {
    fn is_empty(&self) -> bool {
        self.name.is_none() && self.addr.is_none() && self.port.is_none()
    }
}

impl<'a> Line<'a> {
    fn new(record: &'a Record, added: &Added<'a>, clock: &mut Clock) -> Self {
        let (stream, event, activity, trace) = match &record.body {
            Body::Event(event) => ("event", Some(event), None, None),
            Body::Activity(activity) => ("activity", None, Some(&**activity), None),
            Body::Trace(step) => ("trace", None, None, Some(&**step)),
        };
        Self {
            id: record.id,
            seq: added.seq,
            stream,
            phase: record.phase.map(|phase| match phase {
                Phase::Decided => "decided",
                Phase::Done => "done",
            }),
            ts: clock.rfc3339(record.ts_ms),
            boot: record.boot_ns,
            run: record.run.as_ref().map(strait_contract::ids::RunId::as_str),
            agent: added.agent,
            version: added.version,
            policy: added.policy,
            event: event.map(|event: &Event| event.name.as_str()),
            facts: event.map(|event| event.facts.as_slice()).filter(|facts| !facts.is_empty()),
            activity: activity.map(|activity| ActivityLine::new(activity, record, added.boot_id)),
            trace: trace.map(|step| TraceLine::new(step, record)),
        }
    }
}

impl<'a> ActivityLine<'a> {
    fn new(activity: &'a Activity, record: &Record, boot_id: &str) -> Self {
        let Destination { name, addr, port } = &activity.dst;
        let run = record.run.as_ref().map_or("host", strait_contract::ids::RunId::as_str);
        Self {
            source: match activity.source {
                Source::Kernel => "kernel",
                Source::Gateway => "gateway",
            },
            kind: kind(activity.kind),
            step: activity.step,
            decision: decision(activity.decision),
            code: activity.code.map(strait_contract::code::Code::as_str),
            reason: activity.reason.as_deref(),
            rules: &activity.rules,
            dst: DstLine { name: name.as_deref(), addr: *addr, port: *port },
            proto: &activity.proto,
            via: &activity.via,
            request: activity.request.as_ref().map(
                |Request { method, url, version, status, bytes_out, bytes_in }| RequestLine {
                    method,
                    url,
                    version,
                    status: *status,
                    bytes_out: *bytes_out,
                    bytes_in: *bytes_in,
                },
            ),
            dns: activity.dns.as_ref().map(|Dns { name, record_type, answer }| DnsLine {
                name,
                record_type,
                answer,
            }),
            traffic: activity
                .stream
                .map(|Traffic { bytes_out, bytes_in }| TrafficLine { bytes_out, bytes_in }),
            placeholders: &activity.placeholders,
            process: activity.process.as_ref().map(ProcessLine::new),
            flow: activity.cookie.map(|cookie| format!("{boot_id}/{run}/{cookie}")),
            approval: activity.approval.as_ref().map(ApprovalLine::of),
            count: activity.count,
            duration_ms: activity.duration_us.map(milliseconds),
        }
    }
}

impl<'a> ProcessLine<'a> {
    fn new(Process { pid, uid, comm, exe, digest }: &'a Process) -> Self {
        Self { pid: *pid, uid: *uid, comm, exe: exe.as_deref(), digest: digest.as_deref() }
    }
}

impl<'a> TraceLine<'a> {
    fn new(step: &'a Step, record: &Record) -> Self {
        Self {
            step: record.id,
            parent: step.parent,
            step_type: if step.model.is_some() { "model" } else { "tool" },
            tool: &step.tool,
            kind: step.kind.as_str(),
            target: &step.target,
            args: step.args.as_deref(),
            decision: decision(step.decision),
            code: step.code.map(strait_contract::code::Code::as_str),
            rules: &step.rules,
            reason: step.reason.as_deref(),
            error: step.error.as_deref(),
            approval: step.approval.as_ref().map(ApprovalLine::of),
            placeholders: &step.placeholders,
            process: step.process.as_ref().map(ProcessLine::new),
            charge: step.charge.map(ChargeLine::of),
            model: step.model.as_deref().map(ModelLine::of),
            tokens: step.model.as_ref().and_then(|model| model.tokens.as_ref()).map(TokensLine::of),
            cost_usd: step
                .model
                .as_ref()
                .filter(|model| model.tokens.is_some())
                .map(|model| model.cost.map(Usd::dollars)),
            status: step.status,
            bytes_out: step.bytes_out,
            bytes_in: step.bytes_in,
            truncated: step.truncated,
            duration_ms: step.duration_us.map(milliseconds),
        }
    }
}

/// A decision as the log spells it.
pub(super) fn decision(decision: Decision) -> &'static str {
    match decision {
        Decision::Allow => "allow",
        Decision::Deny => "deny",
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a call fit a double exactly")]
fn milliseconds(us: u64) -> f64 {
    us as f64 / 1000.0
}

const KINDS: [(Kind, &str); 7] = [
    (Kind::Connect, "connect"),
    (Kind::Packet, "packet"),
    (Kind::Socket, "socket"),
    (Kind::Dns, "dns"),
    (Kind::Request, "request"),
    (Kind::Stream, "stream"),
    (Kind::Lost, "lost"),
];

/// A kind as the log spells it.
pub(super) fn kind(kind: Kind) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or("", |(_, name)| name)
}

/// The kind of tool that the log spells so.
pub(super) fn tool_kind_named(text: &str) -> Option<ToolKind> {
    [ToolKind::Http, ToolKind::Web, ToolKind::Mcp, ToolKind::Model]
        .into_iter()
        .find(|kind| kind.as_str() == text)
}

/// The kind that the log spells so.
pub(super) fn kind_named(text: &str) -> Option<Kind> {
    KINDS.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind)
}
