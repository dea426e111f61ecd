//! Real runs under a real gate and a real runtime: what a person sees of `strait run` and its siblings.
//!
//! Needs root, cgroup v2, runc, the kernel object and the static helper: `cargo xtask setup && cargo xtask build`.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's own steps fail by panicking"
)]

mod runs {
    mod confinement;
    mod ending;
    mod people;
    mod rig;
    mod streams;
}
