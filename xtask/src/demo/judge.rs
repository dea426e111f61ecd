//! Runs one step and holds what came of it against what must: at the client, in the records, at the servers.

use std::{
    fs::{self, File},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::steps::{Arrival, Step, Verdict};
use crate::{
    interrupt,
    lab::{
        installation::Installation,
        internet::{Internet, Seen},
    },
};

/// How long a client may take.
const CLIENT: Duration = Duration::from_secs(60);
/// How long after the end of a run its last record may be written: repeats of kernel events are folded for a second.
const RECORD: Duration = Duration::from_secs(4);

/// What came of a step.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// What the client printed.
    pub(super) output: String,
    /// Why it isn't what must come of it; empty if it is.
    pub(super) problems: Vec<String>,
    /// What passed or was refused without a record.
    pub(super) unrecorded: usize,
}

/// The fields of a record that the demo looks at.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Line {
    phase: String,
    decision: String,
    kind: String,
    code: String,
    dst: Destination,
    dns: Question,
    request: Request,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Destination {
    name: String,
    addr: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Question {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Request {
    method: String,
    url: String,
}

/// Runs a step.
///
/// # Errors
/// If it can't be run at all, or the demo was interrupted.
pub(super) fn judge(step: &Step, installation: &Installation, internet: &Internet) -> Result<Outcome> {
    let (runs, seen) = (installation.runs()?, internet.seen()?.len());
    let mut outcome = Outcome { output: run(step, installation)?, ..Outcome::default() };
    if !outcome.output.contains(step.shows) {
        outcome.problems.push(format!("the client doesn't print `{}`", step.shows));
    }
    let new: Vec<_> = installation.runs()?.into_iter().filter(|run| !runs.contains(run)).collect();
    let [run] = new.as_slice() else {
        outcome.problems.push(format!("{} runs instead of one", new.len()));
        return Ok(outcome);
    };
    let lines = recorded(step, installation, run)?;
    if !lines.iter().any(|line| line.matches(step)) {
        outcome.unrecorded += 1;
        outcome.problems.push(format!("no record of it in run `{run}`"));
    }
    let seen: Vec<_> = internet.seen()?.into_iter().skip(seen).collect();
    let arrived = seen.iter().any(|seen| step.arrives.matches(seen));
    match step.verdict {
        Verdict::Allowed if !arrived && !step.arrives.server.is_empty() => {
            outcome.problems.push("it never reached the server".to_owned());
        }
        Verdict::Refused if arrived => outcome.problems.push("it reached the server".to_owned()),
        _ => {}
    }
    for seen in seen.iter().filter(|seen| !lines.iter().any(|line| line.accounts_for(seen))) {
        outcome.unrecorded += 1;
        outcome.problems.push(format!("{} {} {} passed without a record", seen.server, seen.name, seen.path));
    }
    Ok(outcome)
}

/// Runs the script of a step in a run and gives what it printed.
fn run(step: &Step, installation: &Installation) -> Result<String> {
    let file = installation.workspace().with_extension("output");
    let output = File::create(&file)?;
    let mut strait = installation.strait();
    strait.args(["run", "--agent", "demo", "--workspace"]).arg(installation.workspace());
    strait.args(["--", "sh", "-c", step.script]).stdin(Stdio::null());
    strait.stdout(output.try_clone()?).stderr(output).current_dir(installation.workspace());
    let mut client = strait.spawn().context("`strait run` can't be started")?;
    let started = Instant::now();
    while client.try_wait()?.is_none() {
        if interrupt::check().is_err() || started.elapsed() > CLIENT {
            client.kill()?;
            client.wait()?;
        }
        thread::sleep(Duration::from_millis(5));
    }
    interrupt::check()?;
    Ok(String::from_utf8_lossy(&fs::read(file)?).into_owned())
}

/// The records of the run, once the one that must be there is, or after the time it may take.
fn recorded(step: &Step, installation: &Installation, run: &str) -> Result<Vec<Line>> {
    let started = Instant::now();
    loop {
        interrupt::check()?;
        let text = installation.records(run)?;
        let lines = text.lines().map(|line| serde_json::from_str(line).context("a record is garbled"));
        let lines = lines.collect::<Result<Vec<Line>>>()?;
        if lines.iter().any(|line| line.matches(step)) || started.elapsed() > RECORD {
            return Ok(lines);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

impl Line {
    /// Whether this is the record that the step must leave.
    fn matches(&self, step: &Step) -> bool {
        let decided = match step.verdict {
            Verdict::Allowed => self.decision == "allow",
            // An address is vetted after policy has permitted the name: then the outcome says so.
            Verdict::Refused => self.decision == "deny" || self.phase == "done",
        };
        decided
            && self.kind == step.record.kind
            && self.code == step.record.code
            && self.is_to(step.record.to)
    }

    /// Whether it's about that name or address.
    fn is_to(&self, to: &str) -> bool {
        let named =
            [&self.dst.name, &self.dst.addr, &self.dns.name].iter().any(|name| name.eq_ignore_ascii_case(to));
        named || self.request.url.contains(&format!("//{to}/"))
    }

    /// Whether this record lets pass what the server saw.
    fn accounts_for(&self, seen: &Seen) -> bool {
        let decided = self.decision == "allow" && self.phase != "done";
        match seen.server.as_str() {
            "http" => {
                let target = format!("{}{}", seen.name, seen.path);
                decided && self.request.method == seen.method && self.request.url.ends_with(&target)
            }
            // The gateway asks for the names of calls that policy permits, and for no other.
            "dns" => self.decision == "allow" && self.dst.name == seen.name || self.refused_by_address(seen),
            "echo" => decided && self.kind == "stream" && self.dst.name == seen.name,
            _ => false,
        }
    }

    /// A permitted name whose address wasn't: the lookup had to be made to find out.
    fn refused_by_address(&self, seen: &Seen) -> bool {
        self.code == "ADDRESS_REFUSED" && self.dst.name == seen.name
    }
}

impl Arrival {
    fn matches(&self, seen: &Seen) -> bool {
        let request = format!("{} {}", seen.method, seen.path);
        self.server == seen.server
            && self.name.eq_ignore_ascii_case(&seen.name)
            && (self.request.is_empty() || request.starts_with(self.request))
    }
}
