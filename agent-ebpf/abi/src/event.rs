//! The event, written once into the ring.

use crate::wire::wire;

/// An IPv6 or v4-mapped address in words of network order. Words and not octets, because the kernel programs'
/// compiler copies octets one by one.
pub type Words = [u32; 4];
/// A command name, NUL padded, as the kernel wrote it.
pub type Comm = [u64; 2];

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
        daddr: Words,
        /// Source, IPv6 or v4-mapped; zero if unknown.
        saddr: Words,
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
        comm: Comm,
    }
}

/// An IPv4 address (network order) as a v4-mapped IPv6 address (RFC 4291, section 2.5.5.2).
pub const fn mapped(addr: u32) -> Words {
    [0, 0, 0xffff_u32.to_be(), addr]
}

/// The octets of an address.
pub const fn octets([a, b, c, d]: Words) -> [u8; 16] {
    let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a.to_ne_bytes(), b.to_ne_bytes());
    let ([c0, c1, c2, c3], [d0, d1, d2, d3]) = (c.to_ne_bytes(), d.to_ne_bytes());
    [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3]
}

/// The bytes of a command name.
pub const fn comm_bytes([a, b]: Comm) -> [u8; 16] {
    let ([a0, a1, a2, a3, a4, a5, a6, a7], [b0, b1, b2, b3, b4, b5, b6, b7]) =
        (a.to_ne_bytes(), b.to_ne_bytes());
    [a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7]
}

/// A command name of these bytes.
pub const fn comm([a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7]: [u8; 16]) -> Comm {
    [
        u64::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
        u64::from_ne_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
    ]
}
