//! Runs: from a person's request to a contained process and back to nothing.
//!
//! Takes an order that [`crate::launch`] read; gives a [`Run`] that passes the gate alone, and its exit.
//! [`start`] and [`finish`] have the order of the steps; [`adopt`] finds runs again that outlived an agent.

pub mod account;
pub mod adopt;
pub mod bundle;
pub mod cgroup;
pub mod console;
pub mod end;
pub mod environment;
pub mod exposure;
pub mod finish;
pub mod folder;
mod home;
pub mod live;
mod models;
pub mod mounts;
pub mod offline;
pub mod order;
pub mod pool;
mod prepare;
pub mod process;
pub mod seccomp;
pub mod shim;
pub mod start;
mod token;
pub mod trust;

use std::{
    collections::HashMap,
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use strait_contract::ids::RunId;
use tokio::sync::watch;

use self::{
    account::Account,
    cgroup::{CgroupError, Hierarchies},
    finish::Reason,
    live::Live,
    order::StartError,
    pool::Pool,
    shim::Exit,
    trust::Trust,
};
use crate::{config::Config, firewall::Witness, gate::Gate, instance::Instance, link::Link, log::Log};

/// What runs are made with.
pub struct Parts {
    /// Names and places.
    pub instance: Instance,
    /// Configuration in force.
    pub config: watch::Receiver<Arc<Config>>,
    /// The gate.
    pub gate: Arc<Gate>,
    /// Where records go.
    pub log: Log,
    /// The way to the gateway.
    pub link: Link,
    /// Certificates for runs.
    pub trust: Trust,
    /// The OCI runtime.
    pub runc: PathBuf,
    /// Hears what the kernel saw of a run's self-test.
    pub witness: Witness,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("instance", &self.instance.name).finish_non_exhaustive()
    }
}

/// All live runs of an instance.
#[derive(Debug)]
pub struct Runs {
    parts: Parts,
    hierarchies: Hierarchies,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    pool: Pool,
    runs: HashMap<RunId, Arc<Run>>,
}

impl Runs {
    /// No runs yet; [`Runs::adopt`] finds those of an earlier agent.
    ///
    /// # Errors
    /// If the host has no cgroup v2.
    pub fn new(parts: Parts) -> Result<Arc<Self>, CgroupError> {
        let state = State { pool: Pool::new(parts.instance.pool), runs: HashMap::new() };
        Ok(Arc::new(Self { hierarchies: Hierarchies::find()?, state: Mutex::new(state), parts }))
    }

    /// What they are made with.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// A run that lives, or ended a moment ago.
    pub fn get(&self, id: &RunId) -> Option<Arc<Run>> {
        self.state().runs.get(id).cloned()
    }

    /// The runs that live, in the order of their start.
    pub fn list(&self) -> Vec<Arc<Run>> {
        let mut runs: Vec<_> =
            self.state().runs.values().filter(|run| run.exit().is_none()).cloned().collect();
        runs.sort_by_key(|run| run.live.number);
        runs
    }

    /// Container id for the OCI runtime.
    fn container(&self, id: &RunId) -> String {
        format!("{}-{id}", self.parts.instance.name)
    }

    fn register(&self, live: Live) -> Result<Arc<Run>, StartError> {
        let run = Arc::new(Run {
            account: live.account(),
            ended: watch::Sender::new(None),
            gone: watch::Sender::new(false),
            asked: Mutex::new(live.killed_by.clone().map(|by| Reason::Killed { by })),
            live,
        });
        self.state().runs.insert(run.live.id.clone(), Arc::clone(&run));
        Ok(run)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change under this lock is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One run.
#[derive(Debug)]
pub struct Run {
    live: Live,
    account: Account,
    ended: watch::Sender<Option<Ended>>,
    gone: watch::Sender<bool>,
    /// Why it is being ended, if somebody asked for it.
    asked: Mutex<Option<Reason>>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its exit, if it is known.
    pub exit: Option<Exit>,
    /// Why.
    pub reason: Reason,
}

impl Ended {
    /// Exit code for the caller: the run's own, or 137 (killed) if nobody saw it.
    pub fn code(&self) -> u8 {
        self.exit.map_or(137, |exit| exit.exit_code)
    }
}

impl Run {
    /// Its name.
    pub fn id(&self) -> &RunId {
        &self.live.id
    }

    /// What is known of it.
    pub fn live(&self) -> &Live {
        &self.live
    }

    /// Whether this person sees and stops it.
    pub fn belongs_to(&self, account: &Account) -> bool {
        account.admin || account.uid == self.account.uid
    }

    /// How it ended; `None` while it lives.
    pub fn exit(&self) -> Option<Ended> {
        self.ended.borrow().clone()
    }

    /// Waits for its end: nothing of it runs or leaves any more, and that it ended is on record.
    pub async fn wait(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        loop {
            if let Some(ended) = ended.borrow_and_update().clone() {
                return ended;
            }
            if ended.changed().await.is_err() {
                return Ended { exit: None, reason: Reason::Crash };
            }
        }
    }

    /// Waits until nothing of it is left on the host but its records.
    pub async fn wait_gone(&self) {
        // The sender is ours: it can't end before we do.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    fn gone(&self) {
        self.gone.send_replace(true);
    }

    fn asked(&self) -> MutexGuard<'_, Option<Reason>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reason(&self, exit: Option<Exit>) -> Reason {
        let asked = self.asked().clone();
        asked.unwrap_or_else(|| if exit.is_some() { Reason::Exited } else { Reason::Crash })
    }

    fn end(&self, exit: Option<Exit>, reason: Reason) {
        self.ended.send_replace(Some(Ended { exit, reason }));
    }
}
