//! The gateway's process: a link to the agent, its workers, an orderly end.
#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode, time::Instant};

use anyhow::Context as _;
use rustix::process::DumpableBehavior;
use strait_gateway::{FlowSource, Gateway, accept, limits::DRAIN, link::Link};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Its stderr is a pipe of the agent's: with the agent gone a failed write must stay silent, not panic.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .log_internal_errors(false)
        .init();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let path = std::env::var_os("STRAIT_LINK").map(PathBuf::from).context(
        "the variable `STRAIT_LINK` doesn't name the agent's socket: the gateway is started by the agent, not by hand",
    )?;
    // Credentials pass through this memory: no core file, no ptrace by processes of the same user. It has to be
    // said here, since execve(2) resets it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("forbidding memory dumps")?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers()).enable_all().build()?;
    runtime.block_on(serve(path))
}

/// Half the cores, since the agent and the programs of the runs need the others; but not one alone, where whatever takes
/// a moment (a handshake, compiling policies) would hold up every call.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2).max(2).min(cores.get()))
}

async fn serve(path: PathBuf) -> anyhow::Result<()> {
    let (gateway, queue, questions) = Gateway::new(FlowSource::kernel());
    let (link, mut listeners) = Link::new(&path, gateway.clone(), queue, questions);
    let (stop, stopping) = watch::channel(false);
    tokio::spawn(link.run());
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        Some(handover) = listeners.recv() => accept::start(&gateway, handover, &stopping)?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    drain(stop, stopping).await;
    Ok(())
}

/// Lets answers under way end, within a limit; whoever holds `stopping` is still at work.
async fn drain(stop: watch::Sender<bool>, stopping: watch::Receiver<bool>) {
    let begun = Instant::now();
    drop(stopping);
    stop.send_replace(true);
    let complete = tokio::time::timeout(DRAIN, stop.closed()).await.is_ok();
    tracing::info!(complete, took_ms = begun.elapsed().as_millis(), "the gateway has stopped");
}
