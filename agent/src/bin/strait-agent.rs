//! The daemon. Started with a role of [`strait_agent::child`], it's a short-lived child instead.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use strait_agent::{child, config::Config, daemon};
use tracing_subscriber::EnvFilter;

/// Strait's agent: owns the gate, the runs and their records. Runs as root, usually under systemd.
#[derive(Debug, Parser)]
#[command(
    name = "strait-agent",
    version,
    after_help = "Exit codes: 0 stopped as told, 1 failed, 2 wrong usage, 78 the configuration is refused."
)]
struct Args {
    /// Configuration: a file, or a folder with `strait.toml` in it
    #[arg(long, env = "STRAIT_CONFIG", value_name = "PATH")]
    config: Option<PathBuf>,
}

/// `EX_CONFIG` of sysexits.h.
const BAD_CONFIG: u8 = 78;

fn main() -> ExitCode {
    if let Some(code) = child::dispatch() {
        return code;
    }
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let config = match Config::load(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    match daemon::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
