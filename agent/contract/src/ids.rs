//! Names that both processes use: runs, agents, records.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Identifier of a run: 1 to 63 characters of `a-z`, `0-9` and `-`, starting with a letter. It names the
/// run's folder, netns, cgroup and pins, so its alphabet is that of a path segment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

/// Name of an agent as configured (`[agents.NAME]`); same alphabet as [`RunId`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentName(String);

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a name: use 1 to 63 of a-z, 0-9 and -, starting with a letter")]
pub struct BadName(pub String);

fn parse(text: &str) -> Result<String, BadName> {
    let mut bytes = text.bytes();
    let starts = bytes.next().is_some_and(|first| first.is_ascii_lowercase());
    let rest = bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if starts && rest && text.len() <= 63 { Ok(text.to_owned()) } else { Err(BadName(text.to_owned())) }
}

macro_rules! name {
    ($name:ident) => {
        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                parse(text).map(Self)
            }
        }
        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                parse(&text).map(Self)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
name!(RunId);
name!(AgentName);

/// Identifier of a record: a UUIDv7 minted by whoever made the record, so that a refusal can name it before
/// it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordId(Uuid);

impl RecordId {
    /// A fresh identifier of this moment.
    pub fn now() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_is_a_path_segment() {
        for good in ["coder-7f3a2c", "a", "x9"] {
            assert!(good.parse::<RunId>().is_ok(), "{good}");
        }
        for bad in ["", "9a", "-a", "A", "a/b", "..", "a.b", "a b", "ä", &"a".repeat(64)] {
            assert!(bad.parse::<RunId>().is_err(), "{bad}");
        }
    }
}
