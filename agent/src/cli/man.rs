//! `strait man`, for packagers.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::CommandFactory;

/// Write manual pages into a folder
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder, made if it isn't there
    folder: PathBuf,
}

/// Writes them.
///
/// # Errors
/// If the folder can't be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let context = || format!("`{}` can't be written", args.folder.display());
    std::fs::create_dir_all(&args.folder).with_context(context)?;
    clap_mangen::generate_to(super::Cli::command(), &args.folder).with_context(context)?;
    Ok(ExitCode::SUCCESS)
}
