//! The command line.

pub mod log;
