//! Calls that a person is asked about: what the gateway asks, and what it is told.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::ids::{BadName, RecordId, RunId};

/// Most bytes of a request's body, or of a tool's arguments, that a person can be asked about.
pub const MAX_CONTENT: usize = 1024 * 1024;
/// Bytes of content in one packet.
pub const PIECE: usize = 64 * 1024;
/// Most bytes of one shown field, name and value together.
pub const MAX_FIELD: usize = 16 * 1024;

/// Name of a prompt, as people type it: 1 to 16 of `a-z` and `0-9`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ApprovalId(String);

impl ApprovalId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ApprovalId {
    type Err = BadName;
    fn from_str(text: &str) -> Result<Self, BadName> {
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if (1..=16).contains(&text.len()) && text.bytes().all(good) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadName(text.to_owned()))
        }
    }
}

impl TryFrom<String> for ApprovalId {
    type Error = BadName;
    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}

impl From<ApprovalId> for String {
    fn from(id: ApprovalId) -> Self {
        id.0
    }
}

impl fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// SHA-256 over everything of a call that an approval is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CallDigest(pub [u8; 32]);

impl fmt::Display for CallDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A call that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The call: id of its records.
    pub call: RecordId,
    /// Whose.
    pub run: RunId,
    /// What an approval is bound to, besides the run. It covers everything in `shown`, and `rules` and `why`.
    pub digest: CallDigest,
    /// `@id`s of the `@approval` rules that permit it.
    pub rules: Vec<String>,
    /// The first `@approval` text.
    pub why: String,
    /// How long it may wait, seconds: the shortest `@approval_timeout` of the rules.
    pub timeout_seconds: Option<u64>,
    /// What a person is shown.
    pub shown: Shown,
}

/// A call as a person is shown it: raw, to be escaped by whoever shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// What is done: an HTTP method, `connect`, a tool's name.
    pub action: String,
    /// What to: the canonical URL, `host:port`, a tool.
    pub target: String,
    /// How it came: `egress`, `proxy`, or the tool.
    pub via: String,
    /// Header fields that are bound, lower-case name and value; a secret's value is its mark.
    pub fields: Vec<(String, String)>,
    /// Body or arguments, whose bytes came before in pieces.
    pub content: Option<Content>,
}

/// What is known of a body besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// Length.
    pub bytes: u64,
    /// SHA-256.
    pub digest: CallDigest,
}

/// What became of a held call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// A person approved it: this one execution.
    Granted(Settled),
    /// A person refused it, with a note for the client.
    Denied(Settled, Option<String>),
    /// Nobody said anything in time.
    Expired(Settled),
    /// Nobody can be asked, and why.
    Unavailable(String),
}

/// Facts of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The prompt.
    pub id: ApprovalId,
    /// Login name of who said so; none if nobody did.
    pub by: Option<String>,
    /// How long the call waited, milliseconds.
    pub waited_ms: u64,
}

/// What a call's record says of its approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The prompt.
    pub id: ApprovalId,
    /// Login name of who decided.
    pub by: Option<String>,
    /// What it came to.
    pub outcome: Outcome,
    /// How long the call waited, milliseconds.
    pub waited_ms: u64,
}

/// What asking came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Approved.
    Granted,
    /// Refused by a person.
    Denied,
    /// Not answered in time.
    Expired,
}

impl Outcome {
    /// As records spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::Expired => "expired",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_has_a_name_that_people_can_type() {
        assert!("k7x2m9qd".parse::<ApprovalId>().is_ok());
        for bad in ["", "A", "../x", "a b", &"a".repeat(17)] {
            assert!(bad.parse::<ApprovalId>().is_err(), "{bad}");
        }
    }
}
