//! The project's verbs: `cargo xtask VERB`. Each verb is a file; each sets up what it needs.
//!
//! Architecture invariant: nothing here is part of the product; what a verb shows, it shows with the built
//! binaries and public clients.
#![forbid(unsafe_code)]

mod bench;
mod build;
mod check;
mod covered;
mod demo;
mod exec;
mod fuzz;
mod interrupt;
mod lab;
mod setup;
mod test;
mod tidy;
mod toolchain;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    about = "Set up, build, show, test and check Strait",
    disable_version_flag = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Install what building and testing need; does nothing twice.
    Setup(setup::Args),
    /// Build the binaries and the kernel object, laid out in target/bin and target/lib.
    Build(build::Args),
    /// Show real clients in runs: what passes, what is refused and why (needs root).
    Demo(demo::Args),
    /// Run the whole test suite (needs root), or the tests whose names contain FILTER.
    Test(test::Args),
    /// Compare with peers from Debian, in one run (needs root).
    Bench(bench::Args),
    /// Check the kernel side on the kernels of the matrix, in virtual machines.
    VmTest(vm::Args),
    /// Feed parsers of hostile bytes with what finds new ways through them.
    Fuzz(fuzz::Args),
    /// Format, clippy, dependencies, docs, policy cases, tree.
    Check,
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Setup(args) => setup::run(args),
        Verb::Build(args) => build::run(args).map(drop),
        Verb::Demo(args) => demo::run(args),
        Verb::Test(args) => test::run(args),
        Verb::Bench(args) => bench::run(args),
        Verb::VmTest(args) => vm::run(&args),
        Verb::Fuzz(args) => fuzz::run(&args),
        Verb::Check => check::run(),
    };
    exit_code(done)
}

fn exit_code(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
