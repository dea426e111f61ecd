//! The queue between those who make records and the one task that sends them over the link.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use strait_contract::{
    code::Code,
    ids::{RecordId, RunId},
    record::{Body, Kind, Record, Unrecorded},
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
        (Self { queue, up: Arc::clone(&up), missed: Mutex::default() }, Queue { entries, up })
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
        let (waiter, written) = oneshot::channel();
        let entry = Entry { first, second, waiter: Some(waiter), lasting: false, alone: false };
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
        let (waiter, written) = oneshot::channel();
        let entry = Entry { first: record, second: None, waiter: Some(waiter), lasting: true, alone: false };
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
            let _ = self.queue.send(Entry {
                first: record,
                second: None,
                waiter: None,
                lasting: false,
                alone: true,
            });
        }
    }

    /// Hands a record over without waiting; it is kept until it is on record.
    pub fn tell(&self, record: Record) {
        // The queue is closed only when the process ends.
        let _ =
            self.queue.send(Entry { first: record, second: None, waiter: None, lasting: true, alone: false });
    }
}
