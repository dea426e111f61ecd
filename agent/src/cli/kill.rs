//! `strait kill`: by the agent if there is one, else by kernel objects alone.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use hyper::Method;
use serde_json::Value;

use crate::{
    control::client::{self, AskError},
    instance::Instance,
    run::{account::Account, offline},
};

/// How long the agent may take: one that hangs is done without.
const PATIENCE: Duration = Duration::from_secs(5);

/// Cut runs off at once: flows, then processes; records stay
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Works with the gateway dead. With the agent dead or hanging too it works for root.\n\n\
        Examples:\n  strait kill coder-7f3a2c\n  strait kill --agent coder\n  strait kill --all"
)]
pub struct Args {
    /// Runs, as `strait ps` names them
    #[arg(value_name = "RUN", required_unless_present_any = ["agent", "all"], conflicts_with_all = ["agent", "all"])]
    runs: Vec<String>,
    /// Every run of this agent
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    agent: Option<String>,
    /// Every run
    #[arg(long)]
    all: bool,
}

impl Args {
    fn means(&self, run: &str, agent: &str) -> bool {
        self.all || self.agent.as_deref() == Some(agent) || self.runs.iter().any(|named| named == run)
    }
}

/// Kills them; exit code 1 if one could not be.
///
/// # Errors
/// If there is no way to any of them.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let targets = if args.runs.is_empty() {
        match super::ps::list(instance, PATIENCE) {
            Ok(runs) => {
                runs.into_iter().filter(|run| args.means(&run.id, &run.agent)).map(|run| run.id).collect()
            }
            Err(error) if error.downcast_ref::<AskError>().is_some_and(AskError::is_no_agent) => {
                return without_agent(args, instance);
            }
            Err(error) => return Err(error),
        }
    } else {
        args.runs.clone()
    };
    let mut code = ExitCode::SUCCESS;
    for run in &targets {
        let path = format!("/v1/runs/{run}/kill");
        let socket = instance.control_socket();
        let killed: Result<Value, _> =
            super::block_on(client::ask_within(PATIENCE, &socket, Method::POST, &path, None::<&()>))?;
        match killed {
            Ok(_) => println!("{run}"),
            Err(error) if error.is_no_agent() => return without_agent(args, instance),
            Err(error) => {
                eprintln!("strait: {run}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

fn without_agent(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("the agent isn't running or doesn't answer, and killing without it needs root: use sudo");
    }
    let live = offline::list(instance)?;
    let targets: Vec<_> = live.into_iter().filter(|live| args.means(live.id.as_str(), &live.agent)).collect();
    if targets.is_empty() && !args.runs.is_empty() {
        bail!(
            "no such run is alive (the agent doesn't answer; `{}` lists none)",
            instance.state_dir.join("live").display()
        );
    }
    let by = Account::of(rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())?.name;
    for run in offline::kill(instance, &targets, &by)? {
        println!("{run}");
    }
    Ok(ExitCode::SUCCESS)
}
