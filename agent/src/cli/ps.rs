//! `strait ps`.

use std::{process::ExitCode, time::Duration};

use hyper::Method;

use super::table;
use crate::{
    control::{client, wire::RunView},
    instance::Instance,
    log,
};

/// List live runs: yours, or everybody's for root and the group `strait-admin`
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  strait ps\n  strait ps --json | jq -r '.[].id'")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists them.
///
/// # Errors
/// If the agent doesn't answer.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let runs = list(instance, client::ANSWERS_WITHIN)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&runs)?);
        return Ok(ExitCode::SUCCESS);
    }
    let now = log::now_ms();
    let rows: Vec<_> = runs
        .into_iter()
        .map(|run| vec![run.id, run.agent, run.user, table::ago(run.started_ms, now), run.addr, run.command])
        .collect();
    table::print(&["RUN", "AGENT", "USER", "AGE", "ADDRESS", "COMMAND"], &rows);
    Ok(ExitCode::SUCCESS)
}

/// The caller's live runs.
pub(super) fn list(instance: &Instance, patience: Duration) -> anyhow::Result<Vec<RunView>> {
    let socket = instance.control_socket();
    Ok(super::block_on(client::ask_within(patience, &socket, Method::GET, "/v1/runs", None::<&()>))??)
}
