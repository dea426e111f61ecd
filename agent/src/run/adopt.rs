//! Finds the runs of an earlier agent again, and clears away what is left of those that are over.
//!
//! To be called once, after the gate and the log are open and before anyone can start a run.

use std::{collections::BTreeSet, fs, io, path::Path, sync::Arc};

use strait_contract::{ids::RunId, run::RunInfo};
use tokio::task::spawn_blocking;

use super::{
    Run, Runs, exposure,
    finish::Reason,
    folder::Folder,
    live::{self, Live},
    process::Process,
    shim,
};
use crate::{
    gate::{Admission, Quota},
    instance::Instance,
    link::calls::{Begun, Calls},
    log::{self, RunMeta, read::Filter},
    netns,
};

/// Why adoption could not begin. A single run that can't be adopted is cleared away instead.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The files of live runs can't be listed.
    #[error("the live runs of an earlier agent can't be listed")]
    List(#[source] io::Error),
    /// What its gateway had recorded can't be read.
    #[error("the records that an earlier agent's gateway left can't be read")]
    Spool(#[source] io::Error),
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Runs that go on.
    pub adopted: usize,
    /// Runs that are over; their end is recorded now.
    pub ended: usize,
}

impl Runs {
    /// Adopts what lives, records the end of what doesn't, removes what belongs to neither.
    ///
    /// # Errors
    /// [`AdoptError`] if it can't be told what there is.
    pub async fn adopt(self: &Arc<Self>) -> Result<Adopted, AdoptError> {
        let boot = live::boot_id().map_err(AdoptError::List)?;
        let all = Live::all(&self.parts.instance).map_err(AdoptError::List)?;
        for live in &all {
            self.state().pool.claim(live.addr);
        }
        self.parts.link.find_spooled().map_err(AdoptError::Spool)?;
        let mut found = Adopted::default();
        for live in all {
            match self.shim_of(&live, &boot) {
                Some(shim) => match self.take_up(&live).await {
                    Ok(run) => {
                        found.adopted += 1;
                        self.follow(run, shim);
                        continue;
                    }
                    Err(why) => {
                        tracing::error!(run = %live.id, why, "a run can't be adopted and is ended");
                        self.bury(live, None).await;
                    }
                },
                None if live.boot != boot => self.bury(live, Some(Reason::Reboot)).await,
                None => self.bury(live, None).await,
            }
            found.ended += 1;
        }
        self.clear_strays().await;
        self.parts.link.spooled_taken().await;
        Ok(found)
    }

    /// The run's shim, if it lives in this boot.
    fn shim_of(&self, live: &Live, boot: &str) -> Option<Process> {
        if live.boot != boot {
            return None;
        }
        live.shim.and_then(|shim| shim.open().ok().flatten())
    }

    /// Puts a run back under the gate, into the log and before the gateway.
    async fn take_up(self: &Arc<Self>, live: &Live) -> Result<Arc<Run>, String> {
        let admission = Admission {
            run: live.id.clone(),
            number: live.number,
            netns_cookie: live.netns_cookie,
            veth: live.veth(),
            ranges: live.ranges(),
            cgroup: self.hierarchies.of(&self.parts.instance, live.id.as_str()).path().to_owned(),
            transparent: true,
            quota: Quota::default(),
        };
        let folder = Folder::of(&self.parts.instance, live.id.as_str());
        let exposed = exposure::kept(&folder).map_err(|error| error.to_string())?;
        let info = RunInfo { exposed, ..live.info().map_err(|error| error.to_string())? };
        let runs = Arc::clone(self);
        let admitted = spawn_blocking(move || runs.parts.gate.admit(&admission)).await;
        admitted.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let calls = self.open_chain(live).await?;
        self.parts.link.found(calls);
        self.parts.link.run_started(info, &folder.names()).map_err(|error| error.to_string())?;
        self.register(live.clone()).map_err(|error| error.to_string())
    }

    /// Takes a run's chain up again. Gives its calls that have begun and not ended.
    async fn open_chain(&self, live: &Live) -> Result<Calls, String> {
        let agent = live.agent.parse().map_err(|error: strait_contract::ids::BadName| error.to_string())?;
        let meta = RunMeta { id: live.id.clone(), agent, version: live.version.clone() };
        let opened = self.parts.log.open_run(meta).await.map_err(|error| error.to_string())?;
        let begun = |what, decision| Begun { run: live.id.clone(), what, decision };
        let open = opened.open.into_iter().map(|(id, what, decision)| (id, begun(what, decision))).collect();
        Ok(self.parts.link.take_spooled(Some(&live.id), open).await)
    }

    fn follow(self: &Arc<Self>, run: Arc<Run>, shim: Process) {
        let runs = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = shim::wait_for(&shim).await {
                tracing::warn!(run = %run.id(), %error, "a run's shim can't be watched");
            }
            let exit = shim::read_exit(&Folder::of(&runs.parts.instance, run.id().as_str()));
            runs.finish(&run, exit, async {}).await;
        });
    }

    /// Records the end of a run that is over and removes what is left.
    async fn bury(self: &Arc<Self>, live: Live, reason: Option<Reason>) {
        match self.open_chain(&live).await {
            Ok(calls) => self.parts.link.end_calls(calls).await,
            Err(why) => tracing::error!(run = %live.id, why, "the log of a run that ended can't be opened"),
        }
        let exit = shim::read_exit(&Folder::of(&self.parts.instance, live.id.as_str()));
        let Ok(run) = self.register(live) else { return };
        if let Some(reason) = reason {
            *run.asked() = Some(reason);
        }
        self.finish(&run, exit, async {}).await;
    }

    /// Objects of runs that nobody knows: an agent that died between two steps.
    async fn clear_strays(self: &Arc<Self>) {
        let runs = Arc::clone(self);
        let cleared = spawn_blocking(move || {
            let known: Vec<RunId> = runs.state().runs.keys().cloned().collect();
            let is_stray = |name: &str| name.parse::<RunId>().is_ok_and(|id| !known.contains(&id));
            let instance = &runs.parts.instance;
            let mut strays = BTreeSet::new();
            for id in names(&instance.run_dir.join("runs")).iter().filter(|name| is_stray(name)) {
                tell(id, Folder::of(instance, id).remove());
                tell(id, runs.hierarchies.of(instance, id).remove());
                strays.extend(id.parse::<RunId>());
            }
            for id in names(&instance.run_dir.join("netns"))
                .iter()
                .filter(|name| is_stray(name) && *name != "strait")
            {
                if let Ok(run) = id.parse() {
                    tell(id, netns::remove_run(instance, &run));
                    strays.insert(run);
                }
            }
            for id in Live::remove_unfinished(instance) {
                strays.insert(id);
            }
            tell("all", runs.parts.gate.collect_garbage(&known));
            strays
        });
        // A panic in it was logged by the runtime; strays stay until the next start.
        for id in cleared.await.unwrap_or_default() {
            self.close_stray(id).await;
        }
    }

    /// Ends the chain of a run of which nobody else will: its agent died before it was known on disk, and so before
    /// its command lived, or after its end was on record and before its chain was sealed.
    async fn close_stray(self: &Arc<Self>, id: RunId) {
        let instance = self.parts.instance.clone();
        let run = id.clone();
        let Ok(Some(found)) = spawn_blocking(move || Stray::find(&instance, run)).await else { return };
        let ended = found.ended;
        if let Err(error) = self.parts.log.open_run(found.meta).await {
            tracing::warn!(run = %id, %error, "the log of a run that never began can't be opened");
            return;
        }
        let calls = self.parts.link.take_spooled(Some(&id), Calls::default()).await;
        self.parts.link.end_calls(calls).await;
        if !ended {
            let facts = [("reason", "failed".to_owned())];
            let _ = self.parts.log.event(Some(id.clone()), "run.ended", &facts).await;
        }
        let log = self.parts.log.clone();
        tokio::spawn(async move { log.close_run(id).await });
    }
}

/// A chain that an earlier agent left open.
struct Stray {
    meta: RunMeta,
    /// Its end is on record.
    ended: bool,
}

impl Stray {
    /// `None` if there is no chain of that name.
    fn find(instance: &Instance, id: RunId) -> Option<Self> {
        if !instance.run_records(id.as_str()).is_dir() {
            return None;
        }
        let of_run = Filter { run: Some(id.clone()), ..Filter::default() };
        let last = log::read::newest(&instance.state_dir, &of_run, 1).ok()?.pop();
        let text = |path: &str| last.as_ref().and_then(|entry| entry.text(path)).map(str::to_owned);
        let named = text("agent").and_then(|agent| agent.parse().ok());
        // An empty chain says nothing; the name of a run begins with its agent's.
        let agent = named.or_else(|| id.as_str().rsplit_once('-')?.0.parse().ok())?;
        let ended = Filter { kind: Some("run.ended".to_owned()), ..of_run };
        let ended = !log::read::newest(&instance.state_dir, &ended, 1).ok()?.is_empty();
        Some(Self { meta: RunMeta { id, agent, version: text("version").unwrap_or_default() }, ended })
    }
}

fn tell<E: std::fmt::Display>(run: &str, done: Result<(), E>) {
    if let Err(error) = done {
        tracing::warn!(run, %error, "something of a run that is over stays");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}
