//! The event, written once into the ring.

use crate::wire::wire;

wire! {
    /// One verdict worth telling. There is no path in it: the agent resolves the process at once.
    Event = 128 {
        /// Boot time, ns.
        boot_ns: u64,
        /// Number of the run; 0 if unknown.
        run: u64,
        /// Events of this run on this CPU so far.
        seq: u64,
        /// Socket cookie; 0 if there's no socket yet or the packet had none.
        cookie: u64,
        /// Cookie of the network namespace; 0 where the hook can't know it.
        netns: u64,
        /// Id of the caller's cgroup; 0 where the hook can't know it.
        cgroup: u64,
        /// Process id in the initial pid namespace; 0 where the hook can't know it.
        tgid: u32,
        /// Thread id.
        tid: u32,
        /// User id in the initial user namespace.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Destination, IPv6 or v4-mapped.
        daddr: [u8; 16],
        /// Source, IPv6 or v4-mapped; zero if unknown.
        saddr: [u8; 16],
        /// Destination port.
        dport: u16,
        /// Source port; 0 if unknown.
        sport: u16,
        /// Address family.
        family: u8,
        /// Socket type.
        kind: u8,
        /// IP protocol.
        proto: u8,
        /// [`crate::verdict::Hook`].
        hook: u8,
        /// [`crate::verdict::Verdict`].
        verdict: u8,
        /// [`crate::verdict::Reason`].
        reason: u8,
        /// [`crate::VERSION`].
        version: u8,
        /// Zero.
        flags: u8,
        /// How many like events this one stands for.
        count: u32,
        /// Command name.
        comm: [u8; 16],
    }
}

/// An IPv4 address (network order) as a v4-mapped IPv6 address (RFC 4291, section 2.5.5.2).
pub const fn mapped(addr: u32) -> [u8; 16] {
    let [a, b, c, d] = addr.to_ne_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}
