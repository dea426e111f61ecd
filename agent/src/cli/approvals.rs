//! `strait approvals`.

use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;

use super::table;
use crate::{
    approval::view::ApprovalView,
    control::{
        client,
        wire::{ApproveBody, DenyBody},
    },
    instance::Instance,
    log,
};

/// Digits of a digest that tell two rows apart; `show` has all.
const MARK: usize = 8;

/// List, approve and refuse calls that wait for a person
#[derive(Debug, clap::Args)]
#[command(
    after_help = "You see the prompts of your own runs. To answer one you must be root or in the group \
        `strait-admin`: who started an agent is not who approves what it does.\n\n\
        A prompt stands for one exact call of one run: method, URL, fields and body. Identical calls wait at the same \
        prompt, and each approval is worth one execution. If the client has gone, an approval serves the identical \
        call that comes within 10 minutes.\n\n\
        Examples:\n  strait approvals\n  strait approvals show k7m2x9qd\n  strait approvals approve k7m2x9qd\n  \
        strait approvals approve k7m2x9qd --count 3\n  strait approvals approve k7m2x9qd --for-run\n  \
        strait approvals deny k7m2x9qd --note 'use the staging account'\n\n\
        Exit codes: 0 done, 1 not done (no such prompt, not allowed, agent not there), 2 wrong usage"
)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List what waits and what is granted (the default)
    List {
        /// Those that are over too
        #[arg(long)]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show everything that an approval of this prompt is bound to
    Show {
        /// The prompt
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Let calls go: one, unless told otherwise
    Approve {
        /// The prompt
        id: String,
        /// So many identical calls, now or within 10 minutes
        #[arg(long, value_name = "N", conflicts_with = "for_run")]
        count: Option<u32>,
        /// Every identical call until the run ends
        #[arg(long)]
        for_run: bool,
    },
    /// Refuse the calls that wait, or take back what was granted
    Deny {
        /// The prompt
        id: String,
        /// What the client is told
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
}

/// Lists or answers.
///
/// # Errors
/// If the agent doesn't answer, or says no.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let socket = instance.control_socket();
    match &args.verb {
        None => list(instance, false, args.json)?,
        Some(Verb::List { all, json }) => list(instance, *all, *json || args.json)?,
        Some(Verb::Show { id, json }) => {
            let path = path(id, "");
            let prompt: ApprovalView =
                super::block_on(client::ask(&socket, Method::GET, &path, None::<&()>))??;
            if *json || args.json {
                println!("{}", serde_json::to_string_pretty(&prompt)?);
            } else {
                print!("{}", whole(&prompt));
            }
        }
        Some(Verb::Approve { id, count, for_run }) => {
            let body = ApproveBody { count: *count, for_run: *for_run };
            let path = path(id, "/approve");
            let prompt: ApprovalView =
                super::block_on(client::ask(&socket, Method::POST, &path, Some(&body)))??;
            println!("{}", became(&prompt));
        }
        Some(Verb::Deny { id, note }) => {
            let body = DenyBody { note: note.clone() };
            let path = path(id, "/deny");
            let prompt: ApprovalView =
                super::block_on(client::ask(&socket, Method::POST, &path, Some(&body)))??;
            println!("{}", became(&prompt));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What isn't the name of a prompt is left for the agent to refuse, but must not become another path.
fn path(id: &str, verb: &str) -> String {
    let id: String = id.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    format!("/v1/approvals/{id}{verb}")
}

fn list(instance: &Instance, all: bool, json: bool) -> anyhow::Result<()> {
    let socket = instance.control_socket();
    let mut prompts: Vec<ApprovalView> =
        super::block_on(client::ask(&socket, Method::GET, "/v1/approvals", None::<&()>))??;
    prompts.retain(|prompt| all || prompt.is_open());
    if json {
        println!("{}", serde_json::to_string_pretty(&prompts)?);
        return Ok(());
    }
    let now = log::now_ms();
    let rows: Vec<_> = prompts.iter().map(|prompt| row(prompt, now)).collect();
    table::print(&["ID", "RUN", "STATE", "CALLS", "AGE", "ENDS", "CALL"], &rows);
    Ok(())
}

fn row(prompt: &ApprovalView, now: u64) -> Vec<String> {
    let state = match &prompt.left {
        Some(left) => format!("granted ({left} left, by {})", prompt.by.as_deref().unwrap_or("?")),
        None => match &prompt.by {
            Some(by) if !prompt.is_open() => format!("{} by {by}", prompt.state),
            _ => prompt.state.clone(),
        },
    };
    let ends = match (prompt.expires_ms, prompt.is_open()) {
        (Some(at), true) => table::ago(now, at),
        (None, true) => "with its run".to_owned(),
        (_, false) => String::new(),
    };
    let body = match (prompt.content_bytes, prompt.digest.get(..MARK)) {
        // Of calls that differ in their bodies alone the rows would be the same.
        (Some(bytes), Some(mark)) => format!(" ({bytes} bytes, {mark})"),
        (Some(bytes), None) => format!(" ({bytes} bytes)"),
        (None, _) => String::new(),
    };
    vec![
        prompt.id.clone(),
        prompt.run.clone(),
        state,
        format!("{} of {}", prompt.waiting, prompt.asked),
        table::ago(prompt.opened_ms, now),
        ends,
        format!("{} {}{body}", prompt.action, prompt.target),
    ]
}

/// Everything of a prompt.
fn whole(prompt: &ApprovalView) -> String {
    let mut text = format!(
        "prompt   {}\nrun      {} (agent {}, started by {})\nstate    {}: {} waiting, {} asked\nrules    {}\nwhy      {}\n\
         call     {} {}\nvia      {}\n",
        prompt.id,
        prompt.run,
        prompt.agent,
        prompt.user,
        prompt.state,
        prompt.waiting,
        prompt.asked,
        prompt.rules.join(", "),
        prompt.why,
        prompt.action,
        prompt.target,
        prompt.via,
    );
    for field in &prompt.fields {
        text.push_str(&format!("field    {field}\n"));
    }
    if let Some(bytes) = prompt.content_bytes {
        text.push_str(&format!(
            "body     {bytes} bytes, sha256 {}\n",
            prompt.content_sha256.as_deref().unwrap_or("?")
        ));
        for line in prompt.content.as_deref().unwrap_or_default().lines() {
            text.push_str(&format!("       | {line}\n"));
        }
    }
    text.push_str(&format!("digest   {}\n", prompt.digest));
    text
}

/// What an answer came to, in one line.
fn became(prompt: &ApprovalView) -> String {
    let call = format!("{} {}", prompt.action, prompt.target);
    match (&prompt.left, prompt.is_open()) {
        (Some(left), _) if left == "run" => {
            format!("{}: granted until {} ends: {call}", prompt.id, prompt.run)
        }
        (Some(left), _) => format!("{}: granted, {left} to be used within 10 minutes: {call}", prompt.id),
        (None, true) => format!("{}: approved, {} still waiting: {call}", prompt.id, prompt.waiting),
        (None, false) => format!("{}: {}: {call}", prompt.id, prompt.state),
    }
}
