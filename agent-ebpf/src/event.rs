//! Telling the agent: the ring, folding of repeats, the token bucket and exact accounts.
//!
//! INVARIANT: each event adds one to `total` and one to exactly one of `delivered`, `folded` and `lost`.
//!
//! A repeat is the common case and the cheapest: one look-up by hash. What only a first event needs (the caller's
//! names, the token bucket, the ring) is asked for only then. Each program calls [`emit`] in one place, because
//! it's inlined: code that isn't there isn't fetched.

use aya_ebpf::helpers::{
    bpf_get_current_cgroup_id, bpf_get_current_pid_tgid, bpf_get_current_uid_gid, bpf_ktime_get_boot_ns,
    generated::bpf_get_current_comm,
};
use strait_abi::{
    VERSION,
    event::{Comm, Event, Words},
    map::{Account, Fold, FoldKey, State},
    verdict::{Hook, Reason, Verdict},
};

use crate::{
    maps::{ACCOUNT, EVENTS, FOLD, FREED, NO_EXIST, USAGE, add, read},
    verdict::{Whose, state_of},
};

/// Who called, where the hook runs in the caller's context. Always a constant, so that a program whose hook
/// doesn't know doesn't hold the helpers, which kernels before 6.x refuse there.
#[derive(Clone, Copy)]
pub enum Caller {
    /// For sock_addr, sock_create and lsm hooks alone.
    Current,
    /// For hooks that may run in softirq, where `current` is whoever was interrupted.
    Unknown,
}

impl Caller {
    /// Process and thread id in one.
    #[inline(always)]
    fn pid_tgid(self) -> u64 {
        match self {
            Self::Current => bpf_get_current_pid_tgid(),
            Self::Unknown => 0,
        }
    }

    #[inline(always)]
    pub fn tgid(self) -> u32 {
        (self.pid_tgid() >> 32) as u32
    }

    #[inline(always)]
    fn uid_gid(self) -> u64 {
        match self {
            Self::Current => bpf_get_current_uid_gid(),
            Self::Unknown => 0,
        }
    }

    #[inline(always)]
    pub fn uid(self) -> u32 {
        self.uid_gid() as u32
    }

    #[inline(always)]
    fn cgroup(self) -> u64 {
        match self {
            // SAFETY: a helper without arguments.
            Self::Current => unsafe { bpf_get_current_cgroup_id() },
            Self::Unknown => 0,
        }
    }

    #[inline(always)]
    pub fn comm(self) -> Comm {
        let mut comm: Comm = [0; 2];
        if let Self::Current = self {
            // SAFETY: the buffer has the length passed. On failure the helper zeroes it.
            unsafe { bpf_get_current_comm(comm.as_mut_ptr().cast(), size_of::<Comm>() as u32) };
        }
        comm
    }
}

/// What was attempted.
pub struct Attempt {
    pub hook: Hook,
    pub whose: Whose,
    pub cookie: u64,
    pub netns: u64,
    pub daddr: Words,
    pub saddr: Words,
    pub dport: u16,
    pub sport: u16,
    pub family: u8,
    pub kind: u8,
    pub proto: u8,
}

impl Attempt {
    /// Nothing known but where.
    #[inline(always)]
    pub const fn at(hook: Hook) -> Self {
        Self {
            hook,
            whose: Whose::NOBODY,
            cookie: 0,
            netns: 0,
            daddr: [0; 4],
            saddr: [0; 4],
            dport: 0,
            sport: 0,
            family: 0,
            kind: 0,
            proto: 0,
        }
    }
}

/// Where an event went.
enum Fate {
    Delivered,
    Folded,
    Lost,
}

/// Tells the agent of a verdict.
#[inline(always)]
pub fn emit(attempt: &Attempt, caller: Caller, verdict: Verdict, reason: Reason) {
    let Some(state) = state_of(attempt.whose) else { return };
    let Some(account) = ACCOUNT.get_ptr_mut(attempt.whose.slot) else { return };
    // SAFETY: a map value of this CPU; fields are changed by atomic additions only, because a softirq may
    // interrupt us on the same CPU.
    let account = unsafe { &mut *account };
    add(&raw mut account.total, 1);
    match deliver(attempt, caller, (verdict, reason), state, account) {
        Fate::Delivered => add(&raw mut account.delivered, 1),
        Fate::Folded => add(&raw mut account.folded, 1),
        Fate::Lost => add(&raw mut account.lost, 1),
    }
}

#[inline(always)]
fn deliver(
    attempt: &Attempt,
    caller: Caller,
    (verdict, reason): (Verdict, Reason),
    state: &State,
    account: &mut Account,
) -> Fate {
    // SAFETY: a helper without arguments.
    let now = unsafe { bpf_ktime_get_boot_ns() };
    let key = FoldKey {
        run: attempt.whose.run,
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
    let keyed = make_key(&key, attempt, caller, state, now);
    if take_token(account, state, now) && write(attempt, caller, (verdict, reason), now, account.total) {
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
fn make_key(key: &FoldKey, attempt: &Attempt, caller: Caller, state: &State, now: u64) -> bool {
    let Some(usage) = USAGE.get_ptr_mut(attempt.whose.slot) else { return false };
    // SAFETY: a map value.
    let made = unsafe { read(&raw const (*usage).folds) };
    let freed = FREED.get(attempt.whose.slot).map_or(0, |freed| freed.folds);
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
        comm: caller.comm(),
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
fn write(
    attempt: &Attempt,
    caller: Caller,
    (verdict, reason): (Verdict, Reason),
    now: u64,
    seq: u64,
) -> bool {
    let Some(mut entry) = EVENTS.reserve::<Event>(0) else { return false };
    let (pid_tgid, uid_gid) = (caller.pid_tgid(), caller.uid_gid());
    entry.write(Event {
        boot_ns: now,
        run: attempt.whose.run,
        seq,
        cookie: attempt.cookie,
        netns: attempt.netns,
        cgroup: caller.cgroup(),
        tgid: (pid_tgid >> 32) as u32,
        tid: pid_tgid as u32,
        uid: uid_gid as u32,
        gid: (uid_gid >> 32) as u32,
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
        comm: caller.comm(),
    });
    entry.submit(0);
    true
}
