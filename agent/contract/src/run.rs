//! What the gateway knows of a run: enough to identify, decide and record, nothing that controls it.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::{
    exposure::Exposed,
    ids::{AgentName, RunId},
    redact::redact_text,
    token::TokenHash,
};

/// A run as the agent announces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunInfo {
    /// Name of the run, unique on the host for ever.
    pub id: RunId,
    /// Number the kernel programs use for it.
    pub number: u64,
    /// Its address, pinned to its veth.
    pub addr: Ipv4Addr,
    /// Agent it runs as.
    pub agent: AgentName,
    /// Version of that agent, from config.
    pub version: String,
    /// Login name of the person who started it.
    pub started_by: String,
    /// Labels of the agent, from config.
    pub labels: Vec<String>,
    /// Address ranges that the run may name by literal address (`agents.NAME.addresses`).
    pub addresses: Vec<Range>,
    /// Hash of its workload token.
    pub token: TokenHash,
    /// Credentials that it was shown.
    pub exposed: Vec<Exposed>,
}

/// An IPv4 range in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Network address; bits beyond `prefix` are zero.
    pub addr: Ipv4Addr,
    /// Prefix length, 0 to 32.
    pub prefix: u8,
}

impl Range {
    /// Whether `addr` lies in the range.
    pub fn contains(&self, addr: Ipv4Addr) -> bool {
        let shift = 32u32.saturating_sub(u32::from(self.prefix));
        let mask = u32::MAX.checked_shl(shift).unwrap_or(0);
        u32::from(addr) & mask == u32::from(self.addr) & mask
    }
}

/// The process behind a flow, as far as the agent could still read it. A field that could not be read is
/// absent, never guessed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id in the host's pid namespace.
    pub pid: u32,
    /// User id in the host's user namespace.
    pub uid: u32,
    /// Command name.
    pub comm: String,
    /// Path of the executable as the run's mount namespace shows it.
    pub exe: Option<String>,
    /// SHA-256 of the executable, lower-case hex.
    pub digest: Option<String>,
}

/// Longest command name in a record, bytes: the kernel's 15, each spelled out.
const MAX_COMM: usize = 128;
/// Longest path of an executable in a record, bytes.
const MAX_EXE: usize = 4096;

impl Process {
    /// What of it may stand in a record: a run names its processes and executables itself, so what looks like a key is
    /// hidden there too, control characters are spelled out, and both are bounded. Policy is asked about the raw one.
    #[must_use]
    pub fn for_record(self) -> Self {
        Self {
            comm: redact_text(&self.comm, MAX_COMM),
            exe: self.exe.map(|exe| redact_text(&exe, MAX_EXE)),
            ..self
        }
    }
}
