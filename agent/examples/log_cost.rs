//! What a record costs: `cargo run --release -p strait-agent --example log_cost [RECORDS] [RUNS]`.
//!
//! Prints CPU and wall time per record, everything included: check, JSON, SHA-256, write, sync, signed heads.

use std::time::Instant;

use anyhow::Context as _;
use strait_agent::{
    instance::Instance,
    log::{self, Batch, Log, Options, RunMeta},
};
use strait_contract::{
    ids::RunId,
    record::{Activity, Body, Decision, Destination, Kind, Phase, Record, Request, Source},
    run::Process,
};

const BATCH: u64 = 64;

fn record(run: RunId, at: u64) -> Record {
    let activity = Activity {
        source: Source::Gateway,
        kind: Kind::Request,
        decision: Decision::Allow,
        code: None,
        reason: None,
        rules: vec!["registries".into()],
        dst: Destination { name: Some("registry.test".into()), addr: None, port: Some(443) },
        proto: "tcp".into(),
        via: "egress".into(),
        request: Some(Request {
            method: "GET".into(),
            url: format!("https://registry.test/packages/{at}"),
            version: "1.1".into(),
            status: Some(200),
            bytes_out: Some(0),
            bytes_in: Some(1024),
        }),
        dns: None,
        stream: None,
        process: Some(Process { pid: 4711, uid: 1000, comm: "node".into(), exe: None, digest: None }),
        cookie: Some(at),
        approval: None,
        count: 1,
        duration_us: Some(1234),
        step: None,
    };
    Record { phase: Some(Phase::Done), ..log::record(Some(run), Body::Activity(Box::new(activity))) }
}

/// CPU time of this process so far, microseconds.
fn cpu_us() -> anyhow::Result<u128> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(u128::try_from(time.tv_sec)? * 1_000_000 + u128::try_from(time.tv_nsec)? / 1000)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments.next().map_or(Ok(200_000), |text| text.parse())?;
    let runs: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let dir = std::env::current_dir()?.join(format!("target/log-cost-{}", std::process::id()));
    let mut instance = Instance::standard("cost".parse()?);
    instance.state_dir.clone_from(&dir);
    let log = Log::open(Options { records_per_second: 10_000_000, ..Options::for_instance(&instance) })?;
    let names = (0..runs).map(|at| format!("r{at}").parse()).collect::<Result<Vec<RunId>, _>>()?;
    for id in &names {
        log.open_run(RunMeta { id: id.clone(), agent: "coder".parse()?, version: "1".into() }).await?;
    }
    let mut batches = Vec::new();
    for first in (0..count).step_by(64) {
        let batch = (first..first + BATCH)
            .map(|at| names.get(usize::try_from(at % runs).unwrap_or(0)).map(|id| record(id.clone(), at)));
        batches.push(batch.collect::<Option<Vec<_>>>().context("a run")?);
    }
    let records: usize = batches.iter().map(Vec::len).sum();
    let (cpu, wall) = (cpu_us()?, Instant::now());
    for records in batches {
        for outcome in log.append_now(vec![Batch { records, may_repeat: false }]) {
            outcome?;
        }
    }
    let wall = wall.elapsed();
    log.shutdown().await;
    let records = u128::try_from(records)?;
    println!(
        "{records} records of {runs} runs: {} ns CPU and {} ns wall per record",
        (cpu_us()? - cpu) * 1000 / records,
        wall.as_nanos() / records
    );
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
