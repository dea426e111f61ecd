//! `strait.toml`: what the operator decides, parsed once into what the parts need.
//!
//! Unknown and duplicate keys are refused with file, line and key (case 82). Secrets are references (`file:`,
//! `env:`), never values. With no file at all the defaults hold: an instance that refuses everything.

mod approvals;
mod budget;
mod credential;
mod expose;
mod file;
mod provider;
mod tool;
mod value;

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use strait_contract::{
    budget::Budget,
    ids::AgentName,
    message::{Intermediate, Limits, Resolver, Secret, Setup, UpstreamProxy},
    provider::Providers,
    run::Range,
    tool::{Placement, ToolName, Tools},
};

use crate::{instance::Instance, log};

pub use credential::{CredentialError, Reference};
pub use expose::{Expose, Shown};

/// The installed instance's config file.
pub const DEFAULT_PATH: &str = "/etc/strait/strait.toml";

/// The whole config, parsed.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it was read from, if it was named.
    pub path: Option<PathBuf>,
    /// Names and places.
    pub instance: Instance,
    /// The way out.
    pub network: Network,
    /// Limits of the gateway.
    pub limits: Limits,
    /// The log.
    pub log: LogConfig,
    /// Agents by name.
    pub agents: BTreeMap<AgentName, AgentConfig>,
    /// Tools, as the gateway is told of them.
    pub tools: Tools,
    /// Providers of models, as the gateway is told of them.
    pub providers: Providers,
    /// Credentials by name, unresolved.
    pub credentials: BTreeMap<ToolName, Credential>,
    /// How people are asked.
    pub approvals: ApprovalConfig,
}

/// A credential as configured: a reference, never a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Where its value comes from.
    pub from: Reference,
    /// Where it goes in a request: as `send` says, or as a bearer token.
    pub send: Placement,
    /// Whether `send` says it: a provider of models has a place of its own for it else.
    pub placed: bool,
    /// How long the gateway may keep it, seconds.
    pub ttl_seconds: u32,
}

/// How people are asked about calls that policy holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalConfig {
    /// Whether they are.
    pub mode: ApprovalMode,
    /// How long a call waits, unless its rule says.
    pub timeout: Duration,
    /// Program and arguments that tell people of a prompt; empty if none does.
    pub notify: Vec<String>,
    /// Prompts of one run at once.
    pub per_run: usize,
}

/// Whether people are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApprovalMode {
    /// A call waits for a person.
    #[default]
    Hold,
    /// Nobody is there: such a call is refused at once.
    Refuse,
}

/// How the gateway reaches upstreams.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// How names are resolved.
    pub resolver: Resolver,
    /// Corporate proxy.
    pub proxy: Option<UpstreamProxy>,
    /// Operator-named hosts: the only way to a private address.
    pub hosts: Vec<(String, IpAddr)>,
    /// Hosts whose TLS isn't intercepted.
    pub passthrough: Vec<String>,
    /// Hosts that may speak DNS over HTTPS.
    pub doh: Vec<String>,
    /// Extra trust anchors, PEM.
    pub anchors: String,
    /// Whether the host's trust store is used too.
    pub system_anchors: bool,
}

/// How the log works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Size at which a file is sealed, MiB.
    pub segment_mib: u32,
    /// Longest time between write and sync, milliseconds.
    pub sync_ms: u32,
    /// Records a second per run.
    pub records_per_second: u32,
}

/// An agent as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentConfig {
    /// Version, which policies can name.
    pub version: String,
    /// Labels, which policies can name.
    pub labels: Vec<String>,
    /// Environment of its runs.
    pub env: BTreeMap<String, String>,
    /// Variables passed on from the caller.
    pub pass_env: Vec<String>,
    /// Literal addresses that its runs may name.
    pub addresses: Vec<Range>,
    /// Whether a container may choose it by label or variable.
    pub selectable: bool,
    /// Tools that its runs may address; `None`: all, as far as policy permits.
    pub tools: Option<Vec<ToolName>>,
    /// Models that its runs may ask for, as `provider/model` patterns; `None`: all.
    pub models: Option<Vec<String>>,
    /// Credentials that its runs are shown, by variable.
    pub expose: Vec<Expose>,
    /// What its runs may use of models.
    pub budget: Budget,
}

/// Why a config was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("`{path}` can't be read: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The text isn't a config: the message has line, column and key.
    #[error("`{path}` is refused: {message}")]
    Text {
        /// Which.
        path: PathBuf,
        /// What is wrong where.
        message: String,
    },
    /// Values that don't go together.
    #[error("`{path}` is refused: {message}")]
    Conflict {
        /// Which file.
        path: PathBuf,
        /// What and what to do.
        message: String,
    },
    /// A credential can't be resolved.
    #[error("`{path}` is refused: `network.proxy_credential`: {source}")]
    Credential {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: CredentialError,
    },
}

impl Config {
    /// Reads the config at `path`: a file, or a folder with `strait.toml` in it. `None` is the installed
    /// instance's, which may be absent.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let config = Self::read(path)?;
        Ok(Self { path: path.map(Path::to_owned), ..config })
    }

    fn read(path: Option<&Path>) -> Result<Self, ConfigError> {
        let named = path.is_some();
        let path = path.map_or_else(|| PathBuf::from(DEFAULT_PATH), Path::to_owned);
        let path = if path.is_dir() { path.join("strait.toml") } else { path };
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !named => Self::parse("", &path),
            Err(source) => Err(ConfigError::File { path, source }),
        }
    }

    /// Parses a config's text; `path` is where it was read and gives the config folder.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        file::parse(text, path)
    }

    /// An agent's config; one that isn't configured has the defaults.
    pub fn agent(&self, name: &AgentName) -> AgentConfig {
        self.agents.get(name).cloned().unwrap_or_else(AgentConfig::unnamed)
    }

    /// Budgets of the agents that have one.
    pub fn budgets(&self) -> BTreeMap<AgentName, Budget> {
        let budgets = self.agents.iter().map(|(name, agent)| (name.clone(), agent.budget));
        budgets.filter(|(_, budget)| !budget.is_empty()).collect()
    }

    /// A credential's value now. Blocks, as long as a program may take.
    ///
    /// # Errors
    /// Why there is none, in words that show nothing of it.
    pub fn credential(&self, name: &ToolName) -> Result<Secret, String> {
        let credential = self.credentials.get(name);
        let credential = credential.ok_or_else(|| format!("there is no `[credentials.{name}]`"))?;
        credential.from.resolve().map_err(|error| error.to_string())
    }

    /// What the gateway is told at its start.
    pub fn setup(&self, ca: Intermediate) -> Setup {
        let Network { resolver, proxy, hosts, passthrough, doh, anchors, system_anchors } =
            self.network.clone();
        Setup {
            gateway: self.instance.gateway(),
            resolver,
            proxy,
            hosts,
            passthrough,
            doh,
            anchors,
            system_anchors,
            ca,
            limits: self.limits.clone(),
        }
    }

    /// How the log works here.
    pub fn log_options(&self) -> log::Options {
        let LogConfig { segment_mib, sync_ms, records_per_second } = self.log;
        log::Options {
            segment_bytes: u64::from(segment_mib) * 1024 * 1024,
            sync_every: Duration::from_millis(u64::from(sync_ms)),
            records_per_second,
            ..log::Options::for_instance(&self.instance)
        }
    }
}

impl AgentConfig {
    /// An agent that the config doesn't name.
    pub fn unnamed() -> Self {
        Self { version: "0".into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
