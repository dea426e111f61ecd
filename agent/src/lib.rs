//! The agent: owns kernel objects, runs and records, and never parses what an agent process wrote to the
//! network.
//!
//! Kernel side: `verdict` (in eBPF) → `event` (ring) → [`activity`] → [`log`].
//!
//! Architecture invariant: root never opens a TCP connection, serves a page or reads an agent's bytes.

pub mod cli;
pub mod doctor;
pub mod firewall;
pub mod gate;
pub mod instance;
pub mod netns;
pub mod preflight;
pub mod selftest;
