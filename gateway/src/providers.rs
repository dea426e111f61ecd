//! The providers of models that runs may ask, as the agent told: looked up by name or by their own origin.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use strait_contract::{
    code::Code,
    ids::AgentName,
    provider::{self, Content, Dialect},
    tool::ToolName,
};

use serde::Deserialize;
use strait_model::{
    price::{Rows, Table},
    route::{self, ModelPattern},
};

use crate::{
    credential::Credential,
    decide::Refusal,
    tools::{Kind, Tool, ToolsError},
    url::{Host, Names, Scheme, Target},
};

/// All providers, and who may ask for which models.
#[derive(Debug, Default)]
pub struct Providers {
    by_name: BTreeMap<ToolName, Arc<Provider>>,
    by_origin: HashMap<(Scheme, Host, u16), Arc<Provider>>,
    agents: HashMap<AgentName, Vec<ModelPattern>>,
    prices: Table,
    routes: route::Rules,
}

/// `[prices]` and `[[routes]]` of the config, as the agent passes it on.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rules {
    prices: Rows,
    routes: Vec<route::Table>,
}

/// One provider.
#[derive(Debug)]
pub struct Provider {
    /// How it is spoken to.
    pub dialect: Dialect,
    /// Its base URL.
    pub(crate) url: Target,
    /// Groups of endpoints that are passed on although nothing in them is counted.
    pub(crate) allow: Vec<String>,
    /// What of prompts and answers the trace keeps.
    pub(crate) content: Content,
    /// Its name and credential, as calls carry them.
    pub(crate) tool: Arc<Tool>,
}

impl Providers {
    /// Parses what the agent told. `names` are those of `hosts`.
    ///
    /// # Errors
    /// See [`ToolsError`].
    pub(crate) fn new(told: provider::Providers, names: &Names) -> Result<Self, ToolsError> {
        let rules: Rules =
            toml::from_str(&told.rules).map_err(|error| ToolsError::Rules(error.to_string()))?;
        let prices = Table::new(&rules.prices).map_err(|error| ToolsError::Rules(error.to_string()))?;
        let is_provider = |name: &str| told.providers.iter().any(|provider| provider.name.as_str() == name);
        let routes = route::Rules::parse(&rules.routes, is_provider)
            .map_err(|error| ToolsError::Rules(error.to_string()))?;
        let mut all = Self { prices, routes, ..Self::default() };
        for told in told.providers {
            let intercept = told.intercept;
            let provider = Arc::new(Provider::new(told, names)?);
            if intercept {
                // Of two at one origin the first by name is asked.
                let origin = (provider.url.scheme(), provider.url.host().clone(), provider.url.port());
                all.by_origin.entry(origin).or_insert_with(|| Arc::clone(&provider));
            }
            all.by_name.insert(provider.name().clone(), provider);
        }
        for (agent, models) in told.agents {
            let patterns = models.iter().map(|model| ModelPattern::parse(model)).collect::<Result<_, _>>();
            all.agents.insert(agent, patterns.map_err(|error| ToolsError::Rules(error.to_string()))?);
        }
        Ok(all)
    }

    /// What models cost.
    pub(crate) fn prices(&self) -> &Table {
        &self.prices
    }

    /// Where calls go.
    pub(crate) fn routes(&self) -> &route::Rules {
        &self.routes
    }

    /// The provider of this name.
    ///
    /// # Errors
    /// [`Code::ToolUnknown`].
    pub(crate) fn find(&self, name: &str) -> Result<Arc<Provider>, Refusal> {
        let found = name.parse::<ToolName>().ok().and_then(|name| self.by_name.get(&name));
        found.cloned().ok_or_else(|| {
            Refusal::new(Code::ToolUnknown, format!("there is no provider `{name}` of models here"))
                .hint("have the operator add `[providers.NAME]` to strait.toml")
        })
    }

    /// The provider whose own origin this is, if calls of it are to be taken there.
    pub(crate) fn at(&self, target: &Target) -> Option<&Arc<Provider>> {
        if self.by_origin.is_empty() {
            return None;
        }
        self.by_origin.get(&(target.scheme(), target.host().clone(), target.port()))
    }

    /// Whether an agent may ask for a model.
    ///
    /// # Errors
    /// [`Code::ToolCallDenied`] if its list leaves the model out.
    pub(crate) fn check(&self, agent: &AgentName, provider: &ToolName, model: &str) -> Result<(), Refusal> {
        match self.agents.get(agent) {
            Some(listed) if !listed.iter().any(|pattern| pattern.matches(provider.as_str(), model)) => {
                let reason = format!("`agents.{agent}.models` doesn't list the model `{provider}/{model}`");
                Err(Refusal::new(Code::ToolCallDenied, reason)
                    .hint("have the operator add it there, or ask for a model that is listed"))
            }
            _ => Ok(()),
        }
    }
}

impl Provider {
    fn new(told: provider::Provider, names: &Names) -> Result<Self, ToolsError> {
        let provider::Provider { name, dialect, url, credential, intercept: _, allow, content } = told;
        let url = Target::from_absolute_with(&url, names)
            .map_err(|source| ToolsError::Url { tool: name.clone(), source })?;
        let credential =
            credential.map(|bound| Credential::new(bound).ok_or_else(|| ToolsError::Field(name.clone())));
        let tool = Tool { name, kind: Kind::Model, credential: credential.transpose()?, headers: Vec::new() };
        Ok(Self { dialect, url, allow, content, tool: Arc::new(tool) })
    }

    /// Its name.
    pub fn name(&self) -> &ToolName {
        &self.tool.name
    }

    /// The path of a request to its own origin, below its base URL.
    pub(crate) fn below<'a>(&self, path: &'a str) -> Option<&'a str> {
        let root = self.url.path().trim_end_matches('/');
        path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}
