//! Calls of models: what is counted and what it costs.

use std::fmt;

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

impl Usd {
    /// Billionths of a dollar in a dollar.
    pub const DOLLAR: u64 = 1_000_000_000;

    /// As a number of dollars, for records: exact below nine million.
    #[expect(
        clippy::cast_precision_loss,
        reason = "only amounts above nine million dollars lose their billionths"
    )]
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// From a number of dollars, to the nearest billionth; `None` if it is negative or no amount of money.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked before"
    )]
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        let billionths = (dollars * 1e9).round();
        (0.0..=1e19).contains(&billionths).then_some(Self(billionths as u64))
    }
}

impl fmt::Display for Usd {
    /// Dollars with cents; with more digits if it is less than a dollar: `$12.50`, `$0.0042`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / Self::DOLLAR, self.0 % Self::DOLLAR);
        let digits = format!("{rest:09}");
        let needed = digits.trim_end_matches('0').len();
        let shown = if whole > 0 { 2 } else { needed.max(2) };
        write!(f, "${whole}.{}", digits.get(..shown).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_read_and_written() {
        for (billionths, text) in [
            (0, "$0.00"),
            (12_500_000_000, "$12.50"),
            (4_200_000, "$0.0042"),
            (100_000_000, "$0.10"),
            (1, "$0.000000001"),
            (5_009_999_999, "$5.00"),
        ] {
            assert_eq!(Usd(billionths).to_string(), text);
            assert_eq!(Usd::from_dollars(Usd(billionths).dollars()), Some(Usd(billionths)));
        }
        for bad in [-0.1, f64::NAN, f64::INFINITY, 1e30] {
            assert_eq!(Usd::from_dollars(bad), None, "{bad}");
        }
        let most = Usd(9_000_000_123_456_789);
        assert_eq!(Usd::from_dollars(most.dollars()), Some(most));
    }
}
