//! The gateway: accept → identify → read → decide → forward → record.
#![forbid(unsafe_code)]
