//! `strait status`.

use std::process::ExitCode;

use hyper::Method;

use crate::{
    control::{client, wire::StatusView},
    instance::Instance,
};

/// Show what Strait is doing and whether it holds
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code: 0 if every run is enforced and a gateway is connected, 1 if not. `strait doctor` \
        tries to leak and tells more."
)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows it.
///
/// # Errors
/// If the agent doesn't answer.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let socket = instance.control_socket();
    let status: StatusView = super::block_on(client::ask(&socket, Method::GET, "/v1/status", None::<&()>))??;
    let well = status.gateway && status.degraded.is_empty();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        show(&status);
    }
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(status: &StatusView) {
    println!("strait {} (instance `{}`, agent pid {})", status.version, status.instance, status.pid);
    println!("runs     {}", status.runs);
    match status.gateway {
        true => println!("gateway  connected"),
        false => {
            println!("gateway  not connected: every call is refused until it is back; see the agent's log")
        }
    }
    for degraded in &status.degraded {
        println!("degraded {}: {} missing; see `strait doctor`", degraded.run, degraded.missing.join(", "));
    }
}
