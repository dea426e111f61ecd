//! The programs of the object: names, where they attach, and which may be missing.

/// A program that attaches to a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupHook {
    /// Name of the program, and of its pins.
    pub name: &'static str,
    /// `enum bpf_attach_type` (linux/bpf.h).
    pub(crate) attach_type: u32,
    /// Whether a kernel may lack it.
    pub(crate) optional: bool,
}

const fn hook(name: &'static str, attach_type: u32) -> CgroupHook {
    CgroupHook { name, attach_type, optional: false }
}

/// What every run's cgroup has.
pub const RUN_HOOKS: [CgroupHook; 14] = [
    hook("sock_create", 2),
    hook("connect4", 10),
    hook("connect6", 11),
    hook("sendmsg4", 14),
    hook("sendmsg6", 15),
    hook("recvmsg4", 19),
    hook("recvmsg6", 20),
    hook("getpeername4", 29),
    hook("getpeername6", 30),
    hook("sock_release", 34),
    hook("connection", 3),
    hook("skb_egress", 1),
    hook("skb_ingress", 0),
    CgroupHook { name: "lsm_socket", attach_type: 43, optional: true },
];

/// What the cgroup has in which the listeners are made.
pub const LISTENER_HOOKS: [CgroupHook; 2] = [hook("accepted_flow", 21), hook("accepted_release", 34)];

/// The packet filter on a veth.
pub const PACKET_FILTER: &str = "veth_ingress";
