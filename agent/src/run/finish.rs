//! End of a run: cut off → on record → over for whoever waits → taken down.
//!
//! Whoever waits for a run has its exit as soon as nothing more of it can leave and its end is on record; what is only
//! tidying follows. Every step down is a no-op for what was never made, so a start that failed ends the same way.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use strait_contract::ids::RunId;
use tokio::task::spawn_blocking;

use super::{Run, Runs, folder::Folder, live::Live, shim::Exit};
use crate::{gate::Stats, netns};

/// How long the end of a run waits for its last kernel events to be on record.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// Why a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its command ended.
    Exited,
    /// Somebody stopped it.
    Stopped {
        /// Login name.
        by: String,
    },
    /// Somebody killed it.
    Killed {
        /// Login name.
        by: String,
    },
    /// Its shim or init died while no agent looked.
    Crash,
    /// The host was restarted.
    Reboot,
}

impl Reason {
    /// As it stands in records.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Stopped { .. } => "stopped",
            Self::Killed { .. } => "killed",
            Self::Crash => "crash",
            Self::Reboot => "reboot",
        }
    }
}

impl Runs {
    /// Cuts a run off, writes its end, lets those go who wait for it, and takes down what is left once `deleted`, the
    /// runtime's own tidying, is done.
    pub(super) async fn finish(
        self: &Arc<Self>,
        run: &Arc<Run>,
        exit: Option<Exit>,
        deleted: impl Future<Output = ()>,
    ) {
        let reason = run.reason(exit);
        let live = run.live();
        let stats = self.cut(&live.id, exit.is_some()).await;
        let by = match &reason {
            Reason::Stopped { by } | Reason::Killed { by } => by.clone(),
            _ => String::new(),
        };
        let facts = [
            ("reason", reason.as_str().to_owned()),
            ("exitCode", exit.map(|exit| exit.exit_code.to_string()).unwrap_or_default()),
            ("by", by),
            ("kernelEvents", stats.total.to_string()),
            ("kernelEventsLost", stats.lost.to_string()),
        ];
        if let Err(error) = self.parts.log.event(Some(live.id.clone()), "run.ended", &facts).await {
            tracing::error!(run = %live.id, %error, "a run's end could not be recorded");
        }
        self.forget(&live.id);
        run.end(exit, reason);
        deleted.await;
        self.take_down(&live.id, live.veth_index).await;
        run.gone();
        self.clear(&live.id, live.addr);
    }

    /// After a start that failed. The end is recorded if the start was.
    pub(super) async fn dismantle(self: &Arc<Self>, id: &RunId, addr: Ipv4Addr, veth_index: u32) {
        self.cut(id, false).await;
        self.take_down(id, veth_index).await;
        // Refused if the run's chain was never opened, which is as it should be.
        let facts = [("reason", "failed".to_owned())];
        let _ = self.parts.log.event(Some(id.clone()), "run.ended", &facts).await;
        self.forget(id);
        self.clear(id, addr);
    }

    /// After this nothing leaves, and the gateway closes what it has open for the run. `dead` says that the run's init
    /// has been waited for: the kernel ends every process of a pid namespace before its init is.
    async fn cut(self: &Arc<Self>, id: &RunId, dead: bool) -> Stats {
        let (runs, run) = (Arc::clone(self), id.clone());
        let cut = spawn_blocking(move || {
            let parts = &runs.parts;
            // A run that the gate doesn't know passes nothing.
            let _ = parts.gate.kill(&run);
            let group = runs.hierarchies.of(&parts.instance, run.as_str());
            if !dead || !group.is_empty() {
                tell(&run, "its processes stay", group.remove());
            }
        });
        // A panic in it was logged by the runtime.
        let _ = cut.await;
        let closed = self.parts.link.run_ended(id);
        // What the kernel has folded or still has in its ring is recorded while the gate knows whose it is. Bounded:
        // while the log can't be written nothing is recorded, and the run must end all the same.
        let flushed = tokio::time::timeout(LAST_EVENTS, self.parts.witness.flush()).await;
        if !flushed.unwrap_or(false) {
            tracing::warn!(run = %id, "the run's last kernel events go to the host's chain");
        }
        closed.await;
        self.parts.gate.stats(id).unwrap_or_default()
    }

    /// Gate, veth, netns, cgroup, folder.
    async fn take_down(self: &Arc<Self>, id: &RunId, veth_index: u32) {
        let (runs, run) = (Arc::clone(self), id.clone());
        let down = spawn_blocking(move || {
            let parts = &runs.parts;
            tell(&run, "its kernel objects stay", parts.gate.release(&run));
            tell(&run, "its veth stays", netns::unplumb(&parts.instance, veth_index));
            tell(&run, "its netns stays", netns::remove_run(&parts.instance, &run));
            tell(&run, "its cgroup stays", runs.hierarchies.of(&parts.instance, run.as_str()).remove());
            tell(&run, "its folder stays", Folder::of(&parts.instance, run.as_str()).remove());
        });
        let _ = down.await;
    }

    /// From here on a later agent takes what is left for litter.
    fn forget(&self, id: &RunId) {
        if let Err(error) = Live::remove(&self.parts.instance, id) {
            tracing::warn!(run = %id, %error, "a run's live file stays");
        }
    }

    /// The chain is closed when the gateway has had its time for last records; only then is the address free.
    fn clear(self: &Arc<Self>, id: &RunId, addr: Ipv4Addr) {
        let (runs, id) = (Arc::clone(self), id.clone());
        tokio::spawn(async move {
            runs.parts.log.close_run(id.clone()).await;
            let mut state = runs.state();
            state.runs.remove(&id);
            state.pool.give_back(addr);
        });
    }
}

fn tell<T, E: std::fmt::Display>(run: &RunId, what: &'static str, done: Result<T, E>) {
    if let Err(error) = done {
        tracing::warn!(%run, %error, what, "a run was not taken down whole");
    }
}
