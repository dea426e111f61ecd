//! Hiding the redirect: who answered, and who the peer is, as the caller expects it. Resolvers check the
//! source of an answer.

use aya_ebpf::{EbpfContext as _, helpers::bpf_get_socket_cookie, programs::SockAddrContext};
use strait_abi::map::Origin;

use crate::{
    connect::{ip4, ip6},
    maps::{ORIG, gateway},
};

#[inline(always)]
pub fn restore4(ctx: &SockAddrContext) -> i32 {
    if ip4(ctx.sock_addr) == gateway()
        && let Some(origin) = origin(ctx)
    {
        // SAFETY: the context of a sock_addr program; one field at a time.
        unsafe {
            core::ptr::write_volatile(&raw mut (*ctx.sock_addr).user_ip4, origin.addr);
            core::ptr::write_volatile(&raw mut (*ctx.sock_addr).user_port, u32::from(origin.port.to_be()));
        }
    }
    1
}

#[inline(always)]
pub fn restore6(ctx: &SockAddrContext) -> i32 {
    let [a, b, mark, addr] = ip6(ctx.sock_addr);
    if a == 0
        && b == 0
        && mark == 0xffff_u32.to_be()
        && addr == gateway()
        && let Some(origin) = origin(ctx)
    {
        // SAFETY: as above.
        unsafe {
            core::ptr::write_volatile(&raw mut (*ctx.sock_addr).user_ip6[3], origin.addr);
            core::ptr::write_volatile(&raw mut (*ctx.sock_addr).user_port, u32::from(origin.port.to_be()));
        }
    }
    1
}

#[inline(always)]
fn origin(ctx: &SockAddrContext) -> Option<&'static Origin> {
    // SAFETY: the context of a sock_addr program; the entry is the calling socket's own.
    unsafe { ORIG.get(bpf_get_socket_cookie(ctx.as_ptr())) }
}
