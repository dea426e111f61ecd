//! Synthetic addresses of one run: which name each of them stands for.
//!
//! The table lives in a file that the agent keeps ([`strait_contract::names`]), so a restarted gateway goes on
//! where the last one stopped. Whatever else is found there is hostile: it can make an address stand for
//! nothing, never for something that isn't a name.
//!
//! Architecture invariant: an address once given to a name is never given to another one within the run, and
//! it is in the file before anybody learns of it.

use std::{
    collections::HashMap,
    fs::File,
    io,
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::fs::FileExt},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU8, Ordering},
    },
};

use strait_contract::names::{MAX_NAMES, SLOT, address, index, read_slot};

/// Longest name, bytes (RFC 1035 section 3.1, in presentation form without the last dot).
const MAX_NAME: usize = 253;
/// Slots read at once when a table is opened.
const SLOTS_A_READ: usize = 256;

/// The names of one run. Reads don't wait for each other; each run has a lock of its own.
#[derive(Debug)]
pub struct Names {
    file: File,
    cap: u32,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_name: HashMap<Arc<str>, u32>,
    /// By slot; `None` for a slot that holds something and no name. Such a slot stays taken.
    slots: Vec<Option<Slot>>,
}

#[derive(Debug)]
struct Slot {
    name: Arc<str>,
    looked_up: AtomicU8,
}

/// The two kinds of lookup that are answered from the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lookup {
    /// Its IPv4 address.
    A = 1,
    /// Its IPv6 address, of which there is none.
    Aaaa = 2,
}

/// A name's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The synthetic address.
    pub addr: Ipv4Addr,
    /// Whether this gateway sees this lookup of the name for the first time in the run.
    pub first: bool,
}

/// Why a run's table can't be used.
#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    /// The file can't be read.
    #[error("a run's names can't be read: {0}")]
    Read(#[source] io::Error),
}

/// Why a name has no address.
#[derive(Debug, thiserror::Error)]
pub enum AssignError {
    /// The run has looked up as many names as it may.
    #[error("the run has looked up {0} names, which is its limit")]
    Full(u32),
    /// Not a canonical name: a fault of the caller.
    #[error("`{0}` is not a canonical name")]
    NotCanonical(String),
    /// The file can't be written.
    #[error("the run's names can't be written: {0}")]
    Write(#[source] io::Error),
}

impl Names {
    /// Takes a run's file with whatever an earlier gateway has written. `cap` is the most names that the run
    /// may look up; names beyond it that are there already stay good.
    ///
    /// # Errors
    /// [`NamesError`] if it can't be read.
    pub fn open(file: OwnedFd, cap: u32) -> Result<Self, NamesError> {
        let file = File::from(file);
        let table = Table::read(&file).map_err(NamesError::Read)?;
        Ok(Self { file, cap: cap.min(MAX_NAMES), table: RwLock::new(table) })
    }

    /// The address that a name has, if it has one.
    pub fn known(&self, name: &str, lookup: Lookup) -> Option<Assigned> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).find(name, lookup)
    }

    /// The address of a canonical name: the one it has, or the next free one, which is written down first.
    ///
    /// # Errors
    /// [`AssignError`]; the name then has no address.
    pub fn assign(&self, name: &str, lookup: Lookup) -> Result<Assigned, AssignError> {
        if let Some(known) = self.known(name, lookup) {
            return Ok(known);
        }
        if !is_name(name) {
            return Err(AssignError::NotCanonical(name.to_owned()));
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(assigned) = table.find(name, lookup) {
            return Ok(assigned);
        }
        let full = || AssignError::Full(self.cap);
        let slot = u32::try_from(table.slots.len()).map_err(|_| full())?;
        let addr = (slot < self.cap).then_some(slot).and_then(address).ok_or_else(full)?;
        self.write(slot, name).map_err(AssignError::Write)?;
        table.insert(slot, name, lookup as u8);
        Ok(Assigned { addr, first: true })
    }

    /// The name that an address stands for; `None` if it stands for none.
    pub fn name_of(&self, addr: Ipv4Addr) -> Option<Arc<str>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let slot = table.slots.get(usize::try_from(index(addr)?).ok()?)?.as_ref()?;
        Some(Arc::clone(&slot.name))
    }

    /// The name before its length: a slot is free until it is whole.
    fn write(&self, slot: u32, name: &str) -> io::Result<()> {
        let len = u8::try_from(name.len()).map_err(io::Error::other)?;
        let at = u64::from(slot).saturating_mul(SLOT as u64);
        self.file.write_all_at(name.as_bytes(), at.saturating_add(1))?;
        self.file.write_all_at(&[len], at)
    }
}

impl Table {
    fn read(file: &File) -> io::Result<Self> {
        let mut table = Self::default();
        let mut buffer = vec![0; SLOT.saturating_mul(SLOTS_A_READ)];
        let mut slot = 0_u32;
        while slot < MAX_NAMES {
            let at = u64::from(slot).saturating_mul(SLOT as u64);
            let got = read_up_to(file, &mut buffer, at)?;
            // The last slot may be cut short where nobody has given the file its size.
            for bytes in buffer.get(..got).unwrap_or_default().chunks(SLOT) {
                table.take_in(slot, bytes);
                slot = slot.saturating_add(1);
            }
            if got < buffer.len() {
                break;
            }
        }
        Ok(table)
    }

    /// A free slot before a taken one is never filled: what was there is unknown.
    fn take_in(&mut self, slot: u32, bytes: &[u8]) {
        if bytes.first().is_none_or(|len| *len == 0) || slot >= MAX_NAMES {
            return;
        }
        match read_slot(bytes).filter(|name| is_name(name)) {
            Some(name) => self.insert(slot, name, 0),
            None => self.pad(slot.saturating_add(1)),
        }
    }

    fn pad(&mut self, len: u32) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        while self.slots.len() < len {
            self.slots.push(None);
        }
    }

    fn insert(&mut self, slot: u32, name: &str, looked_up: u8) {
        self.pad(slot);
        let name: Arc<str> = Arc::from(name);
        self.slots.push(Some(Slot { name: Arc::clone(&name), looked_up: AtomicU8::new(looked_up) }));
        self.by_name.entry(name).or_insert(slot);
    }

    fn find(&self, name: &str, lookup: Lookup) -> Option<Assigned> {
        let slot = *self.by_name.get(name)?;
        let entry = self.slots.get(usize::try_from(slot).ok()?)?.as_ref()?;
        let bit = lookup as u8;
        // Read before write: a name that is asked for all the time shouldn't bounce its cache line.
        let first = entry.looked_up.load(Ordering::Relaxed) & bit == 0
            && entry.looked_up.fetch_or(bit, Ordering::Relaxed) & bit == 0;
        Some(Assigned { addr: address(slot)?, first })
    }
}

/// As many bytes as there are, at most the buffer.
fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while let Some(rest) = buffer.get_mut(got..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, at.saturating_add(got as u64)) {
            Ok(0) => break,
            Ok(more) => got = got.saturating_add(more),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// Whether a text has the form of a canonical name. Whether such a name may leave the host is judged where it
/// is used, by [`crate::url`].
fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
            })
    };
    text.len() <= MAX_NAME && text.split('.').all(label)
}

#[cfg(test)]
mod tests;
