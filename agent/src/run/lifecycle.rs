//! Start and end of a run, in the only order that is safe.
//!
//! Start: name, address → (cgroup, netns, gate) beside (folder, mounts, bundle) → record, synced → announcement →
//! self-test → known on disk → container created → container started. End: processes → gate → veth → netns →
//! announcement → record → cgroup → folder → address. Whatever fails on the way up is taken down the same way, and
//! every step down is a no-op for what was never made.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use strait_contract::{
    ids::{AgentName, BadName, RunId},
    message::GATEWAY_PORT,
    record::Unrecorded,
    run::RunInfo,
};
use tokio::task::spawn_blocking;

use super::{
    Run, Runs,
    account::Account,
    bundle::{self, Bind, BundleError, Plan},
    cgroup::{CgroupError, RunCgroup},
    console::Console,
    environment,
    folder::{Folder, FolderError},
    live::{self, Live},
    mounts::{self, Admitted, MountRefused, Offered, Purpose},
    pool::{self, NameError},
    shim::{self, Exit, ShimError},
};
use crate::{
    config::AgentConfig,
    gate::{Admission, GateError, Quota},
    link::ServeError,
    log::{self, LogError, RunMeta},
    netns::{self, NetnsError, RunNetns, Veth},
    selftest::{self, SelfTestError},
};

/// Longest command line that lists show, bytes.
const COMMAND_SHOWN: usize = 200;
/// How long the end of a run waits for its last kernel events to be on record.
const LAST_EVENTS: Duration = Duration::from_secs(2);
/// Agent of a run for which none was named and whose program isn't one that is configured.
const DEFAULT_AGENT: &str = "default";

/// What a person asked for, as far as it has been checked.
#[derive(Debug)]
pub struct Order {
    /// Who, by the kernel's word.
    pub account: Account,
    /// Agent name, if one was given.
    pub agent: Option<AgentName>,
    /// Command and arguments, at least one.
    pub argv: Vec<String>,
    /// `--env` and what describes the terminal.
    pub env: Vec<(String, String)>,
    /// The caller's whole environment, from which the agent's configuration may pick.
    pub offered_env: Vec<(String, String)>,
    /// Current folder inside.
    pub cwd: Option<PathBuf>,
    /// Folders to search first.
    pub program_path: Vec<PathBuf>,
    /// Rows and columns.
    pub terminal: Option<(u16, u16)>,
    /// Mounts as offered.
    pub mounts: Vec<Offered>,
    /// stdin, stdout, stderr; checked ([`crate::launch::stdio`]).
    pub stdio: [OwnedFd; 3],
}

/// A run that has been started.
#[derive(Debug)]
pub struct Started {
    /// The run.
    pub run: Arc<Run>,
    /// Its terminal's master.
    pub master: Option<OwnedFd>,
}

/// Why a run was not started. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A mount isn't acceptable.
    #[error(transparent)]
    Mount(#[from] MountRefused),
    /// No name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The agent's name isn't one.
    #[error(transparent)]
    Agent(#[from] BadName),
    /// Too many runs.
    #[error("every address of the pool is in use: stop a run, or widen `network.pool`")]
    PoolEmpty,
    /// The cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The network namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The gate.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The gate is there but doesn't hold.
    #[error("the gate does not hold, so nothing was started: {0}; see `strait doctor`")]
    SelfTest(#[from] SelfTestError),
    /// The bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The run's folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The home.
    #[error("the private home `{path}` can't be made", path = path.display())]
    Home {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The record of the start could not be written: no record, no passage.
    #[error(
        "the start can't be recorded ({0}), so nothing was started: is the disk of the state folder full?"
    )]
    Unrecorded(Unrecorded),
    /// The run's log could not be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The gateway can't be told.
    #[error(transparent)]
    Link(#[from] ServeError),
    /// The shim or the runtime.
    #[error(transparent)]
    Shim(#[from] ShimError),
    /// What would be needed to find the run again can't be written.
    #[error("the state folder can't be written")]
    Live(#[source] io::Error),
    /// The terminal.
    #[error("the run's terminal can't be made")]
    Terminal(#[source] io::Error),
    /// A thread of ours failed.
    #[error("a fault inside Strait: {0}")]
    Internal(#[from] tokio::task::JoinError),
}

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

/// Names and numbers of a run to be.
#[derive(Clone, Debug)]
struct Identity {
    id: RunId,
    number: u64,
    addr: Ipv4Addr,
    veth_index: u32,
    agent: AgentName,
}

impl Runs {
    /// Starts a run.
    ///
    /// # Errors
    /// [`StartError`]; nothing of the run is left then.
    pub async fn start(self: &Arc<Self>, order: Order) -> Result<Started, StartError> {
        let instance = &self.parts.instance;
        let agent = self.agent_of(&order)?;
        let profile = self.parts.config.borrow().agent(&agent);
        let mut admitted = Vec::new();
        let mut order = order;
        for offer in std::mem::take(&mut order.mounts) {
            admitted.push(mounts::admit(offer, &order.account, instance)?);
        }
        let identity = self.identity(agent)?;
        let id = identity.id.clone();
        let (addr, index) = (identity.addr, identity.veth_index);
        match self.build(identity, order, profile, admitted).await {
            Ok(started) => Ok(started),
            Err(error) => {
                self.dismantle(&id, addr, index).await;
                Err(error)
            }
        }
    }

    /// The agent that a run is: the one named; else the configured one of the program's name; else the default.
    fn agent_of(&self, order: &Order) -> Result<AgentName, BadName> {
        if let Some(agent) = &order.agent {
            return Ok(agent.clone());
        }
        let program = order.argv.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
        match program.parse::<AgentName>() {
            Ok(name) if self.parts.config.borrow().agents.contains_key(&name) => Ok(name),
            _ => DEFAULT_AGENT.parse(),
        }
    }

    fn identity(&self, agent: AgentName) -> Result<Identity, StartError> {
        let instance = &self.parts.instance;
        let mut state = self.state();
        let id = loop {
            let id = pool::run_id(&agent)?;
            // Unique for ever: as long as there are records of a run its name isn't given again.
            if !state.runs.contains_key(&id) && !instance.run_records(id.as_str()).exists() {
                break id;
            }
        };
        let addr = state.pool.take().ok_or(StartError::PoolEmpty)?;
        let veth_index = u32::from(addr).wrapping_sub(u32::from(instance.pool.addr));
        Ok(Identity { id, number: state.pool.number(), addr, veth_index, agent })
    }

    async fn build(
        self: &Arc<Self>,
        identity: Identity,
        order: Order,
        profile: AgentConfig,
        admitted: Vec<Admitted>,
    ) -> Result<Started, StartError> {
        let workspace =
            admitted.iter().find(|mount| mount.purpose == Purpose::Workspace).map(|mount| mount.path.clone());
        let order = Arc::new(order);
        let gated = {
            let (runs, identity, ranges) = (Arc::clone(self), identity.clone(), profile.addresses.clone());
            spawn_blocking(move || runs.gate_run(&identity, ranges))
        };
        let bundled = {
            let (runs, identity, order, profile) =
                (Arc::clone(self), identity.clone(), Arc::clone(&order), profile.clone());
            let cwd = order.cwd.clone().or_else(|| workspace.clone());
            spawn_blocking(move || runs.bundle_run(&identity, &order, &profile, &admitted, cwd))
        };
        // Both are waited for: taking down must not race with building up.
        let (gated, bundled) = tokio::join!(gated, bundled);
        let (netns, veth) = gated??;
        let folder = bundled??;

        let info = RunInfo {
            id: identity.id.clone(),
            number: identity.number,
            addr: identity.addr,
            agent: identity.agent.clone(),
            version: profile.version.clone(),
            started_by: order.account.name.clone(),
            labels: profile.labels.clone(),
            addresses: profile.addresses.clone(),
        };
        let live = live_of(&info, &order, workspace, &netns, &veth, identity.veth_index)
            .map_err(StartError::Live)?;
        self.record_start(&live).await?;
        self.parts.link.run_started(info, &folder.names())?;
        self.prove(&live.id).await?;
        // Moved out: the copies of stdio must be the shim's alone, or their readers never see an end.
        let order = Arc::try_unwrap(order)
            .map_err(|_| StartError::Live(io::Error::other("the order is still in use")))?;
        self.launch(live, order, &folder).await
    }

    /// cgroup, netns, gate.
    fn gate_run(
        &self,
        identity: &Identity,
        ranges: Vec<strait_contract::run::Range>,
    ) -> Result<(RunNetns, Veth), StartError> {
        let parts = &self.parts;
        let group = self.hierarchies.create(&parts.instance, identity.id.as_str())?;
        let netns = netns::create_run(&parts.instance, &identity.id)?;
        let veth = netns::plumb(&parts.instance, &netns, identity.addr, identity.veth_index)?;
        parts.gate.admit(&Admission {
            run: identity.id.clone(),
            number: identity.number,
            netns_cookie: netns.cookie,
            veth: veth.clone(),
            ranges,
            cgroup: group.path().to_owned(),
            transparent: true,
            quota: Quota::default(),
        })?;
        netns::raise(&parts.instance, &netns, &veth)?;
        Ok((netns, veth))
    }

    /// Tries to leak from the run's place before anything of it lives, and to reach the gateway if there is one.
    async fn prove(&self, id: &RunId) -> Result<(), SelfTestError> {
        let parts = &self.parts;
        let gateway = SocketAddrV4::new(parts.instance.gateway(), GATEWAY_PORT);
        let gateway = parts.link.gateway_alive().then_some(gateway);
        selftest::prove(&parts.gate, &parts.witness, id, gateway).await
    }

    /// Folder, mounts, home, `config.json`.
    fn bundle_run(
        &self,
        identity: &Identity,
        order: &Order,
        profile: &AgentConfig,
        admitted: &[Admitted],
        cwd: Option<PathBuf>,
    ) -> Result<Folder, StartError> {
        let parts = &self.parts;
        let folder = Folder::of(&parts.instance, identity.id.as_str());
        folder.create()?;
        let mut binds = Vec::new();
        for (index, mount) in admitted.iter().enumerate() {
            binds.push(Bind::stage(&folder, index, mount)?);
        }
        let home = home_of(&parts.instance, &order.account, &identity.agent)?;
        let mut configured: Vec<(String, String)> =
            profile.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let picked = order.offered_env.iter().filter(|(name, _)| profile.pass_env.contains(name)).cloned();
        configured.extend(picked);
        let env = environment::variables(&environment::Sources {
            run: identity.id.as_str(),
            agent: identity.agent.as_str(),
            account: &order.account,
            trust: &parts.trust,
            program_path: &order.program_path,
            configured: &configured,
            asked: &order.env,
        });
        let plan = Plan {
            run: &identity.id,
            agent: &identity.agent,
            account: &order.account,
            argv: &order.argv,
            env,
            cwd: cwd.unwrap_or_else(|| order.account.home.clone()),
            terminal: order.terminal,
            gateway: parts.instance.gateway(),
            netns: parts.instance.run_netns(identity.id.as_str()),
            cgroup: RunCgroup::oci_path(&parts.instance, identity.id.as_str()),
            tool: parts.instance.lib_dir.join("strait-tool"),
            home,
            trust: &parts.trust,
            binds,
        };
        bundle::write(&folder, &plan)?;
        Ok(folder)
    }

    async fn record_start(&self, live: &Live) -> Result<(), StartError> {
        let agent = live.agent.parse()?;
        self.parts
            .log
            .open_run(RunMeta { id: live.id.clone(), agent, version: live.version.clone() })
            .await?;
        let facts = [
            ("user", live.user.clone()),
            ("uid", live.uid.to_string()),
            ("addr", live.addr.to_string()),
            ("workspace", live.workspace.as_ref().map(|path| path.display().to_string()).unwrap_or_default()),
        ];
        self.parts
            .log
            .event(Some(live.id.clone()), "run.started", &facts)
            .await
            .map_err(StartError::Unrecorded)
    }

    async fn launch(
        self: &Arc<Self>,
        mut live: Live,
        order: Order,
        folder: &Folder,
    ) -> Result<Started, StartError> {
        let instance = &self.parts.instance;
        let console = match order.terminal {
            Some(_) => Some(Console::listen(&folder.console_socket()).map_err(StartError::Terminal)?),
            None => None,
        };
        let shims = self.hierarchies.shims(instance)?;
        // Before anything of the run lives: an agent that dies here finds the rest by this file.
        live.write(instance).map_err(StartError::Live)?;
        let container = self.container(&live.id);
        let (tool, root) = (instance.lib_dir.join("strait-tool"), instance.run_dir.join("runc"));
        let create = shim::create(shim::Start {
            tool: &tool,
            runc: &self.parts.runc,
            root: &root,
            id: &container,
            folder,
            cgroup: &shims,
            terminal: order.terminal.is_some(),
            stdio: order.stdio,
        });
        let (created, master) = match console {
            Some(console) => {
                // A runtime that fails sends no terminal: the shim's failure must not wait for one.
                let master = tokio::spawn(console.master());
                let created = create.await;
                if created.is_err() {
                    master.abort();
                }
                (created?, Some(master.await?.map_err(StartError::Terminal)?))
            }
            None => (create.await?, None),
        };
        live.init = Some(created.init);
        live.shim = Some(created.shim);
        live.write(instance).map_err(StartError::Live)?;
        let running = created.start().await?;
        let run = self.register(live)?;
        let (runs, watched) = (Arc::clone(self), Arc::clone(&run));
        tokio::spawn(async move {
            let exit = running.ended().await;
            if let Err(error) = &exit {
                tracing::warn!(run = %watched.id(), %error, "a run's shim was lost");
            }
            runs.finish(&watched, exit.ok()).await;
        });
        Ok(Started { run, master })
    }

    /// Takes everything of a run down and writes its end.
    pub(super) async fn finish(self: &Arc<Self>, run: &Arc<Run>, exit: Option<Exit>) {
        let reason = run.reason(exit);
        let live = run.live();
        let stats = self.cut(&live.id, live.veth_index).await;
        let facts = [
            ("reason", reason.as_str().to_owned()),
            ("exitCode", exit.map(|exit| exit.exit_code.to_string()).unwrap_or_default()),
            (
                "by",
                match &reason {
                    Reason::Stopped { by } | Reason::Killed { by } => by.clone(),
                    _ => String::new(),
                },
            ),
            ("kernelEvents", stats.total.to_string()),
            ("kernelEventsLost", stats.lost.to_string()),
        ];
        if let Err(error) = self.parts.log.event(Some(live.id.clone()), "run.ended", &facts).await {
            tracing::error!(run = %live.id, %error, "a run's end could not be recorded");
        }
        if let Err(error) = Live::remove(&self.parts.instance, &live.id) {
            tracing::warn!(run = %live.id, %error, "a run's live file stays");
        }
        run.end(exit, reason);
        self.clear(&live.id, live.addr).await;
    }

    /// After a start that failed. The end is recorded if the start was.
    async fn dismantle(self: &Arc<Self>, id: &RunId, addr: Ipv4Addr, veth_index: u32) {
        self.cut(id, veth_index).await;
        // Refused if the run's chain was never opened, which is as it should be.
        let facts = [("reason", "failed".to_owned())];
        let _ = self.parts.log.event(Some(id.clone()), "run.ended", &facts).await;
        if let Err(error) = Live::remove(&self.parts.instance, id) {
            tracing::warn!(run = %id, %error, "a run's live file stays");
        }
        self.clear(id, addr).await;
    }

    /// Processes, witness, gate, veth, netns, announcement: after this nothing leaves. What the kernel has folded or
    /// still has in its ring is recorded while the gate knows whose it is.
    async fn cut(self: &Arc<Self>, id: &RunId, veth_index: u32) -> crate::gate::Stats {
        let (runs, run) = (Arc::clone(self), id.clone());
        let processes = spawn_blocking(move || {
            let group = runs.hierarchies.of(&runs.parts.instance, run.as_str());
            tell(&run, "its processes stay", group.remove());
        });
        // A panic there is on the console; the rest is taken down all the same.
        let _ = processes.await;
        // Bounded: while the log can't be written nothing is recorded, and the run must end all the same.
        let flushed = tokio::time::timeout(LAST_EVENTS, self.parts.witness.flush()).await;
        if !flushed.unwrap_or(false) {
            tracing::warn!(run = %id, "the run's last kernel events go to the host's chain");
        }
        let (runs, run) = (Arc::clone(self), id.clone());
        let cut = spawn_blocking(move || {
            let parts = &runs.parts;
            let stats = parts.gate.release(&run);
            tell(&run, "its veth stays", netns::unplumb(&parts.instance, veth_index));
            tell(&run, "its netns stays", netns::remove_run(&parts.instance, &run));
            tell(&run, "its folder stays", Folder::of(&parts.instance, run.as_str()).remove());
            match stats {
                Ok(stats) => stats,
                Err(error) => {
                    tracing::warn!(%run, %error, "a run's kernel objects stay");
                    crate::gate::Stats::default()
                }
            }
        });
        let stats = cut.await.unwrap_or_default();
        self.parts.link.run_ended(id);
        stats
    }

    /// The chain is closed when the gateway has had its time for last records; only then is the address free.
    async fn clear(self: &Arc<Self>, id: &RunId, addr: Ipv4Addr) {
        let (runs, id) = (Arc::clone(self), id.clone());
        tokio::spawn(async move {
            runs.parts.log.close_run(id.clone()).await;
            let mut state = runs.state();
            state.runs.remove(&id);
            state.pool.give_back(addr);
        });
    }
}

fn tell<E: std::fmt::Display>(run: &RunId, what: &'static str, done: Result<(), E>) {
    if let Err(error) = done {
        tracing::warn!(%run, %error, what, "a run was not taken down whole");
    }
}

fn live_of(
    info: &RunInfo,
    order: &Order,
    workspace: Option<PathBuf>,
    netns: &RunNetns,
    veth: &Veth,
    veth_index: u32,
) -> io::Result<Live> {
    let mut command = order.argv.join(" ");
    if command.len() > COMMAND_SHOWN {
        let end = (0..=COMMAND_SHOWN).rev().find(|end| command.is_char_boundary(*end)).unwrap_or(0);
        command.truncate(end);
        command.push('…');
    }
    Ok(Live {
        boot: live::boot_id()?,
        id: info.id.clone(),
        number: info.number,
        addr: info.addr,
        agent: info.agent.to_string(),
        version: info.version.clone(),
        labels: info.labels.clone(),
        addresses: info.addresses.iter().map(|range| (range.addr, range.prefix)).collect(),
        user: order.account.name.clone(),
        uid: order.account.uid,
        gid: order.account.gid,
        command: strait_contract::redact::redact_text(&command, COMMAND_SHOWN * 2),
        workspace,
        started_ms: log::now_ms(),
        netns_cookie: netns.cookie,
        veth_index,
        veth_ifindex: veth.ifindex,
        init: None,
        shim: None,
    })
}

/// The private home of a person for an agent; made at the first run, theirs.
fn home_of(
    instance: &crate::instance::Instance,
    account: &Account,
    agent: &AgentName,
) -> Result<PathBuf, StartError> {
    use std::os::unix::fs::{DirBuilderExt, chown};
    let path = instance.state_dir.join("homes").join(account.uid.to_string()).join(agent.as_str());
    let failed = |source| StartError::Home { path: path.clone(), source };
    if !path.exists() {
        if let Some(parent) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
        }
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        chown(&path, Some(account.uid), Some(account.gid)).map_err(failed)?;
    }
    Ok(path)
}
