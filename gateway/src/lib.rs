//! The gateway: accept → identify → read → decide → forward → record.
#![forbid(unsafe_code)]

pub mod forward;
pub mod protocol;
pub mod url;
