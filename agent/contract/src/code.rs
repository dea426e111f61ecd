//! Stable codes: why something was refused. They stand in answers to clients and in records, and never change
//! meaning.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why something was refused or failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code { $($(#[$doc])* $name,)* }
        impl Code {
            /// Every code, for documentation and tests.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
            /// The code as clients and auditors see it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

codes! {
    /// No permit matched, or a forbid did.
    ToolCallDenied = "TOOL_CALL_DENIED",
    /// A rule could not be evaluated; refused whatever the others said.
    PolicyError = "POLICY_ERROR",
    /// Only `@approval` rules permit the call and no person can be asked.
    ApprovalUnavailable = "APPROVAL_UNAVAILABLE",
    /// A person was asked and refused.
    ApprovalDenied = "APPROVAL_DENIED",
    /// A person was asked and nobody answered in time.
    ApprovalTimeout = "APPROVAL_TIMEOUT",
    /// The record of the decision could not be written.
    RecordUnavailable = "RECORD_UNAVAILABLE",
    /// The bytes are not the protocol they claim to be.
    MalformedRequest = "MALFORMED_REQUEST",
    /// SNI, Host, `:authority`, CONNECT target and the looked-up name disagree.
    NameMismatch = "NAME_MISMATCH",
    /// The kernel has no account of this connection: enforcement may be degraded.
    FlowUnknown = "FLOW_UNKNOWN",
    /// Not a protocol the gateway can decide on.
    UnknownProtocol = "UNKNOWN_PROTOCOL",
    /// The name is not one that may leave the host (single label, reserved, malformed).
    NameRefused = "NAME_REFUSED",
    /// The address behind the name is private, special or the host's own.
    AddressRefused = "ADDRESS_REFUSED",
    /// A lookup of a record type or class that is never answered.
    DnsTypeRefused = "DNS_TYPE_REFUSED",
    /// DNS over HTTPS to a host not named for it.
    DohRefused = "DOH_REFUSED",
    /// A quota of the run or of the gateway is used up.
    LimitExceeded = "LIMIT_EXCEEDED",
    /// A budget of the run or its agent is used up, or held by calls under way.
    BudgetExceeded = "BUDGET_EXCEEDED",
    /// Another protocol was asked for on a connection to a model: WebSocket is not offered there.
    UpgradeRefused = "UPGRADE_REFUSED",
    /// A call to the gateway's own endpoints came without a workload token.
    TokenMissing = "TOKEN_MISSING",
    /// The workload token is that of no live run.
    TokenUnknown = "TOKEN_UNKNOWN",
    /// The workload token is that of another run than the one whose address and cgroup the call came from.
    TokenAddressMismatch = "TOKEN_ADDRESS_MISMATCH",
    /// A page of another origin asks the gateway's own endpoints (DNS rebinding).
    OriginRefused = "ORIGIN_REFUSED",
    /// No tool of this name is configured.
    ToolUnknown = "TOOL_UNKNOWN",
    /// The tool's credential can't be had.
    CredentialUnavailable = "CREDENTIAL_UNAVAILABLE",
    /// A credential's placeholder was on its way to where it isn't for, or in a place where it can't be replaced.
    PlaceholderMisused = "PLACEHOLDER_MISUSED",
    /// The endpoint does not exist here.
    NotFound = "NOT_FOUND",
    /// The name could not be resolved.
    UpstreamName = "UPSTREAM_NAME",
    /// No vetted address accepted a connection.
    UpstreamUnreachable = "UPSTREAM_UNREACHABLE",
    /// The upstream's certificate or handshake was not acceptable.
    UpstreamTls = "UPSTREAM_TLS",
    /// The upstream broke its own protocol.
    UpstreamProtocol = "UPSTREAM_PROTOCOL",
    /// The upstream took too long.
    UpstreamTimeout = "UPSTREAM_TIMEOUT",
    /// The client's TLS handshake failed: often a client that doesn't trust the run's CA.
    ClientTls = "CLIENT_TLS",
    /// The client went away before the answer was complete.
    ClientGone = "CLIENT_GONE",
    /// The gateway ended before the call did: what had passed by then isn't known.
    GatewayGone = "GATEWAY_GONE",
    /// A fault inside Strait.
    Internal = "INTERNAL",
    /// Kernel: the run may not reach this destination.
    KernelDestination = "KERNEL_DESTINATION",
    /// Kernel: this port of the gateway is not for runs.
    KernelPort = "KERNEL_PORT",
    /// Kernel: the network namespace is not one of a live run.
    KernelNamespace = "KERNEL_NAMESPACE",
    /// Kernel: this family, type or protocol of socket is refused.
    KernelSocket = "KERNEL_SOCKET",
    /// Kernel: QUIC is refused so that the client falls back to TCP.
    KernelQuic = "KERNEL_QUIC",
    /// Kernel: the run has too many flows.
    KernelQuota = "KERNEL_QUOTA",
    /// Kernel: the run was killed, every flow is cut.
    KernelKilled = "KERNEL_KILLED",
    /// Kernel, packet filter: not IPv4, fragment, options or VLAN.
    PacketMalformed = "PACKET_MALFORMED",
    /// Kernel, packet filter: source address or MAC is not the run's.
    PacketSource = "PACKET_SOURCE",
    /// Kernel, packet filter: destination is not the gateway or its port is not offered.
    PacketDestination = "PACKET_DESTINATION",
}

impl Code {
    /// Whether Strait refused, as opposed to a failure of the far end, the client or Strait itself.
    pub fn is_refusal(self) -> bool {
        !matches!(
            self,
            Self::UpstreamName
                | Self::UpstreamUnreachable
                | Self::UpstreamTls
                | Self::UpstreamProtocol
                | Self::UpstreamTimeout
                | Self::ClientTls
                | Self::ClientGone
                | Self::GatewayGone
                | Self::Internal
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
