//! Records in batches: what waits, what is under way, and what must be sent again.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use strait_contract::{
    message::{MAX_BATCH, ToAgent},
    record::{Record, Unrecorded},
    seqpacket::{self, LinkError},
};

use crate::record::{Entry, Lost, Recorder, unspool};

/// Most entries that are kept while they can't be written. More than this have been answered only if the
/// log has been unwritable for thousands of calls in flight.
const MAX_KEPT: usize = 65_536;

/// Entries that outlive a session of the link.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Must be sent before anything new, in this order.
    again: VecDeque<Entry>,
    /// Sent, not yet answered.
    under_way: VecDeque<Batch>,
    next: u64,
    dropped: u64,
}

#[derive(Debug)]
struct Batch {
    number: u64,
    entries: Vec<Entry>,
    sent: Instant,
}

/// A batch encoded and ready to be sent.
#[derive(Debug)]
pub(super) struct Packet(pub(super) Vec<u8>);

impl Kept {
    /// Whether something waits to be sent again.
    pub(super) fn has_more(&self) -> bool {
        !self.again.is_empty()
    }

    /// Whether the agent has left a batch unanswered for so long.
    pub(super) fn waits_longer_than(&self, time: Duration) -> bool {
        self.under_way.front().is_some_and(|oldest| oldest.sent.elapsed() > time)
    }

    /// Takes up to a batch of entries out of what waits to be sent again.
    pub(super) fn take_again(&mut self, entries: &mut Vec<Entry>) {
        let most = self.again.len().min(MAX_BATCH / 2);
        entries.extend(self.again.drain(..most));
    }

    /// Makes one packet of as many entries as fit and notes it as under way. The rest goes back to wait.
    pub(super) fn pack(&mut self, mut entries: Vec<Entry>) -> Result<Option<Packet>, LinkError> {
        loop {
            let fitting = fitting(&entries);
            if fitting < entries.len() {
                self.put_back(entries.split_off(fitting));
            }
            if entries.is_empty() {
                return Ok(None);
            }
            let number = self.next;
            let (packet, entries_again) = encode(number, entries);
            entries = entries_again;
            match packet {
                Ok(packet) => {
                    self.next = self.next.wrapping_add(1);
                    self.under_way.push_back(Batch { number, entries, sent: Instant::now() });
                    return Ok(Some(Packet(packet)));
                }
                Err(LinkError::TooLarge) if entries.len() > 1 => {
                    let half = entries.len() / 2;
                    self.put_back(entries.split_off(half));
                }
                Err(LinkError::TooLarge) => {
                    refuse(mem::take(&mut entries), Lost { why: Unrecorded::Malformed, surely: true });
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The agent's answer to a batch.
    pub(super) fn answered(&mut self, number: u64, refused: Option<Unrecorded>, recorder: &Recorder) {
        let Some(at) = self.under_way.iter().position(|batch| batch.number == number) else { return };
        let Some(Batch { entries, .. }) = self.under_way.remove(at) else { return };
        match refused {
            None => written(entries, recorder),
            // One bad record fails its whole batch: each entry gets a batch of its own.
            Some(Unrecorded::Run | Unrecorded::Malformed) if entries.len() > 1 => {
                for entry in entries.into_iter().rev() {
                    self.again.push_front(alone(entry));
                }
            }
            Some(why @ (Unrecorded::Run | Unrecorded::Malformed)) => {
                refuse(entries, Lost { why, surely: true });
            }
            Some(why) => {
                for entry in &entries {
                    recorder.hold(&entry.first.run);
                }
                let (lasting, asked): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.lasting);
                refuse(asked, Lost { why, surely: true });
                self.put_back(lasting);
            }
        }
    }

    /// The link broke. Whether batches under way were written is not known: they are kept and sent again
    /// under the same record ids, by which the agent knows what it has; who waited for a decision is told no.
    pub(super) fn link_lost(&mut self) {
        let under_way: Vec<Entry> =
            mem::take(&mut self.under_way).into_iter().flat_map(|batch| batch.entries).collect();
        let lost = Lost { why: Unrecorded::Agent, surely: false };
        self.put_back(under_way.into_iter().map(|entry| told(entry, lost)).collect());
    }

    /// An entry that was never sent because the link is down.
    pub(super) fn unsent(&mut self, entry: Entry) {
        if entry.lasting {
            self.put_back(vec![entry]);
        } else {
            refuse(vec![entry], Lost { why: Unrecorded::Agent, surely: true });
        }
    }

    fn put_back(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            if self.again.len() < MAX_KEPT {
                self.again.push_back(entry);
            } else {
                self.dropped = self.dropped.saturating_add(1);
                tracing::error!(dropped = self.dropped, "a record could not be kept");
                refuse(vec![entry], Lost { why: Unrecorded::Agent, surely: true });
            }
        }
    }
}

/// How many of the entries, from the first, may share a batch.
fn fitting(entries: &[Entry]) -> usize {
    let mut records = 0usize;
    for (at, entry) in entries.iter().enumerate() {
        records = records.saturating_add(if entry.second.is_some() { 2 } else { 1 });
        if records > MAX_BATCH {
            return at;
        }
        if entry.alone {
            return if at == 0 { 1 } else { at };
        }
    }
    entries.len()
}

fn alone(entry: Entry) -> Entry {
    Entry { alone: true, ..entry }
}

/// Tells who waits; what remains is a lasting entry that nobody waits for any more, unless it was lasting.
fn told(entry: Entry, lost: Lost) -> Entry {
    if entry.lasting {
        return entry;
    }
    if let Some(waiter) = entry.waiter {
        let _ = waiter.send(Err(lost));
    }
    Entry { waiter: None, lasting: true, ..entry }
}

/// Everything in them is in the log.
fn written(entries: Vec<Entry>, recorder: &Recorder) {
    let mut spooled = Vec::with_capacity(entries.len());
    for entry in entries {
        recorder.let_go(&entry.first.run);
        spooled.extend(entry.spooled);
        if let Some(waiter) = entry.waiter {
            let _ = waiter.send(Ok(()));
        }
    }
    unspool(spooled);
}

/// They will never be in the log.
fn refuse(mut entries: Vec<Entry>, lost: Lost) {
    let spooled: Vec<_> = entries.iter_mut().filter_map(|entry| entry.spooled.take()).collect();
    if !spooled.is_empty() {
        tracing::error!(records = spooled.len(), why = %lost.why, "calls passed whose records the agent refuses");
        unspool(spooled);
    }
    for entry in entries {
        if let Some(waiter) = entry.waiter {
            let _ = waiter.send(Err(lost));
        }
    }
}

/// Encodes a batch. The records are moved into the message and back out, not copied.
fn encode(batch: u64, entries: Vec<Entry>) -> (Result<Vec<u8>, LinkError>, Vec<Entry>) {
    let mut records: Vec<Record> = Vec::with_capacity(entries.len().saturating_mul(2));
    let mut rest = Vec::with_capacity(entries.len());
    for Entry { first, second, waiter, lasting, alone, spooled } in entries {
        records.push(first);
        let two = second.is_some();
        records.extend(second);
        rest.push((two, waiter, lasting, alone, spooled));
    }
    let message = ToAgent::Records { batch, records };
    let packet = seqpacket::encode(&message);
    let ToAgent::Records { records, .. } = message else { return (packet, Vec::new()) };
    let mut records = records.into_iter();
    let mut entries = Vec::with_capacity(rest.len());
    for (two, waiter, lasting, alone, spooled) in rest {
        let Some(first) = records.next() else { break };
        let second = if two { records.next() } else { None };
        entries.push(Entry { first, second, waiter, lasting, alone, spooled });
    }
    (packet, entries)
}

#[cfg(test)]
mod tests;
