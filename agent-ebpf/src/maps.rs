//! The maps, with the names and types of `strait_abi::map`, and atomic counting in them.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LpmTrie, PerCpuArray, RingBuf},
};
use strait_abi::map::{
    Account, FlowKey, FlowRecord, Fold, FoldKey, Freed, MAX_FLOWS, MAX_FOLDS, MAX_RANGES, MAX_RUNS, Meta,
    Origin, RING_BYTES, RangeKey, Run, State, Usage, Veth,
};

#[map]
pub static RUNS: HashMap<u64, Run> = HashMap::with_max_entries(MAX_RUNS, 0);
#[map]
pub static STATE: Array<State> = Array::with_max_entries(MAX_RUNS, 0);
#[map]
pub static USAGE: Array<Usage> = Array::with_max_entries(MAX_RUNS, 0);
#[map]
pub static FREED: Array<Freed> = Array::with_max_entries(MAX_RUNS, 0);
#[map]
pub static ACCOUNT: PerCpuArray<Account> = PerCpuArray::with_max_entries(MAX_RUNS, 0);
#[map]
pub static RANGES: LpmTrie<RangeKey, u32> = LpmTrie::with_max_entries(MAX_RANGES, NO_PREALLOC);
#[map]
pub static ORIG: HashMap<u64, Origin> = HashMap::with_max_entries(MAX_FLOWS, 0);
#[map]
pub static FLOW: HashMap<FlowKey, FlowRecord> = HashMap::with_max_entries(MAX_FLOWS, 0);
#[map]
pub static VETH: HashMap<u32, Veth> = HashMap::with_max_entries(MAX_RUNS, 0);
#[map]
pub static FOLD: HashMap<FoldKey, Fold> = HashMap::with_max_entries(MAX_FOLDS, 0);
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);
#[map]
pub static META: Array<Meta> = Array::with_max_entries(1, 0);

/// BPF_F_NO_PREALLOC: longest prefix match tries can't be preallocated.
const NO_PREALLOC: u32 = 1;
/// BPF_NOEXIST of `bpf_map_update_elem`.
pub const NO_EXIST: u64 = 1;

/// Gateway address, network order; set by the loader.
#[unsafe(no_mangle)]
static GATEWAY: u32 = 0;

/// The gateway's address, network order.
#[inline(always)]
pub fn gateway() -> u32 {
    // SAFETY: an aligned static; volatile because the loader rewrites .rodata after compilation.
    unsafe { core::ptr::read_volatile(&raw const GATEWAY) }
}

/// Adds to a counter that other CPUs and softirqs add to at the same time; modulo 2^64, so subtracting is
/// adding the complement.
#[inline(always)]
pub fn add(counter: *mut u64, delta: u64) {
    // SAFETY: points into a map value, 8-byte aligned, which lives at least until the program ends.
    // The result isn't used, so this is BPF_ADD with BPF_ATOMIC, which every kernel has.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, delta) };
}

/// Reads such a counter.
#[inline(always)]
pub fn read(counter: *const u64) -> u64 {
    // SAFETY: as in `add`.
    unsafe { core::ptr::read_volatile(counter) }
}
