//! `cargo xtask test`: the whole suite as root, with one summary. A test that is ignored counts as a failure:
//! what can't be tested has to say so loudly.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{
    build, exec,
    setup::{self, Need},
};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Only tests whose names contain this.
    filter: Option<String>,
    /// Only the tests of this crate (`strait-gateway`, …).
    #[arg(short, long)]
    package: Option<String>,
}

/// Counts of cargo's test binaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    binaries: u32,
    passed: u32,
    failed: u32,
    ignored: u32,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if !setup::is_root() {
        bail!("tests make network namespaces and load kernel programs; run as root");
    }
    setup::ensure(&[Need::Build, Need::Test, Need::Clients])?;
    build::run(build::Args::default())?;
    let started = Instant::now();
    let mut cargo = exec::cargo();
    cargo.args(["test", "--no-fail-fast"]);
    match &args.package {
        Some(package) => cargo.args(["--package", package]),
        None => cargo.arg("--workspace"),
    };
    cargo.args(&args.filter).stdout(Stdio::piped());
    eprintln!("+ cargo test");
    let mut child = cargo.spawn().context("`cargo test` can't be started")?;
    let lines = BufReader::new(child.stdout.take().context("`cargo test` has no output")?).lines();
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for line in lines {
        let line = line?;
        println!("{line}");
        tally.read(&line);
        if let Some(name) = failed_test(&line) {
            failures.push(name.to_owned());
        }
    }
    let status = child.wait()?;
    for name in &failures {
        println!("test: failed: {name}");
    }
    let Tally { binaries, passed, failed, ignored } = tally;
    let seconds = started.elapsed().as_secs();
    println!("test: {passed} passed, {failed} failed, {ignored} ignored in {binaries} binaries, {seconds} s");
    if !status.success() || failed > 0 {
        bail!("tests failed");
    }
    if ignored > 0 {
        bail!("{ignored} tests were ignored: a test must run or fail");
    }
    if passed == 0 {
        bail!("no test matched");
    }
    Ok(())
}

impl Tally {
    /// Adds a line like `test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out`.
    fn read(&mut self, line: &str) {
        let Some(counts) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        self.binaries += 1;
        for part in counts.1.split("; ") {
            let Some((count, what)) = part.trim().split_once(' ') else { continue };
            let Ok(count) = count.parse::<u32>() else { continue };
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }
}

fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_binaries_are_added() {
        let mut tally = Tally::default();
        tally.read(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s",
        );
        tally.read("test a::b ... ok");
        tally.read("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(tally, Tally { binaries: 2, passed: 7, failed: 2, ignored: 1 });
    }

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(failed_test("test gate::refuses ... FAILED"), Some("gate::refuses"));
        assert_eq!(failed_test("test gate::refuses ... ok"), None);
    }
}
