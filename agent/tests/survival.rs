//! Agent and gateway killed under a live run: nothing leaves, nothing is lost, everything comes back.
//!
//! Real daemon, real gateway, real runs, an origin on loopback that `[hosts]` names. Needs root, runc, curl, the kernel
//! object and the static helper: `cargo xtask setup && cargo xtask build`.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's own steps fail by panicking"
)]

mod survival {
    mod approvals;
    mod budget;
    mod exposed;
    mod kernel;
    mod kills;
    mod models;
    mod site;
    mod storms;
    mod tools;
}
