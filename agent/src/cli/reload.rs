//! `strait reload`.

use std::process::ExitCode;

use hyper::Method;

use crate::{
    control::{client, wire::Reloaded},
    instance::Instance,
};

/// Put changed configuration and policies in force, for running runs too; what doesn't check is refused whole
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  strait check && strait reload")]
pub struct Args {
    /// Print JSON: `ok`, and what is in force or what is wrong
    #[arg(long)]
    json: bool,
}

/// Asks for it and says what is in force now.
///
/// # Errors
/// If it was refused; what was in force stays.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let socket = instance.control_socket();
    let done: anyhow::Result<Reloaded> =
        super::block_on(client::ask(&socket, Method::POST, "/v1/reload", None::<&()>))
            .and_then(|done| Ok(done?));
    if args.json {
        let (ok, said) = match &done {
            Ok(done) => (true, serde_json::json!({"ok": true, "message": done.message})),
            Err(error) => (false, serde_json::json!({"ok": false, "error": format!("{error:#}")})),
        };
        println!("{said}");
        return Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    println!("{}", done?.message);
    Ok(ExitCode::SUCCESS)
}
