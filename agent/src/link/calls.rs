//! Calls that a gateway has begun and not yet ended, so that one that dies leaves no call without its `done` line.

use std::collections::HashMap;

use strait_contract::{
    code::Code,
    ids::{RecordId, RunId},
    record::{self, Activity, Body, Decision, Phase, Record, Source},
};

use crate::log;

/// Most calls that are kept in mind: more than a gateway can have under way.
const MOST: usize = 1 << 18;

/// A call as far as its `decided` line tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) run: RunId,
    pub(crate) what: log::Begun,
    pub(crate) decision: Decision,
}

/// What one record does to the calls under way.
#[derive(Debug)]
pub(super) enum Step {
    Begins(RecordId, Begun),
    Ends(RecordId),
}

impl Step {
    /// What `record` does once it is in the log.
    pub(super) fn of(record: &Record) -> Option<Self> {
        match (&record.body, record.phase) {
            (_, Some(Phase::Done)) => Some(Self::Ends(record.id)),
            (Body::Activity(activity), Some(Phase::Decided)) => {
                let what = log::Begun::Activity(activity.kind);
                let begun = Begun { run: record.run.clone()?, what, decision: activity.decision };
                Some(Self::Begins(record.id, begun))
            }
            (Body::Trace(step), Some(Phase::Decided)) => {
                let what = log::Begun::Step { tool: step.tool.clone(), kind: step.kind };
                let begun = Begun { run: record.run.clone()?, what, decision: step.decision };
                Some(Self::Begins(record.id, begun))
            }
            _ => None,
        }
    }
}

/// Calls under way, by the id of their lines.
#[derive(Debug, Default)]
pub(crate) struct Calls(HashMap<RecordId, Begun>);

impl Calls {
    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Begins(id, begun) if self.0.len() < MOST => {
                self.0.insert(id, begun);
            }
            Step::Begins(..) => {}
            Step::Ends(id) => {
                self.0.remove(&id);
            }
        }
    }

    /// Takes others in, as far as there is room: a gateway that dials again and again would pile them up.
    pub(super) fn add(&mut self, others: Self) {
        let room = MOST.saturating_sub(self.0.len());
        self.0.extend(others.0.into_iter().take(room));
    }

    /// The `done` lines of calls that nobody is left to end.
    pub(crate) fn last_lines(self) -> Vec<Record> {
        self.0.into_iter().map(|(id, begun)| last_line(id, begun)).collect()
    }
}

impl FromIterator<(RecordId, Begun)> for Calls {
    fn from_iter<T: IntoIterator<Item = (RecordId, Begun)>>(calls: T) -> Self {
        Self(calls.into_iter().collect())
    }
}

/// It repeats what was decided; what the call came to isn't known, and the line says so.
fn last_line(id: RecordId, begun: Begun) -> Record {
    let code = Some(Code::GatewayGone);
    let why = Some("the gateway ended before the call did: what had passed by then isn't known".to_owned());
    let body = match begun.what {
        log::Begun::Activity(kind) => Body::Activity(Box::new(Activity {
            code,
            reason: why,
            ..Activity::new(Source::Gateway, kind, begun.decision)
        })),
        log::Begun::Step { tool, kind } => Body::Trace(Box::new(record::Step {
            code,
            error: why,
            ..record::Step::new(tool, kind, begun.decision)
        })),
    };
    let record = log::record(Some(begun.run), body);
    Record { id, phase: Some(Phase::Done), ..record }
}
