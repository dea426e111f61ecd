//! `strait log`: shows records and checks that they are as they were written. Reads the files themselves, so it
//! works with the agent stopped.

mod table;

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Subcommand, ValueEnum};
use strait_contract::ids::RunId;

use crate::{
    instance::Instance,
    log::{
        now_ms,
        read::{self, Entry, Filter, Follow},
        verify::{Verdict, verify, verify_seals},
    },
};

/// Show records, or check that they are as they were written
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  strait log --decision deny --since 10m\n  strait log -f --run coder-7f3a2c\n  \
                  strait log --json -n all --run coder-7f3a2c | jq 'select(.kind==\"request\")'\n  strait log verify --all\n\n\
                  Exit codes: 0 done, 1 a chain is broken (verify) or the records can't be read, 2 bad usage."
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Go on showing records as they are written
    #[arg(short, long)]
    follow: bool,
    /// Only of this run
    #[arg(long, value_name = "RUN")]
    run: Option<RunId>,
    /// Only since then: `90s`, `10m`, `2h`, `7d`, or a time such as `2026-11-30T16:00:00Z`
    #[arg(long, value_name = "WHEN", value_parser = parse_since)]
    since: Option<i64>,
    /// Only with this decision
    #[arg(long)]
    decision: Option<DecisionArg>,
    /// Only to this host or one below it
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Only of this kind: connect, packet, socket, dns, request, stream, lost, a tool's (http, web, mcp), or an event's
    /// name
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// How many of the newest records to show, or `all`
    #[arg(short = 'n', long, value_name = "N", default_value = "100", value_parser = parse_lines)]
    lines: usize,
    /// Show the lines as they stand in the log
    #[arg(long)]
    json: bool,
    /// Show a table (the default)
    #[arg(long, conflicts_with = "json")]
    table: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check the chain of a run, or all chains, against itself and its signed head
    Verify {
        /// The run
        #[arg(value_name = "RUN", required_unless_present = "all")]
        run: Option<RunId>,
        /// The host's chain and those of all runs
        #[arg(long, conflicts_with = "run")]
        all: bool,
        /// Print JSON: an object for each chain, one a line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DecisionArg {
    Allow,
    Deny,
}

fn parse_lines(text: &str) -> Result<usize, String> {
    match text {
        "all" => Ok(usize::MAX),
        _ => text.parse().map_err(|_| "a number or `all` is wanted".to_owned()),
    }
}

/// Unix milliseconds of a time, or of so long before now.
fn parse_since(text: &str) -> Result<i64, String> {
    let bad = || format!("`{text}` isn't a time: write `10m`, `2h`, `7d` or `2026-11-30T16:00:00Z`");
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Ok(at.as_millisecond());
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits).unwrap_or_default();
    let seconds: i64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(bad()),
    };
    let count: i64 = digits.parse().map_err(|_| bad())?;
    let ago = count.checked_mul(seconds).and_then(|all| all.checked_mul(1000)).ok_or_else(bad)?;
    Ok(i64::try_from(now_ms()).unwrap_or(i64::MAX).saturating_sub(ago))
}

/// Runs the command.
///
/// # Errors
/// The records can't be read.
pub fn run(args: Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    if let Some(Command::Verify { run, json, .. }) = args.command {
        return check(&instance.state_dir, run, json);
    }
    let filter = Filter {
        run: args.run,
        since_ms: args.since,
        decision: args.decision.map(|decision| match decision {
            DecisionArg::Allow => "allow".to_owned(),
            DecisionArg::Deny => "deny".to_owned(),
        }),
        host: args.host.map(|host| host.trim_end_matches('.').to_ascii_lowercase()),
        kind: args.kind,
        stream: None,
    };
    let state = &instance.state_dir;
    let readable = || {
        let who = "records are for root and group `strait-audit`";
        match &filter.run {
            Some(run) => format!("reading the records of run `{run}` in `{}` ({who})", state.display()),
            None => format!("reading the records in `{}` ({who})", state.display()),
        }
    };
    if !state.join("host").try_exists().with_context(readable)? {
        bail!("there are no records in `{}`: strait-agent hasn't run here yet", state.display());
    }
    let out = io::stdout();
    let mut view = View::new(args.json, &out);
    // The follower begins before the newest are read, so none falls between.
    let follow =
        args.follow.then(|| Follow::new(state, filter.clone())).transpose().with_context(readable)?;
    let entries = read::newest(state, &filter, args.lines).with_context(readable)?;
    let done = match follow {
        None => view.show(&entries),
        Some(follow) => view.follow(&entries, follow),
    };
    match done {
        // The reader of a pipe has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        done => done.with_context(readable).map(|()| ExitCode::SUCCESS),
    }
}

/// How records are shown.
struct View {
    out: io::StdoutLock<'static>,
    table: Option<table::Table>,
}

impl View {
    fn new(json: bool, out: &io::Stdout) -> Self {
        let table =
            (!json).then(|| table::Table::new(out.is_terminal().then(|| table::width(out)).flatten()));
        Self { out: io::stdout().lock(), table }
    }

    fn show(&mut self, entries: &[Entry]) -> io::Result<()> {
        let mut out = io::BufWriter::new(&mut self.out);
        for entry in entries {
            match &mut self.table {
                Some(table) => table.row(entry, &mut out)?,
                None => writeln!(out, "{}", entry.line)?,
            }
        }
        out.flush()
    }

    fn follow(&mut self, entries: &[Entry], mut follow: Follow) -> io::Result<()> {
        self.show(entries)?;
        let shown: std::collections::HashSet<String> =
            entries.iter().map(|entry| entry.line.clone()).collect();
        let mut first = true;
        loop {
            let mut new = follow.poll()?;
            if first {
                new.retain(|entry| !shown.contains(&entry.line));
                first = false;
            }
            self.show(&new)?;
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// `strait log verify`.
fn check(state: &Path, run: Option<RunId>, json: bool) -> anyhow::Result<ExitCode> {
    let chains: Vec<Option<String>> = match run {
        Some(run) => {
            read::folders(state, Some(&run)).with_context(|| format!("checking `{run}`"))?;
            vec![Some(run.to_string())]
        }
        None => {
            let mut chains = vec![None];
            for folder in
                read::folders(state, None).with_context(|| format!("reading `{}`", state.display()))?
            {
                if folder != state.join("host") {
                    chains.push(folder.file_name().map(|name| name.to_string_lossy().into_owned()));
                }
            }
            chains.sort();
            chains
        }
    };
    let all = chains.len() > 1 || chains.contains(&None);
    let mut broken = 0_usize;
    let mut out = io::stdout().lock();
    for chain in &chains {
        let name = chain.as_deref().unwrap_or("host");
        let verdict = verify(state, chain.as_deref()).with_context(|| format!("checking `{name}`"))?;
        broken += usize::from(matches!(verdict, Verdict::Broken(_)));
        writeln!(out, "{}", if json { as_json(name, &verdict) } else { as_text(name, &verdict) })?;
    }
    if all {
        for missing in verify_seals(state)? {
            broken += 1;
            if json {
                writeln!(out, "{}", serde_json::json!({"intact": false, "flaw": missing.to_string()}))?;
            } else {
                writeln!(out, "BROKEN  {missing}")?;
            }
        }
    }
    if broken == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if !json {
        writeln!(out, "{broken} of {} chains are not as they were written", chains.len().max(broken))?;
    }
    Ok(ExitCode::FAILURE)
}

fn as_text(name: &str, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Intact { lines, hash, sealed } => {
            let state = if *sealed { "sealed" } else { "open" };
            format!("intact  {name}: {lines} lines, {state}, head {}", hash.get(..16).unwrap_or(hash))
        }
        Verdict::Broken(flaw) => format!("BROKEN  {name}: {flaw}"),
    }
}

fn as_json(name: &str, verdict: &Verdict) -> String {
    let value = match verdict {
        Verdict::Intact { lines, hash, sealed } => {
            serde_json::json!({"chain": name, "intact": true, "lines": lines, "sealed": sealed, "head": hash})
        }
        Verdict::Broken(flaw) => {
            let file = flaw.file.display().to_string();
            serde_json::json!({"chain": name, "intact": false, "file": file, "line": flaw.line, "flaw": flaw.to_string()})
        }
    };
    value.to_string()
}

#[cfg(test)]
mod tests;
