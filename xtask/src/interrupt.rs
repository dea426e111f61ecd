//! ^C and SIGTERM, so that what a verb built up is also taken down.

use std::{
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

/// From now on ^C and SIGTERM are noted instead of ending the process.
///
/// # Errors
/// If the handlers can't be installed.
pub(crate) fn watch() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("no runtime for signals")?;
    let (mut interrupt, mut terminate) = {
        let _context = runtime.enter();
        let install = |kind| signal(kind).context("signals can't be caught");
        (install(SignalKind::interrupt())?, install(SignalKind::terminate())?)
    };
    WATCH.call_once(|| {
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
            });
            INTERRUPTED.store(true, Ordering::Relaxed);
        });
    });
    Ok(())
}

/// Fails once the verb was interrupted.
///
/// # Errors
/// If it was.
pub(crate) fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}
