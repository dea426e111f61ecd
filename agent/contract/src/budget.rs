//! What agents may use of models, and what they have used (A18): the arithmetic that gateway and agent must do alike.
//!
//! The gateway counts what is about to be used and refuses; the agent counts what is on record, which is the truth, and
//! hands it to a gateway that starts. A call is *held* at its worst case from its `decided` line on and *spent* at what
//! it came to from its `done` line on.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{AgentName, RunId},
    model::Usd,
};

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;
/// Days by which a clock may go back without being believed.
const BACK: u32 = 1;

/// An amount of model use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Calls.
    pub calls: u64,
    /// Tokens, read and written.
    pub tokens: u64,
    /// Money.
    pub usd: Usd,
}

impl Amount {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            tokens: self.tokens.saturating_add(other.tokens),
            usd: Usd(self.usd.0.saturating_add(other.usd.0)),
        }
    }

    /// What is left without the other; nothing is below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(other.calls),
            tokens: self.tokens.saturating_sub(other.tokens),
            usd: Usd(self.usd.0.saturating_sub(other.usd.0)),
        }
    }

    /// How much of a unit.
    pub fn of(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Calls => self.calls,
            Unit::Tokens => self.tokens,
            Unit::Usd => self.usd.0,
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Calls.
    Calls,
    /// Tokens.
    Tokens,
    /// Billionths of a US dollar.
    Usd,
}

impl Unit {
    /// Every unit.
    pub const ALL: [Self; 3] = [Self::Calls, Self::Tokens, Self::Usd];

    /// As configuration and records spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Tokens => "tokens",
            Self::Usd => "usd",
        }
    }

    /// An amount for people: `3 calls`, `1200 tokens`, `$0.25`.
    pub fn text(self, amount: u64) -> String {
        match self {
            Self::Calls => format!("{amount} calls"),
            Self::Tokens => format!("{amount} tokens"),
            Self::Usd => Usd(amount).to_string(),
        }
    }
}

/// What a budget is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Each run.
    Run,
    /// All runs of the agent in a day (UTC).
    Day,
    /// All runs of the agent, until somebody sets it back.
    Total,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::Run, Self::Day, Self::Total];

    /// As configuration and records spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Day => "day",
            Self::Total => "total",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Limits of one scope; what has none isn't limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Calls.
    pub calls: Option<u64>,
    /// Tokens.
    pub tokens: Option<u64>,
    /// Money.
    pub usd: Option<Usd>,
}

impl Limits {
    /// The limit of a unit.
    pub fn of(&self, unit: Unit) -> Option<u64> {
        match unit {
            Unit::Calls => self.calls,
            Unit::Tokens => self.tokens,
            Unit::Usd => self.usd.map(|usd| usd.0),
        }
    }

    /// The first unit of which nothing is left, with its limit.
    pub fn reached(&self, used: &Amount) -> Option<(Unit, u64)> {
        let limits = Unit::ALL.into_iter().filter_map(|unit| Some((unit, self.of(unit)?)));
        limits.into_iter().find(|(unit, limit)| used.of(*unit) >= *limit)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An agent's budget (`[agents.NAME.budget]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Of each run.
    pub run: Limits,
    /// Of a day.
    pub day: Limits,
    /// Until it is set back.
    pub total: Limits,
}

impl Budget {
    /// Limits of a scope.
    pub fn of(&self, scope: Scope) -> &Limits {
        match scope {
            Scope::Run => &self.run,
            Scope::Day => &self.day,
            Scope::Total => &self.total,
        }
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        Scope::ALL.iter().all(|scope| self.of(*scope).is_empty())
    }
}

/// Days since 1970-01-01 (UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Day(pub u32);

impl Day {
    /// The day of a Unix time in milliseconds.
    pub fn of_ms(ms: u64) -> Self {
        Self(u32::try_from(ms / DAY_MS).unwrap_or(u32::MAX))
    }
}

/// What one call is held or spent at. On a `decided` line: what it may use at most; on a `done` line: what it used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// The day in which it counts: that of its decision.
    pub day: Day,
    /// How much.
    pub amount: Amount,
}

/// What is used in one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// By calls that are over.
    pub spent: Amount,
    /// At most, by calls under way.
    pub held: Amount,
}

impl Used {
    /// Both together.
    pub fn all(&self) -> Amount {
        self.spent.plus(self.held)
    }

    /// A call begins.
    pub fn hold(&mut self, held: Amount) {
        self.held = self.held.plus(held);
    }

    /// A call is over that was held.
    pub fn settle(&mut self, held: Amount, spent: Amount) {
        self.held = self.held.minus(held);
        self.spent = self.spent.plus(spent);
    }

    /// As a gateway that starts has it: nobody is left to end the calls that were under way.
    #[must_use]
    pub fn closed(&self) -> Self {
        Self { spent: self.all(), held: Amount::default() }
    }
}

/// What an agent's runs have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The day that `today` is about.
    pub day: Day,
    /// In that day.
    pub today: Used,
    /// Since it was last set back.
    pub total: Used,
    /// What was taken off when it was set back, all times together.
    pub cleared: Amount,
}

impl Account {
    /// The day in which a call counts that begins when the clock shows `clock`. A clock that goes back by a day doesn't
    /// open yesterday's window again (case 73); one that goes back further had been wrong before.
    pub fn day_at(&self, clock: Day) -> Day {
        let back = self.day.0.saturating_sub(clock.0);
        if (1..=BACK).contains(&back) { self.day } else { clock }
    }

    /// The window of a day: another than today's is begun if it is later, or so much earlier that the clock must have
    /// been wrong; then what was used goes along, so that nobody gains by it.
    pub fn turn(&mut self, day: Day) {
        if day > self.day {
            self.today = Used::default();
            self.day = day;
        } else if self.day_at(day) != self.day {
            self.today = self.today.closed();
            self.day = day;
        }
    }

    /// A call begins.
    pub fn hold(&mut self, held: &Charge) {
        self.turn(held.day);
        if held.day == self.day {
            self.today.hold(held.amount);
        }
        self.total.hold(held.amount);
    }

    /// A call is over that was held.
    pub fn settle(&mut self, held: &Charge, spent: Amount) {
        if held.day == self.day {
            self.today.settle(held.amount, spent);
        }
        self.total.settle(held.amount, spent);
    }

    /// Sets the total back; calls under way will count.
    pub fn reset(&mut self) {
        self.cleared = self.cleared.plus(self.total.spent);
        self.total.spent = Amount::default();
    }

    /// Takes note that another account of the same calls was set back. What was counted here and not there by then still
    /// counts.
    pub fn follow(&mut self, cleared: Amount) {
        self.total.spent = self.total.spent.minus(cleared.minus(self.cleared));
        self.cleared = cleared;
    }

    /// As a gateway that starts has it.
    #[must_use]
    pub fn closed(&self) -> Self {
        Self { today: self.today.closed(), total: self.total.closed(), ..*self }
    }
}

/// What the agent tells a gateway of one agent's use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentUse {
    /// The agent.
    pub agent: AgentName,
    /// What its runs have used. A gateway that has counted already takes only from it what was set back.
    pub account: Account,
}

/// What the agent tells a gateway of one run's use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunUse {
    /// The run.
    pub run: RunId,
    /// What it has used.
    pub spent: Amount,
}

#[cfg(test)]
mod tests;
