//! Counts of what is on record (A30): taken where records are written, so that they match the files.
//!
//! Labels come from bounded sets. None holds a URL or an argument.

use std::collections::BTreeMap;

use strait_contract::{
    code::Code,
    record::{Activity, Body, Decision, Event, Kind, Phase, Record, Source, Step},
};

use super::line;

/// Most tools or events that are counted by name.
const MOST: usize = 256;
/// What the rest are counted as.
const OTHER: &str = "other";

/// Counts since the log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// `done` lines of activity, by kind and decision.
    pub calls: BTreeMap<(&'static str, &'static str), u64>,
    /// `done` lines of the trace, by tool (of an MCP server: the server) and decision.
    pub steps: BTreeMap<(String, &'static str), u64>,
    /// What was refused, by code: each call, step and kernel refusal once.
    pub refusals: BTreeMap<&'static str, u64>,
    /// What became of asking people.
    pub approvals: BTreeMap<&'static str, u64>,
    /// Events, by name.
    pub events: BTreeMap<String, u64>,
    /// Lines, by stream.
    pub records: BTreeMap<&'static str, u64>,
    /// Kernel events that have a line, that were folded into one, that found no room.
    pub kernel: Kernel,
}

/// Kernel events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// With a line of their own.
    pub delivered: u64,
    /// Counted in the line of a like one.
    pub folded: u64,
    /// Of which there is only the number.
    pub lost: u64,
}

impl Tally {
    /// Counts a record that was written.
    pub(super) fn count(&mut self, record: &Record) {
        let done = record.phase == Some(Phase::Done);
        let stream = match &record.body {
            Body::Activity(activity) => {
                self.activity(activity, done, record.phase.is_none());
                "activity"
            }
            Body::Trace(step) => {
                if done {
                    self.step(step);
                }
                "trace"
            }
            Body::Event(event) => {
                self.event(event);
                "event"
            }
        };
        add(self.records.entry(stream).or_default(), 1);
    }

    fn activity(&mut self, activity: &Activity, done: bool, alone: bool) {
        if done {
            let label = (line::kind(activity.kind), line::decision(activity.decision));
            add(self.calls.entry(label).or_default(), 1);
        }
        // What a step sends is refused as the step.
        let own = (done || alone) && activity.step.is_none();
        if let (true, Decision::Deny, Some(code)) = (own, activity.decision, activity.code) {
            self.refusal(code, activity.count);
        }
        if activity.source == Source::Kernel {
            match activity.kind {
                Kind::Lost => add(&mut self.kernel.lost, activity.count),
                _ => {
                    add(&mut self.kernel.delivered, 1);
                    add(&mut self.kernel.folded, activity.count.saturating_sub(1));
                }
            }
        }
    }

    fn step(&mut self, step: &Step) {
        // A server's tools are named by the server and by runs: too many for a label.
        let tool = step.tool.split_once('/').map_or(step.tool.as_str(), |(server, _)| server);
        let decision = line::decision(step.decision);
        let known = self.steps.len() < MOST || self.steps.contains_key(&(tool.to_owned(), decision));
        let tool = if known { tool } else { OTHER };
        add(self.steps.entry((tool.to_owned(), decision)).or_default(), 1);
        if let (Decision::Deny, Some(code)) = (step.decision, step.code) {
            self.refusal(code, 1);
        }
    }

    fn refusal(&mut self, code: Code, count: u64) {
        add(self.refusals.entry(code.as_str()).or_default(), count);
    }

    fn event(&mut self, event: &Event) {
        let outcome = match event.name.as_str() {
            "call.held" => Some("asked"),
            "approval.granted" => Some("granted"),
            "approval.denied" => Some("denied"),
            "approval.revoked" => Some("revoked"),
            "approval.expired" => Some("expired"),
            _ => None,
        };
        if let Some(outcome) = outcome {
            add(self.approvals.entry(outcome).or_default(), 1);
        }
        let known = self.events.len() < MOST || self.events.contains_key(&event.name);
        let name = if known { event.name.as_str() } else { OTHER };
        match self.events.get_mut(name) {
            Some(count) => add(count, 1),
            None => {
                self.events.insert(name.to_owned(), 1);
            }
        }
    }
}

fn add(count: &mut u64, more: u64) {
    *count = count.saturating_add(more);
}
