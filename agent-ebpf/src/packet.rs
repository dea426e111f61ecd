//! Packets: at the socket, where a datagram's final source port is known, and at the `strait` end of the veth,
//! which sees every packet of the run, whoever made it.
//!
//! No helper that names the current process or the network namespace is used here: in softirq it names
//! whoever was interrupted, and Linux 6.1 refuses it.

use aya_ebpf::{
    EbpfContext as _,
    bindings::__sk_buff,
    helpers::bpf_get_socket_cookie,
    programs::{SkBuffContext, TcContext},
};
use strait_abi::{
    event::mapped,
    map::{DNS_PORT, GATEWAY_PORT, KILLED, TRANSPARENT_PORT, Veth},
    verdict::{Hook, Reason, Verdict},
};

use crate::{
    event::{Attempt, Caller, emit},
    flow::publish,
    maps::{ORIG, VETH, gateway},
    verdict::{TCP, UDP, Whose, state_of},
};

const PASS: i32 = 1;
const DROP: i32 = 0;
/// TC_ACT_OK, TC_ACT_SHOT.
const TC_PASS: i32 = 0;
const TC_DROP: i32 = 2;
/// `lo` has this index in every network namespace.
const LOOPBACK: u32 = 1;
const AF_INET: u8 = 2;

/// IPv4 header without options and the first four bytes behind it, which are the ports.
type Head = [u8; 24];
/// No header.
const NONE: Head = [0; 24];

/// cgroup_skb egress: only to the gateway; writes the flow of UDP.
#[inline(always)]
pub fn egress(ctx: &SkBuffContext) -> i32 {
    // SAFETY: the context of a cgroup_skb program.
    if unsafe { (*skb(ctx)).ifindex } == LOOPBACK {
        return PASS;
    }
    let head = head(ctx);
    if word(&head, 16) != gateway() || head[0] >> 4 != 4 {
        return drop_packet(ctx, Hook::SkbEgress, &head);
    }
    if head[9] == UDP && head[0] == 0x45 {
        // SAFETY: the context of a cgroup_skb program.
        let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
        if let Some(origin) = ORIG.get_ptr_mut(cookie) {
            // SAFETY: a map value.
            publish(cookie, unsafe { &mut *origin }, word(&head, 12), half(&head, 20));
        }
    }
    PASS
}

/// cgroup_skb ingress: only from the gateway.
#[inline(always)]
pub fn ingress(ctx: &SkBuffContext) -> i32 {
    // SAFETY: the context of a cgroup_skb program.
    if unsafe { (*skb(ctx)).ifindex } == LOOPBACK {
        return PASS;
    }
    let head = head(ctx);
    if head[0] >> 4 == 4 && word(&head, 12) == gateway() {
        return PASS;
    }
    drop_packet(ctx, Hook::SkbIngress, &head)
}

#[inline(always)]
fn skb(ctx: &SkBuffContext) -> *mut __sk_buff {
    ctx.as_ptr().cast()
}

/// At the socket the packet starts with its IP header. [`NONE`] if it's shorter, which is no IP version. Not an
/// `Option`: with one the compiler leaves registers unwritten where there is no header, which the verifier of
/// Linux 6.1 takes for used.
#[inline(always)]
fn head(ctx: &SkBuffContext) -> Head {
    ctx.load::<Head>(0).unwrap_or(NONE)
}

#[inline(always)]
fn drop_packet(ctx: &SkBuffContext, hook: Hook, head: &Head) -> i32 {
    // SAFETY: the context of a cgroup_skb program.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let mut attempt = Attempt { cookie, ..Attempt::at(hook) };
    // SAFETY: a map value, read at once.
    if let Some(origin) = unsafe { ORIG.get(cookie) } {
        attempt.whose = Whose { run: origin.run, slot: origin.slot };
        attempt.netns = origin.netns;
    }
    tell(attempt, head, Reason::PacketDestination);
    DROP
}

/// Adds what the header says and tells the agent.
#[inline(always)]
fn tell(mut attempt: Attempt, head: &Head, reason: Reason) {
    if head[0] >> 4 == 4 {
        describe(&mut attempt, head);
    }
    emit(&attempt, Caller::Unknown, Verdict::Deny, reason);
}

#[inline(always)]
fn describe(attempt: &mut Attempt, head: &Head) {
    attempt.family = AF_INET;
    attempt.proto = head[9];
    attempt.saddr = mapped(word(head, 12));
    attempt.daddr = mapped(word(head, 16));
    if head[0] == 0x45 && (head[9] == TCP || head[9] == UDP) {
        attempt.sport = half(head, 20);
        attempt.dport = half(head, 22);
    }
}

/// clsact ingress on the `strait` end of a veth: exact allow-list.
#[inline(always)]
pub fn veth(ctx: &TcContext) -> i32 {
    let (whose, head, reason) = match admit(ctx) {
        Ok(()) => return TC_PASS,
        Err(refused) => refused,
    };
    tell(Attempt { whose, ..Attempt::at(Hook::Packet) }, &head, reason);
    TC_DROP
}

type Refused = (Whose, Head, Reason);

#[inline(always)]
fn admit(ctx: &TcContext) -> Result<(), Refused> {
    let skb: *mut __sk_buff = ctx.as_ptr().cast();
    // SAFETY: the context of a tc program.
    let (ifindex, vlan) = unsafe { ((*skb).ifindex, (*skb).vlan_present) };
    // INVARIANT: no map entry means drop.
    // SAFETY: written whole by the agent.
    let Some(veth) = (unsafe { VETH.get(ifindex) }) else {
        return Err((Whose::NOBODY, NONE, Reason::Namespace));
    };
    let whose = Whose { run: veth.run, slot: veth.slot };
    match state_of(whose) {
        Some(state) if state.flags & KILLED == 0 => {}
        Some(_) => {
            let head = ctx.load::<Head>(14).unwrap_or(NONE);
            return Err((whose, head, Reason::Killed));
        }
        None => return Err((Whose::NOBODY, NONE, Reason::Namespace)),
    }
    // One load is judged before the next. With both results judged together the compiler keeps the first one's
    // error in the register that holds its bytes. The verifier before Linux 6.5 prunes states without comparing
    // which scalars are equal (mended by "bpf: Verify scalar ids mapping in regsafe()"), takes the bytes for
    // zero and hard-wires the comparison below: on 6.1 every packet was malformed.
    let Ok(ether) = ctx.load::<[u8; 14]>(0) else {
        return Err((whose, NONE, Reason::PacketMalformed));
    };
    let Ok(head) = ctx.load::<Head>(14) else {
        return Err((whose, NONE, Reason::PacketMalformed));
    };
    inspect(veth, &ether, &head, vlan).map_err(|reason| (whose, head, reason))
}

#[inline(always)]
fn inspect(veth: &Veth, ether: &[u8; 14], head: &Head, vlan: u32) -> Result<(), Reason> {
    // The kernel takes a VLAN tag out of the frame, so the EtherType alone doesn't show it.
    if vlan != 0 || ether[12] != 0x08 || ether[13] != 0 {
        return Err(Reason::PacketMalformed);
    }
    // Header length 5 means no options; of the fragment word only "don't fragment" may be set.
    if head[0] != 0x45 || ((head[6] & 0xbf) | head[7]) != 0 {
        return Err(Reason::PacketMalformed);
    }
    if !same_mac(ether, 6, &veth.mac) || !same_mac(ether, 0, &veth.gateway_mac) || word(head, 12) != veth.addr
    {
        return Err(Reason::PacketSource);
    }
    let port = half(head, 22);
    let offered = match head[9] {
        TCP => port == GATEWAY_PORT || port == DNS_PORT || port == TRANSPARENT_PORT,
        UDP => port == DNS_PORT,
        _ => false,
    };
    if word(head, 16) != gateway() || !offered {
        return Err(Reason::PacketDestination);
    }
    Ok(())
}

#[inline(always)]
fn same_mac(ether: &[u8; 14], at: usize, mac: &[u8; 6]) -> bool {
    ether[at] == mac[0]
        && ether[at + 1] == mac[1]
        && ether[at + 2] == mac[2]
        && ether[at + 3] == mac[3]
        && ether[at + 4] == mac[4]
        && ether[at + 5] == mac[5]
}

/// Four bytes as they stand.
#[inline(always)]
fn word(head: &Head, at: usize) -> u32 {
    u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

/// Two bytes as a number.
#[inline(always)]
fn half(head: &Head, at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}
