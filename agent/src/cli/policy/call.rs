//! A call written on the command line or in a test file, as policy is asked about it.

use std::net::Ipv4Addr;

use strait_contract::{
    code::Code,
    ids::AgentName,
    run::{Process, RunInfo},
};
use strait_policies::{
    Arguments, Ask, HttpAsk, Question, ServerToolAsk, ToolAsk, Verdict,
    url::{Host, Name, Names, Target, UrlError, host_and_port_with},
};

/// Exactly one call.
#[derive(Debug, Default, clap::Args)]
pub(super) struct CallArgs {
    /// HTTP request: method and URL
    #[arg(long, value_name = "'METHOD URL'")]
    pub(super) http: Option<String>,
    /// TCP stream that isn't HTTP
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) connect: Option<String>,
    /// DNS question for another type than A and AAAA
    #[arg(long, value_name = "'TYPE NAME'")]
    pub(super) dns: Option<String>,
    /// Tool of an MCP server; with --http the HTTP or web tool it goes to, with --method the server
    #[arg(long, value_name = "SERVER/NAME")]
    pub(super) tool: Option<String>,
    /// What the tool is called with [default: {}]
    #[arg(long, value_name = "JSON")]
    pub(super) arguments: Option<String>,
    /// Another method of an MCP server, such as resources/read; --arguments are its parameters
    #[arg(long, value_name = "METHOD")]
    pub(super) method: Option<String>,
    /// Tool that a model request offers and the provider would run, such as anthropic/web_search
    #[arg(long, value_name = "PROVIDER/NAME")]
    pub(super) server_tool: Option<String>,
    /// Model that is asked
    #[arg(long, value_name = "MODEL", requires = "server_tool")]
    pub(super) model: Option<String>,
    /// How the HTTP request comes [default: tool with --tool, else egress]
    #[arg(long, value_enum)]
    pub(super) via: Option<Via>,
    /// Content-Length of the HTTP request, bytes
    #[arg(long, value_name = "BYTES")]
    pub(super) body_bytes: Option<u64>,
    /// Content-Type of the HTTP request, without parameters
    #[arg(long, value_name = "TYPE")]
    pub(super) content_type: Option<String>,
}

/// As `context.via` spells it.
#[derive(Clone, Copy, Debug, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Via {
    Egress,
    Proxy,
    Tool,
    Web,
}

impl Via {
    fn as_str(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::Proxy => "proxy",
            Self::Tool => "tool",
            Self::Web => "web",
        }
    }
}

/// The process that would make the call.
#[derive(Debug, clap::Args)]
pub(super) struct ProcessArgs {
    /// Executable that would make the call, for rules on context.process
    #[arg(long, value_name = "PATH")]
    pub(super) exe: Option<String>,
    /// SHA-256 of that executable
    #[arg(long, value_name = "SHA256", requires = "exe")]
    pub(super) exe_digest: Option<String>,
    /// User id of that process
    #[arg(long, default_value_t = 1000, requires = "exe")]
    pub(super) uid: u32,
}

impl ProcessArgs {
    pub(super) fn read(&self) -> Option<Process> {
        let exe = self.exe.as_ref()?;
        // The kernel keeps 15 bytes of a command's name.
        let comm = exe.rsplit('/').next().unwrap_or_default().chars().take(15).collect();
        Some(Process { pid: 0, uid: self.uid, comm, exe: Some(exe.clone()), digest: self.exe_digest.clone() })
    }
}

/// A call with its own text.
#[derive(Debug)]
pub(super) enum Call {
    Http(Box<HttpCall>),
    Connect { host: Host, port: u16 },
    Dns { name: String, record_type: String },
    Tool { server: String, tool: String, arguments: Arguments },
    Method { server: String, method: String, arguments: Arguments },
    ServerTool { provider: String, name: String, model: String },
}

/// An HTTP request.
#[derive(Debug)]
pub(super) struct HttpCall {
    method: String,
    tool: Option<String>,
    via: Via,
    target: Target,
    query: Vec<(String, String)>,
    body_bytes: Option<u64>,
    content_type: Option<String>,
}

/// Why a text is no call.
#[derive(Debug)]
pub(super) enum Misread {
    /// Not what the option takes.
    Usage(String),
    /// Taken, and refused by the gateway whatever the rules say.
    Refused(Verdict),
}

impl From<UrlError> for Misread {
    fn from(error: UrlError) -> Self {
        Self::Refused(Verdict::Refuse { code: error.code(), rules: Vec::new(), reason: error.to_string() })
    }
}

fn usage<T>(why: &str) -> Result<T, Misread> {
    Err(Misread::Usage(why.to_owned()))
}

impl CallArgs {
    /// Reads the call that was given, as the gateway does; the names of `names` are good too.
    pub(super) fn read(&self, names: &Names) -> Result<Call, Misread> {
        let Self { http, connect, dns, tool, arguments, method, via, body_bytes, content_type, .. } = self;
        let of_tool = arguments.is_some() || method.is_some();
        if let Some(offered) = &self.server_tool {
            let others = http.is_some() || connect.is_some() || dns.is_some() || tool.is_some() || of_tool;
            return match offered.split_once('/') {
                Some((provider, name)) if !others => Ok(Call::ServerTool {
                    provider: provider.to_owned(),
                    name: name.to_owned(),
                    model: self.model.clone().unwrap_or_default(),
                }),
                Some(_) => usage("--server-tool is a call of its own"),
                None => usage("name the provider and its tool, such as --server-tool anthropic/web_search"),
            };
        }
        if http.is_none() && (via.is_some() || body_bytes.is_some() || content_type.is_some()) {
            return usage("--via, --body-bytes and --content-type go with --http");
        }
        match (http, connect, dns, tool) {
            (Some(_), None, None, _) if of_tool => {
                usage("an HTTP request has no --arguments and no --method")
            }
            (Some(http), None, None, tool) => self.read_http(http, tool.clone(), names),
            (None, Some(connect), None, None) if !of_tool => {
                let (host, port) = host_and_port_with(connect, None, names)?;
                Ok(Call::Connect { host, port })
            }
            (None, None, Some(dns), None) if !of_tool => read_dns(dns, names),
            (None, None, None, Some(tool)) => self.read_tool(tool),
            _ => usage("name exactly one call with --http, --connect, --dns, --tool or --server-tool"),
        }
    }

    fn read_http(&self, text: &str, tool: Option<String>, names: &Names) -> Result<Call, Misread> {
        let Some((method, url)) = text.split_once(' ') else {
            return usage("write method and URL, such as `GET https://example.com/`");
        };
        if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            let why = format!("write the method in upper case: `{method}` is refused whatever the rules say");
            return Err(Misread::Usage(why));
        }
        let target = Target::from_absolute_with(url, names)?;
        Ok(Call::Http(Box::new(HttpCall {
            method: method.to_owned(),
            via: self.via.or_else(|| tool.as_ref().map(|_| Via::Tool)).unwrap_or(Via::Egress),
            tool,
            query: target.query_pairs(),
            target,
            body_bytes: self.body_bytes,
            content_type: self.content_type.clone(),
        })))
    }

    fn read_tool(&self, tool: &str) -> Result<Call, Misread> {
        let text = self.arguments.as_deref().unwrap_or("{}");
        let arguments = Arguments::parse(text.as_bytes()).map_err(|error| {
            let reason = error.to_string();
            Misread::Refused(Verdict::Refuse { code: Code::MalformedRequest, rules: Vec::new(), reason })
        })?;
        match (&self.method, tool.split_once('/')) {
            (Some(method), None) => {
                Ok(Call::Method { server: tool.to_owned(), method: method.clone(), arguments })
            }
            (Some(_), Some(_)) => usage("with --method name the server alone, such as --tool github"),
            (None, Some((server, tool))) => {
                Ok(Call::Tool { server: server.to_owned(), tool: tool.to_owned(), arguments })
            }
            (None, None) => {
                usage("name the server and its tool, such as --tool github/get_me, or add --http or --method")
            }
        }
    }
}

fn read_dns(text: &str, names: &Names) -> Result<Call, Misread> {
    let Some((record_type, name)) = text.split_once(' ') else {
        return usage("write type and name, such as `TXT example.com`");
    };
    let record_type = record_type.to_ascii_uppercase();
    if record_type == "A" || record_type == "AAAA" {
        let why = format!("{record_type} is answered by Strait itself, to every run: no rule is asked");
        return Err(Misread::Usage(why));
    }
    let lower = name.to_ascii_lowercase();
    let lower = lower.strip_suffix('.').unwrap_or(&lower);
    // What an address points back to is asked about under a reserved name.
    if record_type == "PTR" && lower.ends_with(".in-addr.arpa") {
        return Ok(Call::Dns { name: lower.to_owned(), record_type });
    }
    let name = Name::parse_owner(lower, names).map_err(UrlError::from)?;
    Ok(Call::Dns { name: name.as_str().to_owned(), record_type })
}

impl Call {
    /// The question about this call.
    pub(super) fn question<'a>(
        &'a self,
        run: &'a RunInfo,
        now_ms: u64,
        process: Option<&'a Process>,
    ) -> Question<'a> {
        let ask = match self {
            Self::Http(http) => Ask::Http(http.ask()),
            Self::Connect { host, port } => {
                Ask::Connect { host: host.name().map(Name::as_str), address: host.address(), port: *port }
            }
            Self::Dns { name, record_type } => Ask::Dns { name, record_type },
            Self::Tool { server, tool, arguments } => Ask::Tool(ToolAsk { server, tool, arguments }),
            Self::Method { server, method, arguments } => Ask::McpMethod { server, method, arguments },
            Self::ServerTool { provider, name, model } => {
                Ask::ServerTool(ServerToolAsk { provider, name, kind: name, model, host: None })
            }
        };
        Question { run, now_ms, ask, process }
    }
}

impl HttpCall {
    fn ask(&self) -> HttpAsk<'_> {
        HttpAsk {
            tool: self.tool.as_deref(),
            body_bytes: self.body_bytes,
            content_type: self.content_type.as_deref(),
            ..HttpAsk::to(&self.method, &self.target, &self.query, self.via.as_str())
        }
    }
}

/// A run as it would be.
pub(super) fn run_info(
    agent: &AgentName,
    version: &str,
    user: &str,
    labels: &[String],
) -> anyhow::Result<RunInfo> {
    Ok(RunInfo {
        id: "explained".parse()?,
        number: 0,
        addr: Ipv4Addr::UNSPECIFIED,
        agent: agent.clone(),
        version: version.to_owned(),
        started_by: user.to_owned(),
        labels: labels.to_vec(),
        addresses: Vec::new(),
        token: strait_contract::token::TokenHash::of("explained"),
        exposed: Vec::new(),
    })
}
