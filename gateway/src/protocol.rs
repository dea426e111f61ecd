//! Protocol adapters: bytes become a call.

pub mod detect;
pub mod dns;
pub mod http;
pub mod mcp;
pub(crate) mod model;
pub mod ssh;
pub mod stream;
pub mod tls;
pub mod wire;
