//! The `strait` command line.

pub mod log;
pub mod policy;
