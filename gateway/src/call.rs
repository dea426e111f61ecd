//! What every protocol turns its bytes into: one [`Call`] by one [`Caller`].

use std::sync::Arc;

use strait_contract::{flow::Flow, ids::RecordId, run::Process};
use strait_policies::{Arguments, Ask, HttpAsk, ToolAsk, json::Json};

use crate::{
    protocol::{mcp::Ongoing, model::ModelCall},
    runs::Run,
    tools::Tool,
    url::{Host, Name, Target},
};

/// Who calls: known from the kernel alone, shared by all calls of a connection.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The run.
    pub run: Arc<Run>,
    /// The kernel's account of the connection; `None` for DNS over UDP, which has no connection.
    pub flow: Option<Flow>,
}

impl Caller {
    /// The calling process as far as the flow tells.
    pub fn process(&self) -> Option<Process> {
        let flow = self.flow.as_ref()?;
        Some(Process { pid: flow.tgid, uid: flow.uid, comm: flow.comm(), exe: None, digest: None })
    }
}

/// How a call reached the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The kernel redirected the connection.
    Egress,
    /// The client used the gateway as an explicit proxy.
    Proxy,
    /// The client called a tool at the gateway's own address.
    Tool,
    /// The client named a page to the web tool.
    Web,
    /// The client called a model at the gateway's own address.
    Model,
}

impl Via {
    /// As policies and records spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::Proxy => "proxy",
            Self::Tool => "tool",
            Self::Web => "web",
            Self::Model => "model",
        }
    }
}

/// One thing that a run asks for, canonical and complete: what is judged here is what is sent.
#[derive(Clone, Debug)]
pub struct Call {
    /// Of both of its records.
    pub id: RecordId,
    /// Who.
    pub caller: Arc<Caller>,
    /// How it came.
    pub via: Via,
    /// What.
    pub what: What,
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub enum What {
    /// An HTTP request.
    Http(HttpCall),
    /// A message to or from an MCP server.
    Mcp(Box<McpCall>),
    /// A byte stream that the gateway doesn't read.
    Stream(Endpoint),
    /// A DNS question other than for an address.
    Dns(DnsCall),
}

/// The head of an HTTP request, as far as it is judged.
#[derive(Clone, Debug)]
pub struct HttpCall {
    /// Method, upper case.
    pub method: http::Method,
    /// Where to: the canonical URL.
    pub target: Target,
    /// Version the client spoke.
    pub version: http::Version,
    /// `Content-Length`, if told.
    pub body_bytes: Option<u64>,
    /// `Content-Type` without parameters, lower case.
    pub content_type: Option<String>,
    /// Decoded query pairs in order.
    pub query: Vec<(String, String)>,
    /// The tool that it is a call of: then it is a step of the trace.
    pub tool: Option<Arc<Tool>>,
    /// What is under way for it, if it is a call of a model: config decides about those, not policy.
    pub(crate) model: Option<Arc<ModelCall>>,
}

/// A message to an MCP server, or a request for a stream or the end of a session.
#[derive(Clone, Debug)]
pub struct McpCall {
    /// The request that carries it.
    pub http: HttpCall,
    /// `tools/call`, `resources/read`…; `stream`, `session/delete` or `response` for what has no method.
    pub method: String,
    /// The tool of the server's that is called.
    pub name: Option<String>,
    /// What it is called with, or a method's parameters.
    pub arguments: Arguments,
    /// Whether it is one that every client sends whatever it does: it passes if anything of the server's could.
    pub protocol: bool,
    /// Whether it comes from the server: nothing of it leaves the host.
    pub inbound: bool,
    /// What a person who is asked is shown.
    pub shown: Option<Json>,
    /// What is under way for it.
    pub(crate) ongoing: Option<Arc<Ongoing>>,
}

/// The far end of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name or literal address.
    pub host: Host,
    /// Port.
    pub port: u16,
}

/// A DNS question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsCall {
    /// Canonical name, in presentation form without the last dot.
    pub name: String,
    /// `TXT`, `SRV`, `TYPE65`…
    pub record_type: String,
}

impl Call {
    /// A call with a fresh record id.
    pub fn new(caller: Arc<Caller>, via: Via, what: What) -> Self {
        Self { id: RecordId::now(), caller, via, what }
    }

    /// The tool that it is a call of.
    pub(crate) fn tool(&self) -> Option<&Arc<Tool>> {
        self.http()?.tool.as_ref()
    }

    /// The HTTP request that it is or is carried by.
    pub(crate) fn http(&self) -> Option<&HttpCall> {
        match &self.what {
            What::Http(call) => Some(call),
            What::Mcp(call) => Some(&call.http),
            What::Stream(_) | What::Dns(_) => None,
        }
    }

    /// The call of a model that it is.
    pub(crate) fn model(&self) -> Option<&Arc<ModelCall>> {
        self.http()?.model.as_ref()
    }

    /// The message to an MCP server that it is.
    pub(crate) fn mcp(&self) -> Option<&McpCall> {
        match &self.what {
            What::Mcp(call) => Some(call),
            _ => None,
        }
    }

    /// The call in the words of policy.
    pub(crate) fn ask(&self) -> Ask<'_> {
        match &self.what {
            What::Http(call) => Ask::Http(call.ask(self.via)),
            What::Mcp(call) => call.ask(),
            What::Stream(to) => Ask::Connect {
                host: to.host.name().map(Name::as_str),
                address: to.host.address(),
                port: to.port,
            },
            What::Dns(question) => Ask::Dns { name: &question.name, record_type: &question.record_type },
        }
    }
}

impl HttpCall {
    fn ask(&self, via: Via) -> HttpAsk<'_> {
        HttpAsk {
            body_bytes: self.body_bytes,
            content_type: self.content_type.as_deref(),
            tool: self.tool.as_ref().map(|tool| tool.name.as_str()),
            ..HttpAsk::to(self.method.as_str(), &self.target, &self.query, via.as_str())
        }
    }
}

impl McpCall {
    /// The server, as the config names it.
    pub(crate) fn server(&self) -> &str {
        self.http.tool.as_ref().map_or("", |tool| tool.name.as_str())
    }

    /// What is called: `server/tool`, or the server.
    pub(crate) fn target(&self) -> String {
        match &self.name {
            Some(name) => format!("{}/{name}", self.server()),
            None => self.server().to_owned(),
        }
    }

    fn ask(&self) -> Ask<'_> {
        let (server, arguments) = (self.server(), &self.arguments);
        match &self.name {
            Some(tool) => Ask::Tool(ToolAsk { server, tool, arguments }),
            None => Ask::McpMethod { server, method: &self.method, arguments },
        }
    }
}

impl Endpoint {
    /// `name:port` or `[v6]:port`, as people write it.
    pub fn text(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}
