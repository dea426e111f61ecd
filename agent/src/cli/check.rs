//! `strait check`.

use std::{path::Path, process::ExitCode};

use anyhow::Context;

use crate::{
    child::Program,
    config::Config,
    policy_source::{Checked, PolicySource},
};

/// Check configuration and policies without putting them in force
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needs no running agent. `strait policy check` shows every fault of the policies with its \
        place.\n\nExit code: 0 if all is well, 1 if not.\n\nExample:\n  strait check && strait reload"
)]
pub struct Args {
    /// Print JSON: `ok`, and what is wrong
    #[arg(long)]
    json: bool,
}

/// Checks the configuration at `path`, or the installed one, and its policies.
///
/// # Errors
/// Says what is wrong, with file and place.
pub fn run(args: &Args, path: Option<&Path>) -> anyhow::Result<ExitCode> {
    let checked = check(path);
    if args.json {
        let said = match &checked {
            Ok((config, policies)) => serde_json::json!({
                "ok": true,
                "instance": config.instance.name.to_string(),
                "agents": config.agents.len(),
                "policyFiles": policies.files.len(),
                "digest": policies.digest,
            }),
            Err(error) => serde_json::json!({"ok": false, "error": format!("{error:#}")}),
        };
        println!("{said}");
        return Ok(if checked.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let (config, policies) = checked?;
    let agents = config.agents.len();
    println!(
        "instance `{}`: {agents} agents, {} policy files, all well",
        config.instance.name,
        policies.files.len()
    );
    if policies.files.is_empty() {
        println!(
            "there are no policies in `{}`, so every call is refused: `strait policy explain` shows what would allow one",
            config.instance.config_dir.join("policies").display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn check(path: Option<&Path>) -> anyhow::Result<(Config, Checked)> {
    let config = Config::load(path)?;
    let child = Program::current().context("this program can't be found again")?;
    let policies = PolicySource::new(&config, child).check()?;
    Ok((config, policies))
}
