//! The daemon. Started with a role of [`strait_agent::child`], it's a short-lived child instead.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = strait_agent::child::dispatch() {
        return code;
    }
    ExitCode::SUCCESS
}
