//! Records of what the gateway saw: built in one place, from typed facts, and handed to the agent.
//!
//! A [`Guard`] is opened for each call and makes sure that the log gets exactly one `decided` and one `done`
//! line for it, whatever becomes of the call.
//!
//! Architecture invariant: nothing is forwarded before [`Guard::allow`] has returned `Ok`.

use std::{
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use rustix::time::{ClockId, clock_gettime};
use strait_contract::{
    approval::Approval,
    code::Code,
    ids::{RecordId, RunId},
    record::{Body, Phase, Record, Unrecorded},
    run::Process,
    tool::ToolName,
};

pub(crate) mod facts;
mod recorder;

pub use facts::Outcome;
pub(crate) use recorder::unspool;
pub use recorder::{Entry, Lost, Queue, Recorder};

use facts::Line;

/// Most bytes of a free text in a record.
pub const MAX_TEXT: usize = 2048;

/// Unix time in milliseconds.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `CLOCK_BOOTTIME` in nanoseconds.
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(now.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// A record of this moment.
pub fn record(id: RecordId, run: Option<RunId>, phase: Option<Phase>, body: Body) -> Record {
    Record { id, run, phase, ts_ms: now_ms(), boot_ns: boot_ns(), body }
}

/// Both lines of one call. Dropped early, it writes what is missing with the outcome
/// [`Code::ClientGone`]; dropping does no more than hand plain values to the recorder.
#[derive(Debug)]
pub struct Guard {
    recorder: Arc<Recorder>,
    id: RecordId,
    run: RunId,
    line: Option<Line>,
    state: State,
    begun: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Decided,
    Closed,
}

impl Guard {
    /// Opens the record of a call.
    pub(crate) fn open(recorder: &Arc<Recorder>, id: RecordId, run: RunId, line: Line) -> Self {
        let (recorder, begun) = (Arc::clone(recorder), Instant::now());
        Self { recorder, id, run, line: Some(line), state: State::Open, begun }
    }

    /// Id of both lines.
    pub fn id(&self) -> RecordId {
        self.id
    }

    /// The rules that permitted the call.
    pub(crate) fn rules(&self) -> Vec<String> {
        self.line.as_ref().map(|line| line.rules().to_vec()).unwrap_or_default()
    }

    /// Puts in what the agent told of the calling process.
    pub(crate) fn set_process(&mut self, process: Process) {
        if let Some(line) = self.line.as_mut() {
            line.set_process(process);
        }
    }

    /// Puts in whose placeholders stand in the call.
    pub(crate) fn add_placeholders(&mut self, found: &[ToolName]) {
        if let Some(line) = self.line.as_mut().filter(|_| !found.is_empty()) {
            line.add_placeholders(found);
        }
    }

    /// Puts in what asking a person came to.
    pub(crate) fn set_approval(&mut self, approval: Approval) {
        if let Some(line) = self.line.as_mut() {
            line.set_approval(approval);
        }
    }

    /// Writes the `decided` line of a permitted call and waits until it is on record.
    ///
    /// # Errors
    /// [`Unrecorded`] if it is not: the call must not pass.
    pub async fn allow(&mut self, rules: Vec<String>) -> Result<(), Unrecorded> {
        let Some(line) = self.line.as_mut() else { return Err(Unrecorded::Malformed) };
        line.allow(rules);
        let (decided, leg) = line.decided(self.id, &self.run);
        // Set before the wait: if the caller goes away during it, the `done` line follows all the same.
        self.state = State::Decided;
        let written = self.recorder.ask(decided, leg).await;
        if let Err(lost) = &written
            && lost.surely
        {
            self.state = State::Closed;
        }
        if let (Err(lost), State::Decided) = (&written, self.state) {
            self.finish(&Outcome::failed(Code::RecordUnavailable, lost.why.to_string()));
        }
        written.map_err(|lost| lost.why)
    }

    /// Writes both lines of a refused call and waits until they are on record. `status` is what the client is
    /// going to get, if its protocol has one.
    ///
    /// # Errors
    /// [`Unrecorded`] if they are not.
    pub async fn deny(
        mut self,
        code: Code,
        rules: Vec<String>,
        reason: &str,
        status: Option<u16>,
    ) -> Result<(), Unrecorded> {
        let Some((decided, done)) = self.refusal(code, rules, reason, status) else {
            return Err(Unrecorded::Malformed);
        };
        self.recorder.ask(decided, Some(done)).await.map_err(|lost| lost.why)
    }

    /// Has both lines of a refused call written as soon as there is somebody to write them.
    pub(crate) fn deny_later(mut self, code: Code, rules: Vec<String>, reason: &str, status: Option<u16>) {
        if let Some((decided, done)) = self.refusal(code, rules, reason, status) {
            self.recorder.tell(decided);
            self.recorder.tell(done);
        }
    }

    /// Writes the `done` line and waits until it is on record.
    ///
    /// # Errors
    /// [`Unrecorded`] if it could not be written in time: the end of the answer must not be released.
    pub async fn done(mut self, outcome: &Outcome) -> Result<(), Unrecorded> {
        match self.end(outcome) {
            Some((done, leg)) => {
                // In the order of the queue: when the last is on record, so is this one.
                if let Some(leg) = leg {
                    self.recorder.tell(leg);
                }
                self.recorder.insist(done).await
            }
            None => Ok(()),
        }
    }

    /// Writes the `done` line without waiting.
    pub(crate) fn finish(&mut self, outcome: &Outcome) {
        if let Some((done, leg)) = self.end(outcome) {
            if let Some(leg) = leg {
                self.recorder.tell(leg);
            }
            self.recorder.tell(done);
        }
    }

    fn refusal(
        &mut self,
        code: Code,
        rules: Vec<String>,
        reason: &str,
        status: Option<u16>,
    ) -> Option<(Record, Record)> {
        self.state = State::Decided;
        let line = self.line.as_mut()?;
        line.deny(code, rules, reason);
        let (decided, _) = line.decided(self.id, &self.run);
        let (done, _) = self.end(&Outcome { status, ..Outcome::default() })?;
        Some((decided, done))
    }

    fn end(&mut self, outcome: &Outcome) -> Option<(Record, Option<Record>)> {
        if self.state != State::Decided {
            return None;
        }
        self.state = State::Closed;
        Some(self.line.take()?.done(self.id, &self.run, outcome, self.begun.elapsed()))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        match self.state {
            State::Closed => {}
            State::Open => {
                let Outcome { code, reason, .. } = Outcome::gone();
                let code = code.unwrap_or(Code::Internal);
                let reason = reason.unwrap_or_default();
                if let Some((decided, done)) = self.refusal(code, Vec::new(), &reason, None) {
                    self.recorder.tell(decided);
                    self.recorder.tell(done);
                }
            }
            State::Decided => {
                let outcome = Outcome::gone();
                self.finish(&outcome);
            }
        }
    }
}
