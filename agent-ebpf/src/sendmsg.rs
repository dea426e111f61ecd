//! `sendmsg(2)` with an address on UDP sockets. An AF_INET6 socket that sends to a v4-mapped address comes
//! through the IPv4 hook.

use aya_ebpf::programs::SockAddrContext;
use strait_abi::verdict::Hook;

use crate::connect::{Call, Destination, destination6, ip4, judge};

#[inline(always)]
pub fn v4(ctx: &SockAddrContext) -> i32 {
    let to = Destination::V4(ip4(ctx.sock_addr));
    judge(ctx, to, &Call { hook: Hook::Sendmsg4, by_connect: false, can_redirect: true })
}

#[inline(always)]
pub fn v6(ctx: &SockAddrContext) -> i32 {
    let to = destination6(ctx.sock_addr);
    judge(ctx, to, &Call { hook: Hook::Sendmsg6, by_connect: false, can_redirect: false })
}
