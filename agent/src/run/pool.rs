//! What distinguishes one run from another: its name, its number, its address. Each is O(1) to give and to take back.

use std::{collections::VecDeque, net::Ipv4Addr, time::SystemTime};

use strait_contract::{
    ids::{AgentName, BadName, RunId},
    run::Range,
};

/// Letters of the random part of a run's name: RFC 4648 base32, lower case.
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Length of the random part.
const RANDOM: usize = 6;
/// Longest run name.
const LONGEST: usize = 63;

/// Why a name could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// The kernel gave no random bytes.
    #[error("no random bytes from the kernel")]
    Random(#[source] getrandom::Error),
    /// The agent's name leaves no room.
    #[error(transparent)]
    Name(#[from] BadName),
}

/// A fresh name: `<agent>-<6 base32>`. The caller makes sure that no run of the host had it before.
///
/// # Errors
/// [`NameError`] if there is no randomness.
pub fn run_id(agent: &AgentName) -> Result<RunId, NameError> {
    let mut bytes = [0u8; RANDOM];
    getrandom::fill(&mut bytes).map_err(NameError::Random)?;
    let mut name: String = agent.as_str().chars().take(LONGEST - RANDOM - 1).collect();
    name.push('-');
    name.extend(
        bytes
            .iter()
            .filter_map(|byte| ALPHABET.get(usize::from(byte & 31)))
            .map(|letter| char::from(*letter)),
    );
    Ok(name.parse()?)
}

/// Addresses and numbers of runs.
#[derive(Debug)]
pub struct Pool {
    range: Range,
    /// Offset of the first address that was never given.
    fresh: u32,
    /// Offsets given back, oldest first: an address rests as long as others are free, so that a late packet or
    /// record isn't taken for another run's.
    rested: VecDeque<u32>,
    last_number: u64,
}

/// Network address and gateway come first and are never given.
const FIRST: u32 = 2;

impl Pool {
    /// A pool over `range`, all free.
    pub fn new(range: Range) -> Self {
        Self { range, fresh: FIRST, rested: VecDeque::new(), last_number: 0 }
    }

    /// The next free address; `None` if every one is in use.
    pub fn take(&mut self) -> Option<Ipv4Addr> {
        if self.fresh < self.size() {
            let offset = self.fresh;
            self.fresh += 1;
            return self.at(offset);
        }
        self.rested.pop_front().and_then(|offset| self.at(offset))
    }

    /// Gives an address back.
    pub fn give_back(&mut self, addr: Ipv4Addr) {
        if let Some(offset) = self.offset(addr) {
            self.rested.push_back(offset);
        }
    }

    /// Marks the address of a run that lived before this agent did. To be called before [`Self::take`].
    pub fn claim(&mut self, addr: Ipv4Addr) {
        let Some(offset) = self.offset(addr) else { return };
        if offset >= self.fresh {
            self.rested.extend(self.fresh..offset);
            self.fresh = offset + 1;
        } else {
            self.rested.retain(|rested| *rested != offset);
        }
    }

    /// A number that no run of this boot had: the clock's nanoseconds, or one more than the last.
    pub fn number(&mut self) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.last_number = now.max(self.last_number.saturating_add(1));
        self.last_number
    }

    /// Offset past the last usable address; the broadcast address isn't one.
    fn size(&self) -> u32 {
        let bits = 32u32.saturating_sub(u32::from(self.range.prefix));
        1u32.checked_shl(bits).map_or(u32::MAX, |size| size.saturating_sub(1))
    }

    fn at(&self, offset: u32) -> Option<Ipv4Addr> {
        u32::from(self.range.addr).checked_add(offset).map(Ipv4Addr::from)
    }

    fn offset(&self, addr: Ipv4Addr) -> Option<u32> {
        let offset = u32::from(addr).checked_sub(u32::from(self.range.addr))?;
        (FIRST..self.size()).contains(&offset).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(prefix: u8) -> Pool {
        Pool::new(Range { addr: Ipv4Addr::new(10, 203, 0, 0), prefix })
    }

    #[test]
    fn a_pool_gives_every_usable_address_once_and_then_the_longest_rested() {
        let mut pool = pool(29);
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        let expected: Vec<_> = (2..=6).map(|last| Ipv4Addr::new(10, 203, 0, last)).collect();
        assert_eq!(all, expected, "neither network, gateway nor broadcast");
        pool.give_back(all[3]);
        pool.give_back(all[0]);
        assert_eq!((pool.take(), pool.take(), pool.take()), (Some(all[3]), Some(all[0]), None));
    }

    #[test]
    fn an_adopted_address_is_not_given_again() {
        let mut pool = pool(29);
        pool.claim(Ipv4Addr::new(10, 203, 0, 4));
        pool.claim(Ipv4Addr::new(10, 203, 0, 2));
        let rest: Vec<_> = std::iter::from_fn(|| pool.take()).map(|addr| addr.octets()[3]).collect();
        assert_eq!(rest, [5, 6, 3]);
    }

    #[test]
    fn numbers_and_names_are_new_each_time() {
        let mut pool = pool(16);
        let numbers: Vec<_> = (0..100).map(|_| pool.number()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
        let agent = "coder".parse().unwrap();
        let (one, two) = (run_id(&agent).unwrap(), run_id(&agent).unwrap());
        assert_ne!(one, two);
        assert!(one.as_str().starts_with("coder-") && one.as_str().len() == 12, "{one}");
        let long = "a".repeat(63).parse().unwrap();
        assert_eq!(run_id(&long).unwrap().as_str().len(), 63);
    }
}
