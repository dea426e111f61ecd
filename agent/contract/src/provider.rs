//! Providers of models as the operator configured them, and what the gateway needs to reach them.

use serde::{Deserialize, Serialize};

use crate::{
    ids::AgentName,
    tool::{Bound, Placement, ToolName},
};

/// How a provider is spoken to. Azure OpenAI and Bedrock are places where one of these is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// OpenAI and what is compatible with it.
    OpenAi,
    /// Anthropic.
    Anthropic,
    /// Gemini.
    Gemini,
}

impl Dialect {
    /// As config and records spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    /// Where the API expects its key.
    pub fn placement(self) -> Placement {
        let (name, format) = match self {
            Self::OpenAi => ("authorization", "Bearer {}"),
            Self::Anthropic => ("x-api-key", "{}"),
            Self::Gemini => ("x-goog-api-key", "{}"),
        };
        Placement::Header { name: name.to_owned(), format: format.to_owned() }
    }
}

/// All providers of an instance, and who may ask them for which models.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Providers {
    /// Every provider, by name.
    pub providers: Vec<Provider>,
    /// The models that an agent may ask for (`agents.NAME.models`), as `provider/model` patterns; one that isn't listed
    /// here may ask for all.
    pub agents: Vec<(AgentName, Vec<String>)>,
    /// `[prices]` and `[[routes]]` of the config, as TOML; checked by the agent.
    pub rules: String,
}

/// One provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provider {
    /// Its name in endpoints, patterns and records.
    pub name: ToolName,
    /// How it is spoken to.
    pub dialect: Dialect,
    /// Canonical base URL, without query: what stands behind `/model/NAME` is appended.
    pub url: String,
    /// What the gateway adds to prove itself; none for one that asks for nothing.
    pub credential: Option<Bound>,
    /// Whether requests to its own origin that are model calls take this route too.
    pub intercept: bool,
    /// Groups of endpoints that are passed on although nothing in them is counted: `files`, `batches`…
    pub allow: Vec<String>,
    /// What of prompts and answers the trace keeps.
    pub content: Content,
}

/// What of prompts and answers the trace keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Nothing.
    #[default]
    None,
    /// SHA-256 of each.
    Hash,
    /// The beginning of each, with secrets hidden.
    Full,
}

impl Content {
    /// As config and records spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Hash => "hash",
            Self::Full => "full",
        }
    }
}
