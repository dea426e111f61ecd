//! What the kernel programs decide, where and why.

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant = $value,)* }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Reads a byte of an event; `None` if a newer object wrote it.
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($value => Some(Self::$variant),)* _ => None }
            }

            /// Name as people read it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }
        }
    };
}

codes! {
    /// Where a verdict fell.
    Hook {
        /// `cgroup/connect4`
        Connect4 = 1,
        /// `cgroup/connect6`
        Connect6 = 2,
        /// `cgroup/sendmsg4`
        Sendmsg4 = 3,
        /// `cgroup/sendmsg6`
        Sendmsg6 = 4,
        /// `cgroup/sock_create`
        SockCreate = 5,
        /// `cgroup_skb/egress`
        SkbEgress = 6,
        /// `cgroup_skb/ingress`
        SkbIngress = 7,
        /// clsact ingress on the `strait` end of a veth
        Packet = 8,
        /// `lsm_cgroup/socket_create`
        LsmSocket = 9,
    }
}

codes! {
    /// What was decided.
    Verdict {
        /// Passes to where it was going.
        Allow = 1,
        /// Passes, to the gateway instead of where it was going.
        Redirect = 2,
        /// EPERM, or a dropped packet.
        Deny = 3,
    }
}

codes! {
    /// Why.
    Reason {
        /// Nothing to explain.
        None = 0,
        /// The run may not reach this destination.
        Destination = 1,
        /// This port of the gateway isn't for runs.
        Port = 2,
        /// The network namespace isn't one of a live run.
        Namespace = 3,
        /// Family, type or protocol of the socket.
        Socket = 4,
        /// UDP 443: refused so that the client falls back to TCP.
        Quic = 5,
        /// The run has too many flows, or the table of flows is full.
        Quota = 6,
        /// The run was killed.
        Killed = 7,
        /// Not IPv4, a fragment, IP options, or a VLAN tag.
        PacketMalformed = 8,
        /// Source address or MAC isn't the run's.
        PacketSource = 9,
        /// Destination isn't the gateway, or its port isn't offered.
        PacketDestination = 10,
    }
}
