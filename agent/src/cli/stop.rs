//! `strait stop`.

use std::process::ExitCode;

use hyper::Method;
use serde_json::Value;

use crate::{
    control::{client, wire::StopBody},
    instance::Instance,
};

/// End runs: SIGTERM, then SIGKILL after a grace
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  strait stop coder-7f3a2c\n  strait stop --grace 60 coder-7f3a2c")]
pub struct Args {
    /// Runs, as `strait ps` names them
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
    /// Seconds between SIGTERM and SIGKILL [default: 10]
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,
}

/// Stops them; exit code 1 if one could not be.
///
/// # Errors
/// If nothing can be asked.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let socket = instance.control_socket();
    let body = StopBody { grace_seconds: args.grace };
    let mut code = ExitCode::SUCCESS;
    for run in &args.runs {
        let path = format!("/v1/runs/{run}/stop");
        let stopped: Result<Value, _> =
            super::block_on(client::ask(&socket, Method::POST, &path, Some(&body)))?;
        match stopped {
            Ok(_) => println!("{run}"),
            Err(error) => {
                eprintln!("strait: {run}: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
