//! `strait completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
        strait completions bash > /etc/bash_completion.d/strait\n  \
        strait completions zsh > \"${fpath[1]}/_strait\"")]
pub struct Args {
    /// Shell
    shell: Shell,
}

/// Prints it.
///
/// # Errors
/// None yet; the signature is that of every verb.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    clap_complete::generate(args.shell, &mut super::Cli::command(), "strait", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}
