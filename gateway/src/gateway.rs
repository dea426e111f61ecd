//! What all connections of the gateway share.

use std::{
    collections::HashSet,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    os::fd::BorrowedFd,
    sync::Arc,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use strait_contract::{
    flow::Flow,
    message::{Limits, Setup},
};
use strait_policies::Snapshot;
use tokio::sync::watch;

use crate::{
    budget::Budgets,
    forward::dial::Dialer,
    hold::Desk,
    link::WhoIs,
    protocol::{
        mcp::{drift::Drift, seen::Seen},
        tls::leaf::Minter,
    },
    providers::Providers,
    record::{Queue, Recorder},
    runs::Runs,
    tools::{Tools, ToolsError},
    url::{Host, NameError, Names},
};

/// Reads the kernel's account of an accepted connection; `None` if there is none. Production asks
/// `getsockopt(2)`; tests, which have no kernel programs, answer from a table.
#[derive(Clone)]
pub struct FlowSource(Arc<ReadFlow>);

type ReadFlow = dyn Fn(BorrowedFd<'_>, SocketAddr) -> Option<Flow> + Send + Sync;

impl FlowSource {
    /// Asks the kernel.
    pub fn kernel() -> Self {
        Self::new(|socket, _| strait_contract::flow::of(socket))
    }

    /// Asks `source` with the accepted socket and its peer.
    pub fn new(source: impl Fn(BorrowedFd<'_>, SocketAddr) -> Option<Flow> + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// The flow of an accepted connection.
    pub fn of(&self, socket: BorrowedFd<'_>, peer: SocketAddr) -> Option<Flow> {
        (self.0)(socket, peer)
    }
}

impl fmt::Debug for FlowSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowSource")
    }
}

/// Shared state; every part can be read without a lock.
#[derive(Debug)]
pub struct Gateway {
    /// Live runs.
    pub runs: Runs,
    /// Model use of agents.
    pub budgets: Budgets,
    /// Where records go.
    pub recorder: Arc<Recorder>,
    /// The policies in force.
    pub policy: ArcSwap<Snapshot>,
    /// Asks the agent who is behind a process id.
    pub whois: WhoIs,
    /// Asks people, by way of the agent.
    pub desk: Desk,
    /// Where flows come from.
    pub flows: FlowSource,
    /// Tools that aren't what was pinned.
    pub drift: Drift,
    /// What MCP servers last said their tools are.
    pub seen: Seen,
    /// Told when policies have come into force: what runs are shown may have changed.
    pub(crate) reloaded: watch::Sender<()>,
    settings: ArcSwapOption<Settings>,
    tools: ArcSwap<Tools>,
    providers: ArcSwap<Providers>,
}

/// What the agent has set up. A new agent brings new ones; calls under way keep theirs.
#[derive(Debug)]
pub struct Settings {
    /// Address of the gateway in the `strait` netns.
    pub gateway: Ipv4Addr,
    /// Limits.
    pub limits: Limits,
    /// Hosts whose TLS is not intercepted.
    pub passthrough: HashSet<Host>,
    /// Hosts that may speak DNS over HTTPS.
    pub doh: HashSet<Host>,
    /// Names that are good although reserved or of one label: those of `hosts`.
    pub names: Names,
    /// The dialling side.
    pub dialer: Dialer,
    /// Certificates for intercepted TLS.
    pub leaves: Minter,
}

/// Why the agent's settings can't be put in force.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The dialling side.
    #[error(transparent)]
    Dialer(#[from] crate::forward::dial::SetupError),
    /// A name in `hosts`, `passthrough` or `doh`.
    #[error(transparent)]
    Names(#[from] NameError),
    /// The intermediate.
    #[error(transparent)]
    Leaves(#[from] crate::protocol::tls::leaf::LeafError),
}

impl Settings {
    /// Makes the parts that the setup describes.
    ///
    /// # Errors
    /// [`SettingsError`] if a certificate, key or anchor can't be used.
    pub fn new(setup: Setup) -> Result<Self, SettingsError> {
        let dialer = Dialer::new(&setup)?;
        let leaves = Minter::new(&setup.ca)?;
        let names = Names::new(setup.hosts.iter().map(|(name, _)| name.as_str()))?;
        Ok(Self {
            gateway: setup.gateway,
            limits: setup.limits,
            passthrough: hosts(&setup.passthrough, &names)?,
            doh: hosts(&setup.doh, &names)?,
            names,
            dialer,
            leaves,
        })
    }
}

/// Hosts in their canonical spelling, so that any other spelling of them counts too (case 42).
fn hosts(listed: &[String], names: &Names) -> Result<HashSet<Host>, NameError> {
    listed.iter().map(|host| Host::parse_with(host, names)).collect()
}

impl Gateway {
    /// A gateway that knows nothing yet and refuses everything, and the queue that its link is to empty.
    pub fn new(flows: FlowSource) -> (Arc<Self>, Queue, crate::link::Questions) {
        let (recorder, queue) = Recorder::new();
        let (desk, held) = Desk::new();
        let (whois, questions) = WhoIs::new(held);
        let gateway = Self {
            runs: Runs::default(),
            budgets: Budgets::default(),
            recorder: Arc::new(recorder),
            policy: ArcSwap::from_pointee(Snapshot::empty()),
            whois,
            desk,
            flows,
            drift: Drift::default(),
            seen: Seen::default(),
            reloaded: watch::Sender::new(()),
            settings: ArcSwapOption::empty(),
            tools: ArcSwap::default(),
            providers: ArcSwap::default(),
        };
        (Arc::new(gateway), queue, questions)
    }

    /// The settings in force; `None` before the first agent has come.
    pub fn settings(&self) -> Option<Arc<Settings>> {
        self.settings.load_full()
    }

    /// The tools in force.
    pub fn tools(&self) -> Arc<Tools> {
        self.tools.load_full()
    }

    /// Puts tools in force; what was kept of their credentials is dropped.
    ///
    /// # Errors
    /// [`ToolsError`]: the tools in force stay.
    pub fn set_tools(&self, told: strait_contract::tool::Tools) -> Result<(), ToolsError> {
        let settings = self.settings().ok_or(ToolsError::Early)?;
        self.tools.store(Arc::new(Tools::new(told, &settings.names)?));
        for exposure in self.runs.all().iter().filter_map(|run| run.exposure.as_ref()) {
            exposure.forget();
        }
        Ok(())
    }

    /// The providers of models in force.
    pub fn providers(&self) -> Arc<Providers> {
        self.providers.load_full()
    }

    /// Puts providers of models in force; what was kept of their credentials is dropped.
    ///
    /// # Errors
    /// [`ToolsError`]: the providers in force stay.
    pub fn set_providers(&self, told: strait_contract::provider::Providers) -> Result<(), ToolsError> {
        let settings = self.settings().ok_or(ToolsError::Early)?;
        self.providers.store(Arc::new(Providers::new(told, &settings.names)?));
        Ok(())
    }

    /// Puts settings in force.
    pub fn set_up(&self, settings: Settings) {
        self.settings.store(Some(Arc::new(settings)));
    }
}
