//! `[agents.NAME.budget]`: what an agent may use of models.

use std::path::Path;

use serde::Deserialize;
use strait_contract::{
    budget::{Budget, Limits, Scope},
    ids::AgentName,
    model::Usd,
};

use super::{ConfigError, file::conflict};

/// Most agents with a budget: their budgets go over the link in one packet.
pub(super) const MOST: usize = 512;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BudgetTable {
    run: LimitsTable,
    day: LimitsTable,
    total: LimitsTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LimitsTable {
    usd: Option<f64>,
    tokens: Option<u64>,
    calls: Option<u64>,
}

impl BudgetTable {
    pub(super) fn into_budget(self, agent: &AgentName, path: &Path) -> Result<Budget, ConfigError> {
        let limits = |scope, table: LimitsTable| table.into_limits(agent, scope, path);
        Ok(Budget {
            run: limits(Scope::Run, self.run)?,
            day: limits(Scope::Day, self.day)?,
            total: limits(Scope::Total, self.total)?,
        })
    }
}

impl LimitsTable {
    fn into_limits(self, agent: &AgentName, scope: Scope, path: &Path) -> Result<Limits, ConfigError> {
        let usd = |dollars: f64| {
            Usd::from_dollars(dollars).ok_or_else(|| {
                let key = format!("agents.{agent}.budget.{scope}.usd");
                conflict(path, format!("`{key}` is {dollars}: write an amount of US dollars such as 5.0"))
            })
        };
        Ok(Limits { calls: self.calls, tokens: self.tokens, usd: self.usd.map(usd).transpose()? })
    }
}
