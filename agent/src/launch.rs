//! `launch.sock`: how `strait run` hands a request, its descriptors and its signals to the agent.
//!
//! [`client`] is the command line's end, [`server`] the agent's. Neither parses what the run says.

pub mod callers;
pub mod channel;
pub mod client;
pub mod program;
pub mod protocol;
pub mod server;
pub mod stdio;
pub mod terminal;
