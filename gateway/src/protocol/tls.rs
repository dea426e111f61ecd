//! TLS towards the run.

pub mod hello;
pub mod leaf;
