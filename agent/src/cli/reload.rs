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
pub struct Args {}

/// Asks for it and says what is in force now.
///
/// # Errors
/// If it was refused; what was in force stays.
pub fn run(_: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let socket = instance.control_socket();
    let done: Reloaded = super::block_on(client::ask(&socket, Method::POST, "/v1/reload", None::<&()>))??;
    println!("{}", done.message);
    Ok(ExitCode::SUCCESS)
}
