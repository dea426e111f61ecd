//! Tools as the operator configured them, and what the gateway needs to reach them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::ids::AgentName;

/// Name of a tool (`[tools.NAME]`) or credential: 1 to 63 of `a-z`, `0-9`, `_` and `-`, a letter or digit first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolName(String);

/// Why a tool's name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a name: use 1 to 63 of a-z, 0-9, _ and -, starting with a letter or digit")]
pub struct BadToolName(pub String);

impl ToolName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ToolName {
    type Err = BadToolName;

    fn from_str(text: &str) -> Result<Self, BadToolName> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let starts = text.bytes().next().is_some_and(plain);
        let rest = text.bytes().all(|byte| plain(byte) || matches!(byte, b'_' | b'-'));
        if starts && rest && text.len() <= 63 {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadToolName(text.to_owned()))
        }
    }
}

impl TryFrom<String> for ToolName {
    type Error = BadToolName;

    fn try_from(text: String) -> Result<Self, BadToolName> {
        text.parse()
    }
}

impl From<ToolName> for String {
    fn from(name: ToolName) -> Self {
        name.0
    }
}

impl fmt::Display for ToolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All tools of an instance, and who may address them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tools {
    /// Every tool, by name.
    pub tools: Vec<Tool>,
    /// The tools that an agent may address (`agents.NAME.tools`); one that isn't listed here may address all.
    pub agents: Vec<(AgentName, Vec<ToolName>)>,
}

/// One tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name in endpoints, policies and records.
    pub name: ToolName,
    /// What it is.
    pub kind: Kind,
    /// What the gateway adds to prove itself.
    pub credential: Option<Bound>,
    /// Fields that win over the caller's, names in lower case.
    pub headers: Vec<(String, String)>,
}

/// What a tool is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// An HTTP API below a URL.
    Http {
        /// Canonical base URL, without query.
        url: String,
    },
    /// Any public page.
    Web,
    /// An MCP server over streamable HTTP.
    Mcp {
        /// Canonical URL of its endpoint.
        url: String,
        /// Groups of methods besides `tools` that may be asked for: `resources`, `prompts`…
        methods: Vec<String>,
    },
}

impl Kind {
    /// As config and records spell it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Http { .. } => "http",
            Self::Web => "web",
            Self::Mcp { .. } => "mcp",
        }
    }
}

/// A credential as one tool uses it: a reference, never a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Its name.
    pub name: ToolName,
    /// Where its value goes.
    pub send: Placement,
    /// How long the gateway may keep its value, seconds.
    pub ttl_seconds: u32,
}

/// Where a credential's value goes in a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// A field.
    Header {
        /// Its name, lower case.
        name: String,
        /// Its value, with `{}` where the credential goes.
        format: String,
    },
    /// A pair of the query.
    Query {
        /// Its name.
        name: String,
    },
    /// The password of Basic authentication.
    Basic {
        /// User name, without colon.
        user: String,
    },
    /// A signature of AWS's version 4 over the whole request. The value is `ACCESS_KEY_ID:SECRET`, or
    /// `ACCESS_KEY_ID:SECRET:SESSION_TOKEN`.
    Aws {
        /// Region, such as `eu-central-1`.
        region: String,
        /// Service, such as `s3`.
        service: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tools_name_is_a_path_segment() {
        for good in ["github", "a", "9", "my_tool-2"] {
            assert!(good.parse::<ToolName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "_a", "A", "a/b", "..", "a.b", "a b", "ä", "a%2f", &"a".repeat(64)] {
            assert!(bad.parse::<ToolName>().is_err(), "{bad}");
        }
    }
}
