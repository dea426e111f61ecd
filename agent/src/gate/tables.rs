//! The maps, as the agent reads and writes them.

use std::{
    borrow::Borrow as _,
    collections::{BTreeSet, HashMap as Index},
    net::Ipv4Addr,
};

use aya::{
    Pod,
    maps::{Array, HashMap, LpmTrie, MapData, MapError, PerCpuArray, PerCpuValues, lpm_trie::Key},
    util::nr_cpus,
};
use strait_abi::map::{
    ACCOUNT, Account, FLOW, FREED, FlowKey, FlowRecord, Freed, MAX_RUNS, ORIG, Origin, RANGES, RUNS,
    RangeKey, Run, STATE, State, USAGE, Usage, VETH, Veth,
};
use strait_contract::run::Range;

use super::{GateError, object::open_map};
use crate::instance::Instance;

type Hash<K, const N: usize> = HashMap<MapData, K, [u8; N]>;

/// Every map that the agent writes.
pub(super) struct Tables {
    runs: Hash<u64, { Run::LEN }>,
    state: Array<MapData, [u8; State::LEN]>,
    usage: Array<MapData, [u8; Usage::LEN]>,
    freed: Array<MapData, [u8; Freed::LEN]>,
    account: PerCpuArray<MapData, [u64; 6]>,
    ranges: LpmTrie<MapData, [u8; RangeKey::LEN], u32>,
    orig: Hash<u64, { Origin::LEN }>,
    flow: Hash<[u8; FlowKey::LEN], { FlowRecord::LEN }>,
    veth: Hash<u32, { Veth::LEN }>,
    slots: Slots,
}

/// Which run has which place in the arrays. Run 0 always has place 0.
#[derive(Default)]
struct Slots {
    taken: Index<u64, u32>,
    free: BTreeSet<u32>,
}

fn failed(map: &'static str) -> impl Fn(MapError) -> GateError {
    move |source| GateError::Map { map, source: Box::new(source) }
}

/// Takes "no such key" for success.
fn or_gone(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tables")
    }
}

impl Tables {
    pub(super) fn open(instance: &Instance) -> Result<Self, GateError> {
        macro_rules! open {
            ($name:expr) => {
                open_map(instance, $name)?.try_into().map_err(failed($name))?
            };
        }
        let mut tables = Self {
            runs: open!(RUNS),
            state: open!(STATE),
            usage: open!(USAGE),
            freed: open!(FREED),
            account: open!(ACCOUNT),
            ranges: open!(RANGES),
            orig: open!(ORIG),
            flow: open!(FLOW),
            veth: open!(VETH),
            slots: Slots::default(),
        };
        tables.slots.taken.insert(0, 0);
        for slot in 1..MAX_RUNS {
            let bytes = tables.state.get(&slot, 0).map_err(failed(STATE))?;
            match State::from_bytes(&bytes).run {
                0 => tables.slots.free.insert(slot),
                number => tables.slots.taken.insert(number, slot).is_none(),
            };
        }
        Ok(tables)
    }

    fn slot(&self, number: u64) -> Option<u32> {
        self.slots.taken.get(&number).copied()
    }

    /// Gives a run its place, with counters at zero; those of a run that's adopted stay as they are.
    pub(super) fn make_room(&mut self, number: u64) -> Result<(), GateError> {
        if self.slots.taken.contains_key(&number) {
            return Ok(());
        }
        // Emptied when its last owner was purged, and once more: a program that ran then may have counted since.
        let slot = self.slots.free.first().copied().ok_or(GateError::Full)?;
        self.clear(slot)?;
        self.slots.free.remove(&slot);
        self.slots.taken.insert(number, slot);
        Ok(())
    }

    /// Empties a place. STATE goes first: from then on no program takes the place for a run's.
    fn clear(&mut self, slot: u32) -> Result<(), GateError> {
        self.state.set(slot, State::default().to_bytes(), 0).map_err(failed(STATE))?;
        self.usage.set(slot, Usage::default().to_bytes(), 0).map_err(failed(USAGE))?;
        self.freed.set(slot, Freed::default().to_bytes(), 0).map_err(failed(FREED))?;
        let cpus = nr_cpus().map_err(|(_, source)| GateError::Host { what: "the number of CPUs", source })?;
        let none = PerCpuValues::try_from(vec![[0; 6]; cpus])
            .map_err(|source| GateError::Host { what: "the number of CPUs", source })?;
        self.account.set(slot, none, 0).map_err(failed(ACCOUNT))
    }

    /// Writes a run's entry into its place; nothing if it has none.
    pub(super) fn set_state(&mut self, state: &State) -> Result<(), GateError> {
        let Some(slot) = self.slot(state.run) else { return Ok(()) };
        self.state.set(slot, state.to_bytes(), 0).map_err(failed(STATE))
    }

    pub(super) fn state(&self, number: u64) -> Option<State> {
        let state = State::from_bytes(&self.state.get(&self.slot(number)?, 0).ok()?);
        (state.run == number).then_some(state)
    }

    pub(super) fn set_run(&mut self, netns: u64, number: u64, addr: Ipv4Addr) -> Result<(), GateError> {
        let slot = self.slot(number).ok_or(GateError::Full)?;
        let run = Run { number, addr: network_order(addr), slot };
        self.runs.insert(netns, run.to_bytes(), 0).map_err(failed(RUNS))
    }

    pub(super) fn set_veth(&mut self, number: u64, veth: &crate::netns::Veth) -> Result<(), GateError> {
        let value = Veth {
            run: number,
            slot: self.slot(number).ok_or(GateError::Full)?,
            pad: 0,
            addr: network_order(veth.addr),
            mac: veth.mac,
            gateway_mac: veth.gateway_mac,
        };
        self.veth.insert(veth.ifindex, value.to_bytes(), 0).map_err(failed(VETH))
    }

    pub(super) fn set_ranges(&mut self, number: u64, ranges: &[Range]) -> Result<(), GateError> {
        self.remove_ranges(number)?;
        for range in ranges {
            let key = RangeKey { run: number.to_ne_bytes(), addr: range.addr.octets() };
            let key = Key::new(64 + u32::from(range.prefix.min(32)), key.to_bytes());
            self.ranges.insert(&key, 1, 0).map_err(failed(RANGES))?;
        }
        Ok(())
    }

    fn remove_ranges(&mut self, number: u64) -> Result<(), GateError> {
        let of_run =
            |key: &Key<[u8; RangeKey::LEN]>| RangeKey::from_bytes(&key.data()).run == number.to_ne_bytes();
        let keys: Vec<_> = self.ranges.keys().flatten().filter(of_run).collect();
        for key in keys {
            or_gone(self.ranges.remove(&key)).map_err(failed(RANGES))?;
        }
        Ok(())
    }

    /// From here on every hook answers EPERM to this namespace.
    pub(super) fn remove_run(&mut self, netns: u64) -> Result<(), GateError> {
        or_gone(self.runs.remove(&netns)).map_err(failed(RUNS))
    }

    pub(super) fn remove_veth(&mut self, ifindex: u32) -> Result<(), GateError> {
        or_gone(self.veth.remove(&ifindex)).map_err(failed(VETH))
    }

    /// Removes what a run has left behind in every table but RUNS and VETH.
    pub(super) fn purge(&mut self, number: u64) -> Result<(), GateError> {
        let of_run = |bytes: [u8; FlowRecord::LEN]| FlowRecord::from_bytes(&bytes).run == number;
        remove_where(&mut self.flow, of_run).map_err(failed(FLOW))?;
        remove_where(&mut self.orig, |bytes| Origin::from_bytes(&bytes).run == number)
            .map_err(failed(ORIG))?;
        self.remove_ranges(number)?;
        let Some(slot) = self.slots.taken.remove(&number) else { return Ok(()) };
        self.clear(slot)?;
        self.slots.free.insert(slot);
        Ok(())
    }

    /// Numbers of runs that the tables know, other than those given.
    pub(super) fn strangers(&self, known: &[u64]) -> Vec<u64> {
        let numbers = self.slots.taken.keys().copied();
        numbers.filter(|number| *number != 0 && !known.contains(number)).collect()
    }

    /// Entries of RUNS and VETH that belong to other runs than those given.
    pub(super) fn remove_strangers(&mut self, known: &[u64]) -> Result<(), GateError> {
        remove_where(&mut self.runs, |bytes| !known.contains(&Run::from_bytes(&bytes).number))
            .map_err(failed(RUNS))?;
        remove_where(&mut self.veth, |bytes| !known.contains(&Veth::from_bytes(&bytes).run))
            .map_err(failed(VETH))?;
        for number in self.strangers(known) {
            self.purge(number)?;
        }
        Ok(())
    }

    /// Flows of TCP, with the cookies of their sockets. Those of UDP end with the run's own socket.
    pub(super) fn tcp_flows(&self) -> Vec<(FlowKey, u64)> {
        let flows = self.flow.iter().flatten();
        flows
            .map(|(key, value)| (FlowKey::from_bytes(&key), FlowRecord::from_bytes(&value).cookie))
            .filter(|(key, _)| key.proto == 6)
            .collect()
    }

    /// Deletes these very flows: a port that has been used again since keeps its new one. Gives how many.
    pub(super) fn remove_flows(&mut self, dead: &[(FlowKey, u64)]) -> Result<u64, GateError> {
        let mut freed = 0;
        for (key, cookie) in dead {
            let key = key.to_bytes();
            let Ok(now) = self.flow.get(&key, 0).map(|bytes| FlowRecord::from_bytes(&bytes)) else {
                continue;
            };
            if now.cookie == *cookie && self.flow.remove(&key).is_ok() {
                freed += 1;
                self.add_freed(now.run, 1, 0)?;
            }
        }
        Ok(freed)
    }

    /// Gives places back to a run, if it's still there.
    pub(super) fn add_freed(&mut self, number: u64, flows: u64, folds: u64) -> Result<(), GateError> {
        let Some(slot) = self.slot(number) else { return Ok(()) };
        let mut freed = Freed::from_bytes(&self.freed.get(&slot, 0).map_err(failed(FREED))?);
        freed.flows = freed.flows.wrapping_add(flows);
        freed.folds = freed.folds.wrapping_add(folds);
        self.freed.set(slot, freed.to_bytes(), 0).map_err(failed(FREED))
    }

    pub(super) fn accounts(&self) -> Vec<(u64, Account)> {
        self.slots.taken.keys().filter_map(|number| Some((*number, self.account(*number)?))).collect()
    }

    pub(super) fn usage(&self, number: u64) -> Option<(Usage, Freed)> {
        let slot = self.slot(number)?;
        let usage = Usage::from_bytes(&self.usage.get(&slot, 0).ok()?);
        let freed = self.freed.get(&slot, 0).map(|bytes| Freed::from_bytes(&bytes)).unwrap_or_default();
        Some((usage, freed))
    }

    pub(super) fn account(&self, number: u64) -> Option<Account> {
        sum(&self.account, self.slot(number)?)
    }
}

/// Adds up a run's accounts over all CPUs.
fn sum(map: &PerCpuArray<MapData, [u64; 6]>, slot: u32) -> Option<Account> {
    let values = map.get(&slot, 0).ok()?;
    let mut total = Account::default();
    for [events, delivered, folded, lost, ..] in values.iter() {
        total.total = total.total.wrapping_add(*events);
        total.delivered = total.delivered.wrapping_add(*delivered);
        total.folded = total.folded.wrapping_add(*folded);
        total.lost = total.lost.wrapping_add(*lost);
    }
    Some(total)
}

fn remove_where<K: Pod + std::fmt::Debug, const N: usize>(
    map: &mut Hash<K, N>,
    condemned: impl Fn([u8; N]) -> bool,
) -> Result<(), MapError> {
    let keys: Vec<K> =
        map.iter().flatten().filter(|(_, value)| condemned(*value)).map(|(key, _)| key).collect();
    for key in keys {
        or_gone(map.remove(key.borrow()))?;
    }
    Ok(())
}

/// An address as the maps hold it.
pub(crate) fn network_order(addr: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(addr.octets())
}
