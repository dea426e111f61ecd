//! `strait budget`.

use std::process::ExitCode;

use hyper::Method;
use serde_json::Value;
use strait_contract::{budget::Unit, model::Usd};

use super::table;
use crate::{
    budget::view::{AgentView, ScopeView},
    control::client,
    instance::Instance,
};

/// Show what agents and runs have used of models, and of their budgets; set an agent's total back
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        strait budget                       spent, + held by calls under way, / limit\n  \
        strait budget --json | jq '.[] | {agent, spent: .today.spent.usd}'\n  \
        strait budget reset coder           the agent's total begins anew; its day and its runs go on\n\n\
        Budgets are `[agents.NAME.budget]` in strait.toml: `run`, `day` and `total`, each with `usd`, `tokens`, `calls`."
)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Set an agent's total back to zero, on record
    Reset {
        /// The agent
        #[arg(value_name = "AGENT")]
        agent: String,
    },
}

/// Shows them, or sets one back.
///
/// # Errors
/// If the agent doesn't answer, or not to this person.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let socket = instance.control_socket();
    if let Some(Command::Reset { agent }) = &args.command {
        let agent: strait_contract::ids::AgentName = agent.parse()?;
        let path = format!("/v1/budget/{agent}/reset");
        let asked = client::ask_within(client::ANSWERS_WITHIN, &socket, Method::POST, &path, None::<&()>);
        let _: Value = super::block_on(asked)??;
        println!("{agent}");
        return Ok(ExitCode::SUCCESS);
    }
    let asked = client::ask_within(client::ANSWERS_WITHIN, &socket, Method::GET, "/v1/budget", None::<&()>);
    let agents: Vec<AgentView> = super::block_on(asked)??;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&agents)?);
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<_> = agents.iter().flat_map(rows).collect();
    table::print(&["AGENT", "SCOPE", "CALLS", "TOKENS", "USD"], &rows);
    Ok(ExitCode::SUCCESS)
}

fn rows(agent: &AgentView) -> Vec<Vec<String>> {
    let day = format!("day {}", agent.day);
    let scopes = [(day, &agent.today), ("total".to_owned(), &agent.total)];
    let runs = agent.runs.iter().map(|run| (format!("run {}", run.run), &run.used));
    scopes.into_iter().chain(runs).map(|(scope, view)| row(&agent.agent, scope, view)).collect()
}

fn row(agent: &str, scope: String, ScopeView { spent, held, limit }: &ScopeView) -> Vec<String> {
    let count = |spent: u64, held: u64, limit: Option<u64>, unit: Unit| {
        let text = |amount| match unit {
            Unit::Usd => Usd(amount).to_string(),
            Unit::Calls | Unit::Tokens => amount.to_string(),
        };
        let held = if held == 0 { String::new() } else { format!(" +{}", text(held)) };
        text(spent) + &held + &limit.map(|limit| format!(" / {}", text(limit))).unwrap_or_default()
    };
    let usd = |dollars: f64| Usd::from_dollars(dollars).unwrap_or_default().0;
    vec![
        agent.to_owned(),
        scope,
        count(spent.calls, held.calls, limit.calls, Unit::Calls),
        count(spent.tokens, held.tokens, limit.tokens, Unit::Tokens),
        count(usd(spent.usd), usd(held.usd), limit.usd.map(usd), Unit::Usd),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::view::{AmountView, LimitView};

    #[test]
    fn a_row_has_what_is_spent_held_and_allowed() {
        let amount = |calls, usd| AmountView { calls, tokens: calls * 100, usd };
        let view = ScopeView {
            spent: amount(3, 0.42),
            held: amount(1, 0.05),
            limit: LimitView { usd: Some(5.0), calls: Some(10), tokens: None },
        };
        let cells = row("coder", "total".to_owned(), &view);
        assert_eq!(cells, ["coder", "total", "3 +1 / 10", "300 +100", "$0.42 +$0.05 / $5.00"]);
    }
}
