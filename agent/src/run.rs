//! Runs: from a person's request to a contained process and back to nothing.
//!
//! Takes a request that [`crate::launch`] read; gives a [`Run`] that passes the gate alone, and its exit. Order of a
//! start: address → cgroup → netns → gate → self-test → record → announcement → processes; a failure undoes what
//! came before and starts nothing.

pub mod account;
pub mod bundle;
pub mod environment;
pub mod folder;
pub mod mounts;
pub mod seccomp;
pub mod trust;
