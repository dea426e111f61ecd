//! Telling the agent: the ring, folding of repeats, the token bucket and exact accounts.
//!
//! INVARIANT: each event adds one to `total` and one to exactly one of `delivered`, `folded` and `lost`.

use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_uid_gid,
    bpf_ktime_get_boot_ns,
};
use strait_abi::{
    VERSION,
    event::Event,
    map::{Account, Fold, FoldKey, State},
    verdict::{Hook, Reason, Verdict},
};

use crate::maps::{ACCOUNT, EVENTS, FOLD, FREED, NO_EXIST, STATE, USAGE, add, read};

/// Who called, where the hook runs in the caller's context.
#[derive(Clone, Copy)]
pub struct Caller {
    pub cgroup: u64,
    pub pid_tgid: u64,
    pub uid_gid: u64,
    pub comm: [u8; 16],
}

impl Caller {
    /// For hooks that may run in softirq, where `current` is whoever was interrupted.
    pub const UNKNOWN: Self = Self { cgroup: 0, pid_tgid: 0, uid_gid: 0, comm: [0; 16] };

    /// For sock_addr, sock_create and lsm hooks alone (kernels before 6.x refuse the helpers elsewhere).
    #[inline(always)]
    pub fn current() -> Self {
        Self {
            // SAFETY: a helper without arguments.
            cgroup: unsafe { bpf_get_current_cgroup_id() },
            pid_tgid: bpf_get_current_pid_tgid(),
            uid_gid: bpf_get_current_uid_gid(),
            comm: bpf_get_current_comm().unwrap_or([0; 16]),
        }
    }

    #[inline(always)]
    pub fn tgid(&self) -> u32 {
        (self.pid_tgid >> 32) as u32
    }

    #[inline(always)]
    pub fn uid(&self) -> u32 {
        self.uid_gid as u32
    }
}

/// What was attempted.
pub struct Attempt {
    pub hook: Hook,
    pub run: u64,
    pub cookie: u64,
    pub netns: u64,
    pub daddr: [u8; 16],
    pub saddr: [u8; 16],
    pub dport: u16,
    pub sport: u16,
    pub family: u8,
    pub kind: u8,
    pub proto: u8,
}

/// Where an event went.
enum Fate {
    Delivered,
    Folded,
    Lost,
}

/// Tells the agent of a verdict.
#[inline(always)]
pub fn emit(attempt: &Attempt, caller: &Caller, verdict: Verdict, reason: Reason) {
    let Some(account) = ACCOUNT.get_ptr_mut(attempt.run) else { return };
    // SAFETY: a map value of this CPU; fields are changed by atomic additions only, because a softirq may
    // interrupt us on the same CPU.
    let account = unsafe { &mut *account };
    add(&raw mut account.total, 1);
    match deliver(attempt, caller, verdict, reason, account) {
        Fate::Delivered => add(&raw mut account.delivered, 1),
        Fate::Folded => add(&raw mut account.folded, 1),
        Fate::Lost => add(&raw mut account.lost, 1),
    }
}

#[inline(always)]
fn deliver(
    attempt: &Attempt,
    caller: &Caller,
    verdict: Verdict,
    reason: Reason,
    account: &mut Account,
) -> Fate {
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let key = FoldKey {
        run: attempt.run,
        addr: attempt.daddr,
        tgid: caller.tgid(),
        port: attempt.dport,
        proto: attempt.proto,
        hook: attempt.hook as u8,
        reason: reason as u8,
        verdict: verdict as u8,
        family: attempt.family,
        pad: 0,
        pad2: 0,
    };
    if repeat(&key, now) {
        return Fate::Folded;
    }
    // SAFETY: written whole by the agent.
    let Some(state) = (unsafe { STATE.get(attempt.run) }) else { return Fate::Lost };
    let keyed = make_key(&key, attempt, caller, state, now);
    if take_token(account, state, now) && write(attempt, caller, verdict, reason, now, account.total) {
        return Fate::Delivered;
    }
    if keyed && repeat(&key, now) { Fate::Folded } else { Fate::Lost }
}

/// Counts a repeat of a known key.
#[inline(always)]
fn repeat(key: &FoldKey, now: u64) -> bool {
    let Some(fold) = FOLD.get_ptr_mut(key) else { return false };
    // SAFETY: a map value; `last_ns` is a hint and may be torn between CPUs without harm.
    unsafe {
        add(&raw mut (*fold).count, 1);
        (*fold).last_ns = now;
    }
    true
}

/// Makes a key for repeats to come, within the run's quota of keys.
#[inline(always)]
fn make_key(key: &FoldKey, attempt: &Attempt, caller: &Caller, state: &State, now: u64) -> bool {
    let Some(usage) = USAGE.get_ptr_mut(attempt.run) else { return false };
    // SAFETY: map values.
    let (made, freed) =
        unsafe { (read(&raw const (*usage).folds), FREED.get(attempt.run).map_or(0, |freed| freed.folds)) };
    if made.wrapping_sub(freed) >= u64::from(state.fold_quota) {
        return false;
    }
    let fold = Fold {
        count: 0,
        last_ns: now,
        cookie: attempt.cookie,
        netns: attempt.netns,
        uid: caller.uid(),
        pad: 0,
        comm: caller.comm,
    };
    if FOLD.insert(key, &fold, NO_EXIST).is_err() {
        return false;
    }
    // SAFETY: a map value.
    add(unsafe { &raw mut (*usage).folds }, 1);
    true
}

/// A token bucket of this CPU. Preemption can make it give a few tokens too many or too few, which changes
/// only whether an event is delivered or folded.
#[inline(always)]
fn take_token(account: &mut Account, state: &State, now: u64) -> bool {
    const SECOND: u64 = 1_000_000_000;
    let elapsed = now.wrapping_sub(account.filled_ns).min(SECOND);
    let fresh = elapsed * u64::from(state.rate) / SECOND;
    if fresh > 0 {
        account.tokens = account.tokens.saturating_add(fresh).min(u64::from(state.burst));
        account.filled_ns = now;
    }
    if account.tokens == 0 {
        return false;
    }
    account.tokens -= 1;
    true
}

/// Writes the event into the ring; false if it's full.
#[inline(always)]
fn write(attempt: &Attempt, caller: &Caller, verdict: Verdict, reason: Reason, now: u64, seq: u64) -> bool {
    let Some(mut entry) = EVENTS.reserve::<Event>(0) else { return false };
    entry.write(Event {
        boot_ns: now,
        run: attempt.run,
        seq,
        cookie: attempt.cookie,
        netns: attempt.netns,
        cgroup: caller.cgroup,
        tgid: caller.tgid(),
        tid: caller.pid_tgid as u32,
        uid: caller.uid(),
        gid: (caller.uid_gid >> 32) as u32,
        daddr: attempt.daddr,
        saddr: attempt.saddr,
        dport: attempt.dport,
        sport: attempt.sport,
        family: attempt.family,
        kind: attempt.kind,
        proto: attempt.proto,
        hook: attempt.hook as u8,
        verdict: verdict as u8,
        reason: reason as u8,
        version: VERSION,
        flags: 0,
        count: 1,
        comm: caller.comm,
    });
    entry.submit(0);
    true
}
