//! The ledger as people see it: `GET /v1/budget`, `strait budget`, metrics.

use serde::{Deserialize, Serialize};
use strait_contract::{
    budget::{Amount, Budget, Limits, Scope, Used},
    ids::AgentName,
    model::Usd,
};

use super::Ledger;

/// One agent's use of models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentView {
    /// The agent.
    pub agent: String,
    /// The day that `today` is about (UTC), as `2026-12-01`; the last one in which a call began.
    pub day: String,
    /// In that day.
    pub today: ScopeView,
    /// Since it was last set back.
    pub total: ScopeView,
    /// By live runs; those alone that the asker may see.
    pub runs: Vec<RunView>,
    /// Ever, whatever was set back.
    pub ever: AmountView,
}

/// One live run's use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunView {
    /// The run.
    pub run: String,
    /// What it has used.
    #[serde(flatten)]
    pub used: ScopeView,
}

/// What is used in one scope, and how much there is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScopeView {
    /// By calls that are over.
    pub spent: AmountView,
    /// At most, by calls under way.
    pub held: AmountView,
    /// The limits; a member is absent if there is none.
    pub limit: LimitView,
}

/// An amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AmountView {
    /// Calls.
    pub calls: u64,
    /// Tokens.
    pub tokens: u64,
    /// US dollars.
    pub usd: f64,
}

/// Limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitView {
    /// Calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
}

impl From<Amount> for AmountView {
    fn from(Amount { calls, tokens, usd }: Amount) -> Self {
        Self { calls, tokens, usd: usd.dollars() }
    }
}

impl From<&Limits> for LimitView {
    fn from(Limits { calls, tokens, usd }: &Limits) -> Self {
        Self { calls: *calls, tokens: *tokens, usd: usd.map(Usd::dollars) }
    }
}

impl ScopeView {
    fn new(used: &Used, limits: &Limits) -> Self {
        Self { spent: used.spent.into(), held: used.held.into(), limit: limits.into() }
    }
}

impl Ledger {
    /// Every agent that has used anything or has a budget, with those of its live runs that `shows` says.
    pub(crate) fn view(&self, shows: impl Fn(&str) -> bool) -> Vec<AgentView> {
        let mut agents: Vec<&AgentName> = self.agents.keys().chain(self.budgets.keys()).collect();
        agents.sort_unstable();
        agents.dedup();
        let none = Budget::default();
        let mut views: Vec<AgentView> = Vec::with_capacity(agents.len());
        for agent in agents {
            let account = self.agents.get(agent).map(|state| state.account).unwrap_or_default();
            let budget = self.budgets.get(agent).unwrap_or(&none);
            views.push(AgentView {
                agent: agent.to_string(),
                day: day(account.day.0),
                today: ScopeView::new(&account.today, budget.of(Scope::Day)),
                total: ScopeView::new(&account.total, budget.of(Scope::Total)),
                runs: Vec::new(),
                ever: account.total.spent.plus(account.cleared).into(),
            });
        }
        for (run, state) in self.runs.iter().filter(|(run, _)| shows(run.as_str())) {
            let budget = self.budgets.get(&state.agent).unwrap_or(&none);
            let limited = !budget.run.is_empty() || state.used != Used::default();
            // Sorted by name, as above.
            let found = views.binary_search_by(|view| view.agent.as_str().cmp(state.agent.as_str()));
            if let Some(view) = found.ok().and_then(|at| views.get_mut(at)).filter(|_| limited) {
                let used = ScopeView::new(&state.used, budget.of(Scope::Run));
                view.runs.push(RunView { run: run.to_string(), used });
            }
        }
        views.iter_mut().for_each(|view| view.runs.sort_by(|a, b| a.run.cmp(&b.run)));
        views
    }
}

/// A day as people write it.
fn day(number: u32) -> String {
    let at = jiff::Timestamp::from_second(i64::from(number) * 86_400).unwrap_or_default();
    at.strftime("%Y-%m-%d").to_string()
}
