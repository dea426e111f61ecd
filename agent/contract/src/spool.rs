//! The spool: a file in which records are safe before the agent has written them to the log.
//!
//! The agent makes one for each gateway process, on a tmpfs, and that process alone writes it. What is in it outlives
//! both processes: the gateway takes entries out once the agent has acknowledged their records, and of a gateway that
//! died the agent writes what is left. So a call waits for one `pwrite` and for no other process.
//!
//! A ring: a header that says where the oldest entry begins, then entries, each at a multiple of 32
//! bytes. An entry is its position (which grows for ever and so tells laps apart), its length, a checksum of both and
//! of the content, a mark once it is done with, and the content. An entry that was cut short by a kill has a wrong
//! checksum: nobody was told that it is on record.
//!
//! Only a taken gateway could change what is in its spool and not yet in the log, and that one could keep it back
//! altogether.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{message::MAX_PACKET, record::Record};

/// Bytes of a spool: several seconds of records, should the agent be that late.
pub const BYTES: u64 = HEADER + 4 * 1024 * 1024;
/// Bytes before the ring.
const HEADER: u64 = 4096;
/// Length of an entry's head.
const HEAD: usize = 32;
/// What entries begin at multiples of.
const ALIGN: u64 = HEAD as u64;
/// Length that says: the next entry is at the ring's beginning.
const SKIP: u32 = u32::MAX;
/// Where in an entry its mark is.
const MARK_AT: u64 = 16;
const DONE: [u8; 4] = 1_u32.to_le_bytes();

/// Why records are not in the spool.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The agent is late: there is no room until it has acknowledged some.
    #[error("the spool is full")]
    Full,
    /// The records are longer than the contract allows.
    #[error("records of this length don't fit the spool")]
    TooLong,
    /// The file can't be read or written.
    #[error("the spool can't be used: {0}")]
    Io(#[from] io::Error),
}

/// The writing end.
#[derive(Debug)]
pub struct Spool {
    file: File,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Where the next entry goes.
    head: u64,
    /// Where the oldest one that isn't done with begins.
    tail: u64,
    /// Entries from the oldest on.
    entries: VecDeque<Entry>,
    /// Number of the first of them.
    first: u64,
}

#[derive(Debug)]
struct Entry {
    at: u64,
    done: bool,
}

/// Names an entry of one spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

impl Spool {
    /// Takes over the file of a spool, after what is in it.
    ///
    /// # Errors
    /// I/O errors of reading it.
    pub fn open(file: File) -> io::Result<Self> {
        let ring = Ring::read(&file)?;
        let mut head = ring.tail;
        while let Some(step) = ring.at(head) {
            head = step.next();
        }
        // What another writer has left is never done with here: it is the agent's to write.
        let found = (head != ring.tail).then_some(Entry { at: ring.tail, done: false });
        let state = State { head, tail: ring.tail, entries: found.into_iter().collect(), first: 0 };
        Ok(Self { file, state: Mutex::new(state) })
    }

    /// The file, to tell spools apart.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes records as one entry: all are safe when this returns, or none is in it.
    ///
    /// # Errors
    /// [`SpoolError`].
    pub fn append(&self, records: &[&Record]) -> Result<Ticket, SpoolError> {
        let mut bytes = postcard::to_extend(records, vec![0; HEAD]).map_err(|_| SpoolError::TooLong)?;
        let length = bytes.len() as u64 - ALIGN;
        if length > MAX_PACKET as u64 {
            return Err(SpoolError::TooLong);
        }
        bytes.resize(usize::try_from(room(length)).unwrap_or(bytes.len()), 0);
        let mut state = self.state();
        let at = self.place(&mut state, room(length))?;
        fill(&mut bytes, at, u32::try_from(length).map_err(|_| SpoolError::TooLong)?);
        self.file.write_all_at(&bytes, offset(at))?;
        state.head = at + room(length);
        state.entries.push_back(Entry { at, done: false });
        Ok(Ticket(state.first + state.entries.len() as u64 - 1))
    }

    /// Finds a place, skipping what is left of a lap if it is too short.
    fn place(&self, state: &mut State, room: u64) -> Result<u64, SpoolError> {
        let left = RING - state.head % RING;
        let skipped = if left < room { left } else { 0 };
        if state.head + skipped + room - state.tail > RING {
            return Err(SpoolError::Full);
        }
        if skipped > 0 {
            let mut head = [0; HEAD];
            fill(&mut head, state.head, SKIP);
            self.file.write_all_at(&head, offset(state.head))?;
        }
        Ok(state.head + skipped)
    }

    /// Takes entries out: their records are in the log.
    ///
    /// # Errors
    /// I/O errors. The entries may then be written again by whoever reads the spool, who looks for repeats.
    pub fn done(&self, tickets: impl IntoIterator<Item = Ticket>) -> io::Result<()> {
        let mut state = self.state();
        let mut failed = None;
        let oldest = state.first;
        for Ticket(number) in tickets {
            let index = number.checked_sub(state.first).and_then(|index| usize::try_from(index).ok());
            let Some(entry) = index.and_then(|index| state.entries.get_mut(index)) else { continue };
            entry.done = true;
            if index != Some(0) {
                // Behind one that waits: whoever reads the spool must not take it for one that does.
                failed = self.file.write_all_at(&DONE, offset(entry.at) + MARK_AT).err().or(failed);
            }
            while state.entries.front().is_some_and(|entry| entry.done) {
                state.entries.pop_front();
                state.first += 1;
            }
        }
        if state.first != oldest {
            state.tail = state.entries.front().map_or(state.head, |entry| entry.at);
            failed = self.file.write_all_at(&state.tail.to_le_bytes(), 0).err().or(failed);
        }
        failed.map_or(Ok(()), Err)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const RING: u64 = BYTES - HEADER;

/// Where a position is in the file.
fn offset(at: u64) -> u64 {
    HEADER + at % RING
}

/// Bytes that an entry takes.
fn room(length: u64) -> u64 {
    (ALIGN + length).next_multiple_of(ALIGN)
}

/// Writes the head of an entry whose content is in place.
fn fill(entry: &mut [u8], at: u64, length: u32) {
    let content = match length {
        SKIP => &[][..],
        length => entry.get(HEAD..HEAD + length as usize).unwrap_or_default(),
    };
    let sum = checksum(at, length, content);
    let head = at.to_le_bytes().into_iter().chain(length.to_le_bytes()).chain(sum.to_le_bytes());
    for (place, byte) in entry.iter_mut().zip(head) {
        *place = byte;
    }
}

fn checksum(at: u64, length: u32, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&at.to_le_bytes());
    hasher.update(&length.to_le_bytes());
    hasher.update(content);
    hasher.finalize()
}

/// What a spool holds that isn't done with.
#[derive(Debug, Default)]
pub struct Left {
    /// Records of each entry, in their order.
    pub batches: Vec<Vec<Record>>,
    /// Entries that are no records: only a gateway that was taken over writes such.
    pub unreadable: u64,
}

/// Reads what is left in the spool of a process that has ended.
///
/// # Errors
/// I/O errors of reading the file.
pub fn left(file: &File) -> io::Result<Left> {
    let ring = Ring::read(file)?;
    let mut left = Left::default();
    let mut at = ring.tail;
    while let Some(step) = ring.at(at) {
        at = step.next();
        if let Step::Entry { content, done: false, .. } = step {
            match postcard::from_bytes(content) {
                Ok(records) => left.batches.push(records),
                Err(_) => left.unreadable += 1,
            }
        }
    }
    Ok(left)
}

/// A spool in memory: what its writer may do to it meanwhile is no matter.
struct Ring {
    bytes: Vec<u8>,
    tail: u64,
}

enum Step<'a> {
    Entry { content: &'a [u8], done: bool, next: u64 },
    Skip { next: u64 },
}

impl Step<'_> {
    fn next(&self) -> u64 {
        match self {
            Self::Entry { next, .. } | Self::Skip { next } => *next,
        }
    }
}

impl Ring {
    fn read(file: &File) -> io::Result<Self> {
        let mut bytes = vec![0; usize::try_from(BYTES).map_err(io::Error::other)?];
        // Its writer may have made it shorter: what isn't there reads as nothing, and keeps no reader from the rest.
        let mut read = 0;
        while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // Positions that would overflow end in no entry.
        let tail = number(&bytes, 0).filter(|tail| *tail < u64::MAX / 2).unwrap_or_default();
        Ok(Self { bytes, tail: tail / ALIGN * ALIGN })
    }

    /// The entry at a position, if there is one of this lap.
    fn at(&self, at: u64) -> Option<Step<'_>> {
        // No entry is more than a lap after the first.
        if at.checked_sub(self.tail)? >= RING {
            return None;
        }
        let start = usize::try_from(offset(at)).ok()?;
        let entry = self.bytes.get(start..)?;
        if number(entry, 0)? != at {
            return None;
        }
        let length = u32::from_le_bytes(entry.get(8..12)?.try_into().ok()?);
        let sum = u32::from_le_bytes(entry.get(12..16)?.try_into().ok()?);
        if length == SKIP {
            let next = (at / RING + 1) * RING;
            return (sum == checksum(at, length, &[])).then_some(Step::Skip { next });
        }
        let length_told = usize::try_from(length).ok().filter(|length| *length <= MAX_PACKET)?;
        let content = entry.get(HEAD..)?.get(..length_told)?;
        let done = entry.get(16..20)? == DONE;
        let next = at + room(u64::from(length));
        (sum == checksum(at, length, content)).then_some(Step::Entry { content, done, next })
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
