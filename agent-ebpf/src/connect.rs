//! `connect(2)`, and what it has in common with `sendmsg(2)`.

use aya_ebpf::{
    EbpfContext as _,
    bindings::bpf_sock_addr,
    helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie},
    programs::SockAddrContext,
};
use strait_abi::{
    event::{Words, mapped},
    map::{Run, State},
    verdict::{Hook, Reason, Verdict},
};

use crate::{
    event::{Attempt, Caller, emit},
    flow::{Target, remember},
    maps::gateway,
    verdict::{Outcome, UDP, Whose, decide, run_of},
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

/// How a call passes.
enum Passage {
    Silent,
    Redirected,
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
    let asked = Asked { netns, cookie, port: port(sa), family, proto };
    let (whose, settled) = match run_of(netns) {
        Ok((run, state)) => {
            (Whose { run: run.number, slot: run.slot }, settle(ctx, &to, call, &asked, run, state))
        }
        Err((whose, reason)) => (whose, Err(reason)),
    };
    let (verdict, reason, answer) = match settled {
        Ok(Passage::Silent) => return ALLOW,
        Ok(Passage::Redirected) => (Verdict::Redirect, Reason::None, ALLOW),
        Err(reason) => (Verdict::Deny, reason, EPERM),
    };
    let attempt = Attempt {
        whose,
        cookie,
        netns,
        daddr: words(&to),
        dport: asked.port,
        family,
        kind,
        proto,
        ..Attempt::at(call.hook)
    };
    emit(&attempt, Caller::Current, verdict, reason);
    answer
}

/// What the caller asked for.
struct Asked {
    netns: u64,
    cookie: u64,
    port: u16,
    family: u8,
    proto: u8,
}

/// Decides on a call of a live run and does what was decided.
#[inline(always)]
fn settle(
    ctx: &SockAddrContext,
    to: &Destination,
    call: &Call,
    asked: &Asked,
    run: &Run,
    state: &State,
) -> Result<Passage, Reason> {
    let addr = match to {
        Destination::V4(addr) => *addr,
        Destination::Local6 => return Ok(Passage::Silent),
        Destination::V6(_) if asked.proto == UDP && asked.port == 443 => return Err(Reason::Quic),
        Destination::V6(_) => return Err(Reason::Destination),
    };
    let redirect = match decide(run, state, addr, asked.port, asked.proto) {
        Outcome::Local => return Ok(Passage::Silent),
        Outcome::Direct => None,
        Outcome::Redirect(_) if !call.can_redirect => return Err(Reason::Destination),
        Outcome::Redirect(port) => Some(port),
        Outcome::Deny(reason) => return Err(reason),
    };
    let target = Target {
        run,
        state,
        netns: asked.netns,
        cookie: asked.cookie,
        addr,
        port: asked.port,
        proto: asked.proto,
        family: asked.family,
        by_connect: call.by_connect,
    };
    remember(&target)?;
    let Some(port) = redirect else { return Ok(Passage::Silent) };
    rewrite(ctx.sock_addr, matches!(call.hook, Hook::Connect6), port);
    Ok(Passage::Redirected)
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
fn words(to: &Destination) -> Words {
    match to {
        Destination::V4(addr) => mapped(*addr),
        Destination::Local6 => [0; 4],
        Destination::V6(words) => *words,
    }
}
