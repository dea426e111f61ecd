//! Creation of sockets: TCP and UDP over IPv4 and IPv6, nothing else.

use aya_ebpf::programs::{LsmContext, SockContext};
use aya_ebpf::{EbpfContext as _, helpers::bpf_get_netns_cookie, helpers::bpf_get_socket_cookie};
use strait_abi::verdict::{Hook, Reason, Verdict};

use crate::{
    event::{Attempt, Caller, emit},
    verdict::{TCP, UDP, Whose, run_of},
};

const ALLOW: i32 = 1;
const EPERM: i32 = 0;

const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;

/// cgroup/sock_create: IPv4 and IPv6 sockets, root's too.
#[inline(always)]
pub fn create(ctx: &SockContext) -> i32 {
    // SAFETY: the context of a sock program.
    let (netns, family, kind, proto) = unsafe {
        (bpf_get_netns_cookie(ctx.as_ptr()), (*ctx.sock).family, (*ctx.sock).type_, (*ctx.sock).protocol)
    };
    let (whose, reason) = match run_of(netns) {
        Err(refused) => refused,
        Ok((run, _)) if !allowed(family, kind, proto) => {
            (Whose { run: run.number, slot: run.slot }, Reason::Socket)
        }
        Ok(_) => return ALLOW,
    };
    // SAFETY: as above.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    tell(Hook::SockCreate, whose, reason, (netns, cookie), (family, kind, proto));
    EPERM
}

/// lsm_cgroup/socket_create: every family, in the cgroup of the caller. There's no socket and so no network
/// namespace yet: the event carries run 0 and the caller's cgroup.
#[inline(always)]
pub fn lsm_create(ctx: &LsmContext) -> i32 {
    let (family, kind, proto, kernel) =
        (ctx.arg::<i32>(0), ctx.arg::<i32>(1), ctx.arg::<i32>(2), ctx.arg::<i32>(3));
    let family = family as u32;
    if kernel != 0 || matches!(family, AF_UNIX | AF_INET | AF_INET6 | AF_NETLINK) {
        return ALLOW;
    }
    tell(Hook::LsmSocket, Whose::NOBODY, Reason::Socket, (0, 0), (family, kind as u32, proto as u32));
    EPERM
}

#[inline(always)]
fn allowed(family: u32, kind: u32, proto: u32) -> bool {
    (family == AF_INET || family == AF_INET6)
        && ((kind == SOCK_STREAM && proto == u32::from(TCP))
            || (kind == SOCK_DGRAM && proto == u32::from(UDP)))
}

#[inline(always)]
fn tell(
    hook: Hook,
    whose: Whose,
    reason: Reason,
    (netns, cookie): (u64, u64),
    (family, kind, proto): (u32, u32, u32),
) {
    let attempt = Attempt {
        whose,
        cookie,
        netns,
        dport: kind as u16,
        family: family as u8,
        kind: kind as u8,
        // Protocol numbers above 255 (MPTCP is 262) are told modulo 256; the type stands in the port too.
        proto: proto as u8,
        ..Attempt::at(hook)
    };
    emit(&attempt, Caller::Current, Verdict::Deny, reason);
}
