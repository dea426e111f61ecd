//! The log: one hash-chained file of JSON lines per run, and one for the host.
//!
//! Takes records from the gateway and the agent's own parts; gives an acknowledgement once every record of a
//! batch is in its file, or refuses the whole batch. The writer owns the chains and appends each group with one
//! `write` per run, in the thread that brings the records; the syncer, a thread of its own, makes them durable in
//! groups at most [`Options::sync_every`] apart and writes the signed head.
//!
//! A line is a JSON object whose last two members are `prev` and `hash`; `hash` is the SHA-256, in lower-case
//! hex, over the line's bytes before `,"hash":"`. `prev` is the hash of the line before; the first line's is the
//! digest of the chain's name ([`chain_start`]).
//!
//! Architecture invariant: nothing but this module writes below `runs/` and `host/`, and nothing here decides.

mod chain;
mod head;
mod key;
mod line;
#[cfg(any(test, fuzzing))]
pub mod properties;
pub mod read;
mod sync;
mod tally;
pub mod verify;
mod writer;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use strait_contract::{
    budget::{AgentUse, Budget, RunUse},
    ids::{AgentName, RecordId, RunId},
    record::{Body, Decision, Event, Kind, Phase, Record, ToolKind, Unrecorded},
};
use tokio::sync::oneshot;

use self::writer::Writer;
use crate::{budget::Ledger, instance::Instance};

pub use chain::chain_start;
pub(crate) use chain::segments;
pub use key::{HostKey, KeyError};
pub(crate) use line::{ChargeLine, is_acceptable};
pub use tally::{Kernel, Tally};

/// How the log works; sizes in bytes.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder that holds `runs/`, `host/` and `keys/`.
    pub state_dir: PathBuf,
    /// Group that may read records; `None` leaves them to root.
    pub group: Option<u32>,
    /// Size at which a file is sealed and the next begun.
    pub segment_bytes: u64,
    /// Longest time between a write and its sync: the window of a power cut.
    pub sync_every: Duration,
    /// Records a second that one run may write on average; twice as many at once.
    pub records_per_second: u32,
    /// Files kept open.
    pub open_files: usize,
    /// How long after its end a run's last records are still taken.
    pub closing: Duration,
}

impl Options {
    /// The defaults for an instance.
    pub fn for_instance(instance: &Instance) -> Self {
        let group = nix::unistd::Group::from_name("strait-audit").ok().flatten();
        Self {
            state_dir: instance.state_dir.clone(),
            group: group.map(|group| group.gid.as_raw()),
            segment_bytes: 64 * 1024 * 1024,
            sync_every: Duration::from_millis(20),
            records_per_second: 100_000,
            open_files: 256,
            closing: Duration::from_secs(2),
        }
    }
}

/// Why the log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A folder or file of the log can't be used.
    #[error("`{path}` can't be used for records: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another agent writes this log.
    #[error("another strait-agent writes the records in `{0}`: stop it first")]
    Locked(PathBuf),
    /// The host's signing key can't be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A thread could not be started.
    #[error("the log's thread can't be started: {0}")]
    Thread(io::Error),
    /// What is on disk doesn't continue the chain: it was changed by someone else.
    #[error("the records in `{path}` don't hold together at line {line}: see `strait log verify`")]
    Damaged {
        /// The chain's folder.
        path: PathBuf,
        /// First line that doesn't fit, counting from 1 over all segments.
        line: u64,
    },
}

/// What the log must know of a run to write its lines.
#[derive(Clone, Debug)]
pub struct RunMeta {
    /// The run.
    pub id: RunId,
    /// Its agent.
    pub agent: AgentName,
    /// Its agent's version.
    pub version: String,
}

/// A handle on the log; clones share it.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
    closing: Duration,
}

struct Shared {
    /// `None` once the log has stopped.
    writer: Mutex<Option<Writer>>,
    /// Held while a snapshot is written: an older one must not replace a newer.
    saving: Mutex<()>,
    syncer: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

/// Records that are written together or not at all.
#[derive(Debug)]
pub struct Batch {
    /// The records, in their order.
    pub records: Vec<Record>,
    /// Whether some may have been written lately under the same id and phase: those are left out.
    pub may_repeat: bool,
}

/// A batch of records and where to say what became of it.
#[derive(Debug)]
struct Append {
    records: Vec<Record>,
    /// Whether the answer waits for the sync.
    synced: bool,
    /// Whether records of it may have been written before: those are left out.
    may_repeat: bool,
    reply: oneshot::Sender<Result<(), Unrecorded>>,
}

/// What was found when a run's chain was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Lines that were there already.
    pub lines: u64,
    /// Bytes of a half-written last line that were cut.
    pub cut: u64,
    /// Calls among the last few thousand lines that have a `decided` line and no `done` line.
    pub open: Vec<(RecordId, Begun, Decision)>,
}

/// What a `decided` line without its `done` line is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Activity.
    Activity(Kind),
    /// A step of the trace.
    Step {
        /// The tool.
        tool: String,
        /// Its kind.
        kind: ToolKind,
    },
}

impl Log {
    /// Opens the log: makes folders and the host's key where missing, recovers the host's chain and starts the
    /// syncer.
    ///
    /// # Errors
    /// See [`LogError`]; nothing is running then.
    pub fn open(options: Options) -> Result<Self, LogError> {
        let closing = options.closing;
        let (writer, syncer) = writer::start(options)?;
        let shared = Shared {
            writer: Mutex::new(Some(writer)),
            saving: Mutex::default(),
            syncer: Mutex::new(Some(syncer)),
        };
        Ok(Self { shared: Arc::new(shared), closing })
    }

    /// Writes several batches as one group, in this thread, which may wait for the disk. Gives each one's outcome,
    /// in their order, as [`Log::append`] would.
    pub fn append_now(&self, batches: Vec<Batch>) -> Vec<Result<(), Unrecorded>> {
        let mut answers = Vec::with_capacity(batches.len());
        let group = batches.into_iter().map(|Batch { records, may_repeat }| {
            let (reply, answer) = oneshot::channel();
            answers.push(answer);
            Append { records, synced: false, may_repeat, reply }
        });
        let group = group.collect();
        if let Some(writer) = self.shared.lock().as_mut() {
            writer.group(group);
        }
        // A log that has stopped drops `reply`.
        answers.into_iter().map(|mut answer| answer.try_recv().unwrap_or(Err(Unrecorded::Log))).collect()
    }

    /// Writes a batch: returns when every record is in its file, where it survives a crash of the agent.
    ///
    /// # Errors
    /// Nothing was written: [`Unrecorded::Log`] if the disk is full or broken, [`Unrecorded::Run`] if a record
    /// names a run that isn't open, [`Unrecorded::Malformed`] if one breaks a bound, [`Unrecorded::Quota`] if a
    /// run writes too fast.
    pub async fn append(&self, records: Vec<Record>) -> Result<(), Unrecorded> {
        self.send(records, false).await
    }

    /// As [`Log::append`], and waits until the records survive a power cut.
    ///
    /// # Errors
    /// As [`Log::append`]. [`Unrecorded::Log`] may then also mean that they were written but not synced.
    pub async fn append_synced(&self, records: Vec<Record>) -> Result<(), Unrecorded> {
        self.send(records, true).await
    }

    /// Writes one event, synced. `run` is `None` for the host's chain.
    ///
    /// # Errors
    /// As [`Log::append_synced`].
    pub async fn event(
        &self,
        run: Option<RunId>,
        name: &str,
        facts: &[(&str, String)],
    ) -> Result<(), Unrecorded> {
        self.append_synced(vec![event(run, name, facts)]).await
    }

    async fn send(&self, records: Vec<Record>, synced: bool) -> Result<(), Unrecorded> {
        let (reply, answer) = oneshot::channel();
        let append = Append { records, synced, may_repeat: false, reply };
        self.with(move |writer| writer.group(vec![append])).await;
        // A log that has stopped drops `reply`.
        answer.await.unwrap_or(Err(Unrecorded::Log))
    }

    /// Does something with the writer where waiting for the disk keeps no other task waiting. `None` if the log
    /// has stopped.
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> T + Send + 'static,
    ) -> Option<T> {
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || shared.lock().as_mut().map(work)).await.ok().flatten()
    }

    /// Opens a run's chain, new or from an earlier life of the agent; records for it are taken from now on.
    ///
    /// # Errors
    /// The folder can't be made, or what is in it doesn't hold together.
    pub async fn open_run(&self, meta: RunMeta) -> Result<Opened, LogError> {
        let path = PathBuf::from(meta.id.as_str());
        let opened = self.with(|writer| writer.open(meta)).await;
        opened.unwrap_or_else(|| Err(LogError::File { path, source: io::ErrorKind::BrokenPipe.into() }))
    }

    /// Looks for records of a run, or of the host, that were written at `since_ms` or later, so that they are known when
    /// they come again.
    pub(crate) async fn recall(&self, run: Option<RunId>, since_ms: u64) {
        self.with(move |writer| writer.recall(&run, since_ms)).await;
    }

    /// Keeps in mind records that are written and will come again, for as long as the run lives.
    pub(crate) async fn remember(&self, run: Option<RunId>, written: Vec<(RecordId, Option<Phase>)>) {
        self.with(move |writer| writer.remember(&run, written)).await;
    }

    /// Closes a run's chain: for [`Options::closing`] its last records are still taken, then the chain is
    /// synced and its head sealed. Returns when that is done.
    pub async fn close_run(&self, id: RunId) {
        tokio::time::sleep(self.closing).await;
        let (reply, answer) = oneshot::channel();
        self.with(|writer| writer.close(id, reply)).await;
        let _ = answer.await;
    }

    /// The digest of the policies in force, written into every record from now on.
    pub async fn set_policy(&self, digest: String) {
        self.with(|writer| writer.set_policy(digest)).await;
    }

    /// Counts of what was written since the log was opened; none if it has stopped.
    pub async fn tally(&self) -> Tally {
        self.with(|writer| writer.tally().clone()).await.unwrap_or_default()
    }

    /// Budgets of agents from now on.
    pub async fn set_budgets(&self, budgets: BTreeMap<AgentName, Budget>) {
        self.with(move |writer| writer.ledger().set_budgets(budgets)).await;
    }

    /// What agents and live runs have used of models, for a gateway that starts.
    pub(crate) async fn model_use(&self) -> (Vec<AgentUse>, Vec<RunUse>) {
        self.with(|writer| writer.ledger().handover()).await.unwrap_or_default()
    }

    /// Does something with the ledger of model use.
    pub(crate) async fn with_ledger<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Ledger) -> T + Send + 'static,
    ) -> Option<T> {
        self.with(|writer| work(writer.ledger())).await
    }

    /// Sets an agent's total back, on record; what a gateway is to be told of it.
    ///
    /// # Errors
    /// [`Unrecorded::Log`] if it can't be put on record; nothing has changed then.
    pub(crate) async fn reset_budget(
        &self,
        agent: AgentName,
        by: String,
    ) -> Result<Option<AgentUse>, Unrecorded> {
        let reset = self.with(move |writer| writer.reset_budget(&agent, by)).await;
        reset.unwrap_or(Err(Unrecorded::Log))
    }

    /// Has the ledger of model use on disk if it has changed.
    ///
    /// # Errors
    /// I/O errors; it will be tried again when asked next.
    pub async fn save_ledger(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        tokio::task::spawn_blocking(move || shared.save()).await.map_err(io::Error::other)?
    }

    /// Stops the log; returns when everything written so far is durable.
    pub async fn shutdown(&self) {
        let shared = Arc::clone(&self.shared);
        let _ = tokio::task::spawn_blocking(move || {
            if let Err(error) = shared.save() {
                tracing::warn!(%error, "the ledger of model use can't be saved: more is read at the next start");
            }
            drop(shared.lock().take());
            let syncer = shared.syncer.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(syncer) = syncer {
                let _ = syncer.join();
            }
        })
        .await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self) -> io::Result<()> {
        let _one = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((snapshot, path)) = self.lock().as_mut().and_then(Writer::changed_ledger) else {
            return Ok(());
        };
        let written = snapshot.write(&path);
        if let (Err(_), Some(writer)) = (&written, self.lock().as_mut()) {
            writer.ledger().unsaved();
        }
        written
    }
}

/// Folder of the host's chain.
pub(crate) fn host_folder(state_dir: &Path) -> PathBuf {
    state_dir.join(chain::HOST)
}

/// Folder of a run's chain.
pub(crate) fn run_folder(state_dir: &Path, run: &RunId) -> PathBuf {
    state_dir.join("runs").join(run.as_str())
}

/// An event record of this moment.
pub fn event(run: Option<RunId>, name: &str, facts: &[(&str, String)]) -> Record {
    let facts = facts.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    record(run, Body::Event(Event { name: name.to_owned(), facts }))
}

/// A record of this moment that isn't one of a call's two.
pub fn record(run: Option<RunId>, body: Body) -> Record {
    Record { id: RecordId::now(), run, phase: None, ts_ms: now_ms(), boot_ns: boot_ns(), body }
}

/// Unix time, milliseconds.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `CLOCK_BOOTTIME`, nanoseconds.
pub fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests;
