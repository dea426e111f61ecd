//! Protocol adapters: bytes become a call.

pub mod http;
pub mod tls;
