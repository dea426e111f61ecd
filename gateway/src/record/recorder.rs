//! Where records go: into the spool, where they are on record at once, and into the queue of the one task that sends
//! them over the link. Without a spool, with one that is full, and for runs whose records the agent refuses at the
//! moment, a call waits for the agent's acknowledgement instead.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use strait_contract::{
    code::Code,
    ids::{RecordId, RunId},
    record::{Body, Kind, Record, Unrecorded},
    spool::{Spool, SpoolError, Ticket},
};
use tokio::sync::{mpsc, oneshot};

use super::facts;

/// How long the end of an answer is held back for its `done` line while the agent restarts.
const PATIENCE: Duration = Duration::from_secs(10);

/// One or two records that are written together or not at all.
#[derive(Debug)]
pub struct Entry {
    /// The first.
    pub first: Record,
    /// The second, if there are two.
    pub second: Option<Record>,
    /// Who waits for it; nobody who waits asks for less than everything in the entry.
    pub waiter: Option<oneshot::Sender<Result<(), Lost>>>,
    /// Kept and sent again until it is on record, because what it tells of has happened already.
    pub lasting: bool,
    /// Goes into a batch of its own, because a batch that it was part of was refused.
    pub alone: bool,
    /// Where it is on record until it is in the log.
    pub(crate) spooled: Option<Spooled>,
}

impl Entry {
    fn new(first: Record, second: Option<Record>) -> Self {
        Self { first, second, waiter: None, lasting: false, alone: false, spooled: None }
    }
}

/// An entry's place in a spool.
#[derive(Debug)]
pub(crate) struct Spooled {
    spool: Arc<Spool>,
    ticket: Ticket,
}

/// Takes entries that are in the log, or will never be, out of their spools.
pub(crate) fn unspool(places: Vec<Spooled>) {
    let mut places = places;
    while let Some(Spooled { spool, .. }) = places.first() {
        let spool = Arc::clone(spool);
        let (own, others): (Vec<_>, _) =
            places.into_iter().partition(|place| Arc::ptr_eq(&place.spool, &spool));
        if let Err(error) = spool.done(own.into_iter().map(|place| place.ticket)) {
            tracing::error!(%error, "the spool can't be written: records may be repeated after a crash");
        }
        places = others;
    }
}

/// Why an entry isn't on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The reason.
    pub why: Unrecorded,
    /// Whether it is certain that it was not written. It isn't if the link broke before the answer.
    pub surely: bool,
}

impl Lost {
    const UNSENT: Self = Self { why: Unrecorded::Agent, surely: true };
}

/// Hands records to the agent and says when they are on record.
#[derive(Debug)]
pub struct Recorder {
    queue: mpsc::UnboundedSender<Entry>,
    up: Arc<AtomicBool>,
    /// Calls of each run that were refused because nobody was there to write them down.
    missed: Mutex<HashMap<RunId, u64>>,
    spool: ArcSwapOption<Spool>,
    held: Held,
}

/// Runs (`None` is the host) whose records the agent has refused since it last took one: what is spooled for them may
/// have to wait there, so nothing more of theirs passes on the strength of the spool alone.
#[derive(Debug, Default)]
struct Held {
    any: AtomicBool,
    runs: Mutex<HashSet<Option<RunId>>>,
}

/// The link's end of the recorder.
#[derive(Debug)]
pub struct Queue {
    /// What waits to be sent, in order.
    pub entries: mpsc::UnboundedReceiver<Entry>,
    up: Arc<AtomicBool>,
}

impl Queue {
    /// Says whether there is an agent to write records.
    pub fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Release);
    }
}

impl Recorder {
    /// A recorder and the queue that the link empties.
    pub fn new() -> (Self, Queue) {
        // Unbounded so that a guard can be dropped anywhere. Its length is bounded by the calls in flight:
        // each waits for its decision before it makes another record.
        let (queue, entries) = mpsc::unbounded_channel();
        let up = Arc::new(AtomicBool::new(false));
        let recorder = Self {
            queue,
            up: Arc::clone(&up),
            missed: Mutex::default(),
            spool: ArcSwapOption::empty(),
            held: Held::default(),
        };
        (recorder, Queue { entries, up })
    }

    /// Takes a spool from the agent. The one in use stays if it is the same.
    ///
    /// # Errors
    /// I/O errors of reading it.
    pub(crate) fn set_spool(&self, file: File) -> io::Result<()> {
        let found = file.metadata()?;
        if let Some(spool) = self.spool.load_full() {
            let own = spool.file().metadata()?;
            if (own.dev(), own.ino()) == (found.dev(), found.ino()) {
                return Ok(());
            }
        }
        self.spool.store(Some(Arc::new(Spool::open(file)?)));
        Ok(())
    }

    /// The agent refuses records of this run.
    pub(crate) fn hold(&self, run: &Option<RunId>) {
        self.held.lock().insert(run.clone());
        self.held.any.store(true, Ordering::Release);
    }

    /// The agent has taken a record of this run.
    pub(crate) fn let_go(&self, run: &Option<RunId>) {
        if self.held.any.load(Ordering::Acquire) {
            let mut runs = self.held.lock();
            runs.remove(run);
            self.held.any.store(!runs.is_empty(), Ordering::Release);
        }
    }

    /// Puts records where they outlive this process. `None` if that can't be done now.
    fn spooled(&self, first: &Record, second: Option<&Record>) -> Option<Spooled> {
        let spool = self.spool.load_full()?;
        if self.held.holds(&first.run) {
            return None;
        }
        let appended = match second {
            Some(second) => spool.append(&[first, second]),
            None => spool.append(&[first]),
        };
        match appended {
            Ok(ticket) => Some(Spooled { spool, ticket }),
            Err(SpoolError::Full) => None,
            Err(error) => {
                tracing::error!(%error, "a record can't be spooled");
                None
            }
        }
    }

    /// Whether an agent is connected.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Writes records and waits; refused at once while there is no agent.
    pub(crate) async fn ask(&self, first: Record, second: Option<Record>) -> Result<(), Lost> {
        let run = first.run.clone();
        let written = self.hand_over(first, second).await;
        if let (Err(Lost { why: Unrecorded::Agent, surely: true }), Some(run)) = (&written, run) {
            *self.missed().entry(run).or_default() += 1;
        }
        written
    }

    async fn hand_over(&self, first: Record, second: Option<Record>) -> Result<(), Lost> {
        if !self.is_up() {
            return Err(Lost::UNSENT);
        }
        if let Some(spooled) = self.spooled(&first, second.as_ref()) {
            let entry = Entry { lasting: true, spooled: Some(spooled), ..Entry::new(first, second) };
            return self.queue.send(entry).map_err(|_| Lost::UNSENT);
        }
        let (waiter, written) = oneshot::channel();
        let entry = Entry { waiter: Some(waiter), ..Entry::new(first, second) };
        self.queue.send(entry).map_err(|_| Lost::UNSENT)?;
        written.await.unwrap_or(Err(Lost::UNSENT))
    }

    /// Has it written down how many calls of each run were refused without a record of their own.
    pub(crate) fn tell_missed(&self) {
        for (run, count) in std::mem::take(&mut *self.missed()) {
            let mut activity = facts::blank(Kind::Lost, None, None);
            activity.count = count;
            activity.code = Some(Code::RecordUnavailable);
            activity.reason = Some("calls were refused while the agent was away".to_owned());
            self.tell(super::record(RecordId::now(), Some(run), None, Body::Activity(activity)));
        }
    }

    fn missed(&self) -> MutexGuard<'_, HashMap<RunId, u64>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a record of something that has happened: kept until it is on record. Waits for that, within
    /// limits.
    pub(crate) async fn insist(&self, record: Record) -> Result<(), Unrecorded> {
        if let Some(spooled) = self.spooled(&record, None) {
            let entry = Entry { lasting: true, spooled: Some(spooled), ..Entry::new(record, None) };
            return self.queue.send(entry).map_err(|_| Unrecorded::Agent);
        }
        let (waiter, written) = oneshot::channel();
        let entry = Entry { waiter: Some(waiter), lasting: true, ..Entry::new(record, None) };
        self.queue.send(entry).map_err(|_| Unrecorded::Agent)?;
        match tokio::time::timeout(PATIENCE, written).await {
            Ok(Ok(written)) => written.map_err(|lost| lost.why),
            Ok(Err(_)) | Err(_) => Err(Unrecorded::Agent),
        }
    }

    /// Writes a record and waits until it is on record.
    ///
    /// # Errors
    /// [`Unrecorded`] if it is not, at once while there is no agent.
    pub async fn write(&self, record: Record) -> Result<(), Unrecorded> {
        self.ask(record, None).await.map_err(|lost| lost.why)
    }

    /// Hands a record over without waiting; it is lost if it can't be written now.
    pub fn tell_once(&self, record: Record) {
        if self.is_up() {
            let _ = self.queue.send(Entry { alone: true, ..Entry::new(record, None) });
        }
    }

    /// Hands a record over without waiting; it is kept until it is on record.
    pub fn tell(&self, record: Record) {
        let spooled = self.spooled(&record, None);
        // The queue is closed only when the process ends.
        let _ = self.queue.send(Entry { lasting: true, spooled, ..Entry::new(record, None) });
    }
}

impl Held {
    fn holds(&self, run: &Option<RunId>) -> bool {
        self.any.load(Ordering::Acquire) && self.lock().contains(run)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Option<RunId>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
