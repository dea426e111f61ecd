//! The contract between the agent (root, owns kernel objects, runs and records) and the gateway (no
//! privilege, parses hostile bytes).
//!
//! Takes and gives plain values; neither end's machinery shows here. What the kernel tells the gateway about
//! a connection ([`flow::Flow`]) is part of the contract too, because the gateway reads it without the agent.
//!
//! Architecture invariant: nothing here decides anything.
#![deny(unsafe_code)]

pub mod approval;
pub mod budget;
pub mod code;
pub mod exposure;
pub mod flow;
pub mod ids;
pub mod message;
pub mod model;
pub mod names;
pub mod provider;
pub mod record;
pub mod redact;
pub mod run;
pub mod seqpacket;
pub mod spool;
pub mod token;
pub mod tool;

/// Digest of the contract's sources, compared in the hello of the link.
pub const CONTRACT: &str = include_str!(concat!(env!("OUT_DIR"), "/contract.txt"));
