//! What is asked and what comes back, in Strait's own words.

use std::net::IpAddr;

use serde::Serialize;
use strait_contract::{
    code::Code,
    run::{Process, RunInfo},
};

use crate::{arguments::Arguments, url::Target};

/// One call to decide.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Who: the run, which is in its agent's version, which is in its agent.
    pub run: &'a RunInfo,
    /// Unix time in milliseconds.
    pub now_ms: u64,
    /// What.
    pub ask: Ask<'a>,
    /// The calling process, if a rule of the slice reads it ([`crate::Snapshot::reads_process`]) or it is
    /// known anyway.
    pub process: Option<&'a Process>,
}

/// What is asked for. Host names are canonical: lower case, A-labels, no trailing dot.
#[derive(Clone, Debug)]
pub enum Ask<'a> {
    /// `Action::"http"` on a `Url`.
    Http(HttpAsk<'a>),
    /// `Action::"connect"` on an `Endpoint`: a TCP stream that isn't HTTP.
    Connect {
        /// Name the connection was made for.
        host: Option<&'a str>,
        /// Literal address it was made for.
        address: Option<IpAddr>,
        /// Port.
        port: u16,
    },
    /// `Action::"dns"` on a `Name`: a record type other than A and AAAA.
    Dns {
        /// Name asked for.
        name: &'a str,
        /// Record type: `TXT`, `SRV`…
        record_type: &'a str,
    },
    /// A tool of an MCP server: `Action::"<server>/<tool>"` if it is pinned, else `Action::"tools/call/unpinned"`, on
    /// `Tool::"<server>/<tool>"`.
    Tool(ToolAsk<'a>),
    /// `Action::"mcp/method"` on `Tool::"<server>"`: another method of an MCP server that its config opts into.
    McpMethod {
        /// As the config names it.
        server: &'a str,
        /// `resources/read`, `prompts/get`…
        method: &'a str,
        /// Its `params`.
        arguments: &'a Arguments,
    },
    /// `Action::"model/server_tool"` on `ServerTool::"<provider>/<name>"`.
    ServerTool(ServerToolAsk<'a>),
}

/// A tool that a model request offers and the provider would run (A14).
#[derive(Clone, Debug)]
pub struct ServerToolAsk<'a> {
    /// As the config names it.
    pub provider: &'a str,
    /// What the tool is called whatever its version: `web_search`.
    pub name: &'a str,
    /// Its type as the request has it: `web_search_20250305`.
    pub kind: &'a str,
    /// The model that is asked.
    pub model: &'a str,
    /// Host of the address that the request names, canonical.
    pub host: Option<&'a str>,
}

/// A call of a tool. What is judged is what is sent: [`Arguments::json`].
#[derive(Clone, Debug)]
pub struct ToolAsk<'a> {
    /// As the config names it.
    pub server: &'a str,
    /// As the server names it.
    pub tool: &'a str,
    /// `params.arguments`.
    pub arguments: &'a Arguments,
}

/// An HTTP request. The URL is the canonical one that is also sent.
#[derive(Clone, Debug)]
pub struct HttpAsk<'a> {
    /// Method, upper case.
    pub method: &'a str,
    /// `http` or `https`.
    pub scheme: &'a str,
    /// Name or literal address.
    pub host: &'a str,
    /// Port.
    pub port: u16,
    /// Canonical path, with leading slash.
    pub path: &'a str,
    /// The HTTP or web tool the request was made to: the URL is then in `Tool::"<tool>"` as well.
    pub tool: Option<&'a str>,
    /// Decoded query pairs in order.
    pub query: &'a [(String, String)],
    /// Raw query length, bytes.
    pub query_bytes: u32,
    /// `egress`, `proxy`, `tool` or `web`.
    pub via: &'a str,
    /// Literal address, if the host is one.
    pub address: Option<IpAddr>,
    /// `Content-Length`, if the request tells.
    pub body_bytes: Option<u64>,
    /// `Content-Type` without parameters, lower case.
    pub content_type: Option<&'a str>,
}

impl<'a> HttpAsk<'a> {
    /// A request without a body, to no tool, for `target`, whose decoded `query` the caller keeps ([`Target::query_pairs`]).
    pub fn to(method: &'a str, target: &'a Target, query: &'a [(String, String)], via: &'a str) -> Self {
        Self {
            method,
            scheme: target.scheme().as_str(),
            host: target.host_text(),
            port: target.port(),
            path: target.path(),
            tool: None,
            query,
            query_bytes: target.query().map_or(0, |query| u32::try_from(query.len()).unwrap_or(u32::MAX)),
            via,
            address: target.host().address(),
            body_bytes: None,
            content_type: None,
        }
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "decision", rename_all = "camelCase")]
pub enum Verdict {
    /// Permitted by these rules.
    Permit {
        /// `@id`s of the satisfied permits.
        rules: Vec<String>,
    },
    /// Permitted only by `@approval` rules.
    Hold {
        /// Their `@id`s.
        rules: Vec<String>,
        /// The first `@approval` text.
        why: String,
    },
    /// Refused.
    Refuse {
        /// [`Code::ToolCallDenied`] or [`Code::PolicyError`].
        #[serde(serialize_with = "as_text")]
        code: Code,
        /// `@id`s of the forbids, or of the rule that failed; empty if no permit matched.
        rules: Vec<String>,
        /// A sentence for people: `@reason`, or why in our words.
        reason: String,
    },
}

impl Verdict {
    /// Whether a rule could not be evaluated.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self, Self::Refuse { code: Code::PolicyError, .. })
    }

    /// Whether it is a refusal for want of a permit: then [`crate::suggest`] helps, else it doesn't.
    pub fn is_unpermitted(&self) -> bool {
        matches!(self, Self::Refuse { code: Code::ToolCallDenied, rules, .. } if rules.is_empty())
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn as_text<S: serde::Serializer>(code: &Code, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code.as_str())
}
