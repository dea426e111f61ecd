//! A call written on the command line, as policy is asked about it.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, anyhow, bail};
use strait_contract::{
    ids::AgentName,
    run::{Process, RunInfo},
};
use strait_policies::{Ask, HttpAsk, Question};
use url::{Host, Url};

/// Exactly one call.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct CallArgs {
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
    Http { method: String, url: Url, query: Vec<(String, String)> },
    Connect { host: Place, port: u16 },
    Dns { name: String, record_type: String },
}

/// Name or literal address.
#[derive(Debug)]
pub(super) enum Place {
    Name(String),
    Address(IpAddr),
}

impl Place {
    fn of(host: Host<&str>) -> Self {
        match host {
            Host::Domain(name) => Self::Name(name.trim_end_matches('.').to_owned()),
            Host::Ipv4(address) => Self::Address(address.into()),
            Host::Ipv6(address) => Self::Address(address.into()),
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }

    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::Address(address) => Some(*address),
        }
    }
}

impl CallArgs {
    /// Reads the call that was given.
    pub(super) fn read(&self) -> Result<Call> {
        match (&self.http, &self.connect, &self.dns) {
            (Some(http), ..) => read_http(http),
            (_, Some(connect), _) => read_connect(connect),
            (.., Some(dns)) => {
                let (record_type, name) = dns
                    .split_once(' ')
                    .ok_or_else(|| anyhow!("write type and name, such as `TXT example.com`"))?;
                let name = name.trim().trim_end_matches('.').to_ascii_lowercase();
                Ok(Call::Dns { name, record_type: record_type.to_ascii_uppercase() })
            }
            (None, None, None) => bail!("name a call with --http, --connect or --dns"),
        }
    }
}

fn read_http(text: &str) -> Result<Call> {
    let (method, url) = text
        .split_once(' ')
        .ok_or_else(|| anyhow!("write method and URL, such as `GET https://example.com/`"))?;
    let url = Url::parse(url.trim()).map_err(|error| anyhow!("`{url}` is not a URL: {error}"))?;
    if !["http", "https"].contains(&url.scheme()) || url.host().is_none() {
        bail!("`{url}` is not an http or https URL");
    }
    if !url.username().is_empty() || url.password().is_some() {
        bail!("a URL with a user name or password is never sent; leave it out");
    }
    let query = url.query_pairs().into_owned().collect();
    Ok(Call::Http { method: method.to_uppercase(), url, query })
}

fn read_connect(text: &str) -> Result<Call> {
    let wrong = || anyhow!("`{text}` is not HOST:PORT");
    let (_, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let url = Url::parse(&format!("http://{text}/")).map_err(|error| wrong().context(error))?;
    let host = url.host().map(Place::of).ok_or_else(wrong)?;
    Ok(Call::Connect { host, port })
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
            Self::Http { method, url, query } => Ask::Http(HttpAsk {
                method,
                scheme: url.scheme(),
                host: url.host_str().unwrap_or_default().trim_end_matches('.'),
                port: url.port_or_known_default().unwrap_or_default(),
                path: url.path(),
                query,
                query_bytes: url.query().map_or(0, |query| u32::try_from(query.len()).unwrap_or(u32::MAX)),
                via: "egress",
                address: url.host().and_then(|host| Place::of(host).address()),
                body_bytes: None,
                content_type: None,
            }),
            Self::Connect { host, port } => {
                Ask::Connect { host: host.name(), address: host.address(), port: *port }
            }
            Self::Dns { name, record_type } => Ask::Dns { name, record_type },
        };
        Question { run, now_ms, ask, process }
    }
}

/// A run as it would be.
pub(super) fn run_info(agent: &AgentName, version: &str, user: &str, labels: &[String]) -> Result<RunInfo> {
    Ok(RunInfo {
        id: "explained".parse()?,
        number: 0,
        addr: Ipv4Addr::UNSPECIFIED,
        agent: agent.clone(),
        version: version.to_owned(),
        started_by: user.to_owned(),
        labels: labels.to_vec(),
        addresses: Vec::new(),
    })
}
