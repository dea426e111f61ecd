//! Containment: each test is a claim about what leaves a run, made on real namespaces, cgroups and programs,
//! with a positive control. Needs root and the object (`cargo xtask setup`, `cargo xtask build`); refuses to
//! run without them. Own harness, because the rig is shared and must be taken down: the arguments are parts
//! of test names.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test with a harness of its own isn't seen as one"
)]

#[path = "containment/probe.rs"]
mod probe;
#[path = "containment/rig.rs"]
mod rig;
#[path = "containment/ring.rs"]
mod ring;
#[path = "containment/server.rs"]
mod server;

#[path = "containment/accounts.rs"]
mod accounts;
#[path = "containment/lifecycle.rs"]
mod lifecycle;
#[path = "containment/packets.rs"]
mod packets;
#[path = "containment/sockets.rs"]
mod sockets;
#[path = "containment/topology.rs"]
mod topology;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Instant,
};

use rig::Rig;

/// A claim and the code that proves it.
type Test = (&'static str, fn(&Rig));

fn main() -> ExitCode {
    if let Some(action) = probe::asked() {
        return probe::act(&action);
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let tests: Vec<Test> =
        [sockets::TESTS, packets::TESTS, topology::TESTS, accounts::TESTS, lifecycle::TESTS]
            .concat()
            .into_iter()
            .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())))
            .collect();
    let rig = Rig::build();
    let mut failed = Vec::new();
    for (name, test) in &tests {
        let start = Instant::now();
        let passed = catch_unwind(AssertUnwindSafe(|| test(&rig))).is_ok();
        println!(
            "test {name} ... {} ({} ms)",
            if passed { "ok" } else { "FAILED" },
            start.elapsed().as_millis()
        );
        if !passed {
            failed.push(*name);
        }
    }
    drop(rig);
    let (passed, broken) = (tests.len() - failed.len(), failed.len());
    let verdict = if broken == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {broken} failed; 0 ignored; containment {failed:?}");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
