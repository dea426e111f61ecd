//! The `strait` command: thin verbs over the agent's sockets and files.

pub mod approvals;
pub mod budget;
pub mod check;
pub mod completions;
pub mod doctor;
pub mod kill;
pub mod log;
pub mod man;
pub mod metrics;
pub mod policy;
pub mod ps;
pub mod reload;
pub mod run;
pub mod status;
pub mod stop;
pub mod table;
pub mod tool;
pub mod trace;

use std::{ffi::OsString, future::Future, path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{Parser, Subcommand};
use strait_policies::url::Names;

use crate::{
    config::{Config, ConfigError},
    instance::Instance,
    launch::protocol::STRAIT_FAILED,
};

/// Runs AI agents so that everything they do to the outside world passes one gate, is decided by policy, and is on
/// record.
#[derive(Debug, Parser)]
#[command(
    name = "strait",
    version,
    after_help = "Examples:\n  \
        strait run -- claude                  an agent in the current folder\n  \
        strait run --agent ci -- make test    under the rules of the agent `ci`\n  \
        strait log -f                         what leaves, as it happens\n  \
        strait kill --all                     cut every run off at once\n\n\
        Exit codes: 0 done, 1 failed, 2 wrong usage. `strait run` gives the command's own (128 + signal if one \
        ended it), 127 if there is no such command, 126 if it can't be executed, 125 if Strait itself failed."
)]
pub struct Cli {
    /// Configuration of the instance to talk to: a file, or a folder with `strait.toml` in it
    #[arg(long, global = true, env = "STRAIT_CONFIG", value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command that can reach only the gate
    Run(run::Args),
    /// List live runs
    Ps(ps::Args),
    /// End runs: SIGTERM, then SIGKILL after a grace
    Stop(stop::Args),
    /// Cut runs off at once: flows, then processes; records stay
    Kill(kill::Args),
    /// Show what Strait is doing and whether it holds
    Status(status::Args),
    /// Check configuration and policies without putting them in force
    Check(check::Args),
    /// Put changed configuration and policies in force
    Reload(reload::Args),
    /// Show what left, or tried to
    Log(log::Args),
    /// Show the steps of a run: calls of tools, decided and done
    Trace(trace::Args),
    /// Show what agents and runs have used of models, and of their budgets
    Budget(budget::Args),
    /// Print counts for Prometheus
    Metrics(metrics::Args),
    /// Try to leak, and check every wall
    Doctor(doctor::Args),
    /// List tools, and pin those of MCP servers
    Tool(tool::Args),
    /// Answer calls that wait for a person
    Approvals(approvals::Args),
    /// Check and explain policies
    Policy(policy::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Write manual pages into a folder
    #[command(hide = true)]
    Man(man::Args),
}

/// Parses the command line, does it, and gives the exit code.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed stdout or stderr is no further fault.
            let _ = error.print();
            let for_run = arguments.iter().skip(1).any(|argument| argument == "run") && error.use_stderr();
            let usage = u8::try_from(error.exit_code()).unwrap_or(2);
            return ExitCode::from(if for_run { STRAIT_FAILED } else { usage });
        }
    };
    let failed = if matches!(cli.command, Command::Run(_)) { STRAIT_FAILED } else { 1 };
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("strait: {error:#}");
            ExitCode::from(failed)
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let path = cli.config;
    // These need no configuration, and `check` is there for one that doesn't load.
    match &cli.command {
        Command::Check(args) => return check::run(args, path.as_deref()),
        Command::Completions(args) => return completions::run(args),
        Command::Man(args) => return man::run(args),
        _ => {}
    }
    let (instance, names) = instance(path)?;
    match cli.command {
        Command::Run(args) => run::run(args, &instance),
        Command::Ps(args) => ps::run(&args, &instance),
        Command::Stop(args) => stop::run(&args, &instance),
        Command::Kill(args) => kill::run(&args, &instance),
        Command::Status(args) => status::run(&args, &instance),
        Command::Reload(args) => reload::run(&args, &instance),
        Command::Log(args) => log::run(args, &instance),
        Command::Trace(args) => trace::run(&args, &instance),
        Command::Budget(args) => budget::run(&args, &instance),
        Command::Metrics(args) => metrics::run(&args, &instance),
        Command::Doctor(args) => doctor::run(&args, &instance),
        Command::Tool(args) => tool::run(&args, &instance),
        Command::Approvals(args) => approvals::run(&args, &instance),
        Command::Policy(args) => policy::run(&args, &instance, &names),
        Command::Check(_) | Command::Completions(_) | Command::Man(_) => Ok(ExitCode::SUCCESS),
    }
}

/// The instance that a configuration names, and the names that its `hosts` make good. A person who may not read the
/// installed one gets its standard places.
fn instance(path: Option<PathBuf>) -> anyhow::Result<(Instance, Names)> {
    match Config::load(path.as_deref()) {
        Ok(config) => {
            let names = Names::new(config.network.hosts.iter().map(|(name, _)| name.as_str()))?;
            Ok((config.instance, names))
        }
        Err(ConfigError::File { ref source, .. })
            if path.is_none() && source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            Ok((Instance::standard("strait".parse()?), Names::default()))
        }
        Err(error) => Err(error).context("see `strait check`"),
    }
}

/// Drives one request to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    let done = runtime.block_on(work);
    // A thread that still waits for a key of the person's must not keep us.
    runtime.shutdown_background();
    Ok(done)
}
