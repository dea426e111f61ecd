//! One event of the kernel programs, made readable.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use strait_abi::{
    event::{Comm, Event, Words, comm_bytes, octets},
    map::{Fold, FoldKey},
    verdict::{Hook, Reason, Verdict},
};
use strait_contract::code::Code;

/// Something that the kernel refused or redirected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelEvent {
    /// `CLOCK_BOOTTIME` in nanoseconds; for repeats, of the last.
    pub boot_ns: u64,
    /// Kernel number of the run; 0 if it isn't one of a live run.
    pub run: u64,
    /// Socket cookie, if there was a socket.
    pub cookie: Option<u64>,
    /// Cookie of the network namespace, where the hook knows it.
    pub netns: Option<u64>,
    /// Id of the caller's cgroup, where the hook knows it.
    pub cgroup: Option<u64>,
    /// Who called, where the hook knows it. Packets have no caller.
    pub caller: Option<Caller>,
    /// Destination; absent for the creation of a socket.
    pub dst: Option<SocketAddr>,
    /// Source, for packets.
    pub src: Option<SocketAddr>,
    /// Address family of the socket or packet.
    pub family: u8,
    /// Socket type (1 stream, 2 datagram, 3 raw).
    pub kind: u8,
    /// IP protocol; for sockets modulo 256 (MPTCP, 262, shows as 6).
    pub proto: u8,
    /// Where the verdict fell; `None` if a newer object wrote the event.
    pub hook: Option<Hook>,
    /// The verdict; what can't be read counts as a refusal.
    pub verdict: Verdict,
    /// Why it was refused.
    pub code: Option<Code>,
    /// How many like events this one stands for.
    pub count: u64,
    /// Whether the self-test provoked it and waited for it.
    pub awaited: bool,
}

/// A process, as the kernel saw it at the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Thread id; 0 for repeats.
    pub tid: u32,
    /// User id in the initial user namespace.
    pub uid: u32,
    /// Command name: whatever the process calls itself, so evidence and never identity.
    pub comm: String,
}

impl KernelEvent {
    pub(super) fn from_ring(event: &Event) -> Self {
        let hook = Hook::from_byte(event.hook);
        let caller = Caller { tgid: event.tgid, tid: event.tid, uid: event.uid, comm: comm(&event.comm) };
        Self {
            boot_ns: event.boot_ns,
            run: event.run,
            cookie: some(event.cookie),
            netns: some(event.netns),
            cgroup: some(event.cgroup),
            caller: (event.tgid != 0).then_some(caller),
            dst: if is_socket(hook) { None } else { address(&event.daddr, event.dport) },
            src: address(&event.saddr, event.sport),
            family: event.family,
            kind: event.kind,
            proto: event.proto,
            hook,
            verdict: Verdict::from_byte(event.verdict).unwrap_or(Verdict::Deny),
            code: Reason::from_byte(event.reason).and_then(code),
            count: u64::from(event.count),
            awaited: false,
        }
    }

    pub(super) fn from_fold(key: &FoldKey, fold: &Fold, count: u64) -> Self {
        let hook = Hook::from_byte(key.hook);
        let caller = Caller { tgid: key.tgid, tid: 0, uid: fold.uid, comm: comm(&fold.comm) };
        Self {
            boot_ns: fold.last_ns,
            run: key.run,
            cookie: some(fold.cookie),
            netns: some(fold.netns),
            cgroup: None,
            caller: (key.tgid != 0).then_some(caller),
            dst: if is_socket(hook) { None } else { address(&key.addr, key.port) },
            src: None,
            family: key.family,
            kind: if is_socket(hook) { key.port.to_le_bytes()[0] } else { 0 },
            proto: key.proto,
            hook,
            verdict: Verdict::from_byte(key.verdict).unwrap_or(Verdict::Deny),
            code: Reason::from_byte(key.reason).and_then(code),
            count,
            awaited: false,
        }
    }
}

fn is_socket(hook: Option<Hook>) -> bool {
    matches!(hook, Some(Hook::SockCreate | Hook::LsmSocket))
}

fn some(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

fn address(words: &Words, port: u16) -> Option<SocketAddr> {
    let addr = Ipv6Addr::from(octets(*words));
    let addr = addr.to_ipv4_mapped().map_or(IpAddr::V6(addr), IpAddr::V4);
    (*words != [0; 4] || port != 0).then(|| SocketAddr::new(addr, port))
}

fn comm(name: &Comm) -> String {
    let text: Vec<u8> = comm_bytes(*name).into_iter().take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&text).into_owned()
}

/// The stable code of a reason.
fn code(reason: Reason) -> Option<Code> {
    Some(match reason {
        Reason::None => return None,
        Reason::Destination => Code::KernelDestination,
        Reason::Port => Code::KernelPort,
        Reason::Namespace => Code::KernelNamespace,
        Reason::Socket => Code::KernelSocket,
        Reason::Quic => Code::KernelQuic,
        Reason::Quota => Code::KernelQuota,
        Reason::Killed => Code::KernelKilled,
        Reason::PacketMalformed => Code::PacketMalformed,
        Reason::PacketSource => Code::PacketSource,
        Reason::PacketDestination => Code::PacketDestination,
    })
}

#[cfg(test)]
mod tests {
    use strait_abi::event::mapped;

    use super::*;

    fn event() -> Event {
        Event {
            run: 7,
            daddr: mapped(u32::from_ne_bytes([192, 0, 2, 1])),
            dport: 443,
            tgid: 99,
            hook: Hook::Connect6 as u8,
            verdict: Verdict::Deny as u8,
            reason: Reason::Destination as u8,
            count: 1,
            comm: strait_abi::event::comm(*b"curl\0\0\0\0\0\0\0\0\0\0\0\0"),
            ..Event::default()
        }
    }

    #[test]
    fn a_mapped_destination_shows_as_ipv4_with_its_code_and_caller() {
        let seen = KernelEvent::from_ring(&event());
        assert_eq!(seen.dst, Some("192.0.2.1:443".parse().unwrap()));
        assert_eq!(seen.code, Some(Code::KernelDestination));
        assert_eq!(seen.caller.unwrap().comm, "curl");
    }

    #[test]
    fn what_a_newer_object_wrote_reads_as_a_refusal() {
        let seen = KernelEvent::from_ring(&Event { hook: 250, verdict: 250, reason: 250, ..event() });
        assert_eq!((seen.hook, seen.verdict, seen.code), (None, Verdict::Deny, None));
    }

    #[test]
    fn every_reason_but_none_has_its_own_code() {
        let mut codes: Vec<_> = Reason::ALL.iter().filter_map(|reason| code(*reason)).collect();
        assert_eq!(codes.len(), Reason::ALL.len() - 1);
        codes.sort_by_key(|code| code.as_str());
        codes.dedup();
        assert_eq!(codes.len(), Reason::ALL.len() - 1);
    }

    #[test]
    fn a_packet_without_a_caller_has_none() {
        let seen = KernelEvent::from_ring(&Event { tgid: 0, hook: Hook::Packet as u8, ..event() });
        assert_eq!(seen.caller, None);
    }
}
