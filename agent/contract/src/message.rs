//! Messages of the link. One postcard-encoded message a SEQPACKET packet; file descriptors ride along as
//! SCM_RIGHTS in the order given by each variant.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{
    approval::{Answer, Held},
    budget::{AgentUse, Budget, RunUse},
    ids::{AgentName, RecordId, RunId},
    provider::Providers,
    record::{Record, Unrecorded},
    run::{Process, RunInfo},
    tool::{ToolName, Tools},
};

/// Largest packet, bytes. Policies and other long texts travel as sealed memfds instead.
pub const MAX_PACKET: usize = 128 * 1024;
/// Most records in one batch.
pub const MAX_BATCH: usize = 64;
/// Largest list of an MCP server's tools, bytes.
pub const MAX_SEEN: usize = 4 * 1024 * 1024;
/// Largest piece of such a list, bytes.
pub const SEEN_PIECE: usize = 64 * 1024;
/// Largest encoded record, bytes.
pub const MAX_RECORD: usize = 16 * 1024;

/// From the gateway to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToAgent {
    /// First packet. `has_listeners` is true if this gateway process still holds listeners from an earlier
    /// agent; else the agent makes some and sends them with [`ToGateway::Setup`].
    Hello { version: String, contract: String, has_listeners: bool },
    /// Records to write, in order. Answered by [`ToGateway::Recorded`] with the same `batch`.
    Records { batch: u64, records: Vec<Record> },
    /// Outcome of compiling the policies of `epoch`.
    PolicyCompiled { epoch: u64, refused: Option<String> },
    /// Answer to [`ToGateway::RunEnded`]: what was on its way to the log for that run has been sent.
    RunClosed(RunId),
    /// Asks who is behind a process id of a run's flow.
    WhoIs { ticket: u64, run: RunId, tgid: u32 },
    /// Asks for a credential's value. Answered by [`ToGateway::Credential`].
    Credential { ticket: u64, name: ToolName },
    /// The run `from` presented the workload token of `owner`: an event for both.
    TokenMismatch { from: RunId, owner: RunId },
    /// A placeholder of the run was on its way to where it isn't for, or where it can't be replaced: an event.
    PlaceholderMisused(Misused),
    /// A part of what a call carries that is about to be held: at most [`crate::approval::PIECE`] bytes, in order,
    /// nothing of another call in between.
    HeldPiece { call: RecordId, bytes: Vec<u8> },
    /// A call waits for a person. Answered by [`ToGateway::Answer`], at some time.
    Held(Box<Held>),
    /// A held call is not waited for any more: its client has gone. If its answer is on the way, that is not used.
    Withdrawn { call: RecordId },
    /// A piece of the answer to [`ToGateway::ToolsSeen`], in order, at most [`SEEN_PIECE`] bytes; nothing at all if the
    /// server's tools have not been seen.
    ToolsSeen { ticket: u64, piece: Vec<u8>, last: bool },
    /// A tool of an MCP server isn't what was pinned: to be kept for later gateways, and an event for the run that was
    /// shown it; without a run this gateway has said so before.
    ToolDrifted { run: Option<RunId>, drifted: Drifted },
    /// A tool that wasn't what was pinned is again.
    ToolAgrees { server: ToolName, tool: String },
}

/// A tool of an MCP server that isn't what was pinned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drifted {
    /// The server.
    pub server: ToolName,
    /// The tool, as its server names it.
    pub tool: String,
    /// What of it differs: `description`, `inputSchema`, `annotations`.
    pub differs: String,
    /// SHA-256 of the pin that it was compared with: it counts for as long as that is the pin.
    pub pinned: [u8; 32],
}

/// Where a placeholder was on its way to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misused {
    /// The run.
    pub run: RunId,
    /// The credential that the placeholder stands for.
    pub credential: ToolName,
    /// Host, or name in a lookup.
    pub host: String,
    /// Port, if there is one.
    pub port: Option<u16>,
    /// Whether it is one of its own origins, where it stood in a place in which it can't be replaced.
    pub bound: bool,
    /// Process id and command name of the caller, if the flow told.
    pub process: Option<(u32, String)>,
}

/// From the agent to the gateway.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToGateway {
    /// Answer to the hello. Descriptors: none if the gateway has listeners; else exactly
    /// [`LISTENERS`] in that order.
    Setup(Box<Setup>),
    /// New policies. Descriptor: a sealed memfd holding a postcard `Vec<PolicyFile>`.
    Policy { epoch: u64, digest: String },
    /// A run exists from now on. Descriptor: the file of its synthetic names ([`crate::names`]).
    RunStarted(RunInfo),
    /// Every run that lives has been announced: the listeners may be served. Before that a lookup of a run
    /// not announced yet would go unanswered, and its client would wait for seconds.
    Announced,
    /// A run is over: its connections are closed and its state dropped.
    RunEnded(RunId),
    /// Every record of the batch is in the log, or none is.
    Recorded { batch: u64, refused: Option<Unrecorded> },
    /// Where this gateway process keeps records until they are in the log ([`crate::spool`]). Comes on each
    /// connection, before [`ToGateway::Announced`], and is the same file each time. Descriptor: that file.
    Spool,
    /// Answer to [`ToAgent::WhoIs`].
    Process { ticket: u64, process: Option<Process> },
    /// What an earlier gateway, or this one to an earlier agent, said has drifted. Comes before
    /// [`ToGateway::Announced`].
    ToolDrifted(Drifted),
    /// Asks what an MCP server last said its tools are. Answered by [`ToAgent::ToolsSeen`].
    ToolsSeen { ticket: u64, server: ToolName },
    /// The tools from now on; follows the setup, and again after each reload. Kept credentials are to be dropped.
    Tools(Box<Tools>),
    /// Budgets of agents from now on, those of agents that aren't listed being none; follows the setup, and again after
    /// each reload.
    Budgets(Vec<(AgentName, Budget)>),
    /// What an agent's runs have used; comes on each connection before [`ToGateway::Announced`] for each agent that has
    /// used anything, and when it was set back.
    AgentUse(AgentUse),
    /// What a live run has used; comes on each connection, after the run was announced, if that is anything.
    RunUse(RunUse),
    /// The providers of models from now on; as [`ToGateway::Tools`].
    Providers(Box<Providers>),
    /// Answer to [`ToAgent::Credential`]: the value, or why there is none, in words that show nothing of it.
    Credential { ticket: u64, value: Result<Secret, String> },
    /// Answer to [`ToAgent::Held`].
    Answer { call: RecordId, answer: Answer },
}

/// The listeners, in the order in which their descriptors are sent.
pub const LISTENERS: [Listener; 4] =
    [Listener::Transparent, Listener::Gateway, Listener::DnsUdp, Listener::DnsTcp];

/// What a listening socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Listener {
    /// TCP [`TRANSPARENT_PORT`]: where the kernel redirects connections to.
    Transparent,
    /// TCP [`GATEWAY_PORT`]: `http://strait.internal` and the explicit proxy.
    Gateway,
    /// UDP 53.
    DnsUdp,
    /// TCP 53.
    DnsTcp,
}

/// Port of [`Listener::Transparent`].
pub const TRANSPARENT_PORT: u16 = 15001;
/// Port of [`Listener::Gateway`].
pub const GATEWAY_PORT: u16 = 80;

/// What the gateway needs to work.
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    /// Address of the gateway in the `strait` netns.
    pub gateway: Ipv4Addr,
    /// How names are resolved when the gateway dials.
    pub resolver: Resolver,
    /// Corporate proxy, if the only way out is one.
    pub proxy: Option<UpstreamProxy>,
    /// Operator-named hosts: the only way to a private address.
    pub hosts: Vec<(String, IpAddr)>,
    /// Hosts whose TLS is not intercepted.
    pub passthrough: Vec<String>,
    /// Hosts that may speak DNS over HTTPS.
    pub doh: Vec<String>,
    /// Extra trust anchors for upstream TLS, PEM.
    pub anchors: String,
    /// Whether the host's own trust store is used too.
    pub system_anchors: bool,
    /// The intermediate that signs leaves.
    pub ca: Intermediate,
    /// Limits.
    pub limits: Limits,
}

/// How the gateway resolves names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resolver {
    /// The host's `/etc/resolv.conf`.
    System,
    /// These servers.
    Servers(Vec<SocketAddr>),
    /// The corporate proxy resolves; records say `vetted: "proxy"`.
    Proxy,
}

/// A corporate proxy reached by CONNECT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpstreamProxy {
    /// Host name or address of the proxy.
    pub host: String,
    /// Port.
    pub port: u16,
    /// `user:password` for Basic authentication.
    pub credential: Option<Secret>,
}

/// Short-lived CA certificate and key that sign leaves; the root's key stays with the agent.
#[derive(Debug, Serialize, Deserialize)]
pub struct Intermediate {
    /// Certificate chain to send behind a leaf, PEM, without the root.
    pub chain: String,
    /// Private key, PKCS#8 PEM.
    pub key: Secret,
}

/// A secret value: zeroized on drop, no Debug text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct Secret(String);

impl Secret {
    /// Takes a value in.
    pub fn new(value: String) -> Self {
        Self(value)
    }
    /// Shows the value to the code that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Limits per run and in all; counts unless a unit is named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Open connections per run.
    pub connections_per_run: u32,
    /// Names a run may look up in its life.
    pub names_per_run: u32,
    /// Bytes of a request head.
    pub head_bytes: u32,
    /// Seconds for a client to finish a request head or handshake.
    pub head_seconds: u32,
    /// Seconds to establish an upstream connection.
    pub connect_seconds: u32,
    /// Seconds an idle connection or stream may last.
    pub idle_seconds: u32,
    /// Seconds for the whole answer to a call of the web tool.
    pub web_seconds: u32,
    /// Bytes of the decoded answer to a call of the web tool; it is cut there.
    pub web_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_per_run: 1024,
            names_per_run: 8192,
            head_bytes: 64 * 1024,
            head_seconds: 10,
            connect_seconds: 10,
            idle_seconds: 900,
            web_seconds: 60,
            web_bytes: 5 * 1024 * 1024,
        }
    }
}

/// One policy file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyFile {
    /// File name for messages.
    pub name: String,
    /// Whether it is a guardrail: forbids only, above every agent's policy.
    pub guardrail: bool,
    /// Cedar text.
    pub text: String,
}

#[cfg(any(test, fuzzing))]
pub mod properties;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::seqpacket::encode;

    proptest! {
        #[test]
        fn no_packet_does_harm(packet in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..12) {
            properties::read_again(&packet);
            properties::read_again(&[&[kind][..], &packet].concat());
        }
    }

    #[test]
    fn what_is_sent_is_read() {
        let file = PolicyFile { name: "a".to_owned(), guardrail: true, text: "b".to_owned() };
        let packet = encode(&file).unwrap();
        assert_eq!(postcard::from_bytes::<PolicyFile>(&packet).unwrap().text, "b");
    }
}
