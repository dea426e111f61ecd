//! The kernel programs of the gate: entry points only.
//!
//! They're loaded once and attached to the cgroup of every run; the cookie of the network namespace says which
//! run a socket belongs to. They refuse promptly, redirect to the gateway, say who called, and tell the agent.
//!
//! Architecture invariant: nothing here is the only wall. The topology of the namespaces holds without it.
#![no_std]
#![no_main]
// Atomic addition: this target has no compare-and-swap, so the standard library hides the whole of it.
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "see above")]

mod connect;
mod event;
mod flow;
mod maps;
mod packet;
mod peer;
mod sendmsg;
mod socket;
mod verdict;

use aya_ebpf::{
    macros::{cgroup_skb, cgroup_sock, cgroup_sock_addr, cgroup_sockopt, classifier, lsm_cgroup, sock_ops},
    programs::{
        LsmContext, SkBuffContext, SockAddrContext, SockContext, SockOpsContext, SockoptContext, TcContext,
    },
};

#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    connect::v4(&ctx)
}

#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    connect::v6(&ctx)
}

#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(ctx: SockAddrContext) -> i32 {
    sendmsg::v4(&ctx)
}

#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(ctx: SockAddrContext) -> i32 {
    sendmsg::v6(&ctx)
}

#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(ctx: SockAddrContext) -> i32 {
    peer::restore4(&ctx)
}

#[cgroup_sock_addr(recvmsg6)]
pub fn recvmsg6(ctx: SockAddrContext) -> i32 {
    peer::restore6(&ctx)
}

#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(ctx: SockAddrContext) -> i32 {
    peer::restore4(&ctx)
}

#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(ctx: SockAddrContext) -> i32 {
    peer::restore6(&ctx)
}

#[cgroup_sock(sock_create)]
pub fn sock_create(ctx: SockContext) -> i32 {
    socket::create(&ctx)
}

#[cgroup_sock(sock_release)]
pub fn sock_release(ctx: SockContext) -> i32 {
    flow::release(&ctx)
}

/// For the cgroup in which the listeners were made, which accepted sockets inherit.
#[cgroup_sock(sock_release)]
pub fn accepted_release(ctx: SockContext) -> i32 {
    flow::accepted_release(&ctx)
}

/// For the cgroup in which the listeners were made.
#[cgroup_sockopt(getsockopt)]
pub fn accepted_flow(ctx: SockoptContext) -> i32 {
    flow::answer(&ctx)
}

#[sock_ops]
pub fn connection(ctx: SockOpsContext) -> u32 {
    flow::connection(&ctx)
}

#[cgroup_skb(egress)]
pub fn skb_egress(ctx: SkBuffContext) -> i32 {
    packet::egress(&ctx)
}

#[cgroup_skb(ingress)]
pub fn skb_ingress(ctx: SkBuffContext) -> i32 {
    packet::ingress(&ctx)
}

/// Optional: kernels without BPF LSM refuse to load it.
#[lsm_cgroup(hook = "socket_create")]
pub fn lsm_socket(ctx: LsmContext) -> i32 {
    socket::lsm_create(&ctx)
}

#[classifier]
pub fn veth_ingress(ctx: TcContext) -> i32 {
    packet::veth(&ctx)
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
