//! `cargo xtask demo`: real clients in runs, an internet of their own, what passed, what was refused and why.
//!
//! Every step is held against three witnesses: what the client printed, what the records say and what the servers
//! saw. Everything that the demo makes is removed at the end.

mod judge;
mod proof;
mod steps;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use self::{
    judge::judge,
    steps::{STEPS, Step, Verdict},
};
use crate::{
    build, exec, interrupt,
    lab::{installation::Installation, internet::Internet},
    setup::{self, Need},
};

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave everything up until ^C, to try things by hand.
    #[arg(long)]
    keep: bool,
}

/// What the steps came to.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    allowed: usize,
    refused: usize,
    unrecorded: usize,
    failed: usize,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if !setup::is_root() {
        bail!("the demo makes network namespaces and loads kernel programs; run as root");
    }
    setup::ensure(&[Need::Build, Need::Test])?;
    build::run(build::Args::default())?;
    interrupt::watch()?;
    let base = tempfile::Builder::new().prefix("strait-demo-").tempdir().context("no temporary folder")?;
    // The gateway's user looks for its binary below.
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755))?;
    let tally = show(base.path(), args)?;
    let Tally { allowed, refused, unrecorded, failed } = tally;
    println!("demo: {allowed} allowed, {refused} refused, {unrecorded} unrecorded");
    if failed > 0 || unrecorded > 0 {
        bail!("{failed} expectations failed");
    }
    Ok(())
}

fn show(base: &Path, args: Args) -> Result<Tally> {
    let name = format!("demo{}", std::process::id());
    let started = Instant::now();
    progress("an internet of invented public addresses, with DNS, web, git, pip and npm servers");
    let internet = Internet::start(&base.join("internet"), &name)?;
    progress("an instance of Strait: agent, gateway, kernel programs");
    let policies = [
        ("demo.cedar", include_str!("demo/demo.cedar").to_owned()),
        ("guardrails/demo.cedar", include_str!("demo/guardrails.cedar").to_owned()),
    ];
    let installation = Installation::start(base, &name, &internet, &policies)?;
    progress(&format!(
        "ready after {:.1} s; each command below is a run of its own",
        started.elapsed().as_secs_f32()
    ));
    let mut tally = Tally::default();
    for step in STEPS {
        tally.add(step, &installation, &internet)?;
    }
    table(&installation)?;
    tally.failed += proof::all(&installation)?;
    if args.keep {
        keep(&installation)?;
    }
    if tally.failed > 0 {
        eprintln!("demo: the agent's last words:\n{}", installation.last_words());
    }
    Ok(tally)
}

impl Tally {
    fn add(&mut self, step: &Step, installation: &Installation, internet: &Internet) -> Result<()> {
        if step.optional.is_some_and(|client| exec::which(client).is_none()) {
            println!("  not here   {}", step.title);
            return Ok(());
        }
        let outcome = judge(step, installation, internet)?;
        let (count, word) = match step.verdict {
            Verdict::Allowed => (&mut self.allowed, "allowed"),
            Verdict::Refused => (&mut self.refused, "refused"),
        };
        self.unrecorded += outcome.unrecorded;
        if outcome.problems.is_empty() {
            *count += 1;
            println!("  {word}    {:<46} {}", step.title, essence(&outcome.output));
            return Ok(());
        }
        self.failed += 1;
        println!("  FAILED     {:<46} should be {word}", step.title);
        for problem in &outcome.problems {
            println!("             {problem}");
        }
        println!("             $ {}", step.script);
        for line in outcome.output.lines() {
            println!("             | {line}");
        }
        Ok(())
    }
}

/// The activity of all runs, as a security team reads it.
fn table(installation: &Installation) -> Result<()> {
    println!();
    exec::run(installation.strait().args(["log", "--table", "--lines", "all"]))
}

fn keep(installation: &Installation) -> Result<()> {
    let strait = installation.strait();
    let words = std::iter::once(strait.get_program()).chain(strait.get_args());
    let command: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    println!("demo: kept until ^C; try: {} run --agent demo -- sh", command.join(" "));
    while interrupt::check().is_ok() {
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The line of a client's output that says most: the reason of a refusal, else the last one.
fn essence(output: &str) -> String {
    let telling =
        |line: &&str| line.contains("\"message\"") || line.contains("status:") || line.contains("rror");
    let line = output.lines().find(telling).or_else(|| output.lines().rfind(|line| !line.is_empty()));
    let line = line.unwrap_or_default().trim();
    let message = line.split_once("\"message\":\"").and_then(|(_, rest)| rest.split_once('"'));
    let text = message.map_or(line, |(message, _)| message);
    text.chars().take(110).collect()
}

fn progress(what: &str) {
    println!("demo: {what}");
}
