//! Calls of models: what is counted and what it costs.

use serde::{Deserialize, Serialize};

/// Tokens and other units of one model call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// All tokens read, those read from or written to a cache among them.
    pub input: u64,
    /// All tokens written, those of reasoning among them.
    pub output: u64,
    /// Those of `input` that were read from a cache.
    pub cache_read: u64,
    /// Those of `input` that were written to a cache.
    pub cache_write: u64,
    /// Those of `output` that were reasoning.
    pub reasoning: u64,
    /// Units of server tools by name (`web_search`: 3).
    pub units: Vec<(String, u64)>,
    /// Whether a part is an estimate of the gateway's: the provider gave no or not all numbers.
    pub estimated: bool,
}

/// An amount of money, billionths of a US dollar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Usd(pub u64);
