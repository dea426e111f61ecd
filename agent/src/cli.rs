//! The `strait` command line.

pub mod policy;
