//! The agent's end of the link to the gateway (SEQPACKET on `link.sock`).
//!
//! Takes the gateway's connection, records and questions; gives it its setup, policies and runs, all of them
//! again on each connection. A gateway that was taken over can append activity of live runs and nothing else:
//! it can't speak as the kernel, write events, name ended runs or change what was written.
//!
//! Architecture invariant: nothing the gateway sends chooses a path, a process to start or a kernel object.

pub(crate) mod calls;
mod credentials;
mod drifts;
mod held;
mod left;
mod memory;
mod misused;
mod reader;
mod seen;
mod session;
mod socket;
mod spool;
mod tokens;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use strait_contract::{
    budget::Budget,
    ids::{AgentName, RunId},
    message::{PolicyFile, Secret, Setup, ToGateway},
    names,
    provider::Providers,
    record::Unrecorded,
    run::RunInfo,
    seqpacket::{self, LinkError},
    tool::{ToolName, Tools},
};
use tokio::{
    io::unix::AsyncFd,
    sync::{OwnedSemaphorePermit, mpsc, oneshot, watch},
};

pub use self::seen::NotSeen;
use self::{
    calls::Calls,
    spool::{Found, Spool},
};
use crate::{activity::Processes, approval::Approvals, instance::Instance, listeners::Listeners, log::Log};

/// How long a gateway may take to send what it has recorded for a run that is over.
const CLOSED_WITHIN: Duration = Duration::from_millis(500);
/// How long a gateway may take to compile policies.
const COMPILE_WITHIN: Duration = Duration::from_secs(30);

/// Gives the value of a credential.
type Resolve = dyn Fn(&ToolName) -> Result<Secret, String> + Send + Sync;

/// What the link's server works with.
pub struct Parts {
    /// Where records go.
    pub log: Log,
    /// Who is behind a process id.
    pub processes: Processes,
    /// Who asks people about calls that wait.
    pub approvals: Approvals,
    /// The listeners for gateways that have none.
    pub listeners: Listeners,
    /// The setup of a gateway that starts, with a fresh intermediate; an error is told in the log.
    pub setup: Box<dyn Fn() -> Result<Setup, String> + Send + Sync>,
    /// The tools as configured now.
    pub tools: Box<dyn Fn() -> Tools + Send + Sync>,
    /// The providers of models as configured now.
    pub providers: Box<dyn Fn() -> Providers + Send + Sync>,
    /// Budgets as configured now.
    pub budgets: Box<dyn Fn() -> BTreeMap<AgentName, Budget> + Send + Sync>,
    /// A credential's value now, or why there is none. May block.
    pub credential: Box<Resolve>,
    /// Synthetic names a run may have ([`strait_contract::message::Limits::names_per_run`]).
    pub names_per_run: u32,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// The link's server; clones share it.
#[derive(Clone, Debug)]
pub struct Link(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    parts: Parts,
    gateway_uid: u32,
    /// Where spools are.
    spools: PathBuf,
    state: Mutex<State>,
    /// Process id of the connected gateway.
    gateway: watch::Sender<Option<u32>>,
    /// The socket, until it's opened.
    closed: Mutex<Option<AsyncFd<OwnedFd>>>,
}

#[derive(Debug, Default)]
struct State {
    outbox: Option<(u64, mpsc::UnboundedSender<Packet>)>,
    connections: u64,
    /// Gateways whose records may still come: connections by number, with their process ids.
    talking: BTreeMap<u64, u32>,
    /// How often budgets were set back.
    resets: u64,
    runs: BTreeMap<RunId, Announced>,
    /// Calls under way of gateways that are not connected, by their process ids.
    left: BTreeMap<u32, Calls>,
    /// Process ids of gateways whose end is waited for.
    watched: BTreeSet<u32>,
    /// What was in the spools of an earlier agent's gateways, until its runs' chains are open again.
    spooled: Found,
    /// Those of them that nobody writes any more.
    orphans: Vec<Spool>,
    /// Those of gateways that live.
    living: Vec<Spool>,
    /// Who still writes what was in them, because the log refused it.
    late: Vec<tokio::task::JoinHandle<()>>,
    /// Who waits for the gateway to have sent a run's records.
    closing: BTreeMap<RunId, oneshot::Sender<()>>,
    /// Lists of tools that were asked for.
    coming: BTreeMap<u64, seen::Coming>,
    /// Of the last question to a gateway.
    tickets: u64,
    /// Calls that were under way when an earlier agent ended: of the gateway that outlived it, if one did.
    found: Calls,
    /// Tools that aren't what was pinned.
    drifts: drifts::Drifts,
    policy: Option<Policy>,
    /// Sent but not yet compiled.
    candidate: Option<Candidate>,
    epoch: u64,
}

/// A run the gateway is told of, with the memory of its names.
#[derive(Debug)]
struct Announced {
    info: RunInfo,
    names: Arc<OwnedFd>,
}

/// Policies as they go over the link.
#[derive(Clone, Debug)]
struct Policy {
    epoch: u64,
    digest: String,
    text: Arc<OwnedFd>,
}

#[derive(Debug)]
struct Candidate {
    policy: Policy,
    outcome: oneshot::Sender<Result<(), String>>,
}

/// One packet on its way to the gateway.
#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    fds: Vec<Arc<OwnedFd>>,
    /// What it holds up while it waits: an answer, the next question.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Packet {
    fn new(message: &ToGateway, fds: Vec<Arc<OwnedFd>>) -> Result<Self, LinkError> {
        Ok(Self { bytes: seqpacket::encode(message)?, fds, _permit: None })
    }
}

/// Why the link can't do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket can't be made.
    #[error("`{path}` can't be served: {source}")]
    Socket {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Memory to hand over can't be made.
    #[error("memory for {what} can't be made: {source}")]
    Memory {
        /// For what.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A message doesn't fit the link.
    #[error(transparent)]
    Message(#[from] LinkError),
}

/// How far new policies have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The gateway decides by them.
    Live {
        /// Their epoch.
        epoch: u64,
    },
    /// No gateway is connected: the next one starts with them.
    AtNextStart {
        /// Their epoch.
        epoch: u64,
    },
}

/// Why new policies aren't live; the last good ones stay.
#[derive(Debug, thiserror::Error)]
pub enum NotApplied {
    /// The gateway refused them.
    #[error("the gateway refused the policies, the last good ones stay: {0}")]
    Refused(String),
    /// It didn't answer.
    #[error("the gateway did not compile the policies within {} s, the last good ones stay", COMPILE_WITHIN.as_secs())]
    Late,
    /// They can't be handed over.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl Link {
    /// Makes `link.sock` of the instance: 0600, owned by the gateway's user. Gateways wait there until
    /// [`Link::open`]. Call it within a tokio runtime.
    ///
    /// # Errors
    /// [`ServeError::Socket`].
    pub fn serve(instance: &Instance, parts: Parts) -> Result<Self, ServeError> {
        let path = instance.link_socket();
        let listener = socket::listen(&path, instance.gateway_uid, instance.gateway_gid)
            .map_err(|source| ServeError::Socket { path, source })?;
        let link = Self(Arc::new(Shared {
            parts,
            gateway_uid: instance.gateway_uid,
            spools: instance.run_dir.join("spool"),
            state: Mutex::default(),
            gateway: watch::Sender::new(None),
            closed: Mutex::new(Some(listener)),
        }));
        Ok(link)
    }

    /// Lets gateways in. Runs that outlived an earlier agent are to be announced before, so that a gateway knows
    /// all of them when it begins to listen.
    pub fn open(&self) {
        let listener = self.0.closed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listener) = listener {
            tokio::spawn(session::accept(listener, self.clone()));
        }
    }

    /// Announces a run, now and to every later gateway. Its synthetic names are kept in the file `names_at`, on a
    /// tmpfs of the run's own, so that an address keeps its meaning even if agent and gateway both die. Open its
    /// chain in the log before.
    ///
    /// # Errors
    /// [`ServeError::Memory`]; the run isn't announced then.
    pub fn run_started(&self, info: RunInfo, names_at: &Path) -> Result<(), ServeError> {
        let slots = u64::from(self.0.parts.names_per_run.min(names::MAX_NAMES));
        let memory = memory::kept(names_at, slots * names::SLOT as u64)
            .map_err(|source| ServeError::Memory { what: "names", source })?;
        let names = Arc::new(memory);
        let packet = Packet::new(&ToGateway::RunStarted(info.clone()), vec![Arc::clone(&names)])?;
        let mut state = self.state();
        state.runs.insert(info.id.clone(), Announced { info, names });
        state.send(packet);
        Ok(())
    }

    /// Tells a connected gateway of the tools and providers as configured now.
    ///
    /// # Errors
    /// [`ServeError::Message`] if they don't fit a packet, which a checked config rules out.
    pub fn set_tools(&self) -> Result<(), ServeError> {
        let (tools, providers) = (self.tools()?, self.providers()?);
        let state = self.state();
        state.send(tools);
        state.send(providers);
        Ok(())
    }

    /// Has budgets as configured now in force: in the ledger, and in a connected gateway.
    ///
    /// # Errors
    /// [`ServeError::Message`] if they don't fit a packet, which a checked config rules out.
    pub async fn set_budgets(&self) -> Result<(), ServeError> {
        self.0.parts.log.set_budgets((self.0.parts.budgets)()).await;
        let packet = self.budgets()?;
        self.state().send(packet);
        Ok(())
    }

    fn budgets(&self) -> Result<Packet, LinkError> {
        Packet::new(&ToGateway::Budgets((self.0.parts.budgets)().into_iter().collect()), Vec::new())
    }

    /// Sets an agent's total use back, on record. `false` if the agent has never used anything.
    ///
    /// # Errors
    /// [`Unrecorded`] if it can't be put on record: nothing has changed then.
    pub async fn reset_budget(&self, agent: AgentName, by: String) -> Result<bool, Unrecorded> {
        let log = &self.0.parts.log;
        let told = log.reset_budget(agent, by).await?;
        {
            let mut state = self.state();
            state.resets += 1;
            if let Some(told) = &told
                && let Ok(packet) = Packet::new(&ToGateway::AgentUse(told.clone()), Vec::new())
            {
                state.send(packet);
            }
        }
        if let Err(error) = log.save_ledger().await {
            tracing::warn!(%error, "the ledger of model use can't be saved: it will be tried again");
        }
        Ok(told.is_some())
    }

    fn tools(&self) -> Result<Packet, LinkError> {
        Packet::new(&ToGateway::Tools(Box::new((self.0.parts.tools)())), Vec::new())
    }

    fn providers(&self) -> Result<Packet, LinkError> {
        Packet::new(&ToGateway::Providers(Box::new((self.0.parts.providers)())), Vec::new())
    }

    /// Tells the gateway that a run is over: it closes the run's connections and writes their last records, for
    /// which the run's chain stays open a little ([`Log::close_run`]).
    ///
    /// The answer comes when the records that the gateway had made by then are in the log, or won't be soon.
    pub fn run_ended(&self, id: &RunId) -> impl Future<Output = ()> + use<> {
        let (closed, answer) = oneshot::channel();
        {
            let mut state = self.state();
            state.runs.remove(id);
            // Under the lock: nothing is asked for this run afterwards.
            self.0.parts.approvals.run_ended(id);
            if state.outbox.is_some()
                && let Ok(packet) = Packet::new(&ToGateway::RunEnded(id.clone()), Vec::new())
            {
                state.send(packet);
                state.closing.insert(id.clone(), closed);
            }
        }
        async move {
            let _ = tokio::time::timeout(CLOSED_WITHIN, answer).await;
        }
    }

    /// The gateway has sent what it had recorded for a run that is over.
    fn run_closed(&self, id: &RunId) {
        if let Some(closed) = self.state().closing.remove(id) {
            let _ = closed.send(());
        }
    }

    /// Makes policies live: hands them to the gateway, waits until it has compiled them, and has their digest
    /// written into records from then on.
    ///
    /// # Errors
    /// See [`NotApplied`]; the last good policies stay.
    pub async fn set_policy(&self, files: &[PolicyFile], digest: String) -> Result<Applied, NotApplied> {
        self.set_policy_within(files, digest, COMPILE_WITHIN).await
    }

    async fn set_policy_within(
        &self,
        files: &[PolicyFile],
        digest: String,
        patience: Duration,
    ) -> Result<Applied, NotApplied> {
        let text = postcard::to_stdvec(files).map_err(LinkError::Malformed).map_err(ServeError::Message)?;
        let text = memory::sealed("policies", &text)
            .map_err(|source| ServeError::Memory { what: "policies", source })?;
        let (outcome, answer) = oneshot::channel();
        let (policy, connected) = {
            let mut state = self.state();
            state.epoch += 1;
            let policy = Policy { epoch: state.epoch, digest, text: Arc::new(text) };
            let connected = state.outbox.is_some();
            if connected {
                state.send(policy.packet().map_err(ServeError::Message)?);
                state.candidate = Some(Candidate { policy: policy.clone(), outcome });
            }
            (policy, connected)
        };
        let epoch = policy.epoch;
        if !connected {
            return Ok(self.adopt(policy, Applied::AtNextStart { epoch }).await);
        }
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(Ok(()))) => Ok(self.adopt(policy, Applied::Live { epoch }).await),
            Ok(Ok(Err(why))) => Err(NotApplied::Refused(why)),
            // The gateway went away before it answered: the next one starts with these.
            Ok(Err(_)) => Ok(self.adopt(policy, Applied::AtNextStart { epoch }).await),
            Err(_) => {
                self.take_back(epoch);
                Err(NotApplied::Late)
            }
        }
    }

    /// Has the gateway go back to the last good policies once it has compiled those it was too late with: else it would
    /// decide by a set that nobody was told of, while records name another.
    fn take_back(&self, late: u64) {
        let mut state = self.state();
        if state.candidate.as_ref().is_some_and(|candidate| candidate.policy.epoch == late) {
            state.candidate = None;
        }
        state.epoch += 1;
        let epoch = state.epoch;
        let Some(good) = &mut state.policy else { return };
        good.epoch = epoch;
        match good.packet() {
            Ok(packet) => state.send(packet),
            Err(error) => tracing::error!(%error, "the last good policies can't be handed over again"),
        }
    }

    async fn adopt(&self, policy: Policy, applied: Applied) -> Applied {
        self.0.parts.log.set_policy(policy.digest.clone()).await;
        let mut state = self.state();
        if state.policy.as_ref().is_none_or(|current| current.epoch < policy.epoch) {
            // A gateway that came while these were on their way hasn't got them.
            let missed = matches!(applied, Applied::AtNextStart { .. });
            if missed && let Ok(packet) = policy.packet() {
                state.send(packet);
            }
            state.policy = Some(policy);
        }
        applied
    }

    /// Whether a gateway is connected.
    pub fn gateway_alive(&self) -> bool {
        self.0.gateway.borrow().is_some()
    }

    /// Process id of the connected gateway, and its changes.
    pub fn gateway(&self) -> watch::Receiver<Option<u32>> {
        self.0.gateway.subscribe()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn send(&self, packet: Packet) {
        if let Some((_, outbox)) = &self.outbox {
            // A closed outbox belongs to a link that is going down; the next one gets everything.
            let _ = outbox.send(packet);
        }
    }
}

impl Policy {
    fn packet(&self) -> Result<Packet, LinkError> {
        let message = ToGateway::Policy { epoch: self.epoch, digest: self.digest.clone() };
        // A reader of a shared descriptor would start where the last one stopped.
        let text = memory::reopened(&self.text)?;
        Packet::new(&message, vec![Arc::new(text)])
    }
}

#[cfg(test)]
mod tests;
