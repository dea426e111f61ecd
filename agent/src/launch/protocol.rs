//! What `strait run` and the agent say to each other on `launch.sock`: SEQPACKET, one message a packet
//! ([`strait_contract::seqpacket`]).
//!
//! ```text
//! command line → Launch   descriptors: memfd with the Request, stdin, stdout, stderr
//!              → Mounts   descriptors: one O_PATH each; as many packets as it takes
//! agent        → Started  descriptor: the terminal's master, if one was asked for
//!              → Ended, or Refused instead of either
//! command line → Signal   at any time after Started
//!              → Rejoin   first packet instead of Launch, after the agent was gone
//! ```

use serde::{Deserialize, Serialize};
use strait_contract::ids::RunId;

use crate::run::mounts::{Access, Purpose};

/// Largest encoded [`Request`], bytes: it travels in a memfd because arguments may be longer than a packet.
pub const MAX_REQUEST: u64 = 4 * 1024 * 1024;
/// Most mounts of one run.
pub const MAX_MOUNTS: usize = 64;
/// Most mounts in one packet: a packet carries [`strait_contract::seqpacket::MAX_FDS`] descriptors.
pub const MOUNTS_A_PACKET: usize = 8;
/// Number of this protocol; both ends must have the same.
pub const VERSION: u32 = 1;

/// Exit code of `strait run` when Strait failed, as `docker run` and `env` have it.
pub const STRAIT_FAILED: u8 = 125;

/// What a person asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Agent name, if one was given.
    pub agent: Option<String>,
    /// Command and arguments.
    pub argv: Vec<String>,
    /// Variables of the caller that go along.
    pub env: Vec<(String, String)>,
    /// The caller's whole environment: the agent's configuration says which of it goes along (`pass_env`).
    pub offered_env: Vec<(String, String)>,
    /// Current folder inside; the workspace if absent.
    pub cwd: Option<String>,
    /// Folders to search before the system's.
    pub program_path: Vec<String>,
    /// Rows and columns, if the run is to have a terminal.
    pub terminal: Option<(u16, u16)>,
}

/// From the command line to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToAgent {
    /// A new run, with as many mounts to follow.
    Launch {
        /// [`VERSION`].
        version: u32,
        /// Mounts in the packets that follow.
        mounts: usize,
    },
    /// Mounts, one descriptor each.
    Mounts(Vec<(Access, Purpose)>),
    /// A signal for the run.
    Signal(i32),
    /// The caller of a run is back, after the agent was gone.
    Rejoin {
        /// [`VERSION`].
        version: u32,
        /// Its run.
        run: RunId,
    },
}

/// From the agent to the command line.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCaller {
    /// The run is there.
    Started {
        /// Its name.
        run: RunId,
    },
    /// The run is over.
    Ended {
        /// Its exit code, 128 + signal included.
        code: u8,
    },
    /// There is no run.
    Refused {
        /// What and why, and what to do next.
        message: String,
    },
}
