//! `[tools.NAME]` and `[credentials.NAME]`: parsed once into what the gateway is told and what the agent resolves.

use std::{collections::BTreeMap, net::IpAddr, path::Path};

use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use strait_contract::{
    ids::AgentName,
    tool::{Bound, Kind, Placement, Tool, ToolName, Tools},
};
use strait_policies::url::{Names, Scheme, Target};

use super::{AgentConfig, ConfigError, Credential, credential::Reference, value::duration};

/// How long the gateway keeps a credential's value if the config doesn't say.
const TTL_SECONDS: u32 = 300;
/// Largest encoded set of tools, bytes: it goes over the link in one packet.
const MAX_TOOLS: usize = 96 * 1024;
/// Groups of MCP methods besides `tools` that a tool may opt into.
const METHODS: [&str; 7] =
    ["resources", "prompts", "completion", "logging", "sampling", "elicitation", "roots"];
/// Fields that the gateway alone sets.
const OURS: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CredentialTable {
    from: String,
    send: Option<SendValue>,
    ttl: Option<String>,
}

/// Where a credential goes.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "`\"bearer\"`, `{header = \"X-Api-Key\", format = \"{}\"}`, `{query = \"key\"}`, `{basic = \"user\"}` or `{aws = {region = \"eu-central-1\", service = \"s3\"}}`"
)]
enum SendValue {
    Bearer(Bearer),
    Header(HeaderValueTable),
    Query(QueryTable),
    Basic(BasicTable),
    Aws(AwsTable),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AwsTable {
    aws: AwsScope,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AwsScope {
    region: String,
    service: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Bearer {
    Bearer,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderValueTable {
    header: String,
    format: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryTable {
    query: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BasicTable {
    basic: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindValue {
    Http,
    Web,
    Mcp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolTable {
    kind: KindValue,
    url: Option<String>,
    credential: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    methods: Option<Vec<String>>,
}

/// What tools are made from.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) hosts: &'a [(String, IpAddr)],
}

impl Source<'_> {
    pub(super) fn conflict(&self, message: String) -> ConfigError {
        ConfigError::Conflict { path: self.path.to_owned(), message }
    }

    pub(super) fn name(&self, section: &str, text: &str) -> Result<ToolName, ConfigError> {
        text.parse().map_err(|error| self.conflict(format!("`{section}.{text}`: {error}")))
    }

    /// Credentials, unresolved.
    pub(super) fn credentials(
        &self,
        tables: BTreeMap<String, CredentialTable>,
    ) -> Result<BTreeMap<ToolName, Credential>, ConfigError> {
        let mut all = BTreeMap::new();
        for (text, CredentialTable { from, send, ttl }) in tables {
            let name = self.name("credentials", &text)?;
            let key = |key: &str| format!("`credentials.{text}.{key}`");
            let from = Reference::parse(&from)
                .map_err(|error| self.conflict(format!("{}: {error}", key("from"))))?;
            let placed = send.is_some();
            let send = placement(send).map_err(|why| self.conflict(format!("{}: {why}", key("send"))))?;
            let ttl_seconds = match ttl {
                None => TTL_SECONDS,
                Some(text) => {
                    let seconds = duration(&text).and_then(|ttl| u32::try_from(ttl.as_secs()).ok());
                    let bad =
                        || format!("{} is `{text}`: write `90s`, `10m` or `2h`, a day at most", key("ttl"));
                    seconds.ok_or_else(|| self.conflict(bad()))?
                }
            };
            all.insert(name, Credential { from, send, placed, ttl_seconds });
        }
        Ok(all)
    }

    /// What the gateway is told of the tools and who may address them.
    pub(super) fn tools(
        &self,
        tables: BTreeMap<String, ToolTable>,
        credentials: &BTreeMap<ToolName, Credential>,
        agents: &BTreeMap<AgentName, AgentConfig>,
    ) -> Result<Tools, ConfigError> {
        let names = Names::new(self.hosts.iter().map(|(name, _)| name.as_str()))
            .map_err(|error| self.conflict(format!("`hosts`: {error}")))?;
        let mut tools = Vec::new();
        for (text, table) in tables {
            let name = self.name("tools", &text)?;
            let tool = self.tool(name, table, credentials, &names);
            tools.push(tool.map_err(|why| self.conflict(format!("`tools.{text}`: {why}")))?);
        }
        let mut listed = Vec::new();
        for (agent, config) in agents {
            let Some(allowed) = &config.tools else { continue };
            if let Some(missing) = allowed.iter().find(|name| !tools.iter().any(|tool| tool.name == **name)) {
                return Err(self.conflict(format!(
                    "`agents.{agent}.tools` names `{missing}`, but there is no `[tools.{missing}]`"
                )));
            }
            listed.push((agent.clone(), allowed.clone()));
        }
        let all = Tools { tools, agents: listed };
        match postcard::to_stdvec(&all) {
            Ok(encoded) if encoded.len() <= MAX_TOOLS => Ok(all),
            _ => Err(self.conflict(format!("`[tools]` is too large: {} KiB are the most", MAX_TOOLS / 1024))),
        }
    }

    fn tool(
        &self,
        name: ToolName,
        table: ToolTable,
        credentials: &BTreeMap<ToolName, Credential>,
        names: &Names,
    ) -> Result<Tool, String> {
        let ToolTable { kind, url, credential, headers, methods } = table;
        let target = url.map(|url| base(&url, names)).transpose()?;
        let bound = match credential {
            None => None,
            Some(text) => {
                let (name, credential) = named_credential(&text, credentials)?;
                let Credential { send, ttl_seconds, .. } = credential.clone();
                Some(Bound { name: name.clone(), send, ttl_seconds })
            }
        };
        let headers = fixed(headers, bound.as_ref())?;
        if let (Some(target), Some(_)) = (&target, &bound) {
            self.sealed(target)?;
        }
        let need = |target: Option<Target>| target.ok_or_else(|| "`url` is missing".to_owned());
        let kind = match kind {
            KindValue::Http => Kind::Http { url: need(target)?.url().to_owned() },
            KindValue::Mcp => Kind::Mcp {
                url: need(target)?.url().to_owned(),
                methods: groups(methods.clone().unwrap_or_default())?,
            },
            KindValue::Web if target.is_some() => {
                return Err("a web tool has no `url`: each call names one".to_owned());
            }
            KindValue::Web if bound.is_some() => {
                return Err("a web tool has no `credential`: any page would get it".to_owned());
            }
            KindValue::Web => Kind::Web,
        };
        if methods.is_some() && !matches!(kind, Kind::Mcp { .. }) {
            return Err("`methods` is for tools of the kind `mcp`".to_owned());
        }
        Ok(Tool { name, kind, credential: bound, headers })
    }

    /// A credential goes out in the clear only to a host that the operator has named.
    pub(super) fn sealed(&self, target: &Target) -> Result<(), String> {
        let named = self.hosts.iter().any(|(name, _)| name == target.host_text());
        if target.scheme() == Scheme::Https || named {
            return Ok(());
        }
        Err(format!(
            "its credential would go to `{}` in the clear: write `https://`, or name the host in `[hosts]` if it is \
             one of your own network",
            target.authority()
        ))
    }
}

pub(super) fn base(url: &str, names: &Names) -> Result<Target, String> {
    let target = Target::from_absolute_with(url, names).map_err(|error| format!("`url`: {error}"))?;
    if target.query().is_some() {
        return Err("`url` has a query: it must end with its path".to_owned());
    }
    Ok(target)
}

fn groups(methods: Vec<String>) -> Result<Vec<String>, String> {
    match methods.iter().find(|group| !METHODS.contains(&group.as_str())) {
        Some(group) => Err(format!("`methods` names `{group}`: it may name {}", METHODS.join(", "))),
        None => Ok(methods),
    }
}

fn placement(send: Option<SendValue>) -> Result<Placement, String> {
    Ok(match send {
        None | Some(SendValue::Bearer(Bearer::Bearer)) => {
            Placement::Header { name: "authorization".to_owned(), format: "Bearer {}".to_owned() }
        }
        Some(SendValue::Header(HeaderValueTable { header, format })) => {
            let format = format.unwrap_or_else(|| "{}".to_owned());
            if format.matches("{}").count() != 1 || HeaderValue::from_str(&format).is_err() {
                return Err(
                    "`format` must have `{}` once, where the credential goes, and be one line".to_owned()
                );
            }
            Placement::Header { name: field(&header)?, format }
        }
        Some(SendValue::Query(QueryTable { query })) => {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
            if query.is_empty() || !query.bytes().all(plain) {
                return Err(format!("`{query}` isn't the name of a query parameter"));
            }
            Placement::Query { name: query }
        }
        Some(SendValue::Basic(BasicTable { basic })) => {
            if basic.contains(':') || basic.chars().any(char::is_control) {
                return Err("`basic` is a user name, without colon".to_owned());
            }
            Placement::Basic { user: basic }
        }
        Some(SendValue::Aws(AwsTable { aws: AwsScope { region, service } })) => {
            let plain = |text: &str| {
                let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
                (1..=63).contains(&text.len()) && text.bytes().all(fits)
            };
            if let Some(odd) = [&region, &service].into_iter().find(|text| !plain(text)) {
                return Err(format!(
                    "`{odd}` isn't a region or service: write them as in `aws = {{ region = \"eu-central-1\", service = \"s3\" }}`"
                ));
            }
            Placement::Aws { region, service }
        }
    })
}

/// The canonical name of a field that an operator may set.
fn field(name: &str) -> Result<String, String> {
    let canonical =
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` isn't a header's name"))?;
    if OURS.contains(&canonical.as_str()) {
        return Err(format!("`{name}` is set by the gateway itself"));
    }
    Ok(canonical.as_str().to_owned())
}

fn fixed(headers: BTreeMap<String, String>, bound: Option<&Bound>) -> Result<Vec<(String, String)>, String> {
    let credential = match bound.map(|bound| &bound.send) {
        Some(Placement::Header { name, .. }) => Some(name.as_str()),
        Some(Placement::Basic { .. } | Placement::Aws { .. }) => Some("authorization"),
        _ => None,
    };
    let mut all: Vec<(String, String)> = Vec::new();
    for (name, value) in headers {
        let canonical = field(&name).map_err(|why| format!("`headers`: {why}"))?;
        if all.iter().any(|(known, _)| *known == canonical) {
            return Err(format!("`headers`: `{name}` is there twice"));
        }
        if credential == Some(canonical.as_str()) {
            return Err(format!("`headers`: `{name}` is where the credential goes"));
        }
        if HeaderValue::from_str(&value).is_err() {
            return Err(format!("`headers`: the value of `{name}` isn't one line of visible characters"));
        }
        all.push((canonical, value));
    }
    Ok(all)
}

/// The credential that a tool or provider names.
pub(super) fn named_credential<'a>(
    text: &str,
    credentials: &'a BTreeMap<ToolName, Credential>,
) -> Result<(&'a ToolName, &'a Credential), String> {
    let found = text.parse::<ToolName>().ok().and_then(|name| credentials.get_key_value(&name));
    found.ok_or_else(|| format!("`credential` names `{text}`, but there is no `[credentials.{text}]`"))
}
