//! Which run calls, and whether it may go where it wants to.

use aya_ebpf::maps::lpm_trie::Key;
use strait_abi::{
    map::{DNS_PORT, GATEWAY_PORT, KILLED, OPAQUE, RANGED, RangeKey, Run, State, TRANSPARENT_PORT},
    verdict::Reason,
};

use crate::maps::{RANGES, RUNS, STATE, gateway};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
const HTTPS_PORT: u16 = 443;

/// What happens to an attempt.
pub enum Outcome {
    /// Passes as it is, unremarked: it never leaves the run.
    Local,
    /// Passes as it is: it was meant for the gateway.
    Direct,
    /// Passes, to this port of the gateway.
    Redirect(u16),
    /// EPERM.
    Deny(Reason),
}

/// A run's number and slot.
#[derive(Clone, Copy)]
pub struct Whose {
    pub run: u64,
    pub slot: u32,
}

impl Whose {
    /// What no run can be blamed for.
    pub const NOBODY: Self = Self { run: 0, slot: 0 };
}

/// The run whose network namespace this is, if it's alive.
// INVARIANT: no map entry means deny.
#[inline(always)]
pub fn run_of(netns: u64) -> Result<(&'static Run, &'static State), (Whose, Reason)> {
    // SAFETY: entries are written whole by the agent; one reused under our eyes is of a run that's gone.
    let Some(run) = (unsafe { RUNS.get(netns) }) else {
        return Err((Whose::NOBODY, Reason::Namespace));
    };
    let whose = Whose { run: run.number, slot: run.slot };
    match state_of(whose) {
        None => Err((Whose::NOBODY, Reason::Namespace)),
        Some(state) if state.flags & KILLED != 0 => Err((whose, Reason::Killed)),
        Some(state) => Ok((run, state)),
    }
}

/// The entry of STATE, if it's still this run's.
#[inline(always)]
pub fn state_of(whose: Whose) -> Option<&'static State> {
    // A slot has a new owner only after the agent has emptied it.
    STATE.get(whose.slot).filter(|state| state.run == whose.run)
}

/// Decides on a TCP connection or a UDP datagram to an IPv4 destination (`addr` in network order).
#[inline(always)]
pub fn decide(run: &Run, state: &State, addr: u32, port: u16, proto: u8) -> Outcome {
    if proto != TCP && proto != UDP {
        return Outcome::Deny(Reason::Socket);
    }
    // 0.0.0.0 means this host to connect(2) and sendto(2).
    if addr.to_ne_bytes()[0] == 127 || addr == 0 || addr == run.addr {
        return Outcome::Local;
    }
    if addr == gateway() {
        return if port == DNS_PORT || (port == GATEWAY_PORT && proto == TCP) {
            Outcome::Direct
        } else {
            Outcome::Deny(Reason::Port)
        };
    }
    if port == DNS_PORT {
        return Outcome::Redirect(DNS_PORT);
    }
    if proto == TCP
        && port != 0
        && state.flags & OPAQUE == 0
        && (synthetic(addr) || (state.flags & RANGED != 0 && in_range(run.number, addr)))
    {
        return Outcome::Redirect(TRANSPARENT_PORT);
    }
    if proto == UDP && port == HTTPS_PORT {
        return Outcome::Deny(Reason::Quic);
    }
    Outcome::Deny(Reason::Destination)
}

/// Whether an address is in 198.18.0.0/15, from which the gateway answers names (RFC 2544).
#[inline(always)]
fn synthetic(addr: u32) -> bool {
    u32::from_be(addr) >> 17 == 0xc612_0000 >> 17
}

/// Whether the run's config lists the address.
#[inline(always)]
fn in_range(run: u64, addr: u32) -> bool {
    let key = RangeKey { run: run.to_ne_bytes(), addr: addr.to_ne_bytes() };
    RANGES.get(Key::new(96, key)).is_some()
}
