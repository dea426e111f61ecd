//! The way out: resolve, vet every address, dial the vetted one.

pub mod dial;
pub mod proxy;
pub mod resolve;
pub mod trust;
pub mod vet;
