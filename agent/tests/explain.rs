//! `strait policy explain` against what a live gateway does with the same call (case 84).
//!
//! Needs what the survival tests need, and python3: `cargo xtask setup && cargo xtask build`.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's own steps fail by panicking"
)]

mod explain {
    mod spellings;
}
#[path = "survival/site.rs"]
#[expect(dead_code, reason = "shared with the survival tests, which kill and restart as well")]
mod site;
