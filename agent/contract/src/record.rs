//! A record as its maker hands it over. The agent adds what only it may say (`seq`, `agent`, `version`,
//! `policy`, `prev`, `hash`) when it writes the line.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{
    approval::Approval,
    budget::Charge,
    code::Code,
    ids::{RecordId, RunId},
    model::{Tokens, Usd},
    provider::Content,
    redact::redact_text,
    run::Process,
    tool::ToolName,
};

/// One record on its way to the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Shared by the `decided` and the `done` line of one call.
    pub id: RecordId,
    /// The run it belongs to; `None` for what no run can be blamed for (host-wide events).
    pub run: Option<RunId>,
    /// Which of a call's two lines, if it is a call's.
    pub phase: Option<Phase>,
    /// Unix time in milliseconds by the maker's clock.
    pub ts_ms: u64,
    /// `CLOCK_BOOTTIME` in nanoseconds.
    pub boot_ns: u64,
    /// What happened.
    pub body: Body,
}

/// The two lines of a call: exactly one of each per `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Written before anything is forwarded.
    Decided,
    /// Written when the outcome is known, before the answer's end is released.
    Done,
}

/// The stream a record belongs to, with its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Body {
    /// Something left the run or tried to.
    Activity(Box<Activity>),
    /// A step of the run: a call of a tool. Its record id is the step's.
    Trace(Box<Step>),
    /// Something happened to the run or to Strait; no URLs or arguments in it.
    Event(Event),
}

/// Activity: everything that left the run or tried to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// Who saw it.
    pub source: Source,
    /// What it was.
    pub kind: Kind,
    /// Whether it passed.
    pub decision: Decision,
    /// Why not, or what went wrong afterwards.
    pub code: Option<Code>,
    /// A sentence for people: the rule's `@reason` or our own.
    pub reason: Option<String>,
    /// `@id`s of the rules that decided.
    pub rules: Vec<String>,
    /// Where to.
    pub dst: Destination,
    /// `tcp`, `udp`, or the number of another protocol.
    pub proto: String,
    /// How it came: `egress`, `proxy`, `tool`, `web`; empty for kernel records.
    pub via: String,
    /// The HTTP request, if it was one.
    pub request: Option<Request>,
    /// The DNS question, if it was one.
    pub dns: Option<Dns>,
    /// Byte counts of a stream that isn't HTTP.
    pub stream: Option<Traffic>,
    /// The calling process.
    pub process: Option<Process>,
    /// Socket cookie: joins kernel and gateway records of one connection.
    pub cookie: Option<u64>,
    /// What asking a person came to, if one was asked.
    pub approval: Option<Approval>,
    /// How many like events this line stands for.
    pub count: u64,
    /// From decision to end, microseconds; only on `done` lines.
    pub duration_us: Option<u64>,
    /// The step of the trace that it belongs to.
    pub step: Option<RecordId>,
    /// Credentials whose placeholders stood in it.
    pub placeholders: Vec<ToolName>,
}

impl Activity {
    /// An activity of which nothing more is known than who saw it, what kind it is and whether it passed.
    pub fn new(source: Source, kind: Kind, decision: Decision) -> Self {
        Self {
            source,
            kind,
            decision,
            code: None,
            reason: None,
            rules: Vec::new(),
            dst: Destination::default(),
            proto: String::new(),
            via: String::new(),
            request: None,
            dns: None,
            stream: None,
            process: None,
            cookie: None,
            approval: None,
            count: 1,
            duration_us: None,
            step: None,
            placeholders: Vec::new(),
        }
    }
}

/// A step of the trace: one call of a tool, held, refused or forwarded (A27, A28). What of it left the host is activity
/// that bears its id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The step within which it was made.
    pub parent: Option<RecordId>,
    /// `github`, or `server/name` for a tool of an MCP server.
    pub tool: String,
    /// What kind of tool.
    pub kind: ToolKind,
    /// What it was asked for: method and canonical URL, or an MCP method; secrets hidden, bounded.
    pub target: String,
    /// Arguments: key-like values hidden, then cut at [`MAX_ARGUMENTS`] bytes with a mark.
    pub args: Option<String>,
    /// Whether it passed.
    pub decision: Decision,
    /// Why not, or what went wrong afterwards.
    pub code: Option<Code>,
    /// `@id`s of the rules that decided.
    pub rules: Vec<String>,
    /// Why it was refused, for people.
    pub reason: Option<String>,
    /// What went wrong after it was permitted.
    pub error: Option<String>,
    /// What asking a person came to, if one was asked.
    pub approval: Option<Approval>,
    /// Credentials whose placeholders stood in it.
    pub placeholders: Vec<ToolName>,
    /// The calling process.
    pub process: Option<Process>,
    /// Of a model call that a budget counts: what it is held at (`decided`), what it came to (`done`). A `done` line
    /// without one counts what was held.
    pub charge: Option<Charge>,
    /// What a model call is besides.
    pub model: Option<Box<ModelStep>>,
    /// Status the client got.
    pub status: Option<u16>,
    /// Body bytes from the run.
    pub bytes_out: Option<u64>,
    /// Body bytes to the run.
    pub bytes_in: Option<u64>,
    /// Whether the answer was cut at its limit.
    pub truncated: bool,
    /// From decision to end, microseconds; only on `done` lines.
    pub duration_us: Option<u64>,
}

impl Step {
    /// Arguments as a step has them: key-like values hidden, then cut at [`MAX_ARGUMENTS`] bytes with a mark.
    pub fn arguments(text: &str) -> String {
        redact_text(text, MAX_ARGUMENTS)
    }

    /// A step of which nothing more is known than the tool and whether it passed.
    pub fn new(tool: String, kind: ToolKind, decision: Decision) -> Self {
        Self {
            parent: None,
            tool,
            kind,
            target: String::new(),
            args: None,
            decision,
            code: None,
            rules: Vec::new(),
            reason: None,
            error: None,
            approval: None,
            placeholders: Vec::new(),
            process: None,
            charge: None,
            model: None,
            status: None,
            bytes_out: None,
            bytes_in: None,
            truncated: false,
            duration_us: None,
        }
    }
}

/// What a step that is a model call has besides: `decided` lines what was asked, `done` lines what it came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelStep {
    /// The provider that was asked.
    pub provider: String,
    /// `chat`, `messages`, `responses`…; empty for an endpoint that is none of these.
    pub operation: String,
    /// The model that the client named; empty if it named none.
    pub asked: String,
    /// The model that answered, by its own word or as it was sent.
    pub used: Option<String>,
    /// The routing rule that chose it, if one did.
    pub route: Option<String>,
    /// Whether the answer was asked for as a stream.
    pub stream: bool,
    /// What was counted; only on `done` lines of calls that were answered.
    pub tokens: Option<Tokens>,
    /// What it cost; `None` if the price isn't known, or nothing was counted.
    pub cost: Option<Usd>,
    /// Whether the answer came to the end that its API defines.
    pub complete: bool,
    /// From the sending of the request to the first byte of the answer's body, microseconds.
    pub first_token_us: Option<u64>,
    /// How often it was sent; 0 if not at all.
    pub attempts: u32,
    /// What was decided of each tool of the provider's own that the request offered.
    pub server_tools: Vec<ServerTool>,
    /// What is kept of prompt and answer.
    pub content: Option<Box<Kept>>,
}

/// A tool that the provider would run, as a request offered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerTool {
    /// Its name or type.
    pub name: String,
    /// Whether it was passed on.
    pub decision: Decision,
    /// `@id`s of the rules that decided.
    pub rules: Vec<String>,
}

/// What is kept of a model call's prompt and answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Why: the provider's `content`.
    pub mode: Content,
    /// Hexadecimal SHA-256, or the beginning of the text with secrets hidden.
    pub request: Option<String>,
    /// The same of the answer.
    pub answer: Option<String>,
}

/// Most bytes of a step's arguments in a record.
pub const MAX_ARGUMENTS: usize = 2048;

/// What kind of tool a step calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolKind {
    /// An HTTP API.
    Http,
    /// Any public page.
    Web,
    /// An MCP server.
    Mcp,
    /// A provider of models.
    Model,
}

impl ToolKind {
    /// As records spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Web => "web",
            Self::Mcp => "mcp",
            Self::Model => "model",
        }
    }
}

/// Who saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The eBPF programs.
    Kernel,
    /// The gateway.
    Gateway,
}

/// What kind of activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A connection attempt or an unconnected send.
    Connect,
    /// A packet at the host end of the veth.
    Packet,
    /// Creation of a socket.
    Socket,
    /// A DNS question.
    Dns,
    /// An HTTP request.
    Request,
    /// A byte stream: CONNECT or TCP that isn't HTTP, or a WebSocket after its upgrade.
    Stream,
    /// What has no line of its own, counted: kernel events that did not reach the log, and calls that the gateway
    /// refused while the agent was away.
    Lost,
}

/// Whether it passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// It passed.
    Allow,
    /// It did not.
    Deny,
}

/// Where to. Every field is what was judged: the canonical name, the vetted address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// Canonical host name, if the connection was made for one.
    pub name: Option<String>,
    /// Address: the vetted upstream, or the one the kernel refused.
    pub addr: Option<IpAddr>,
    /// Port.
    pub port: Option<u16>,
}

/// An HTTP request and, on `done` lines, its outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Method as sent.
    pub method: String,
    /// Canonical URL, secrets hidden, bounded.
    pub url: String,
    /// HTTP version the client spoke: `1.0`, `1.1`, `2`.
    pub version: String,
    /// Status the client got.
    pub status: Option<u16>,
    /// Body bytes from the run.
    pub bytes_out: Option<u64>,
    /// Body bytes to the run.
    pub bytes_in: Option<u64>,
}

/// A DNS question.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// Name asked for, in presentation form.
    pub name: String,
    /// Record type asked for (`A`, `TXT`, `TYPE65`).
    pub record_type: String,
    /// Answer given: an address, `NODATA`, `NXDOMAIN`, `REFUSED`, `FORMERR`.
    pub answer: String,
}

/// Bytes of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// From the run.
    pub bytes_out: u64,
    /// To the run.
    pub bytes_in: u64,
}

/// Something that happened to a run or to Strait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Dotted name: `run.started`, `run.ended`, `policy.changed`, `enforcement.degraded`, `events.lost`…
    pub name: String,
    /// Small facts, each bounded; keys are camelCase.
    pub facts: Vec<(String, String)>,
}

/// Why records were not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Unrecorded {
    /// The log's disk is full or read-only.
    #[error("the log can't be written")]
    Log,
    /// The run is not known or has ended.
    #[error("the run has ended")]
    Run,
    /// A record broke a bound of the contract.
    #[error("a record is not acceptable")]
    Malformed,
    /// The run writes records faster than its quota allows.
    #[error("the run writes too many records")]
    Quota,
    /// No agent is connected.
    #[error("the agent is not there")]
    Agent,
}
