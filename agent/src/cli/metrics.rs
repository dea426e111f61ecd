//! `strait metrics`.

use std::process::ExitCode;

use crate::{control::client, instance::Instance};

/// Print counts of calls, steps, refusals, approvals, events and records
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
        strait metrics                                       Prometheus text\n  \
        strait metrics | grep strait_refusals_total          what was refused, by code\n  \
        curl --unix-socket /run/strait/control.sock http://localhost/metrics\n\n\
        Counters begin with the agent's start. For root and the groups strait-admin and strait-audit.")]
pub struct Args {}

/// Prints them.
///
/// # Errors
/// If the agent doesn't answer, or not to this person.
pub fn run(_args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let text = super::block_on(client::text(&instance.control_socket(), "/metrics"))??;
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
