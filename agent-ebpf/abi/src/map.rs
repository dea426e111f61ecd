//! Maps: names, keys, values, sizes.
//!
//! IPv4 addresses are `u32` holding the octets in network order (`u32::from_ne_bytes(addr.octets())`), ports
//! are in host order.

use crate::{
    event::{Comm, Words},
    wire::wire,
};

/// Runs by the cookie of their network namespace: `u64 → Run`. No entry means deny.
pub const RUNS: &str = "RUNS";
/// Switches and quotas of a run by its slot, written by the agent alone: array of `State`.
///
/// This table and the next three are arrays, which the kernel reads without hashing or calling. An entry is the
/// run's whose number it carries; run 0 has slot 0.
pub const STATE: &str = "STATE";
/// What a run uses, by its slot, written by the kernel programs alone while the run lives: array of `Usage`.
pub const USAGE: &str = "USAGE";
/// What the agent took out of the tables of a run, by its slot: array of `Freed`.
pub const FREED: &str = "FREED";
/// Event accounts of a run by its slot, per CPU: array of `Account`.
pub const ACCOUNT: &str = "ACCOUNT";
/// Address ranges that a run may name literally: longest prefix match of `RangeKey → u32`.
pub const RANGES: &str = "RANGES";
/// Original destinations by the cookie of the run's socket: `u64 → Origin`.
pub const ORIG: &str = "ORIG";
/// Flows by the run's end of the connection: `FlowKey → FlowRecord`.
pub const FLOW: &str = "FLOW";
/// Veths by the index of their end in the `strait` netns: `u32 → Veth`.
pub const VETH: &str = "VETH";
/// Repeats of events: `FoldKey → Fold`.
pub const FOLD: &str = "FOLD";
/// The ring of events.
pub const EVENTS: &str = "EVENTS";
/// What was loaded: index 0 → `Meta`.
pub const META: &str = "META";

/// Most runs at a time.
pub const MAX_RUNS: u32 = 4096;
/// Most sockets with an original destination, and most flows, of all runs together.
pub const MAX_FLOWS: u32 = 65_536;
/// Most keys of folded events, of all runs together.
pub const MAX_FOLDS: u32 = 16_384;
/// Most address ranges of all runs together.
pub const MAX_RANGES: u32 = 16_384;
/// Size of the ring, bytes.
pub const RING_BYTES: u32 = 4 << 20;

/// Transparent port of the gateway, TCP.
pub const TRANSPARENT_PORT: u16 = 15001;
/// HTTP port of the gateway, TCP.
pub const GATEWAY_PORT: u16 = 80;
/// DNS port of the gateway, UDP and TCP.
pub const DNS_PORT: u16 = 53;
/// Level and name of the socket option that answers with a flow.
pub const FLOW_LEVEL: i32 = 0;
/// See [`FLOW_LEVEL`].
pub const FLOW_OPTION: i32 = 0x5354;

/// Bit of [`State::flags`]: every hook answers EPERM and every packet is dropped.
pub const KILLED: u32 = 1;
/// Bit of [`State::flags`]: TCP to synthetic addresses and to the run's ranges isn't redirected but refused.
pub const OPAQUE: u32 = 2;

/// Bit of [`State::flags`]: the run has entries in RANGES.
pub const RANGED: u32 = 4;

/// Bit of [`Origin::flags`]: made by `connect(2)`, so a later `sendmsg(2)` to the gateway doesn't replace it.
pub const BY_CONNECT: u16 = 1;
/// Bit of [`Origin::flags`]: TCP was established, so the gateway's end deletes the flow.
pub const ESTABLISHED: u16 = 2;

wire! {
    /// A run, as its network namespace names it.
    Run = 16 {
        /// Number of the run, never 0.
        number: u64,
        /// Address of the run, network order.
        addr: u32,
        /// Its place in STATE, USAGE, FREED and ACCOUNT.
        slot: u32,
    }
}

wire! {
    /// Switches and quotas of a run.
    State = 32 {
        /// Number of the run that has this slot; 0 if none has (but for slot 0).
        run: u64,
        /// [`KILLED`], [`OPAQUE`], [`RANGED`].
        flags: u32,
        /// Most flows, and most sockets with an original destination.
        flow_quota: u32,
        /// Most keys of folded events at a time.
        fold_quota: u32,
        /// Events a second that one CPU may emit.
        rate: u32,
        /// Events that one CPU may emit at once.
        burst: u32,
        /// Zero.
        pad: u32,
    }
}

wire! {
    /// What a run uses. Only ever changed by atomic additions.
    Usage = 24 {
        /// Entries in ORIG.
        origins: u64,
        /// Entries made in FLOW less those that the kernel programs deleted.
        flows: u64,
        /// Entries ever made in FOLD.
        folds: u64,
    }
}

wire! {
    /// What the agent took out of the tables of a run.
    Freed = 16 {
        /// Entries of FLOW.
        flows: u64,
        /// Entries of FOLD.
        folds: u64,
    }
}

wire! {
    /// Event accounts of a run on one CPU: `delivered + folded + lost == total`.
    Account = 48 {
        /// Verdicts that are events.
        total: u64,
        /// Events in the ring.
        delivered: u64,
        /// Events counted in FOLD.
        folded: u64,
        /// Events that found no room.
        lost: u64,
        /// Token bucket: tokens left. Not exact under preemption, and needn't be.
        tokens: u64,
        /// Token bucket: when it was last filled, boot time in ns.
        filled_ns: u64,
    }
}

wire! {
    /// Key of RANGES after the prefix length, which counts the 64 bits of the run too.
    RangeKey = 12 {
        /// Number of the run, any fixed order.
        run: [u8; 8],
        /// Octets of the address.
        addr: [u8; 4],
    }
}

wire! {
    /// Value of ORIG: where a socket of a run wanted to go and who asked, and what the hooks tell each other
    /// about the socket.
    Origin = 56 {
        /// Number of the run.
        run: u64,
        /// Cookie of the network namespace.
        netns: u64,
        /// Destination, network order.
        addr: u32,
        /// Destination port.
        port: u16,
        /// IP protocol.
        proto: u8,
        /// Address family of the socket: 2 or 10.
        family: u8,
        /// Process id in the initial pid namespace.
        tgid: u32,
        /// User id in the initial user namespace.
        uid: u32,
        /// Command name.
        comm: Comm,
        /// Source port of the flow written for this socket; 0 if none was.
        sport: u16,
        /// [`BY_CONNECT`], [`ESTABLISHED`].
        flags: u16,
        /// Slot of the run.
        slot: u32,
    }
}

wire! {
    /// The run's end of a connection.
    FlowKey = 8 {
        /// Address of the run, network order.
        addr: u32,
        /// Source port.
        port: u16,
        /// IP protocol.
        proto: u8,
        /// Zero.
        pad: u8,
    }
}

wire! {
    /// Value of FLOW, and the answer of the socket option.
    FlowRecord = 56 {
        /// Cookie of the run's socket.
        cookie: u64,
        /// Number of the run.
        run: u64,
        /// Cookie of the network namespace.
        netns: u64,
        /// Destination, network order.
        addr: u32,
        /// Destination port.
        port: u16,
        /// IP protocol.
        proto: u8,
        /// Address family of the socket: 2 or 10.
        family: u8,
        /// Process id in the initial pid namespace.
        tgid: u32,
        /// User id in the initial user namespace.
        uid: u32,
        /// Command name.
        comm: Comm,
    }
}

wire! {
    /// A run's veth: what the packet filter lets through.
    Veth = 32 {
        /// Number of the run.
        run: u64,
        /// Its slot.
        slot: u32,
        /// Address of the run, network order.
        addr: u32,
        /// MAC of the run's end.
        mac: [u8; 6],
        /// MAC of the gateway's end.
        gateway_mac: [u8; 6],
        /// Zero.
        pad: u32,
    }
}

wire! {
    /// What makes two events repeats of each other.
    FoldKey = 40 {
        /// Number of the run; 0 if unknown.
        run: u64,
        /// Destination, IPv6 or v4-mapped.
        addr: Words,
        /// Process id.
        tgid: u32,
        /// Destination port; for sockets the type.
        port: u16,
        /// IP protocol.
        proto: u8,
        /// [`crate::verdict::Hook`].
        hook: u8,
        /// [`crate::verdict::Reason`].
        reason: u8,
        /// [`crate::verdict::Verdict`].
        verdict: u8,
        /// Address family.
        family: u8,
        /// Zero.
        pad: u8,
        /// Zero.
        pad2: u32,
    }
}

wire! {
    /// Repeats since the key was made. The count never falls; the agent records what was added.
    Fold = 56 {
        /// How many.
        count: u64,
        /// Boot time of the last, ns.
        last_ns: u64,
        /// Socket cookie of the first.
        cookie: u64,
        /// Cookie of the network namespace.
        netns: u64,
        /// User id.
        uid: u32,
        /// Zero.
        pad: u32,
        /// Command name of the first.
        comm: Comm,
    }
}

wire! {
    /// What was loaded, so that a restarted agent knows whether the pins are its own.
    Meta = 40 {
        /// SHA-256 of the object file.
        digest: [u8; 32],
        /// Gateway address the programs were loaded with, network order.
        gateway: u32,
        /// [`crate::VERSION`].
        version: u32,
    }
}
