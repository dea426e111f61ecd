//! `cargo xtask check`: everything that can be said about the tree without running Strait. Every check runs;
//! the failed ones are named at the end.

use anyhow::{Result, bail};

use crate::{
    covered, exec,
    setup::{self, Need},
    tidy,
};

/// A check by name.
type Check = (&'static str, fn() -> Result<()>);

const CHECKS: &[Check] = &[
    ("format", format),
    ("tree", tidy::run),
    ("requirements", covered::run),
    ("clippy", clippy),
    ("dependencies", dependencies),
    ("docs", docs),
    ("policies", policies),
];

pub(crate) fn run() -> Result<()> {
    setup::ensure(&[Need::Build, Need::Check])?;
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        eprintln!("check: {name}");
        if let Err(error) = check() {
            eprintln!("check: {name}: {error:#}");
            failed.push(*name);
        }
    }
    println!("check: {} of {} passed", CHECKS.len() - failed.len(), CHECKS.len());
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn format() -> Result<()> {
    exec::run(exec::cargo().args(["fmt", "--all", "--check"]))?;
    exec::run(exec::cargo().args(["fmt", "--manifest-path", "agent-ebpf/Cargo.toml", "--check"]))
}

fn clippy() -> Result<()> {
    exec::run(exec::cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn dependencies() -> Result<()> {
    exec::run(exec::cargo().args(["deny", "--log-level", "error", "check", "bans", "licenses", "sources"]))
}

fn docs() -> Result<()> {
    let mut cargo = exec::cargo();
    exec::run(cargo.env("RUSTDOCFLAGS", "-Dwarnings").args(["doc", "--workspace", "--no-deps", "--quiet"]))
}

/// Good and bad policies, each bad one with the message it must give.
fn policies() -> Result<()> {
    exec::run(exec::cargo().args(["test", "--quiet", "--workspace", "--test", "cases"]))
}
