//! The runs that the agent has announced, found by address and by id.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    os::fd::OwnedFd,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use strait_contract::{ids::RunId, message::Limits, run::RunInfo, token::TokenHash};
use tokio::sync::{Semaphore, watch};

use crate::{
    budget::RunUsed,
    exposure::Exposure,
    forward::pool::Pool,
    names::Names,
    protocol::{
        http::body::{model_room, room},
        mcp::session::Sessions,
    },
};

/// A live run, shared by all of its connections.
#[derive(Debug)]
pub struct Run {
    /// What the agent said about it.
    pub info: RunInfo,
    /// Its synthetic names.
    pub names: Names,
    /// Its upstream connections: never shared with another run, whose rights may differ.
    pub(crate) pool: Pool,
    /// What it was shown of credentials, if anything.
    pub(crate) exposure: Option<Arc<Exposure>>,
    /// Room for the bodies of its held calls.
    pub(crate) held_bytes: Arc<Semaphore>,
    /// Room for the bodies of its model calls.
    pub(crate) model_bytes: Arc<Semaphore>,
    /// Its sessions with MCP servers.
    pub(crate) mcp: Sessions,
    /// Its use of models.
    pub models: Arc<RunUsed>,
    connections: AtomicU32,
    /// Unix time, seconds, of the last workload token of another run that it presented and the agent was told of.
    misused: AtomicU64,
    /// The session of the link in which it was announced last.
    session: AtomicU64,
    ended: watch::Sender<bool>,
}

impl Run {
    /// A run that has just been announced.
    pub fn new(info: RunInfo, names: Names) -> Self {
        let (ended, _) = watch::channel(false);
        Self {
            exposure: Exposure::new(&info.exposed),
            info,
            names,
            pool: Pool::default(),
            held_bytes: room(),
            model_bytes: model_room(),
            mcp: Sessions::default(),
            models: Arc::default(),
            connections: AtomicU32::new(0),
            misused: AtomicU64::new(0),
            session: AtomicU64::new(0),
            ended,
        }
    }

    /// Counts one more connection in; `None` if the run has used its quota up.
    pub fn admit(self: &Arc<Self>, limits: &Limits) -> Option<Admission> {
        let admitted = self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < limits.connections_per_run).then(|| open.saturating_add(1))
        });
        admitted.ok().map(|_| Admission { run: Arc::clone(self) })
    }

    /// Whether the agent is to be told that this run presented another's token: once a second, so that a run that does
    /// nothing else leaves room for the questions of others.
    pub(crate) fn tells_misuse(&self, second: u64) -> bool {
        self.misused.swap(second, Ordering::Relaxed) != second
    }

    /// Open connections now.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Resolves when the run is over.
    pub async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // An error means that the sender is gone, and with it the run.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    fn end(&self) {
        self.ended.send_replace(true);
        self.pool.close();
    }
}

/// One connection's place in its run's quota, given back on drop.
#[derive(Debug)]
pub struct Admission {
    run: Arc<Run>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.run.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All live runs.
///
/// One lock, held for a look-up or one change: a start costs the same however many runs there are, which a table that
/// is copied for each change would not give.
#[derive(Debug, Default)]
pub struct Runs(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    by_addr: HashMap<Ipv4Addr, Arc<Run>>,
    by_id: HashMap<RunId, Ipv4Addr>,
    by_token: HashMap<TokenHash, Ipv4Addr>,
}

impl Runs {
    /// The run with this address.
    pub fn by_addr(&self, addr: Ipv4Addr) -> Option<Arc<Run>> {
        self.read().by_addr.get(&addr).map(Arc::clone)
    }

    /// The run with this id.
    pub fn by_id(&self, id: &RunId) -> Option<Arc<Run>> {
        let table = self.read();
        table.by_id.get(id).and_then(|addr| table.by_addr.get(addr)).map(Arc::clone)
    }

    /// The run whose workload token has this hash.
    pub fn by_token(&self, hash: &TokenHash) -> Option<Arc<Run>> {
        let table = self.read();
        table.by_token.get(hash).and_then(|addr| table.by_addr.get(addr)).map(Arc::clone)
    }

    /// Every live run, in no order.
    pub fn all(&self) -> Vec<Arc<Run>> {
        self.read().by_addr.values().map(Arc::clone).collect()
    }

    /// Takes a run in. Announced again after the agent came back, it stays the run it was, with its names and
    /// connections; another run that held the address is over. The link alone calls this, one announcement at a time.
    pub fn started(
        &self,
        info: RunInfo,
        names: OwnedFd,
        limits: &Limits,
        session: u64,
    ) -> Result<Arc<Run>, crate::names::NamesError> {
        if let Some(known) = self.by_addr(info.addr) {
            if known.info == info {
                known.session.store(session, Ordering::Relaxed);
                return Ok(known);
            }
            self.remove(&known);
        }
        // Outside the lock: it reads the names from a file.
        let run = Arc::new(Run::new(info, Names::open(names, limits.names_per_run)?));
        run.session.store(session, Ordering::Relaxed);
        let mut table = self.write();
        table.by_id.insert(run.info.id.clone(), run.info.addr);
        table.by_token.insert(run.info.token, run.info.addr);
        table.by_addr.insert(run.info.addr, Arc::clone(&run));
        Ok(run)
    }

    /// Drops a run: its connections see [`Run::ended`].
    pub fn ended(&self, id: &RunId) {
        if let Some(run) = self.by_id(id) {
            self.remove(&run);
        }
    }

    /// Drops the runs that an agent, back since a while, has not announced: they ended while it was away.
    pub fn forget_before(&self, session: u64) {
        for run in self.all() {
            if run.session.load(Ordering::Relaxed) < session {
                tracing::warn!(run = %run.info.id, "a run ended while the agent was away");
                self.remove(&run);
            }
        }
    }

    fn remove(&self, run: &Arc<Run>) {
        {
            let mut table = self.write();
            table.by_id.remove(&run.info.id);
            table.by_token.remove(&run.info.token);
            table.by_addr.remove(&run.info.addr);
        }
        run.end();
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        // Every change under this lock is complete in itself.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
