//! A small world for the demo and the benchmarks: an internet of invented public addresses and an instance of
//! Strait whose gateway dials into it. Nothing of it touches the host's own network or an installed Strait.

pub(crate) mod installation;
pub(crate) mod internet;
mod sweep;
