//! The `strait` command.

use std::process::ExitCode;

use strait_agent::{child, cli};

fn main() -> ExitCode {
    // `strait check` compiles policies in a child, as the agent does: nesting can abort the parser.
    child::dispatch().unwrap_or_else(cli::main)
}
