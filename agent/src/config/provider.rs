//! `[providers.NAME]` and `agents.NAME.models`: parsed once into what the gateway is told.

use std::collections::BTreeMap;

use serde::Deserialize;
use strait_contract::{
    ids::AgentName,
    provider::{Content, Dialect, Provider, Providers},
    tool::{Bound, ToolName},
};
use strait_model::{
    endpoint::GROUPS,
    price::{Rows, Table},
    route::{self, ModelPattern},
};
use strait_policies::url::Names;

use super::{
    AgentConfig, ConfigError, Credential,
    tool::{Source, base, named_credential},
};

/// Largest encoded set of providers, bytes: it goes over the link in one packet.
const MAX_PROVIDERS: usize = 96 * 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProviderTable {
    api: Dialect,
    url: Option<String>,
    credential: Option<String>,
    #[serde(default = "yes")]
    intercept: bool,
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    content: Content,
}

fn yes() -> bool {
    true
}

impl Source<'_> {
    /// What the gateway is told of the providers and who may ask for which models.
    pub(super) fn providers(
        &self,
        (tables, prices, routes): (BTreeMap<String, ProviderTable>, toml::Table, Vec<toml::Table>),
        credentials: &BTreeMap<ToolName, Credential>,
        agents: &BTreeMap<AgentName, AgentConfig>,
        passthrough: &[String],
    ) -> Result<Providers, ConfigError> {
        let names = Names::new(self.hosts.iter().map(|(name, _)| name.as_str()))
            .map_err(|error| self.conflict(format!("`hosts`: {error}")))?;
        let mut providers = Vec::new();
        for (text, table) in tables {
            let name = self.name("providers", &text)?;
            let provider = self.provider(name, table, credentials, &names, passthrough);
            providers.push(provider.map_err(|why| self.conflict(format!("`providers.{text}`: {why}")))?);
        }
        let mut listed = Vec::new();
        for (agent, config) in agents {
            let Some(models) = &config.models else { continue };
            for pattern in models {
                covers_any(pattern, &providers)
                    .map_err(|why| self.conflict(format!("`agents.{agent}.models`: {why}")))?;
            }
            listed.push((agent.clone(), models.clone()));
        }
        let rules = rules(prices, routes, &providers).map_err(|why| self.conflict(why))?;
        let all = Providers { providers, agents: listed, rules };
        match postcard::to_stdvec(&all) {
            Ok(encoded) if encoded.len() <= MAX_PROVIDERS => Ok(all),
            _ => {
                let most = MAX_PROVIDERS / 1024;
                Err(self
                    .conflict(format!("`[providers]` and `models` are too large: {most} KiB are the most")))
            }
        }
    }

    fn provider(
        &self,
        name: ToolName,
        table: ProviderTable,
        credentials: &BTreeMap<ToolName, Credential>,
        names: &Names,
        passthrough: &[String],
    ) -> Result<Provider, String> {
        let ProviderTable { api: dialect, url, credential, intercept, allow, content } = table;
        let url = url.unwrap_or_else(|| origin(dialect).to_owned());
        let target = base(&url, names)?;
        let credential = match credential {
            None => None,
            Some(text) => {
                let (name, credential) = named_credential(&text, credentials)?;
                self.sealed(&target)?;
                let Credential { send, placed, ttl_seconds, .. } = credential.clone();
                let send = if placed { send } else { dialect.placement() };
                Some(Bound { name: name.clone(), send, ttl_seconds })
            }
        };
        if intercept && passthrough.iter().any(|host| host == target.host_text()) {
            return Err(format!(
                "calls of `{0}` can't be seen, since `network.passthrough` has it: take it out there, or write \
                 `intercept = false`",
                target.host_text()
            ));
        }
        if let Some(group) = allow.iter().find(|group| !GROUPS.contains(&group.as_str())) {
            return Err(format!("`allow` names `{group}`: it may name {}", GROUPS.join(", ")));
        }
        Ok(Provider { name, dialect, url: target.url().to_owned(), credential, intercept, allow, content })
    }
}

/// The operator's prices and routes, checked, as the gateway reads them.
fn rules(prices: toml::Table, routes: Vec<toml::Table>, providers: &[Provider]) -> Result<String, String> {
    if prices.is_empty() && routes.is_empty() {
        return Ok(String::new());
    }
    let rows: Rows = prices
        .clone()
        .try_into()
        .map_err(|error: toml::de::Error| format!("`prices`: {}", error.message()))?;
    Table::new(&rows).map_err(|error| format!("`prices`: {error}"))?;
    let tables = routes.iter().enumerate().map(|(at, table)| {
        let read = table.clone().try_into::<route::Table>();
        read.map_err(|error| format!("`routes[{at}]`: {}", error.message()))
    });
    let tables = tables.collect::<Result<Vec<_>, _>>()?;
    let is_provider = |name: &str| providers.iter().any(|provider| provider.name.as_str() == name);
    route::Rules::parse(&tables, is_provider).map_err(|error| error.to_string())?;
    let routes = routes.into_iter().map(toml::Value::Table).collect();
    let rules = [("prices", toml::Value::Table(prices)), ("routes", toml::Value::Array(routes))];
    toml::to_string(&toml::Table::from_iter(rules.map(|(key, value)| (key.to_owned(), value))))
        .map_err(|error| error.to_string())
}

/// Where an API is if the config doesn't say.
fn origin(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi => "https://api.openai.com",
        Dialect::Anthropic => "https://api.anthropic.com",
        Dialect::Gemini => "https://generativelanguage.googleapis.com",
    }
}

/// A pattern that no provider could ever fit is a slip of the pen.
fn covers_any(pattern: &str, providers: &[Provider]) -> Result<(), String> {
    ModelPattern::parse(pattern).map_err(|error| error.to_string())?;
    let Some((provider, _)) = pattern.split_once('/') else { return Ok(()) };
    if provider.contains(['*', '?']) || providers.iter().any(|known| known.name.as_str() == provider) {
        return Ok(());
    }
    Err(format!("`{pattern}` is for `{provider}`, but there is no `[providers.{provider}]`"))
}
