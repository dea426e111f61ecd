//! Credentials that a run is shown deliberately, as variables of its environment (A34).
//!
//! Either the value itself, or a placeholder: a text that is worth nothing outside its run and that the gateway replaces
//! by the value on the way to the origins it is for.

use serde::{Deserialize, Serialize};

use crate::{message::Secret, tool::ToolName};

/// How a placeholder begins if the config doesn't say.
pub const PREFIX: &str = "strait_ph_";
/// Random letters and digits behind a placeholder's prefix: 238 bits. None of them is changed by what JSON, URLs and HTML
/// do to characters.
pub const BODY: usize = 40;

/// One variable of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposed {
    /// Name of the variable.
    pub variable: String,
    /// The credential behind it.
    pub credential: ToolName,
    /// What the variable holds.
    pub shown: Shown,
}

/// What a variable holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shown {
    /// The value itself.
    Value(Secret),
    /// Something in its place.
    Placeholder {
        /// It.
        text: Secret,
        /// Where it is replaced by the value.
        origins: Vec<Origin>,
        /// How long the gateway may keep the value, seconds.
        ttl_seconds: u32,
    },
}

/// Scheme, host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `https`, else `http`.
    pub https: bool,
    /// Canonical host.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Exposed {
    /// The text of the variable.
    pub fn text(&self) -> &Secret {
        match &self.shown {
            Shown::Value(text) | Shown::Placeholder { text, .. } => text,
        }
    }

    /// As the record of the run's start has it: names alone.
    pub fn told(&self) -> String {
        let how = match &self.shown {
            Shown::Value(_) => "value",
            Shown::Placeholder { .. } => "placeholder",
        };
        format!("{}={how}:{}", self.variable, self.credential)
    }
}
