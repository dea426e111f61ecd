//! From a kernel event to a record: adds which run and which executable while the process is still there.
//!
//! What can't be read any more is left out, never guessed. Events that can't be written are counted, and the count
//! is written once the log can be again: a lost event is itself a record.

pub mod process;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use strait_abi::verdict::{Hook, Verdict};
use strait_contract::{
    code::Code,
    ids::RunId,
    record::{Activity, Body, Decision, Destination, Kind, Record, Source, Unrecorded},
    run::Process,
};
use tokio::sync::mpsc;

use crate::{
    firewall::{Caller, KernelEvent, Notice},
    log::{self, Log},
};

pub use process::Processes;

/// Events taken at once.
const BATCH: usize = 256;
/// How often a count of unwritten events is tried again while nothing else happens.
const RETRY: Duration = Duration::from_millis(500);

/// Which run has a kernel number, among live runs.
pub type RunOfNumber = Arc<dyn Fn(u64) -> Option<RunId> + Send + Sync>;

/// Writes what the kernel reports into the log.
pub struct Recorder {
    log: Log,
    processes: Processes,
    runs: RunOfNumber,
    /// Events that could not be written, by run.
    unwritten: BTreeMap<Option<RunId>, u64>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("unwritten", &self.unwritten).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that asks `runs` whose number an event bears.
    pub fn new(log: Log, processes: Processes, runs: RunOfNumber) -> Self {
        Self { log, processes, runs, unwritten: BTreeMap::new() }
    }

    /// Records until the reporter is gone.
    pub async fn run(mut self, mut notices: mpsc::Receiver<Notice>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let waits = !self.unwritten.is_empty();
            let taken = tokio::select! {
                taken = notices.recv_many(&mut batch, BATCH) => taken,
                () = tokio::time::sleep(RETRY), if waits => {
                    self.write(BTreeMap::new()).await;
                    continue;
                }
            };
            if taken == 0 {
                return;
            }
            let mut records: BTreeMap<Option<RunId>, Vec<Record>> = BTreeMap::new();
            for notice in batch.drain(..) {
                let record = self.record(notice);
                records.entry(record.run.clone()).or_default().push(record);
            }
            self.write(records).await;
        }
    }

    /// Writes a batch per run, each preceded by the count of what could not be written before.
    async fn write(&mut self, mut records: BTreeMap<Option<RunId>, Vec<Record>>) {
        for run in self.unwritten.keys() {
            records.entry(run.clone()).or_default();
        }
        for (run, mut batch) in records {
            let lost: u64 = batch.iter().map(events).sum();
            let before = self.unwritten.remove(&run).unwrap_or(0);
            if before > 0 {
                batch.insert(0, lost_record(run.clone(), before, Code::RecordUnavailable));
            }
            match self.log.append(batch.clone()).await {
                Ok(()) => {}
                // The run ended meanwhile: its last events belong to the host's chain, and say whose they were.
                Err(Unrecorded::Run) if run.is_some() => {
                    let orphans: Vec<Record> = batch.into_iter().map(|record| orphan(record, run.as_ref())).collect();
                    if self.log.append(orphans).await.is_err() {
                        *self.unwritten.entry(None).or_default() += before + lost;
                    }
                }
                Err(_) => {
                    self.unwritten.insert(run, before + lost);
                }
            }
        }
    }

    fn record(&self, notice: Notice) -> Record {
        match notice {
            Notice::Event(event) => {
                let run = (self.runs)(event.run);
                let exe = event.caller.as_ref().and_then(|caller| self.processes.exe(caller.tgid));
                kernel_record(run, &event, exe.map(|exe| exe.to_string()))
            }
            Notice::Lost { run, count } => lost_record((self.runs)(run), count, Code::Internal),
        }
    }
}

/// How many events a record stands for.
fn events(record: &Record) -> u64 {
    match &record.body {
        Body::Activity(activity) => activity.count,
        Body::Event(_) => 1,
    }
}

/// A record about events that are not in the log themselves.
fn lost_record(run: Option<RunId>, count: u64, code: Code) -> Record {
    let reason = match code {
        Code::RecordUnavailable => "kernel events could not be written while the log could not",
        _ => "kernel events found no room in the ring",
    };
    let activity = Activity {
        kind: Kind::Lost,
        code: Some(code),
        reason: Some(reason.to_owned()),
        count,
        ..empty(Decision::Deny)
    };
    log::record(run, Body::Activity(Box::new(activity)))
}

/// The same record in the host's chain, naming the run it was about.
fn orphan(mut record: Record, run: Option<&RunId>) -> Record {
    record.run = None;
    if let (Body::Activity(activity), Some(run)) = (&mut record.body, run) {
        let reason = activity.reason.take().map_or_else(String::new, |reason| format!(": {reason}"));
        activity.reason = Some(format!("of the ended run `{run}`{reason}"));
    }
    record
}

fn empty(decision: Decision) -> Activity {
    Activity {
        source: Source::Kernel,
        kind: Kind::Connect,
        decision,
        code: None,
        reason: None,
        rules: Vec::new(),
        dst: Destination::default(),
        proto: String::new(),
        via: String::new(),
        request: None,
        dns: None,
        stream: None,
        process: None,
        cookie: None,
        count: 1,
        duration_us: None,
    }
}

fn kernel_record(run: Option<RunId>, event: &KernelEvent, exe: Option<String>) -> Record {
    let decision = match event.verdict {
        Verdict::Deny => Decision::Deny,
        Verdict::Allow | Verdict::Redirect => Decision::Allow,
    };
    let kind = match event.hook {
        Some(Hook::SockCreate | Hook::LsmSocket) => Kind::Socket,
        Some(Hook::Packet | Hook::SkbEgress | Hook::SkbIngress) => Kind::Packet,
        Some(Hook::Connect4 | Hook::Connect6 | Hook::Sendmsg4 | Hook::Sendmsg6) | None => Kind::Connect,
    };
    // The comm is the caller's own word and the only name left once the process is gone.
    let process = event.caller.as_ref().map(|Caller { tgid, uid, comm, .. }| Process {
        pid: *tgid,
        uid: *uid,
        comm: comm.clone(),
        exe,
        digest: None,
    });
    let reason = match (kind, run.is_some()) {
        (_, false) => Some("not of a live run".to_owned()),
        (Kind::Socket, true) => Some(format!("address family {}, type {}", event.family, event.kind)),
        _ => None,
    };
    let activity = Activity {
        kind,
        code: event.code,
        reason,
        dst: Destination {
            name: None,
            addr: event.dst.map(|dst| dst.ip()),
            port: event.dst.map(|dst| dst.port()).filter(|port| *port != 0),
        },
        proto: match event.proto {
            1 => "icmp".to_owned(),
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            0 => String::new(),
            other => other.to_string(),
        },
        process,
        cookie: event.cookie,
        count: event.count.max(1),
        ..empty(decision)
    };
    let mut record = log::record(run, Body::Activity(Box::new(activity)));
    // The event's own moment, on the kernel's clock and by it on the wall clock.
    let late_ms = record.boot_ns.saturating_sub(event.boot_ns) / 1_000_000;
    record.ts_ms = record.ts_ms.saturating_sub(late_ms);
    record.boot_ns = event.boot_ns;
    record
}

#[cfg(test)]
mod tests;
