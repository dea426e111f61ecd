//! `connect(2)`, and what it has in common with `sendmsg(2)`.

use aya_ebpf::{
    EbpfContext as _,
    bindings::bpf_sock_addr,
    helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie},
    programs::SockAddrContext,
};
use strait_abi::{
    event::mapped,
    verdict::{Hook, Reason, Verdict},
};

use crate::{
    event::{Attempt, Caller, emit},
    flow::{Target, remember},
    maps::gateway,
    verdict::{Outcome, UDP, decide, run_of},
};

const ALLOW: i32 = 1;
const EPERM: i32 = 0;

/// The address part of a destination that's really IPv4.
const MAPPED: u32 = 0xffff_u32.to_be();

/// A destination as a hook sees it.
pub enum Destination {
    V4(u32),
    /// `::1`, `::`.
    Local6,
    V6([u32; 4]),
}

/// Whether a hook can send the caller somewhere else.
pub struct Call {
    pub hook: Hook,
    pub by_connect: bool,
    /// UDP of IPv6 can't be redirected to a v4-mapped address (the kernel answers ENOTSUPP).
    pub can_redirect: bool,
}

#[inline(always)]
pub fn v4(ctx: &SockAddrContext) -> i32 {
    let to = Destination::V4(ip4(ctx.sock_addr));
    judge(ctx, to, &Call { hook: Hook::Connect4, by_connect: true, can_redirect: true })
}

#[inline(always)]
pub fn v6(ctx: &SockAddrContext) -> i32 {
    let to = destination6(ctx.sock_addr);
    judge(ctx, to, &Call { hook: Hook::Connect6, by_connect: true, can_redirect: true })
}

/// Decides, notes, tells; answers what the hook returns.
#[inline(always)]
pub fn judge(ctx: &SockAddrContext, to: Destination, call: &Call) -> i32 {
    let sa = ctx.sock_addr;
    // SAFETY: the context of a sock_addr program.
    let (netns, cookie, family, kind, proto) = unsafe {
        (
            bpf_get_netns_cookie(ctx.as_ptr()),
            bpf_get_socket_cookie(ctx.as_ptr()),
            (*sa).family as u8,
            (*sa).type_ as u8,
            (*sa).protocol as u8,
        )
    };
    let port = port(sa);
    let caller = Caller::current();
    let mut attempt = Attempt {
        hook: call.hook,
        run: 0,
        cookie,
        netns,
        daddr: bytes(&to),
        saddr: [0; 16],
        dport: port,
        sport: 0,
        family,
        kind,
        proto,
    };
    let (run, state) = match run_of(netns) {
        Ok(known) => known,
        Err((number, reason)) => {
            attempt.run = number;
            emit(&attempt, &caller, Verdict::Deny, reason);
            return EPERM;
        }
    };
    attempt.run = run.number;
    let addr = match to {
        Destination::V4(addr) => addr,
        Destination::Local6 => return ALLOW,
        Destination::V6(_) => {
            let quic = proto == UDP && port == 443;
            emit(&attempt, &caller, Verdict::Deny, if quic { Reason::Quic } else { Reason::Destination });
            return EPERM;
        }
    };
    let target = Target {
        run: &run,
        state: &state,
        netns,
        cookie,
        addr,
        port,
        proto,
        family,
        by_connect: call.by_connect,
    };
    match decide(&run, &state, addr, port, proto) {
        Outcome::Local => ALLOW,
        Outcome::Direct => match remember(&target, &caller) {
            Ok(()) => ALLOW,
            Err(reason) => deny(&attempt, &caller, reason),
        },
        Outcome::Redirect(_) if !call.can_redirect => deny(&attempt, &caller, Reason::Destination),
        Outcome::Redirect(to_port) => match remember(&target, &caller) {
            Ok(()) => {
                rewrite(sa, matches!(call.hook, Hook::Connect6), to_port);
                emit(&attempt, &caller, Verdict::Redirect, Reason::None);
                ALLOW
            }
            Err(reason) => deny(&attempt, &caller, reason),
        },
        Outcome::Deny(reason) => deny(&attempt, &caller, reason),
    }
}

#[inline(always)]
fn deny(attempt: &Attempt, caller: &Caller, reason: Reason) -> i32 {
    emit(attempt, caller, Verdict::Deny, reason);
    EPERM
}

/// Sends the caller to the gateway.
#[inline(always)]
fn rewrite(sa: *mut bpf_sock_addr, v6: bool, port: u16) {
    // SAFETY: the context of a sock_addr program; one field at a time.
    unsafe {
        if v6 {
            core::ptr::write_volatile(&raw mut (*sa).user_ip6[3], gateway());
        } else {
            core::ptr::write_volatile(&raw mut (*sa).user_ip4, gateway());
        }
        core::ptr::write_volatile(&raw mut (*sa).user_port, u32::from(port.to_be()));
    }
}

/// IPv4 destination, network order.
#[inline(always)]
pub fn ip4(sa: *mut bpf_sock_addr) -> u32 {
    // SAFETY: the context of a sock_addr program.
    unsafe { core::ptr::read_volatile(&raw const (*sa).user_ip4) }
}

/// Port, host order.
#[inline(always)]
pub fn port(sa: *mut bpf_sock_addr) -> u16 {
    // SAFETY: the context of a sock_addr program.
    u16::from_be(unsafe { core::ptr::read_volatile(&raw const (*sa).user_port) } as u16)
}

/// IPv6 words, network order.
#[inline(always)]
pub fn ip6(sa: *mut bpf_sock_addr) -> [u32; 4] {
    // SAFETY: the context of a sock_addr program.
    unsafe {
        [
            core::ptr::read_volatile(&raw const (*sa).user_ip6[0]),
            core::ptr::read_volatile(&raw const (*sa).user_ip6[1]),
            core::ptr::read_volatile(&raw const (*sa).user_ip6[2]),
            core::ptr::read_volatile(&raw const (*sa).user_ip6[3]),
        ]
    }
}

#[inline(always)]
pub fn destination6(sa: *mut bpf_sock_addr) -> Destination {
    match ip6(sa) {
        [0, 0, MAPPED, addr] => Destination::V4(addr),
        [0, 0, 0, low] if low == 0 || low == 1u32.to_be() => Destination::Local6,
        other => Destination::V6(other),
    }
}

#[inline(always)]
fn bytes(to: &Destination) -> [u8; 16] {
    match to {
        Destination::V4(addr) => mapped(*addr),
        Destination::Local6 => [0; 16],
        Destination::V6([a, b, c, d]) => {
            let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a.to_ne_bytes(), b.to_ne_bytes());
            let ([c0, c1, c2, c3], [d0, d1, d2, d3]) = (c.to_ne_bytes(), d.to_ne_bytes());
            [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3]
        }
    }
}
