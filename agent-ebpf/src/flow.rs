//! The tables of original destinations and of flows: who writes them, and the exact moment of deletion.
//!
//! ORIG lives from `connect(2)` or `sendmsg(2)` to the release of the run's socket. FLOW lives from the moment
//! the local port is known: for TCP until the gateway's end is released (or the run's, if the connection never
//! came about), for UDP until the run's socket is released.

use aya_ebpf::{
    EbpfContext as _,
    helpers::bpf_get_socket_cookie,
    programs::{SockContext, SockOpsContext, SockoptContext},
};
use strait_abi::{
    map::{BY_CONNECT, ESTABLISHED, FLOW_LEVEL, FLOW_OPTION, FlowKey, FlowRecord, Origin, Run, State},
    verdict::Reason,
};

use crate::{
    event::Caller,
    maps::{FLOW, FREED, NO_EXIST, ORIG, RUNS, USAGE, add, gateway, read},
    verdict::{TCP, UDP, Whose, state_of},
};

/// BPF_SOCK_OPS_TCP_CONNECT_CB: before the SYN leaves, with the local port known.
const CONNECTING: u32 = 3;
/// BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB.
const CONNECTED: u32 = 4;

/// A destination on its way into ORIG.
pub struct Target<'a> {
    pub run: &'a Run,
    pub state: &'a State,
    pub netns: u64,
    pub cookie: u64,
    pub addr: u32,
    pub port: u16,
    pub proto: u8,
    pub family: u8,
    pub by_connect: bool,
}

/// Notes where a socket wanted to go.
#[inline(always)]
pub fn remember(target: &Target<'_>) -> Result<(), Reason> {
    let flags = if target.by_connect { BY_CONNECT } else { 0 };
    if let Some(known) = ORIG.get_ptr_mut(target.cookie) {
        // SAFETY: a map value; the socket's lock serialises its writers.
        let known = unsafe { &mut *known };
        // A connected v4-mapped UDP socket sends through sendmsg4 with the peer that connect rewrote.
        if !target.by_connect && known.flags & BY_CONNECT != 0 && target.addr == gateway() {
            return Ok(());
        }
        known.addr = target.addr;
        known.port = target.port;
        known.flags = (known.flags & ESTABLISHED) | flags;
        return Ok(());
    }
    let usage = USAGE.get_ptr_mut(target.run.slot).ok_or(Reason::Quota)?;
    // SAFETY: a map value.
    let (origins, flows) = unsafe { (read(&raw const (*usage).origins), read(&raw const (*usage).flows)) };
    let freed = FREED.get(target.run.slot).map_or(0, |freed| freed.flows);
    let quota = u64::from(target.state.flow_quota);
    if origins >= quota || flows.wrapping_sub(freed) >= quota {
        return Err(Reason::Quota);
    }
    let origin = Origin {
        run: target.run.number,
        netns: target.netns,
        addr: target.addr,
        port: target.port,
        proto: target.proto,
        family: target.family,
        tgid: Caller::Current.tgid(),
        uid: Caller::Current.uid(),
        comm: Caller::Current.comm(),
        sport: 0,
        flags,
        slot: target.run.slot,
    };
    ORIG.insert(target.cookie, &origin, 0).map_err(|_| Reason::Quota)?;
    // SAFETY: a map value.
    add(unsafe { &raw mut (*usage).origins }, 1);
    Ok(())
}

/// Writes the flow of a socket under its local end.
#[inline(always)]
pub fn publish(cookie: u64, origin: &mut Origin, addr: u32, sport: u16) {
    if origin.sport == sport && origin.proto == UDP {
        let key = key(addr, sport, UDP);
        if let Some(flow) = FLOW.get_ptr_mut(&key) {
            // SAFETY: a map value; an unconnected socket may have asked another server since.
            unsafe {
                (*flow).addr = origin.addr;
                (*flow).port = origin.port;
            }
            return;
        }
    }
    if origin.sport != 0 && origin.sport != sport && origin.flags & ESTABLISHED == 0 {
        remove(&key(addr, origin.sport, origin.proto), Some(cookie));
    }
    origin.sport = sport;
    origin.flags &= !ESTABLISHED;
    let record = FlowRecord {
        cookie,
        run: origin.run,
        netns: origin.netns,
        addr: origin.addr,
        port: origin.port,
        proto: origin.proto,
        family: origin.family,
        tgid: origin.tgid,
        uid: origin.uid,
        comm: origin.comm,
    };
    let key = key(addr, sport, origin.proto);
    // Nearly always it's fresh; if not, it's of an earlier connection from this port and counted already.
    if FLOW.insert(&key, &record, NO_EXIST).is_ok() {
        count(Whose { run: origin.run, slot: origin.slot }, 1);
    } else {
        let _ = FLOW.insert(&key, &record, 0);
    }
}

/// The sock_ops hook: a TCP connection of a run begins, or is established.
#[inline(always)]
pub fn connection(ctx: &SockOpsContext) -> u32 {
    let op = ctx.op();
    if op != CONNECTING && op != CONNECTED {
        return 1;
    }
    // SAFETY: the context of a sock_ops program.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(origin) = ORIG.get_ptr_mut(cookie) else { return 1 };
    // SAFETY: a map value; the socket's lock serialises its writers.
    let origin = unsafe { &mut *origin };
    if op == CONNECTED {
        origin.flags |= ESTABLISHED;
    } else {
        publish(cookie, origin, ctx.local_ip4(), ctx.local_port() as u16);
    }
    1
}

/// The run's socket is released.
#[inline(always)]
pub fn release(ctx: &SockContext) -> i32 {
    // SAFETY: the context of a sock program.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    // SAFETY: the entry is this socket's own and nobody else deletes it while the run lives.
    let Some(origin) = (unsafe { ORIG.get(cookie) }) else { return 1 };
    let whose = Whose { run: origin.run, slot: origin.slot };
    let (netns, sport, proto, flags) = (origin.netns, origin.sport, origin.proto, origin.flags);
    if ORIG.remove(cookie).is_ok()
        && state_of(whose).is_some()
        && let Some(usage) = USAGE.get_ptr_mut(whose.slot)
    {
        // SAFETY: a map value.
        add(unsafe { &raw mut (*usage).origins }, u64::MAX);
    }
    if sport != 0 && (proto == UDP || flags & ESTABLISHED == 0) {
        // SAFETY: written whole by the agent.
        if let Some(run) = unsafe { RUNS.get(netns) } {
            remove(&key(run.addr, sport, proto), Some(cookie));
        }
    }
    1
}

/// A socket that the gateway accepted is released.
#[inline(always)]
pub fn accepted_release(ctx: &SockContext) -> i32 {
    // SAFETY: the context of a sock program.
    let sock = unsafe { &*ctx.sock };
    if sock.protocol == u32::from(TCP) && sock.dst_port != 0 {
        remove(&key(peer_ip4(ctx), u16::from_be(sock.dst_port), TCP), None);
    }
    1
}

/// Peer of a socket, network order.
#[inline(always)]
fn peer_ip4(ctx: &SockContext) -> u32 {
    // SAFETY: the context of a sock program.
    unsafe { core::ptr::read_volatile(&raw const (*ctx.sock).dst_ip4) }
}

/// The getsockopt hook: answers an accepted socket's question for its flow. Anything else, and a socket
/// without a flow, keeps the kernel's own answer, which is an error.
#[inline(always)]
pub fn answer(ctx: &SockoptContext) -> i32 {
    let opt = ctx.sockopt;
    // SAFETY: the context of a sockopt program; each field is read and written by itself, because the
    // verifier refuses a merged 8-byte access.
    unsafe {
        if (*opt).level != FLOW_LEVEL || (*opt).optname != FLOW_OPTION {
            return 1;
        }
        let sk = (*opt).__bindgen_anon_1.sk;
        if sk.is_null() {
            return 1;
        }
        let addr = core::ptr::read_volatile(&raw const (*sk).dst_ip4);
        let port = core::ptr::read_volatile(&raw const (*sk).dst_port);
        let Some(flow) = FLOW.get(&key(addr, u16::from_be(port), TCP)) else { return 1 };
        let to = (*opt).__bindgen_anon_2.optval.cast::<FlowRecord>();
        let end = (*opt).__bindgen_anon_3.optval_end as usize;
        if to as usize + size_of::<FlowRecord>() > end {
            return 1;
        }
        to.write_unaligned(*flow);
        core::ptr::write_volatile(&raw mut (*opt).optlen, size_of::<FlowRecord>() as i32);
        core::ptr::write_volatile(&raw mut (*opt).retval, 0);
    }
    1
}

#[inline(always)]
fn key(addr: u32, port: u16, proto: u8) -> FlowKey {
    FlowKey { addr, port, proto, pad: 0 }
}

/// Deletes a flow, if it's still the one of this socket, and gives its place back to the run.
#[inline(always)]
fn remove(key: &FlowKey, cookie: Option<u64>) {
    // SAFETY: a map value, read at once.
    let Some(flow) = (unsafe { FLOW.get(key) }) else { return };
    let (number, netns) = (flow.run, flow.netns);
    if cookie.is_some_and(|cookie| cookie != flow.cookie) {
        return;
    }
    if FLOW.remove(key).is_ok()
        // SAFETY: written whole by the agent.
        && let Some(run) = unsafe { RUNS.get(netns) }
    {
        count(Whose { run: number, slot: run.slot }, u64::MAX);
    }
}

#[inline(always)]
fn count(whose: Whose, delta: u64) {
    if state_of(whose).is_some()
        && let Some(usage) = USAGE.get_ptr_mut(whose.slot)
    {
        // SAFETY: a map value.
        add(unsafe { &raw mut (*usage).flows }, delta);
    }
}
