//! The ledger of model use (A18): what each agent and live run has used and holds, counted from the records on their way
//! into the log, with the arithmetic that the gateway uses too ([`strait_contract::budget`]).
//!
//! The log is the truth. The ledger is kept beside it so that nothing has to be read again: a snapshot says how far each
//! chain had been counted (`snapshot`), and an agent that starts counts what was written since (`replay`).
//!
//! Architecture invariant: nothing is counted that isn't in the log, and nothing twice.

mod replay;
pub(crate) mod snapshot;
pub mod view;

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use strait_contract::{
    budget::{Account, AgentUse, Amount, Budget, Charge, Day, Limits, RunUse, Scope, Unit, Used},
    ids::{AgentName, RecordId, RunId},
    record::{Body, Phase, Record, ToolKind},
};

use self::snapshot::Position;

pub(crate) use replay::recover;

/// Calls of one run that are kept as under way; one more counts as over. More than a run has connections.
const MOST_OPEN: usize = 1 << 16;
/// Part of a limit, in percent, at which people are warned.
const WARN_PERCENT: u128 = 80;

/// What is used, by agent and by live run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    agents: BTreeMap<AgentName, AgentState>,
    runs: HashMap<RunId, RunState>,
    budgets: BTreeMap<AgentName, Budget>,
    /// Since the last snapshot.
    changed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct AgentState {
    account: Account,
    /// What people were told of [`AgentState::told_day`].
    told_today: Told,
    told_day: Day,
    told_total: Told,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RunState {
    agent: AgentName,
    /// How far its chain is counted, while nobody writes it.
    at: Position,
    used: Used,
    open: HashMap<RecordId, Charge>,
    told: Told,
}

/// How far people were told that each unit is used: not, warned, used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Told([u8; 3]);

/// A limit that a call has reached, or come near to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crossed {
    /// The run whose call it was.
    pub(crate) run: RunId,
    agent: AgentName,
    scope: Scope,
    unit: Unit,
    used: u64,
    limit: u64,
    up: bool,
}

impl Crossed {
    /// Name of its event.
    pub(crate) fn event(&self) -> &'static str {
        if self.up { "budget.exceeded" } else { "budget.warning" }
    }

    /// Facts of its event.
    pub(crate) fn facts(&self) -> [(&'static str, String); 5] {
        [
            ("agent", self.agent.to_string()),
            ("scope", self.scope.to_string()),
            ("unit", self.unit.as_str().to_owned()),
            ("used", self.unit.text(self.used)),
            ("limit", self.unit.text(self.limit)),
        ]
    }
}

impl Ledger {
    /// Takes a record that is in the log now. Gives the limits that it has crossed.
    pub(crate) fn take(&mut self, record: &Record) -> Vec<Crossed> {
        let (Body::Trace(step), Some(run)) = (&record.body, &record.run) else { return Vec::new() };
        if step.kind != ToolKind::Model {
            return Vec::new();
        }
        match (record.phase, step.charge) {
            (Some(Phase::Decided), Some(charge)) => self.begin(run, record.id, charge),
            (Some(Phase::Done), charge) => {
                self.end(run, record.id, charge);
                return self.crossed(run);
            }
            _ => {}
        }
        Vec::new()
    }

    /// A run's chain is open, new or again.
    pub(crate) fn opened(&mut self, run: &RunId, agent: &AgentName) {
        if !self.runs.contains_key(run) {
            self.runs.insert(run.clone(), RunState::new(agent.clone()));
            self.changed = true;
        }
    }

    /// A run's chain is sealed: what is still held counts.
    pub(crate) fn sealed(&mut self, run: &RunId) {
        let Some(state) = self.runs.remove(run) else { return };
        self.changed = true;
        let account = &mut self.agents.entry(state.agent).or_default().account;
        for charge in state.open.values() {
            account.settle(charge, charge.amount);
        }
    }

    fn begin(&mut self, run: &RunId, id: RecordId, charge: Charge) {
        let Some(state) = self.runs.get_mut(run) else { return };
        self.changed = true;
        let account = &mut self.agents.entry(state.agent.clone()).or_default().account;
        account.hold(&charge);
        state.used.hold(charge.amount);
        if state.open.len() < MOST_OPEN {
            state.open.insert(id, charge);
        } else {
            account.settle(&charge, charge.amount);
            state.used.settle(charge.amount, charge.amount);
        }
    }

    fn end(&mut self, run: &RunId, id: RecordId, charge: Option<Charge>) {
        let Some(state) = self.runs.get_mut(run) else { return };
        let Some(held) = state.open.remove(&id) else { return };
        self.changed = true;
        let spent = charge.map_or(held.amount, |charge| charge.amount);
        state.used.settle(held.amount, spent);
        self.agents.entry(state.agent.clone()).or_default().account.settle(&held, spent);
    }

    /// Sets an agent's total back, of which the event `budget.reset` is on record.
    pub(crate) fn reset(&mut self, agent: &AgentName) {
        self.agents.entry(agent.clone()).or_default().account.reset();
        self.changed = true;
        self.was_reset(agent);
    }

    fn clear(&mut self, agent: &AgentName, cleared: Amount) {
        let account = &mut self.agents.entry(agent.clone()).or_default().account;
        account.follow(account.cleared.plus(cleared));
        self.changed = true;
    }

    /// People are told anew how far the total is used.
    fn was_reset(&mut self, agent: &AgentName) {
        self.agents.entry(agent.clone()).or_default().told_total = Told::default();
    }

    /// What an agent has used since it was last set back; `None` if it has never used anything.
    pub(crate) fn total(&self, agent: &AgentName) -> Option<Amount> {
        self.agents.get(agent).map(|state| state.account.total.spent)
    }

    /// Budgets from now on. What was crossed under others isn't told again.
    pub(crate) fn set_budgets(&mut self, budgets: BTreeMap<AgentName, Budget>) {
        self.budgets = budgets;
    }

    /// The limits that the last call of a run has crossed.
    fn crossed(&mut self, run: &RunId) -> Vec<Crossed> {
        let mut found = Vec::new();
        let Some(state) = self.runs.get_mut(run) else { return found };
        let Some(budget) = self.budgets.get(&state.agent) else { return found };
        let Some(agent) = self.agents.get_mut(&state.agent) else { return found };
        agent.turn();
        let scopes = [
            (Scope::Run, &mut state.told, state.used.spent),
            (Scope::Day, &mut agent.told_today, agent.account.today.spent),
            (Scope::Total, &mut agent.told_total, agent.account.total.spent),
        ];
        for (scope, told, spent) in scopes {
            for (unit, limit, up) in told.news(budget.of(scope), &spent) {
                let (run, agent, used) = (run.clone(), state.agent.clone(), spent.of(unit));
                found.push(Crossed { run, agent, scope, unit, used, limit, up });
            }
        }
        found
    }

    /// An event of an earlier agent says how far people were told.
    fn was_told(&mut self, run: &RunId, scope: Scope, unit: Unit, level: u8) {
        let Some(state) = self.runs.get_mut(run) else { return };
        let agent = self.agents.entry(state.agent.clone()).or_default();
        agent.turn();
        let told = match scope {
            Scope::Run => &mut state.told,
            Scope::Day => &mut agent.told_today,
            Scope::Total => &mut agent.told_total,
        };
        told.raise(unit, level);
    }

    /// What a gateway that starts is told.
    pub(crate) fn handover(&self) -> (Vec<AgentUse>, Vec<RunUse>) {
        let agents = self.agents.iter().map(|(agent, state)| (agent, state.account));
        let agents = agents.map(|(agent, account)| AgentUse { agent: agent.clone(), account }).collect();
        let runs = self.runs.iter().filter(|(_, state)| state.used != Used::default());
        let runs = runs.map(|(run, state)| RunUse { run: run.clone(), spent: state.used.all() }).collect();
        (agents, runs)
    }

    /// What one agent's gateway is told.
    pub(crate) fn agent_use(&self, agent: &AgentName) -> Option<AgentUse> {
        let state = self.agents.get(agent)?;
        Some(AgentUse { agent: agent.clone(), account: state.account })
    }
}

impl AgentState {
    /// In a new day nobody was told anything yet.
    fn turn(&mut self) {
        if self.told_day != self.account.day {
            (self.told_day, self.told_today) = (self.account.day, Told::default());
        }
    }
}

impl RunState {
    fn new(agent: AgentName) -> Self {
        Self {
            agent,
            at: Position::default(),
            used: Used::default(),
            open: HashMap::new(),
            told: Told::default(),
        }
    }
}

impl Told {
    fn raise(&mut self, unit: Unit, level: u8) {
        let known = Unit::ALL.into_iter().zip(&mut self.0).find(|(known, _)| *known == unit);
        if let Some((_, told)) = known {
            *told = level.max(*told);
        }
    }

    /// Units that have come further than was told: each with its limit, and whether it is used up.
    fn news(&mut self, limits: &Limits, spent: &Amount) -> Vec<(Unit, u64, bool)> {
        let mut news = Vec::new();
        for (unit, told) in Unit::ALL.into_iter().zip(&mut self.0) {
            let limit = limits.of(unit);
            let level = limit.map_or(0, |limit| level(spent.of(unit), limit));
            if let Some(limit) = limit.filter(|_| level > *told) {
                news.push((unit, limit, level == 2));
            }
            *told = level;
        }
        news
    }
}

/// Facts of the event that an agent's total is set back: exact, since an agent that starts takes them off again.
pub(crate) fn reset_facts(agent: &AgentName, by: String, total: Amount) -> [(&'static str, String); 5] {
    let Amount { calls, tokens, usd } = total;
    [
        ("agent", agent.to_string()),
        ("by", by),
        ("calls", calls.to_string()),
        ("tokens", tokens.to_string()),
        ("usd", format!("{:.9}", usd.dollars())),
    ]
}

/// 0: enough is left; 1: time for a warning; 2: nothing is left.
fn level(used: u64, limit: u64) -> u8 {
    if used >= limit { 2 } else { u8::from(u128::from(used) * 100 >= u128::from(limit) * WARN_PERCENT) }
}

#[cfg(test)]
mod tests;
