//! Start of a run.
//!
//! Nothing of the command runs before the gate is proven and the start is on record, and nothing else waits for
//! either: the runtime builds the container beside it, whose init waits for its word.
//!
//! ```text
//! name, address → record, synced ──────────────────────────────┐
//!               → cgroup, netns ┬→ veth, gate, known on disk ──┴→ announcement → self-test ─┬→ word → command
//!               → folder, bundle┴→ container, its init waiting ─────────────────────────────┘
//! ```
//!
//! Whatever fails is taken down by [`super::finish`], once nothing builds any more.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
};

use strait_contract::{
    exposure::Exposed,
    ids::{AgentName, RunId},
    message::GATEWAY_PORT,
    run::{Range, RunInfo},
};
use tokio::task::{JoinHandle, spawn_blocking};

use super::{
    Runs,
    console::Console,
    exposure,
    folder::Folder,
    live::Live,
    mounts::{self, Admitted, Purpose},
    order::{Order, StartError, Started},
    pool, prepare,
    shim::{self, Created},
    token::Token,
};
use crate::{
    config::AgentConfig,
    gate::{Admission, Quota},
    log::RunMeta,
    netns::{self, RunNetns, Veth},
    selftest::{self, SelfTestError},
};

/// Agent of a run for which none was named and whose program isn't one that is configured.
const DEFAULT_AGENT: &str = "default";

/// Names and numbers of a run to be.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) id: RunId,
    number: u64,
    addr: Ipv4Addr,
    veth_index: u32,
    pub(super) agent: AgentName,
    pub(super) token: Token,
}

/// A run being made, as its parallel branches see it.
#[derive(Clone, Debug)]
struct Making {
    identity: Identity,
    info: RunInfo,
    order: Arc<Order>,
    workspace: Option<PathBuf>,
    folder: Folder,
}

impl Runs {
    /// Starts a run with `stdio`: stdin, stdout and stderr, which have been checked ([`crate::launch::stdio`]).
    ///
    /// # Errors
    /// [`StartError`]; nothing of the run is left then.
    pub async fn start(self: &Arc<Self>, order: Order, stdio: [OwnedFd; 3]) -> Result<Started, StartError> {
        let instance = &self.parts.instance;
        let agent = self.agent_of(&order)?;
        let config = Arc::clone(&self.parts.config.borrow());
        let profile = config.agent(&agent);
        let exposed = match profile.expose.is_empty() {
            true => Vec::new(),
            // A value's source answers when it likes.
            false => {
                let profile = profile.clone();
                spawn_blocking(move || exposure::make(&config, &profile)).await??
            }
        };
        let mut order = order;
        let (offers, account) = (std::mem::take(&mut order.mounts), order.account.clone());
        let own = instance.clone();
        // What is offered may lie on a file system that answers when its owner likes.
        let admit = move || offers.into_iter().map(|offer| mounts::admit(offer, &account, &own)).collect();
        let admitted: Result<Vec<Admitted>, mounts::MountRefused> = spawn_blocking(admit).await?;
        let admitted = admitted?;
        let identity = self.identity(agent)?;
        let id = identity.id.clone();
        let (addr, index) = (identity.addr, identity.veth_index);
        match self.build(identity, (order, stdio), (profile, exposed), admitted).await {
            Ok(started) => Ok(started),
            Err(error) => {
                self.dismantle(&id, addr, index).await;
                Err(error)
            }
        }
    }

    /// The agent that a run is: the one named; else the configured one of the program's name; else the default. Where
    /// agents are configured, one of those or the default must be named.
    fn agent_of(&self, order: &Order) -> Result<AgentName, StartError> {
        if let Some(agent) = &order.agent {
            let config = self.parts.config.borrow();
            let known = &config.agents;
            if known.is_empty() || known.contains_key(agent) || agent.as_str() == DEFAULT_AGENT {
                return Ok(agent.clone());
            }
            let names: BTreeSet<&str> = known.keys().map(AgentName::as_str).chain([DEFAULT_AGENT]).collect();
            let names: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
            return Err(StartError::UnknownAgent { agent: agent.clone(), known: names.join(", ") });
        }
        let program = order.argv.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
        match program.parse::<AgentName>() {
            Ok(name) if self.parts.config.borrow().agents.contains_key(&name) => Ok(name),
            _ => Ok(DEFAULT_AGENT.parse()?),
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
        let token = Token::fresh().map_err(pool::NameError::Random)?;
        Ok(Identity { id, number: state.pool.number(), addr, veth_index, agent, token })
    }

    async fn build(
        self: &Arc<Self>,
        identity: Identity,
        (order, stdio): (Order, [OwnedFd; 3]),
        (profile, exposed): (AgentConfig, Vec<Exposed>),
        admitted: Vec<Admitted>,
    ) -> Result<Started, StartError> {
        let workspace =
            admitted.iter().find(|mount| mount.purpose == Purpose::Workspace).map(|mount| mount.path.clone());
        let making = Making {
            info: RunInfo { exposed, ..info_of(&identity, &order, &profile) },
            folder: Folder::of(&self.parts.instance, identity.id.as_str()),
            order: Arc::new(order),
            identity,
            workspace,
        };
        let recorded = {
            let (runs, making) = (Arc::clone(self), making.clone());
            tokio::spawn(async move { runs.record_start(&making).await })
        };
        let placed = {
            let (runs, id) = (Arc::clone(self), making.identity.id.clone());
            spawn_blocking(move || runs.place(&id))
        };
        let bundled = {
            let (runs, making) = (Arc::clone(self), making.clone());
            spawn_blocking(move || {
                let cwd = making.order.cwd.clone().or_else(|| making.workspace.clone());
                let exposed = &making.info.exposed;
                runs.bundle_run(&making.identity, &making.order, &profile, exposed, &admitted, cwd)
            })
        };
        // All are waited for, here and below: taking down must not race with building up.
        let (placed, bundled) = tokio::join!(placed, bundled);
        match (placed?, bundled?) {
            (Ok(netns), Ok(_)) => self.enclose(making, stdio, netns, recorded).await,
            (Err(error), _) | (_, Err(error)) => {
                let _ = recorded.await;
                Err(error)
            }
        }
    }

    /// The gate on one side, the container on the other.
    async fn enclose(
        self: &Arc<Self>,
        making: Making,
        stdio: [OwnedFd; 3],
        netns: RunNetns,
        recorded: JoinHandle<Result<(), StartError>>,
    ) -> Result<Started, StartError> {
        let Making { order, folder, identity: Identity { id, .. }, .. } = making.clone();
        let guarding = self.guard(making, netns, recorded);
        let (guarded, contained) = tokio::join!(guarding, self.contain(&id, &order, stdio, &folder));
        let (live, (created, master)) = match (guarded, contained) {
            (Ok(live), Ok(contained)) => (live, contained),
            (Err(error), Ok((created, _))) => {
                created.abandon().await;
                return Err(error);
            }
            (_, Err(error)) => return Err(error),
        };
        self.let_go(live, created, master).await
    }

    /// The record of the start.
    async fn record_start(&self, making: &Making) -> Result<(), StartError> {
        let Making { info, order, workspace, .. } = making;
        let (agent, version) = (info.agent.clone(), info.version.clone());
        self.parts.log.open_run(RunMeta { id: info.id.clone(), agent, version }).await?;
        let mut facts = vec![
            ("user", order.account.name.clone()),
            ("uid", order.account.uid.to_string()),
            ("addr", info.addr.to_string()),
            ("workspace", workspace.as_ref().map(|path| path.display().to_string()).unwrap_or_default()),
        ];
        if !info.exposed.is_empty() {
            facts.push(("exposed", exposure::told(&info.exposed)));
        }
        let recorded = self.parts.log.event(Some(info.id.clone()), "run.started", &facts).await;
        recorded.map_err(StartError::Unrecorded)
    }

    /// cgroup and netns, which the container needs.
    fn place(&self, id: &RunId) -> Result<RunNetns, StartError> {
        let instance = &self.parts.instance;
        self.hierarchies.create(instance, id.as_str())?;
        Ok(netns::create_run(instance, id)?)
    }

    /// Closes the run in, proves it, and has it known on disk: an agent that dies from there on finds the rest by that
    /// file.
    async fn guard(
        self: &Arc<Self>,
        making: Making,
        netns: RunNetns,
        recorded: JoinHandle<Result<(), StartError>>,
    ) -> Result<Live, StartError> {
        let gated = {
            let (runs, making) = (Arc::clone(self), making.clone());
            spawn_blocking(move || {
                let veth = runs.gate_run(&making.identity, &netns, making.info.addresses.clone())?;
                let live = prepare::live_of(
                    &making.info,
                    &making.order,
                    making.workspace,
                    &netns,
                    &veth,
                    making.identity.veth_index,
                )
                .map_err(StartError::Live)?;
                live.write(&runs.parts.instance).map_err(StartError::Live)?;
                Ok::<_, StartError>(live)
            })
        };
        let Making { info, folder, .. } = making;
        let (gated, recorded) = tokio::join!(gated, recorded);
        let live = gated??;
        recorded??;
        self.parts.link.run_started(info, &folder.names())?;
        self.prove(&live.id).await?;
        Ok(live)
    }

    /// veth and gate. Packets pass, as far as the gate lets them, when this returns.
    fn gate_run(
        &self,
        identity: &Identity,
        netns: &RunNetns,
        ranges: Vec<Range>,
    ) -> Result<Veth, StartError> {
        let parts = &self.parts;
        let veth = netns::plumb(&parts.instance, netns, identity.addr, identity.veth_index)?;
        parts.gate.admit(&Admission {
            run: identity.id.clone(),
            number: identity.number,
            netns_cookie: netns.cookie,
            veth: veth.clone(),
            ranges,
            cgroup: self.hierarchies.of(&parts.instance, identity.id.as_str()).path().to_owned(),
            transparent: true,
            quota: Quota::default(),
        })?;
        netns::raise(&parts.instance, netns, &veth)?;
        Ok(veth)
    }

    /// Tries to leak from the run's place before its command lives, and to reach the gateway if there is one.
    async fn prove(&self, id: &RunId) -> Result<(), SelfTestError> {
        let parts = &self.parts;
        let gateway = SocketAddrV4::new(parts.instance.gateway(), GATEWAY_PORT);
        let gateway = parts.link.gateway_alive().then_some(gateway);
        selftest::prove(&parts.gate, &parts.witness, id, gateway).await
    }

    /// The container, and its terminal's master.
    async fn contain(
        &self,
        run: &RunId,
        order: &Order,
        stdio: [OwnedFd; 3],
        folder: &Folder,
    ) -> Result<(Created, Option<OwnedFd>), StartError> {
        let instance = &self.parts.instance;
        let console = match order.terminal {
            Some(_) => Some(Console::listen(&folder.console_socket()).map_err(StartError::Terminal)?),
            None => None,
        };
        let shims = self.hierarchies.shims(instance)?;
        let container = self.container(run);
        let (tool, root) = (instance.lib_dir.join("strait-tool"), instance.run_dir.join("runc"));
        let create = shim::create(shim::Start {
            tool: &tool,
            runc: &self.parts.runc,
            root: &root,
            id: &container,
            folder,
            cgroup: &shims,
            terminal: order.terminal.is_some(),
            stdio,
        });
        let Some(console) = console else { return Ok((create.await?, None)) };
        // A runtime that fails sends no terminal: the shim's failure must not wait for one.
        let master = tokio::spawn(console.master());
        match create.await {
            Ok(created) => Ok((created, Some(master.await?.map_err(StartError::Terminal)?))),
            Err(error) => {
                master.abort();
                Err(error.into())
            }
        }
    }

    /// Gives the word: from here on the command runs.
    async fn let_go(
        self: &Arc<Self>,
        mut live: Live,
        created: Created,
        master: Option<OwnedFd>,
    ) -> Result<Started, StartError> {
        live.init = Some(created.init);
        live.shim = Some(created.shim);
        if let Err(error) = live.write(&self.parts.instance) {
            created.abandon().await;
            return Err(StartError::Live(error));
        }
        let running = created.start().await?;
        let run = self.register(live)?;
        let (runs, watched) = (Arc::clone(self), Arc::clone(&run));
        tokio::spawn(async move {
            match running.exited().await {
                Ok((exit, leaving)) => runs.finish(&watched, Some(exit), leaving.deleted()).await,
                Err(error) => {
                    tracing::warn!(run = %watched.id(), %error, "a run's shim was lost");
                    runs.finish(&watched, None, async {}).await;
                }
            }
        });
        Ok(Started { run, master })
    }
}

fn info_of(identity: &Identity, order: &Order, profile: &AgentConfig) -> RunInfo {
    RunInfo {
        id: identity.id.clone(),
        number: identity.number,
        addr: identity.addr,
        agent: identity.agent.clone(),
        version: profile.version.clone(),
        started_by: order.account.name.clone(),
        labels: profile.labels.clone(),
        addresses: profile.addresses.clone(),
        token: identity.token.hash(),
        exposed: Vec::new(),
    }
}
