//! The tools that runs may call, as the agent told: looked up by name, their parts parsed once.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use http::{HeaderName, HeaderValue};
use strait_contract::{
    code::Code,
    ids::AgentName,
    record::ToolKind,
    tool::{self, ToolName},
};

use crate::{
    credential::Credential,
    decide::Refusal,
    url::{Names, Target, UrlError},
};

/// All tools, and who may address them.
#[derive(Debug, Default)]
pub struct Tools {
    by_name: HashMap<ToolName, Arc<Tool>>,
    agents: HashMap<AgentName, HashSet<ToolName>>,
}

/// One tool.
#[derive(Debug)]
pub struct Tool {
    /// Its name.
    pub name: ToolName,
    /// What it is.
    pub kind: Kind,
    /// What the gateway proves itself with.
    pub(crate) credential: Option<Credential>,
    /// Fields that win over the caller's.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

/// What a tool is.
#[derive(Debug)]
pub enum Kind {
    /// An HTTP API below a URL.
    Http(Target),
    /// Any public page.
    Web,
    /// An MCP server.
    Mcp {
        /// Its endpoint.
        url: Target,
        /// Groups of methods that the operator opted into.
        methods: Vec<String>,
    },
    /// A provider of models ([`crate::providers`]): no tool that can be addressed as one.
    Model,
}

/// Why a tool can't be used. The agent checks the same when it reads its config.
#[derive(Debug, thiserror::Error)]
pub enum ToolsError {
    /// Its URL.
    #[error("the URL of the tool `{tool}`: {source}")]
    Url {
        /// Which.
        tool: ToolName,
        /// Why.
        source: UrlError,
    },
    /// One of its fields.
    #[error("the tool `{0}` has a field that can't be sent")]
    Field(ToolName),
    /// Prices of models.
    #[error("the prices of models: {0}")]
    Rules(String),
    /// They came before the setup.
    #[error("tools came before the setup")]
    Early,
}

impl Tools {
    /// Parses what the agent told. `names` are those of `hosts`.
    ///
    /// # Errors
    /// See [`ToolsError`].
    pub(crate) fn new(told: tool::Tools, names: &Names) -> Result<Self, ToolsError> {
        let tools = told.tools.into_iter().map(|told| {
            let tool = Tool::new(told, names)?;
            Ok((tool.name.clone(), Arc::new(tool)))
        });
        let agents = told.agents.into_iter().map(|(agent, tools)| (agent, tools.into_iter().collect()));
        Ok(Self { by_name: tools.collect::<Result<_, ToolsError>>()?, agents: agents.collect() })
    }

    /// The tool of this name and kind.
    ///
    /// # Errors
    /// [`Code::ToolUnknown`].
    pub(crate) fn find(&self, name: &str, kind: ToolKind) -> Result<Arc<Tool>, Refusal> {
        let found = name.parse::<ToolName>().ok().and_then(|name| self.by_name.get(&name));
        found.filter(|tool| tool.kind() == kind).cloned().ok_or_else(|| {
            let kind = kind.as_str();
            let reason = format!("there is no tool `{name}` of the kind `{kind}` here");
            Refusal::new(Code::ToolUnknown, reason)
                .hint(format!("have the operator add `[tools.NAME]` with `kind = \"{kind}\"` to strait.toml"))
        })
    }

    /// Whether an agent may address a tool at all; policy decides about each call.
    ///
    /// # Errors
    /// [`Code::ToolCallDenied`] if its list leaves the tool out.
    pub(crate) fn check(&self, agent: &AgentName, tool: &ToolName) -> Result<(), Refusal> {
        match self.agents.get(agent) {
            Some(listed) if !listed.contains(tool) => {
                let reason = format!("`agents.{agent}.tools` doesn't list the tool `{tool}`");
                Err(Refusal::new(Code::ToolCallDenied, reason)
                    .hint("have the operator add it there, or use a tool that is listed"))
            }
            _ => Ok(()),
        }
    }
}

impl Tool {
    fn new(told: tool::Tool, names: &Names) -> Result<Self, ToolsError> {
        let tool::Tool { name, kind, credential, headers } = told;
        let target = |url: &str| {
            Target::from_absolute_with(url, names)
                .map_err(|source| ToolsError::Url { tool: name.clone(), source })
        };
        let kind = match kind {
            tool::Kind::Http { url } => Kind::Http(target(&url)?),
            tool::Kind::Web => Kind::Web,
            tool::Kind::Mcp { url, methods } => Kind::Mcp { url: target(&url)?, methods },
        };
        let field = |(field, value): &(String, String)| {
            let pair = field.parse().ok().zip(value.parse().ok());
            pair.ok_or_else(|| ToolsError::Field(name.clone()))
        };
        let headers = headers.iter().map(field).collect::<Result<_, _>>()?;
        let credential =
            credential.map(|bound| Credential::new(bound).ok_or_else(|| ToolsError::Field(name.clone())));
        Ok(Self { credential: credential.transpose()?, headers, kind, name })
    }

    /// Its kind as records have it.
    pub(crate) fn kind(&self) -> ToolKind {
        match self.kind {
            Kind::Http(_) => ToolKind::Http,
            Kind::Web => ToolKind::Web,
            Kind::Mcp { .. } => ToolKind::Mcp,
            Kind::Model => ToolKind::Model,
        }
    }
}
