//! `strait check`.

use std::{path::Path, process::ExitCode};

use crate::config::Config;

/// Check configuration and policies without putting them in force
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0 if all is well, 1 if not.\n\nExample:\n  strait check && strait reload")]
pub struct Args {}

/// Checks the configuration at `path`, or the installed one.
///
/// # Errors
/// Says what is wrong with it, with file and place.
pub fn run(_: &Args, path: Option<&Path>) -> anyhow::Result<ExitCode> {
    let config = Config::load(path)?;
    println!(
        "configuration of instance `{}`: {} agents, all well",
        config.instance.name,
        config.agents.len()
    );
    Ok(ExitCode::SUCCESS)
}
