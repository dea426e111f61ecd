//! The thread that takes what a gateway sends. It writes records and acknowledges them itself, whatever waits in the
//! socket as one group: each hand-over to another thread would cost a call two wake-ups.

use std::{
    collections::VecDeque,
    io, thread,
    time::{Duration, Instant},
};

use strait_contract::{
    message::{MAX_BATCH, MAX_PACKET, ToAgent, ToGateway},
    record::{Body, Record, Source, Unrecorded},
    seqpacket::{self, LinkError},
};
use tokio::sync::mpsc;

use super::{
    calls::{Calls, Step},
    session::PATIENCE,
    socket::Socket,
};
use crate::log::{self, Batch, Log};

/// Records without a run that a gateway may write a second: lookups from addresses that are no run's.
const HOST_RECORDS: usize = 50;
/// Messages that may wait for the session.
const WAITING: usize = 64;
/// Most records and batches, added up, that are taken before they are written: what a gateway can have this process
/// hold, whatever it sends.
const GROUP: usize = 2048;

/// What the reader tells the session.
#[derive(Debug)]
pub(super) enum News {
    /// A message that isn't records.
    Message(ToAgent),
    /// The connection is over; these calls were under way.
    Over(Over, Calls),
}

/// Why nothing more is read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Over {
    /// The connection broke or was ended.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The gateway did what it must not.
    #[error("the gateway sent {0}, which it must not")]
    Violation(&'static str),
}

/// Reads until the connection is over, starting with calls that this gateway began earlier.
pub(super) fn start(
    socket: Socket,
    log: Log,
    calls: Calls,
) -> io::Result<(mpsc::Receiver<News>, thread::JoinHandle<()>)> {
    let (news, told) = mpsc::channel(WAITING);
    let thread = thread::Builder::new().name("link-read".into()).spawn(move || {
        let mut reader = Reader {
            socket,
            log,
            news: news.clone(),
            calls,
            host_records: VecDeque::new(),
            begun_ms: log::now_ms(),
            group: Vec::new(),
            numbers: Vec::new(),
            steps: Vec::new(),
        };
        let over = reader.run();
        let _ = news.blocking_send(News::Over(over, reader.calls));
    })?;
    Ok((told, thread))
}

struct Reader {
    socket: Socket,
    log: Log,
    news: mpsc::Sender<News>,
    calls: Calls,
    host_records: VecDeque<Instant>,
    /// What was made before this link may have been written over the last one, whose answer got lost.
    begun_ms: u64,
    /// Batches to be written, their numbers, and what they do to the calls under way.
    group: Vec<Batch>,
    numbers: Vec<u64>,
    steps: Vec<(usize, Step)>,
}

impl Reader {
    fn run(&mut self) -> Over {
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            if let Err(over) = self.turn(&mut buffer) {
                return over;
            }
        }
    }

    /// Takes whatever waits and answers it. What came before an offence is written.
    fn turn(&mut self, buffer: &mut [u8]) -> Result<(), Over> {
        let mut taken =
            self.socket.receive_waiting(buffer).map_err(Over::from).and_then(|got| self.take(got));
        let weight = |batch: &Batch| batch.records.len().saturating_add(1);
        let mut held = self.group.last().map_or(0, weight);
        while taken.is_ok() && held < GROUP {
            taken = match self.socket.receive_now(buffer) {
                Ok(Some(got)) => self.take(got),
                Ok(None) => break,
                Err(error) => Err(error.into()),
            };
            held += self.group.last().map_or(0, weight);
        }
        self.write()?;
        taken
    }

    fn take(&mut self, (message, fds): (ToAgent, Vec<std::os::fd::OwnedFd>)) -> Result<(), Over> {
        if !fds.is_empty() {
            return Err(Over::Violation("a descriptor"));
        }
        match message {
            ToAgent::Hello { .. } => Err(Over::Violation("a second hello")),
            ToAgent::Records { batch, records } => match check(&records, &mut self.host_records) {
                Ok(()) => {
                    let at = self.group.len();
                    self.steps.extend(records.iter().filter_map(Step::of).map(|step| (at, step)));
                    let may_repeat = records.iter().any(|record| record.ts_ms <= self.begun_ms);
                    self.group.push(Batch { records, may_repeat });
                    self.numbers.push(batch);
                    Ok(())
                }
                Err(Refusal::Over(refused)) => {
                    // In the order in which they came.
                    self.write()?;
                    self.answer(batch, Some(refused))
                }
                Err(Refusal::Violation(what)) => Err(Over::Violation(what)),
            },
            other => {
                // With too many under way this waits, and so do the gateway's records: its own doing.
                let _ = self.news.blocking_send(News::Message(other));
                Ok(())
            }
        }
    }

    /// Writes the group and acknowledges each batch of it.
    fn write(&mut self) -> Result<(), Over> {
        if self.group.is_empty() {
            return Ok(());
        }
        let outcomes = self.log.append_now(std::mem::take(&mut self.group));
        for (at, step) in self.steps.drain(..) {
            if outcomes.get(at).is_some_and(Result::is_ok) {
                self.calls.take(step);
            }
        }
        for (number, outcome) in std::mem::take(&mut self.numbers).into_iter().zip(outcomes) {
            self.answer(number, outcome.err())?;
        }
        Ok(())
    }

    fn answer(&self, batch: u64, refused: Option<Unrecorded>) -> Result<(), Over> {
        let packet = seqpacket::encode(&ToGateway::Recorded { batch, refused })?;
        match self.socket.send_waiting(&packet, PATIENCE) {
            // Of a peer that has died, whose last records are still to be read.
            Err(LinkError::Io(error))
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                Ok(())
            }
            other => other.map_err(Over::from),
        }
    }
}

/// Whether a gateway may have written these; for what it left behind.
pub(super) fn may_write(records: &[Record]) -> bool {
    check(records, &mut VecDeque::new()).is_ok()
}

/// Why a batch isn't handed to the log.
enum Refusal {
    Over(Unrecorded),
    Violation(&'static str),
}

/// Whether a batch is one that a gateway may write.
fn check(records: &[Record], host_records: &mut VecDeque<Instant>) -> Result<(), Refusal> {
    if records.len() > MAX_BATCH {
        return Err(Refusal::Violation("an oversized batch"));
    }
    let now = Instant::now();
    while host_records.front().is_some_and(|at| now.duration_since(*at) > Duration::from_secs(1)) {
        host_records.pop_front();
    }
    for record in records {
        // Before it is kept: an empty text is one byte on the link and 24 in memory.
        if !log::is_acceptable(record) {
            return Err(Refusal::Over(Unrecorded::Malformed));
        }
        match &record.body {
            Body::Activity(activity) if activity.source == Source::Gateway => {}
            Body::Trace(_) if record.run.is_some() => {}
            Body::Trace(_) => return Err(Refusal::Violation("a step of no run")),
            Body::Activity(_) => return Err(Refusal::Violation("a kernel record")),
            Body::Event(_) => return Err(Refusal::Violation("an event")),
        }
        if record.run.is_none() {
            if host_records.len() >= HOST_RECORDS {
                return Err(Refusal::Over(Unrecorded::Quota));
            }
            host_records.push_back(now);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
