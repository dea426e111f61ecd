//! The file's own shape, and the one step from it to [`Config`].

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use strait_contract::{
    ids::AgentName,
    message::{Limits, Resolver, UpstreamProxy},
    run::Range,
    tool::{Kind, ToolName},
};

use super::{
    AgentConfig, Config, ConfigError, LogConfig, Network, Reference,
    approvals::ApprovalsTable,
    budget::{self, BudgetTable},
    expose::{ExposeTable, Known},
    provider::ProviderTable,
    tool::{CredentialTable, Source, ToolTable},
    value::{Cidr, HostName, Hosts, ProxyAddress, ResolverValue, Variable},
};
use crate::instance::Instance;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    instance: InstanceTable,
    network: NetworkTable,
    hosts: Hosts,
    limits: LimitsTable,
    log: LogTable,
    agents: BTreeMap<AgentName, AgentTable>,
    tools: BTreeMap<String, ToolTable>,
    credentials: BTreeMap<String, CredentialTable>,
    providers: BTreeMap<String, ProviderTable>,
    prices: toml::Table,
    #[serde(default)]
    routes: Vec<toml::Table>,
    approvals: ApprovalsTable,
}

/// Where things are, for an instance beside the installed one.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct InstanceTable {
    name: Option<AgentName>,
    run_dir: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    lib_dir: Option<PathBuf>,
    bpffs: Option<PathBuf>,
    cgroup: Option<String>,
    dial_netns: Option<PathBuf>,
    gateway_uid: Option<u32>,
    gateway_gid: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NetworkTable {
    pool: Option<Cidr>,
    resolver: Option<ResolverValue>,
    proxy: Option<ProxyAddress>,
    proxy_credential: Option<String>,
    trust: Vec<PathBuf>,
    system_trust: Option<bool>,
    passthrough: Vec<HostName>,
    doh: Vec<HostName>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LimitsTable {
    connections_per_run: Option<u32>,
    names_per_run: Option<u32>,
    head_bytes: Option<u32>,
    head_seconds: Option<u32>,
    connect_seconds: Option<u32>,
    idle_seconds: Option<u32>,
    web_seconds: Option<u32>,
    web_bytes: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LogTable {
    segment_mib: Option<u32>,
    sync_ms: Option<u32>,
    records_per_second: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AgentTable {
    version: Option<String>,
    labels: Vec<String>,
    env: BTreeMap<Variable, String>,
    pass_env: Vec<Variable>,
    addresses: Vec<Cidr>,
    selectable: bool,
    tools: Option<Vec<ToolName>>,
    models: Option<Vec<String>>,
    expose: BTreeMap<Variable, ExposeTable>,
    budget: BudgetTable,
}

/// From text to config.
pub(super) fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
    let File {
        instance,
        network,
        hosts,
        limits,
        log,
        agents,
        approvals,
        tools,
        credentials,
        providers,
        prices,
        routes,
    } = toml::from_str(text).map_err(|error| ConfigError::Text {
        path: path.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    })?;
    let pool = network.pool;
    let network = network.into_network(hosts, path)?;
    let source = Source { path, hosts: &network.hosts };
    let credentials = source.credentials(credentials)?;
    let (hosts, passthrough) = (&network.hosts, &network.passthrough);
    let known = Known { path, hosts, passthrough, credentials: &credentials };
    let agents = agents.into_iter().map(|(name, table)| {
        let config = table.into_config(&name, &known)?;
        Ok((name, config))
    });
    let agents = agents.collect::<Result<BTreeMap<_, _>, ConfigError>>()?;
    let budgets = agents.values().filter(|agent| !agent.budget.is_empty()).count();
    if budgets > budget::MOST {
        let message = format!("{budgets} agents have a `budget`: at most {} can", budget::MOST);
        return Err(conflict(path, message));
    }
    let tools = source.tools(tools, &credentials, &agents)?;
    if network.resolver == Resolver::Proxy
        && let Some(web) = tools.tools.iter().find(|tool| tool.kind == Kind::Web)
    {
        // A11: only addresses that were looked at, and here nobody looks at them.
        let message = format!(
            "`tools.{}` reaches public addresses only, which `network.resolver = \"proxy\"` keeps from being seen: take \
             the tool out, or have names resolved here",
            web.name
        );
        return Err(conflict(path, message));
    }
    let providers = source.providers((providers, prices, routes), &credentials, &agents, passthrough)?;
    let config = Config {
        path: None,
        instance: instance.into_instance(pool, path)?,
        network,
        limits: limits.into_limits(path)?,
        log: log.into_config(path)?,
        approvals: approvals.into_config(path)?,
        agents,
        tools,
        providers,
        credentials,
    };
    Ok(config)
}

pub(super) fn conflict(path: &Path, message: impl Into<String>) -> ConfigError {
    ConfigError::Conflict { path: path.to_owned(), message: message.into() }
}

/// A bounded number, or its default.
pub(super) fn bounded(
    path: &Path,
    key: &str,
    value: Option<u32>,
    default: u32,
    range: std::ops::RangeInclusive<u32>,
) -> Result<u32, ConfigError> {
    let value = value.unwrap_or(default);
    if range.contains(&value) {
        Ok(value)
    } else {
        let (low, high) = (range.start(), range.end());
        Err(conflict(path, format!("`{key}` is {value}: it must be from {low} to {high}")))
    }
}

impl InstanceTable {
    fn into_instance(self, pool: Option<Cidr>, path: &Path) -> Result<Instance, ConfigError> {
        let Self { name, run_dir, state_dir, lib_dir, bpffs, cgroup, dial_netns, gateway_uid, gateway_gid } =
            self;
        let name = match name {
            Some(name) => name,
            None => "strait"
                .parse()
                .map_err(|error: strait_contract::ids::BadName| conflict(path, error.to_string()))?,
        };
        let standard = Instance::standard(name);
        let cgroup = cgroup.unwrap_or(standard.cgroup);
        if cgroup.split('/').any(|part| part.is_empty() || part.starts_with('.')) {
            return Err(conflict(
                path,
                format!("`instance.cgroup` is `{cgroup}`: it must be a folder name such as `strait`"),
            ));
        }
        let pool = pool.map_or(standard.pool, |Cidr(range)| range);
        if !(8..=28).contains(&pool.prefix) {
            return Err(conflict(path, "`network.pool` must have a prefix from /8 to /28"));
        }
        for (key, id) in [("gateway_uid", gateway_uid), ("gateway_gid", gateway_gid)] {
            if id == Some(0) {
                return Err(conflict(path, format!("`instance.{key}` is root: the gateway must not be")));
            }
        }
        let config_dir = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let instance = Instance {
            run_dir: run_dir.unwrap_or(standard.run_dir),
            state_dir: state_dir.unwrap_or(standard.state_dir),
            config_dir: config_dir.map_or_else(|| PathBuf::from("."), Path::to_owned),
            lib_dir: lib_dir.unwrap_or(standard.lib_dir),
            bpffs: bpffs.unwrap_or(standard.bpffs),
            cgroup,
            pool,
            dial_netns,
            gateway_uid: gateway_uid.unwrap_or(standard.gateway_uid),
            gateway_gid: gateway_gid.unwrap_or(standard.gateway_gid),
            name: standard.name,
        };
        for (key, place) in [
            ("run_dir", Some(&instance.run_dir)),
            ("state_dir", Some(&instance.state_dir)),
            ("lib_dir", Some(&instance.lib_dir)),
            ("bpffs", Some(&instance.bpffs)),
            ("dial_netns", instance.dial_netns.as_ref()),
        ] {
            if place.is_some_and(|place| !place.is_absolute()) {
                return Err(conflict(path, format!("`instance.{key}` must be an absolute path")));
            }
        }
        Ok(instance)
    }
}

impl NetworkTable {
    fn into_network(self, hosts: Hosts, path: &Path) -> Result<Network, ConfigError> {
        let Self { pool: _, resolver, proxy, proxy_credential, trust, system_trust, passthrough, doh } = self;
        let resolver = resolver.map_or(Resolver::System, |ResolverValue(resolver)| resolver);
        if resolver == Resolver::Proxy && proxy.is_none() {
            return Err(conflict(path, "`network.resolver` is `\"proxy\"` but `network.proxy` names none"));
        }
        let credential = proxy_credential
            .map(|reference| Reference::parse(&reference)?.resolve())
            .transpose()
            .map_err(|source| ConfigError::Credential { path: path.to_owned(), source })?;
        if credential.is_some() && proxy.is_none() {
            return Err(conflict(path, "`network.proxy_credential` has no `network.proxy` to be used for"));
        }
        Ok(Network {
            resolver,
            proxy: proxy.map(|ProxyAddress { host, port }| UpstreamProxy { host, port, credential }),
            hosts: hosts.0,
            passthrough: passthrough.into_iter().map(|HostName(name)| name).collect(),
            doh: doh.into_iter().map(|HostName(name)| name).collect(),
            anchors: anchors(&trust, path)?,
            system_anchors: system_trust.unwrap_or(true),
        })
    }
}

/// The certificates of the named PEM files; relative paths are beside the config.
fn anchors(files: &[PathBuf], config: &Path) -> Result<String, ConfigError> {
    let mut all = String::new();
    for file in files {
        let path = config.parent().unwrap_or_else(|| Path::new("")).join(file);
        let text =
            fs::read_to_string(&path).map_err(|source| ConfigError::File { path: path.clone(), source })?;
        if text.contains("PRIVATE KEY-----") {
            return Err(conflict(
                config,
                format!("`network.trust`: `{}` holds a private key", path.display()),
            ));
        }
        if !text.contains("-----BEGIN CERTIFICATE-----") {
            return Err(conflict(
                config,
                format!("`network.trust`: `{}` holds no PEM certificate", path.display()),
            ));
        }
        all.push_str(&text);
        all.push('\n');
    }
    Ok(all)
}

impl LimitsTable {
    fn into_limits(self, path: &Path) -> Result<Limits, ConfigError> {
        let default = Limits::default();
        let Self {
            connections_per_run,
            names_per_run,
            head_bytes,
            head_seconds,
            connect_seconds,
            idle_seconds,
            web_seconds,
            web_bytes,
        } = self;
        let bounded =
            |key: &str, value, default, range| bounded(path, &format!("limits.{key}"), value, default, range);
        Ok(Limits {
            connections_per_run: bounded(
                "connections_per_run",
                connections_per_run,
                default.connections_per_run,
                1..=65_536,
            )?,
            names_per_run: bounded("names_per_run", names_per_run, default.names_per_run, 1..=131_070)?,
            head_bytes: bounded("head_bytes", head_bytes, default.head_bytes, 4096..=1_048_576)?,
            head_seconds: bounded("head_seconds", head_seconds, default.head_seconds, 1..=600)?,
            connect_seconds: bounded("connect_seconds", connect_seconds, default.connect_seconds, 1..=600)?,
            idle_seconds: bounded("idle_seconds", idle_seconds, default.idle_seconds, 1..=86_400)?,
            web_seconds: bounded("web_seconds", web_seconds, default.web_seconds, 1..=3600)?,
            web_bytes: bounded("web_bytes", web_bytes, default.web_bytes, 1024..=1_073_741_824)?,
        })
    }
}

impl LogTable {
    fn into_config(self, path: &Path) -> Result<LogConfig, ConfigError> {
        let Self { segment_mib, sync_ms, records_per_second } = self;
        let bounded =
            |key: &str, value, default, range| bounded(path, &format!("log.{key}"), value, default, range);
        Ok(LogConfig {
            segment_mib: bounded("segment_mib", segment_mib, 64, 1..=4096)?,
            // Records are synced at most 20 ms after they were written: less is possible, more isn't.
            sync_ms: bounded("sync_ms", sync_ms, 20, 1..=20)?,
            records_per_second: bounded("records_per_second", records_per_second, 100_000, 100..=10_000_000)?,
        })
    }
}

impl AgentTable {
    fn into_config(self, name: &AgentName, known: &Known<'_>) -> Result<AgentConfig, ConfigError> {
        let Self { version, labels, env, pass_env, addresses, selectable, tools, models, expose, budget } =
            self;
        let env = env.into_iter().map(|(Variable(name), value)| (name, value)).collect();
        Ok(AgentConfig {
            version: version.unwrap_or_else(|| AgentConfig::unnamed().version),
            labels,
            expose: known.exposed(name, expose, &env)?,
            env,
            pass_env: pass_env.into_iter().map(|Variable(name)| name).collect(),
            addresses: addresses.into_iter().map(|Cidr(range)| -> Range { range }).collect(),
            selectable,
            tools,
            models,
            budget: budget.into_budget(name, known.path)?,
        })
    }
}
