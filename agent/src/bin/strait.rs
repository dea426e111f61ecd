//! The `strait` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    strait_agent::cli::main()
}
