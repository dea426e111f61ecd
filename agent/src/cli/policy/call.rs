//! A call written on the command line, as policy is asked about it.

use std::net::Ipv4Addr;

use strait_contract::{
    ids::AgentName,
    run::{Process, RunInfo},
};
use strait_policies::{
    Ask, HttpAsk, Question, Verdict,
    url::{Host, Name, Names, Target, UrlError, host_and_port_with},
};

/// Exactly one call.
#[derive(Debug, clap::Args)]
pub(super) struct CallArgs {
    #[command(flatten)]
    what: WhatArgs,
    /// HTTP or web tool that the request goes to
    #[arg(long, value_name = "TOOL")]
    tool: Option<String>,
    /// How the request comes [default: tool with --tool, else egress]
    #[arg(long, value_enum)]
    via: Option<Via>,
}

/// As `context.via` spells it.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Via {
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

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct WhatArgs {
    /// HTTP request: method and URL
    #[arg(long, value_name = "'METHOD URL'")]
    http: Option<String>,
    /// TCP stream that isn't HTTP
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// DNS question for another type than A and AAAA
    #[arg(long, value_name = "'TYPE NAME'")]
    dns: Option<String>,
}

/// The process that would make the call.
#[derive(Debug, clap::Args)]
pub(super) struct ProcessArgs {
    /// Executable that would make the call, for rules on context.process
    #[arg(long, value_name = "PATH")]
    exe: Option<String>,
    /// SHA-256 of that executable
    #[arg(long, value_name = "SHA256", requires = "exe")]
    exe_digest: Option<String>,
    /// User id of that process
    #[arg(long, default_value_t = 1000, requires = "exe")]
    uid: u32,
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
    Http {
        method: String,
        tool: Option<String>,
        /// As `context.via` spells it.
        via: &'static str,
        target: Target,
        query: Vec<(String, String)>,
    },
    Connect {
        host: Host,
        port: u16,
    },
    Dns {
        name: String,
        record_type: String,
    },
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

impl CallArgs {
    /// Reads the call that was given, as the gateway does; the names of `names` are good too.
    pub(super) fn read(&self, names: &Names) -> Result<Call, Misread> {
        let WhatArgs { http, connect, dns } = &self.what;
        match (http, connect, dns) {
            (Some(http), ..) => self.read_http(http, names),
            _ if self.tool.is_some() || self.via.is_some() => {
                Err(Misread::Usage("--tool and --via go with --http".to_owned()))
            }
            (_, Some(connect), _) => {
                let (host, port) = host_and_port_with(connect, None, names)?;
                Ok(Call::Connect { host, port })
            }
            (.., Some(dns)) => read_dns(dns, names),
            (None, None, None) => {
                Err(Misread::Usage("name a call with --http, --connect or --dns".to_owned()))
            }
        }
    }

    fn read_http(&self, text: &str, names: &Names) -> Result<Call, Misread> {
        let Some((method, url)) = text.split_once(' ') else {
            let why = "write method and URL, such as `GET https://example.com/`";
            return Err(Misread::Usage(why.to_owned()));
        };
        if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            let why = format!("write the method in upper case: `{method}` is refused whatever the rules say");
            return Err(Misread::Usage(why));
        }
        let target = Target::from_absolute_with(url, names)?;
        let via = self.via.or_else(|| self.tool.as_ref().map(|_| Via::Tool)).unwrap_or(Via::Egress);
        let (method, tool, query) = (method.to_owned(), self.tool.clone(), target.query_pairs());
        Ok(Call::Http { method, tool, via: via.as_str(), query, target })
    }
}

fn read_dns(text: &str, names: &Names) -> Result<Call, Misread> {
    let Some((record_type, name)) = text.split_once(' ') else {
        return Err(Misread::Usage("write type and name, such as `TXT example.com`".to_owned()));
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
            Self::Http { method, tool, via, target, query } => {
                Ask::Http(HttpAsk { tool: tool.as_deref(), ..HttpAsk::to(method, target, query, via) })
            }
            Self::Connect { host, port } => {
                Ask::Connect { host: host.name().map(Name::as_str), address: host.address(), port: *port }
            }
            Self::Dns { name, record_type } => Ask::Dns { name, record_type },
        };
        Question { run, now_ms, ask, process }
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
    })
}
