//! `strait trace`: the steps of a run, one row each. Reads the files themselves, so it works with the agent stopped.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use strait_contract::{ids::RunId, redact::redact_text};

use super::table;
use crate::{
    instance::Instance,
    log::read::{self, Entry, Filter},
};

/// Most bytes of what a call was, so that a row has room for why.
const SHOWN: usize = 80;

/// Show the steps of a run: each call of a tool, what was decided and what became of it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  strait trace coder-7f3a2c\n  \
                  strait trace coder-7f3a2c --json | jq 'select(.phase==\"done\") | {tool, target, decision, status}'\n\n\
                  Exit codes: 0 done, 1 the records can't be read, 2 bad usage.")]
pub struct Args {
    /// The run
    #[arg(value_name = "RUN")]
    run: RunId,
    /// Show the lines as they stand in the log
    #[arg(long)]
    json: bool,
    /// Show a table (the default)
    #[arg(long, conflicts_with = "json")]
    table: bool,
}

/// Runs the command.
///
/// # Errors
/// The records can't be read.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let filter =
        Filter { run: Some(args.run.clone()), stream: Some("trace".to_owned()), ..Filter::default() };
    let state = &instance.state_dir;
    let entries = read::newest(state, &filter, usize::MAX).with_context(|| {
        let who = "records are for root and group `strait-audit`";
        format!("reading the records of run `{}` in `{}` ({who})", args.run, state.display())
    })?;
    if !args.json {
        table::print(&["TIME", "TOOL", "VERDICT", "STATUS", "MS", "WHAT", "WHY"], &rows(&entries));
        return Ok(ExitCode::SUCCESS);
    }
    let lines: String = entries.iter().map(|entry| format!("{}\n", entry.line)).collect();
    match io::stdout().lock().write_all(lines.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("writing the steps"),
        // The reader of a pipe has seen enough.
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// One row for each step, in the order in which they were decided, with the outcome if there is one yet.
fn rows(entries: &[Entry]) -> Vec<Vec<String>> {
    let done: HashMap<&str, &Entry> = entries
        .iter()
        .filter(|entry| entry.text("phase") == Some("done"))
        .filter_map(|entry| Some((entry.text("step")?, entry)))
        .collect();
    let decided = entries.iter().filter(|entry| entry.text("phase") == Some("decided"));
    let row = |decided| {
        let last = Entry::text(decided, "step").and_then(|step| done.get(step)).copied();
        row(decided, last.unwrap_or(decided), last.is_some())
    };
    decided.map(row).collect()
}

/// Who let a call go that was held. Who refused one stands in its reason.
fn granted_by(told: &Entry) -> Option<String> {
    let approval = told.value.get("approval")?;
    let text = |key| approval.get(key).and_then(serde_json::Value::as_str);
    let by = text("by").filter(|_| text("outcome") == Some("granted"))?;
    Some(format!("approved by {}", redact_text(by, 64)))
}

fn row(decided: &Entry, told: &Entry, over: bool) -> Vec<String> {
    let text = |path: &str| told.text(path).map(|text| redact_text(text, 4096));
    let number = |path: &str| told.value.get(path).map_or_else(|| "-".to_owned(), ToString::to_string);
    let at = jiff::Timestamp::from_millisecond(decided.ts_ms).unwrap_or_default();
    let time = at.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%m-%d %H:%M:%S").to_string();
    // What was decided says what; a last line of a gateway that died says only that.
    let what = |path: &str| decided.text(path).map(|text| redact_text(text, 4096)).unwrap_or_default();
    let args = Some(what("args")).filter(|args| !args.is_empty()).map(|args| format!(" {args}"));
    let rules = decided.value.get("rules").and_then(serde_json::Value::as_array);
    let rules: Vec<&str> = rules.into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
    let cut = told.value.get("truncated").and_then(serde_json::Value::as_bool).unwrap_or(false);
    let why = [
        (!over).then(|| "under way".to_owned()),
        text("code"),
        (!rules.is_empty()).then(|| format!("[{}]", rules.join(", "))),
        granted_by(told),
        cut.then(|| "truncated".to_owned()),
        text("reason").or_else(|| text("error")),
    ];
    vec![
        time,
        what("tool"),
        text("decision").unwrap_or_default(),
        number("status"),
        number("durationMs"),
        redact_text(&(what("target") + &args.unwrap_or_default()), SHOWN),
        why.into_iter().flatten().collect::<Vec<_>>().join(" "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(phase: &str, rest: &str) -> String {
        format!(
            r#"{{"seq":1,"ts":"2026-11-30T16:00:00.000Z","run":"r","stream":"trace","phase":"{phase}","step":"a","tool":"acme","target":"POST https://h.test/a","rules":["writes"],{rest}}}"#
        )
    }

    /// The last column of the only row of a held call.
    fn why(done: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("runs/r")).unwrap();
        let lines = [step("decided", r#""decision":"allow""#), step("done", done)].map(|line| line + "\n");
        std::fs::write(dir.path().join("runs/r/log.jsonl"), lines.concat()).unwrap();
        let entries = read::newest(dir.path(), &Filter::default(), 100).unwrap();
        let rows = rows(&entries);
        assert_eq!(rows.len(), 1);
        rows[0].last().unwrap().clone()
    }

    #[test]
    fn a_step_says_who_approved_it_and_a_refused_one_only_why() {
        let granted = r#""decision":"allow","approval":{"id":"k7m2x9qd","by":"ann","outcome":"granted"}"#;
        assert_eq!(why(granted), "[writes] approved by ann");
        let denied = r#""decision":"deny","code":"APPROVAL_DENIED","reason":"`ann` refused it","approval":{"id":"k7m2x9qd","by":"ann","outcome":"denied"}"#;
        assert_eq!(why(denied), "APPROVAL_DENIED [writes] `ann` refused it");
        assert_eq!(why(r#""decision":"allow""#), "[writes]");
    }
}
