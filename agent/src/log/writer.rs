//! The writer: owns every chain, appends each group of batches with one `write` per chain. Whoever has records to
//! append does it in its own thread, one at a time: a thread of the writer's own would cost two wake-ups a record.

use std::{
    collections::HashMap,
    fs, io,
    io::Write as _,
    num::NonZeroUsize,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Instant,
};

use lru::LruCache;
use strait_contract::{
    budget::AgentUse,
    ids::{AgentName, RunId},
    record::{Record, Unrecorded},
};
use tokio::sync::oneshot;

use crate::budget::{
    self, Ledger,
    snapshot::{self, Snapshot},
};

use super::{
    Append, LogError, Opened, Options, RunMeta,
    chain::{Chain, Mark, Taken, Written},
    event,
    key::HostKey,
    line::{self, Added, Clock},
    sync::{self, Reached, Waiter, Work},
    tally::Tally,
};

/// Opens the host's chain and starts the syncer, which ends once the writer is gone and everything is durable.
pub(super) fn start(options: Options) -> Result<(Writer, JoinHandle<()>), LogError> {
    let lock = lock(&options)?;
    let key = Arc::new(HostKey::load_or_make(&options.state_dir)?);
    let (work, to_sync) = mpsc::channel();
    let every = options.sync_every;
    let writer = Writer::new(options, Arc::clone(&key), work, lock)?;
    let syncer = thread::Builder::new()
        .name("log-sync".into())
        .spawn(move || sync::run(&to_sync, every, &key))
        .map_err(LogError::Thread)?;
    Ok((writer, syncer))
}

/// One writer per state folder, as long as the file is open.
fn lock(options: &Options) -> Result<fs::File, LogError> {
    let path = options.state_dir.join("log.lock");
    let fault = |source| LogError::File { path: path.clone(), source };
    fs::create_dir_all(&options.state_dir).map_err(fault)?;
    let mut open = fs::OpenOptions::new();
    let file = open.write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(fault)?;
    // Whoever may read it may lock it, and keep the agent from starting.
    file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(fault)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LogError::Locked(options.state_dir.clone())),
        Err(error) => Err(fault(error.into())),
    }
}

/// Every chain, and how each is written.
pub(super) struct Writer {
    options: Options,
    key: Arc<HostKey>,
    work: mpsc::Sender<Work>,
    _lock: fs::File,
    /// By run; `None` is the host's chain and always there.
    chains: HashMap<Option<RunId>, Chain>,
    files: LruCache<Option<RunId>, Arc<fs::File>>,
    clock: Clock,
    boot_id: String,
    policy: Option<String>,
    outage: Option<Outage>,
    tally: Tally,
    ledger: Ledger,
}

/// The log could not be written since then.
struct Outage {
    since: Instant,
    refused: u64,
}

/// Chains that a group has added to, with where they stood.
type Touched = Vec<(Option<RunId>, Mark)>;

impl Writer {
    fn new(
        options: Options,
        key: Arc<HostKey>,
        work: mpsc::Sender<Work>,
        lock: fs::File,
    ) -> Result<Self, LogError> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let (host, Taken { cut, .. }) = Chain::open(&options, None, &key.public())?;
        let ledger = budget::recover(&options.state_dir)
            .map_err(|source| LogError::File { path: options.state_dir.clone(), source })?;
        let files = NonZeroUsize::new(options.open_files).unwrap_or(NonZeroUsize::MIN);
        let mut writer = Self {
            options,
            key,
            work,
            _lock: lock,
            chains: HashMap::from([(None, host)]),
            files: LruCache::new(files),
            clock: Clock::default(),
            boot_id: boot.chars().take(8).collect(),
            policy: None,
            outage: None,
            tally: Tally::default(),
            ledger,
        };
        if cut > 0 {
            writer.note(event(None, "log.recovered", &[("cutBytes", cut.to_string())]));
        }
        Ok(writer)
    }

    /// Counts of what was written.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The ledger of model use.
    pub(super) fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// The ledger as it is to be on disk, if it has changed, and where.
    pub(super) fn changed_ledger(&mut self) -> Option<(Snapshot, PathBuf)> {
        let chains = &self.chains;
        let snapshot = self.ledger.snapshot(|run| chains.get(&run.cloned()).map(Chain::place))?;
        Some((snapshot, snapshot::path(&self.options.state_dir)))
    }

    /// Sets an agent's total back once that is on record.
    pub(super) fn reset_budget(
        &mut self,
        agent: &AgentName,
        by: String,
    ) -> Result<Option<AgentUse>, Unrecorded> {
        let Some(total) = self.ledger.total(agent) else { return Ok(None) };
        let facts = budget::reset_facts(agent, by, total);
        if !self.note(event(None, "budget.reset", &facts)) {
            return Err(Unrecorded::Log);
        }
        self.ledger.reset(agent);
        Ok(self.ledger.agent_use(agent))
    }

    /// The digest of the policies in force, for every line from now on.
    pub(super) fn set_policy(&mut self, digest: String) {
        self.policy = Some(digest);
    }

    /// Has a chain know of everything that was written to it at `since_ms` or later.
    pub(super) fn recall(&mut self, name: &Option<RunId>, since_ms: u64) {
        if let Some(chain) = self.chains.get_mut(name)
            && let Err(error) = chain.recall(since_ms)
        {
            tracing::error!(chain = chain.name(), %error, "earlier records can't be read: some may be repeated");
        }
    }

    /// Has a chain know of records that may come again.
    pub(super) fn remember(&mut self, name: &Option<RunId>, written: impl IntoIterator<Item = Written>) {
        if let Some(chain) = self.chains.get_mut(name) {
            chain.earlier.extend(written);
        }
    }

    /// Opens a run's chain, new or from before.
    pub(super) fn open(&mut self, meta: RunMeta) -> Result<Opened, LogError> {
        let name = Some(meta.id.clone());
        if let Some(chain) = self.chains.get(&name) {
            return Ok(Opened { lines: chain.seq, cut: 0, open: Vec::new() });
        }
        self.ledger.opened(&meta.id, &meta.agent);
        let (chain, Taken { cut, open }) = Chain::open(&self.options, Some(meta), &self.key.public())?;
        let opened = Opened { lines: chain.seq, cut, open };
        let run = chain.name().to_owned();
        self.chains.insert(name.clone(), chain);
        self.note(event(None, "log.opened", &[("run", run), ("lines", opened.lines.to_string())]));
        if cut > 0 {
            self.note(event(name, "log.recovered", &[("cutBytes", cut.to_string())]));
        }
        Ok(opened)
    }

    /// Seals a run's chain; `reply` hears of it once that is durable.
    pub(super) fn close(&mut self, id: RunId, reply: oneshot::Sender<Result<(), Unrecorded>>) {
        let name = Some(id);
        self.files.pop(&name);
        if let Some(chain) = self.chains.remove(&name) {
            let reached = Reached { sealed: true, ..reached(&chain) };
            chain.tail.reached(&reached, None, false, Some(Waiter::new(1, reply)), &self.work);
            let facts = [
                ("run", chain.name().to_owned()),
                ("lines", chain.seq.to_string()),
                ("head", line::hex(&chain.hash)),
            ];
            if let Some(run) = &name {
                self.ledger.sealed(run);
            }
            self.note(event(None, "log.sealed", &facts));
        } else {
            let _ = reply.send(Err(Unrecorded::Run));
        }
    }

    /// Writes a record of the log's own; says whether it was written.
    fn note(&mut self, record: Record) -> bool {
        let (reply, mut answer) = oneshot::channel();
        self.group(vec![Append { records: vec![record], synced: false, may_repeat: false, reply }]);
        matches!(answer.try_recv(), Ok(Ok(())))
    }

    /// Writes a group of batches. If that fails as a whole, each batch is tried by itself, so that one chain's
    /// trouble isn't another's.
    pub(super) fn group(&mut self, group: Vec<Append>) {
        if group.is_empty() {
            return;
        }
        let mut touched = Touched::new();
        let mut taken = Vec::with_capacity(group.len());
        for mut append in group {
            match self.add(&mut append, &mut touched) {
                Ok(()) => taken.push(append),
                Err(refused) => self.refuse(append, refused),
            }
        }
        match self.write(&touched) {
            Ok(()) => {
                let mut crossed = Vec::new();
                for record in taken.iter().flat_map(|append| &append.records) {
                    self.tally.count(record);
                    crossed.append(&mut self.ledger.take(record));
                }
                self.acknowledge(taken, &touched);
                for crossed in crossed {
                    self.note(event(Some(crossed.run.clone()), crossed.event(), &crossed.facts()));
                }
            }
            Err(_) if taken.len() > 1 => {
                for append in taken {
                    self.group(vec![append]);
                }
            }
            Err(error) => {
                for append in taken {
                    self.outage(&error, append.records.len());
                    self.refuse(append, Unrecorded::Log);
                }
            }
        }
    }

    fn refuse(&mut self, append: Append, refused: Unrecorded) {
        for record in &append.records {
            if let Some(chain) = self.chains.get_mut(&record.run) {
                chain.missed = chain.missed.saturating_add(1);
            }
        }
        let _ = append.reply.send(Err(refused));
    }

    fn outage(&mut self, error: &io::Error, records: usize) {
        if self.outage.is_none() {
            tracing::error!(%error, "records can't be written: calls are refused until they can");
        }
        let outage = self.outage.get_or_insert_with(|| Outage { since: Instant::now(), refused: 0 });
        outage.refused = outage.refused.saturating_add(u64::try_from(records).unwrap_or(u64::MAX));
    }

    /// Adds a batch's lines to the pending bytes of their chains: all of them or none. Records that were written before
    /// are taken out of it.
    fn add(&mut self, append: &mut Append, touched: &mut Touched) -> Result<(), Unrecorded> {
        if append.may_repeat {
            let chains = &self.chains;
            append.records.retain(|record| !chains.get(&record.run).is_some_and(|chain| chain.has(record)));
        }
        let records = &append.records;
        let now = Instant::now();
        for record in records {
            if !line::is_acceptable(record) {
                return Err(Unrecorded::Malformed);
            }
            self.admit(record, now)?;
        }
        let mut before: Touched = Vec::new();
        for record in records {
            let Some(chain) = self.chains.get_mut(&record.run) else { return Err(Unrecorded::Run) };
            if !before.iter().any(|(name, _)| *name == record.run) {
                before.push((record.run.clone(), chain.mark()));
            }
            let added = append_line(chain, record, &mut self.clock, self.policy.as_deref(), &self.boot_id);
            if added.is_err() {
                for (name, mark) in &before {
                    if let Some(chain) = self.chains.get_mut(name) {
                        chain.rewind(mark);
                    }
                }
                return Err(Unrecorded::Malformed);
            }
        }
        for (name, mark) in before {
            if !touched.iter().any(|(known, _)| *known == name) {
                touched.push((name, mark));
            }
        }
        Ok(())
    }

    /// Whether a record may be written now.
    fn admit(&mut self, record: &Record, now: Instant) -> Result<(), Unrecorded> {
        let chain = self.chains.get_mut(&record.run).ok_or(Unrecorded::Run)?;
        if chain.tail.has_failed() {
            self.reopen(&record.run)?;
        }
        let chain = self.chains.get_mut(&record.run).ok_or(Unrecorded::Run)?;
        if record.run.is_some() && !chain.rate.take(now) {
            return Err(Unrecorded::Quota);
        }
        Ok(())
    }

    /// Takes a chain up again from what the disk holds after a failed sync.
    fn reopen(&mut self, name: &Option<RunId>) -> Result<(), Unrecorded> {
        let Some(old) = self.chains.get(name) else { return Err(Unrecorded::Run) };
        // Lines of this group are pending: they are written or refused first.
        if !old.pending.is_empty() {
            return Err(Unrecorded::Log);
        }
        let mut chain = match Chain::open(&self.options, old.meta.clone(), &self.key.public()) {
            Ok((chain, _)) => chain,
            Err(error) => {
                self.outage(&io::Error::other(error.to_string()), 0);
                return Err(Unrecorded::Log);
            }
        };
        let Some(old) = self.chains.get(name) else { return Err(Unrecorded::Run) };
        if chain.seq < old.seq || (chain.seq == old.seq && chain.hash != old.hash) {
            return Err(Unrecorded::Log);
        }
        chain.missed = old.missed;
        chain.earlier.clone_from(&old.earlier);
        self.files.pop(name);
        self.chains.insert(name.clone(), chain);
        Ok(())
    }

    /// Writes the pending bytes of the touched chains; all of them or, with every chain where it stood, none.
    fn write(&mut self, touched: &Touched) -> io::Result<()> {
        let mut written: Vec<(Arc<fs::File>, u64)> = Vec::with_capacity(touched.len());
        let outcome = touched.iter().try_for_each(|(name, _)| self.write_chain(name, &mut written));
        if outcome.is_ok() {
            for (name, _) in touched {
                if let Some(chain) = self.chains.get_mut(name) {
                    chain.bytes += u64::try_from(chain.pending.len()).unwrap_or(0);
                    chain.pending.clear();
                }
            }
            return Ok(());
        }
        for (file, length) in &written {
            if let Err(error) = file.set_len(*length) {
                tracing::error!(%error, "a half-written record could not be cut off");
            }
        }
        for (name, mark) in touched {
            if let Some(chain) = self.chains.get_mut(name) {
                chain.rewind(mark);
            }
        }
        outcome
    }

    fn write_chain(
        &mut self,
        name: &Option<RunId>,
        written: &mut Vec<(Arc<fs::File>, u64)>,
    ) -> io::Result<()> {
        let Some(chain) = self.chains.get_mut(name) else { return Ok(()) };
        if chain.pending.is_empty() {
            return Ok(());
        }
        if chain.bytes >= self.options.segment_bytes {
            self.files.pop(name);
            chain.rotate()?;
        }
        let file = match self.files.get(name) {
            Some(file) => Arc::clone(file),
            None => {
                let file = Arc::new(chain.open_file(self.options.group)?);
                self.files.push(name.clone(), Arc::clone(&file));
                file
            }
        };
        written.push((Arc::clone(&file), chain.bytes));
        chain.written = Some(Arc::clone(&file));
        (&*file).write_all(&chain.pending)
    }

    fn acknowledge(&mut self, taken: Vec<Append>, touched: &Touched) {
        let mut waiters: Vec<(Option<RunId>, Arc<Waiter>)> = Vec::new();
        for append in taken {
            if append.synced && !append.records.is_empty() {
                let mut names: Vec<&Option<RunId>> =
                    append.records.iter().map(|record| &record.run).collect();
                names.sort_unstable();
                names.dedup();
                let waiter = Waiter::new(names.len(), append.reply);
                waiters.extend(names.into_iter().map(|name| (name.clone(), Arc::clone(&waiter))));
            } else {
                let _ = append.reply.send(Ok(()));
            }
        }
        for (name, _) in touched {
            let Some(chain) = self.chains.get_mut(name) else { continue };
            // Taken from the chain: the file may have left the cache within the group.
            let file = chain.written.take();
            let fresh = std::mem::take(&mut chain.fresh);
            chain.tail.reached(&reached(chain), file.as_ref(), fresh, None, &self.work);
        }
        // Before those who wait for the sync, so that what they waited for includes it.
        self.tell_missed(touched);
        for (name, waiter) in waiters {
            if let Some(chain) = self.chains.get(&name) {
                chain.tail.reached(&reached(chain), None, false, Some(waiter), &self.work);
            }
        }
    }

    /// Once writing works again: says in the chain what was refused meanwhile.
    fn tell_missed(&mut self, touched: &Touched) {
        for (name, _) in touched {
            if let Some(chain) = self.chains.get_mut(name)
                && chain.missed > 0
            {
                let missed = std::mem::take(&mut chain.missed);
                let told = self.note(event(
                    name.clone(),
                    "log.recovered",
                    &[("refusedRecords", missed.to_string())],
                ));
                if !told && let Some(chain) = self.chains.get_mut(name) {
                    chain.missed = missed;
                }
            }
        }
        if let Some(outage) = self.outage.take() {
            let facts = [
                ("refusedRecords", outage.refused.to_string()),
                ("seconds", outage.since.elapsed().as_secs().to_string()),
            ];
            if self.note(event(None, "log.recovered", &facts)) {
                tracing::warn!(refused = outage.refused, "records can be written again");
            } else {
                self.outage = Some(outage);
            }
        }
    }
}

fn reached(chain: &Chain) -> Reached {
    Reached { seq: chain.seq, hash: chain.hash, segment: chain.segment, bytes: chain.bytes, sealed: false }
}

/// Adds one line to a chain's pending bytes.
fn append_line(
    chain: &mut Chain,
    record: &Record,
    clock: &mut Clock,
    policy: Option<&str>,
    boot_id: &str,
) -> Result<(), serde_json::Error> {
    let start = chain.pending.len();
    let added = Added {
        seq: chain.seq + 1,
        agent: chain.meta.as_ref().map(|meta| meta.agent.as_str()),
        version: chain.meta.as_ref().map(|meta| meta.version.as_str()),
        policy,
        boot_id,
        prev: &chain.hash,
    };
    match line::write(record, &added, clock, &mut chain.pending) {
        Ok(hash) => {
            chain.seq += 1;
            chain.hash = hash;
            chain.remember(record);
            Ok(())
        }
        Err(error) => {
            chain.pending.truncate(start);
            Err(error)
        }
    }
}
