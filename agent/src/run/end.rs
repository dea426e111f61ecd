//! Signals, stop and kill.
//!
//! Kill works on kernel objects alone: no process of the run, of the gateway or of anyone else has to agree.

use std::{io, sync::Arc, time::Duration};

use rustix::process::Signal;
use tokio::{task::spawn_blocking, time::timeout};

use super::{Run, Runs, cgroup::CgroupError, finish::Reason};
use crate::gate::GateError;

/// How long a run may take to end by itself after SIGTERM.
pub const GRACE: Duration = Duration::from_secs(10);

/// Why a run could not be ended.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// Its init can't be signalled.
    #[error("the run's init can't be signalled")]
    Signal(#[source] io::Error),
    /// The gate.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A thread of ours failed.
    #[error("a fault inside Strait: {0}")]
    Internal(#[from] tokio::task::JoinError),
}

impl Runs {
    /// Passes a signal to a run's init, which hands it to the command's process group. A run that has ended takes
    /// none, which is no error.
    ///
    /// # Errors
    /// [`EndError::Signal`].
    pub fn signal(&self, run: &Run, signal: Signal) -> Result<(), EndError> {
        let Some(init) = run.live.init else { return Ok(()) };
        match init.open().map_err(EndError::Signal)? {
            Some(process) => process.signal(signal).map_err(EndError::Signal),
            None => Ok(()),
        }
    }

    /// SIGTERM; SIGKILL to all of the run after `grace`. Returns when the run is gone.
    ///
    /// # Errors
    /// [`EndError`]; the run may live on then.
    pub async fn stop(self: &Arc<Self>, run: &Arc<Run>, by: &str, grace: Duration) -> Result<(), EndError> {
        run.asked().get_or_insert_with(|| Reason::Stopped { by: by.to_owned() });
        self.signal(run, Signal::TERM)?;
        if timeout(grace, run.wait()).await.is_err() {
            self.end_processes(run).await?;
            run.wait().await;
        }
        Ok(())
    }

    /// Cuts every flow, freezes, kills: in that order, so that nothing more leaves while processes die. Returns when
    /// the kernel has taken the orders; the tear-down follows by itself.
    ///
    /// # Errors
    /// [`EndError`]; what could be cut is cut.
    pub async fn kill(self: &Arc<Self>, run: &Arc<Run>, by: &str) -> Result<(), EndError> {
        *run.asked() = Some(Reason::Killed { by: by.to_owned() });
        let (runs, id) = (Arc::clone(self), run.id().clone());
        let cut = spawn_blocking(move || {
            let cut = runs.parts.gate.kill(&id);
            let group = runs.hierarchies.of(&runs.parts.instance, id.as_str());
            // Both are tried whatever became of the other.
            let frozen = group.freeze();
            let killed = group.kill();
            cut?;
            frozen?;
            Ok::<_, EndError>(killed?)
        });
        cut.await?
    }

    async fn end_processes(self: &Arc<Self>, run: &Arc<Run>) -> Result<(), EndError> {
        let group = self.hierarchies.of(&self.parts.instance, run.id().as_str());
        Ok(spawn_blocking(move || group.kill()).await??)
    }
}
