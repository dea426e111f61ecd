//! The agent: owns kernel objects, runs and records, and never parses what an agent process wrote to the
//! network.
//!
//! Kernel side: `verdict` (in eBPF) → `event` (ring) → [`activity`] → [`log`].
//!
//! Architecture invariant: root never opens a TCP connection, serves a page or reads an agent's bytes.

pub mod activity;
pub mod approval;
pub mod authority;
pub mod budget;
pub mod child;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod doctor;
pub mod firewall;
pub mod gate;
pub mod instance;
pub mod launch;
pub mod link;
pub mod listeners;
pub mod log;
pub mod metrics;
pub mod netns;
pub mod policy_source;
pub mod preflight;
mod readiness;
pub mod run;
pub mod selftest;
pub mod supervise;
