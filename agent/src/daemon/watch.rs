//! The daemon's standing duties: kernel events into the log, links looked after.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use strait_contract::record::{Record, Unrecorded};
use tokio::sync::{mpsc, watch};

use super::Notice;
use crate::{
    activity::{Processes, kernel},
    gate::Gate,
    link::Link,
    log::Log,
    run::Runs,
};

/// Records handed to the log at once.
const BATCH: usize = 64;
/// Pause before the log is tried again.
const AGAIN: Duration = Duration::from_millis(200);
/// How often the links of every run are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// How long a run that seems to lack a link is given to turn out to be ending.
const SETTLE: Duration = Duration::from_millis(200);
/// How often flows without a connection are looked for while nothing happens.
const FLOWS: Duration = Duration::from_secs(60);
/// How often the ledger of model use is saved while it changes: what was written since is read at the next start.
const SAVE: Duration = Duration::from_secs(2);
/// How long a start waits for the first gateway.
const FIRST_GATEWAY: Duration = Duration::from_secs(5);

/// Has the ledger of model use on disk.
pub(super) async fn keep_ledger(log: Log) -> anyhow::Result<()> {
    let mut failed = false;
    loop {
        tokio::time::sleep(SAVE).await;
        match log.save_ledger().await {
            Err(error) if !failed => {
                failed = true;
                tracing::warn!(%error, "the ledger of model use can't be saved: more is read at the next start");
            }
            Err(_) => {}
            Ok(()) => failed = false,
        }
    }
}

/// Writes down what the kernel saw. While the log can't be written it waits: the ring fills then, and the
/// kernel counts what finds no room.
pub(super) async fn record(
    mut seen: mpsc::Receiver<Notice>,
    gate: Arc<Gate>,
    processes: Processes,
    log: Log,
) -> anyhow::Result<()> {
    let mut notices = Vec::with_capacity(BATCH);
    while seen.recv_many(&mut notices, BATCH).await > 0 {
        let (mut records, mut waiting) = (Vec::with_capacity(notices.len()), Vec::new());
        for notice in notices.drain(..) {
            match notice {
                Notice::Event(event) => {
                    let run = gate.run_of(event.run);
                    records.push(kernel::seen(event, run, &processes));
                }
                Notice::Lost { run, count } => records.push(kernel::lost(count, gate.run_of(run))),
                Notice::Flushed(done) => waiting.push(done),
            }
        }
        if !records.is_empty() {
            write(&log, records).await;
        }
        for done in waiting {
            // Whoever waited may have given up.
            let _ = done.send(());
        }
    }
    Ok(())
}

async fn write(log: &Log, records: Vec<Record>) {
    match settle(log, records.clone()).await {
        Ok(()) => {}
        // One of them can't be written; the others must not pay for it.
        Err(_) => {
            for record in records {
                write_one(log, record).await;
            }
        }
    }
}

async fn write_one(log: &Log, record: Record) {
    let run = record.run.clone();
    let outcome = match settle(log, vec![record.clone()]).await {
        // It came from a run that has just ended: the host's chain tells of it.
        Err(Unrecorded::Run) => settle(log, vec![Record { run: None, ..record }]).await,
        other => other,
    };
    if let Err(error) = outcome {
        let run = run.map(|run| run.to_string()).unwrap_or_default();
        tracing::error!(run, %error, "a kernel event was not recorded");
        let facts = [("run", run), ("count", "1".to_owned()), ("why", error.to_string())];
        if let Err(error) = log.event(None, "events.lost", &facts).await {
            tracing::error!(%error, "that it was lost was not recorded either");
        }
    }
}

/// Appends, for as long as it takes the log to be writable.
async fn settle(log: &Log, records: Vec<Record>) -> Result<(), Unrecorded> {
    loop {
        match log.append(records.clone()).await {
            Err(error @ (Unrecorded::Log | Unrecorded::Agent)) => {
                tracing::error!(%error, "kernel events wait for the log");
                tokio::time::sleep(AGAIN).await;
            }
            settled => return settled,
        }
    }
}

/// Looks after the links of every run: a missing one is put back, and that it was missing is on record (m3).
pub(super) async fn enforce(runs: Arc<Runs>, gate: Arc<Gate>, log: Log) -> anyhow::Result<()> {
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        for run in runs.list() {
            let missing = match gate.verify(run.id()) {
                Ok(missing) if missing.is_empty() => continue,
                Ok(missing) => missing.join(", "),
                Err(error) => error.to_string(),
            };
            // Its links go first when a run ends: that is no loss.
            tokio::time::sleep(SETTLE).await;
            if run.exit().is_some() || gate.verify(run.id()).is_ok_and(|missing| missing.is_empty()) {
                continue;
            }
            let mended = match gate.reattach(run.id()) {
                Ok(()) => "attached again".to_owned(),
                Err(error) => error.to_string(),
            };
            tracing::error!(run = %run.id(), missing, mended, "enforcement was degraded");
            let facts = [("missing", missing), ("outcome", mended)];
            if let Err(error) = log.event(Some(run.id().clone()), "enforcement.degraded", &facts).await {
                tracing::error!(%error, "degraded enforcement was not recorded");
            }
        }
    }
}

/// Deletes the flows of connections that no gateway accepted and none will: when a gateway is gone, and now and
/// then, because a run's quota counts them.
pub(super) async fn sweep_flows(
    gate: Arc<Gate>,
    mut gateway: watch::Receiver<Option<u32>>,
) -> anyhow::Result<()> {
    let mut again = tokio::time::interval(FLOWS);
    again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = again.tick() => {}
            changed = gateway.changed() => {
                changed.context("the link is gone")?;
                if gateway.borrow_and_update().is_some() {
                    continue;
                }
            }
        }
        let sweeper = Arc::clone(&gate);
        match tokio::task::spawn_blocking(move || sweeper.sweep_flows()).await? {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "flows without a connection were deleted"),
            Err(error) => tracing::warn!(%error, "flows without a connection stay for now"),
        }
    }
}

/// Waits a moment for the first gateway, so that the first run finds one.
pub(super) async fn listening(link: &Link) {
    let mut gateway = link.gateway();
    let connected = gateway.wait_for(Option::is_some);
    if tokio::time::timeout(FIRST_GATEWAY, connected).await.is_err() {
        tracing::error!("no gateway has connected: runs start, and every call of theirs is refused");
    }
}
