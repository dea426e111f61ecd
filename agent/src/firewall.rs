//! What the kernel saw, as values: drains the ring, sweeps the folded repeats, counts what was lost.
//!
//! `verdict` (in eBPF) → `event` (ring) → here → `activity`. One task owns the ring, because a ring has one
//! consumer. It waits for its reader: if that's slow the ring fills and the kernel counts the loss, so memory
//! stays bounded and nothing is silent.

mod event;

use std::{collections::HashMap, io, net::SocketAddr, os::fd::OwnedFd, sync::Arc, time::Duration};

use aya::maps::{MapData, RingBuf};
use strait_abi::{
    event::Event,
    map::{EVENTS, FOLD, Fold, FoldKey},
};
use tokio::{
    io::unix::AsyncFd,
    sync::{mpsc, oneshot},
    time::MissedTickBehavior,
};

pub use self::event::{Caller, KernelEvent};
use crate::gate::{Gate, GateError, object::open_map, sys};

/// The ring is read at least this often, so that a wake-up missed never matters for long.
const TICK: Duration = Duration::from_millis(100);
/// Repeats and losses are reported this often.
const SWEEP: Duration = Duration::from_secs(1);
/// A key without repeats for this many sweeps is given up.
const IDLE_SWEEPS: u32 = 3;
/// Events read from the ring before other work gets its turn.
const BATCH: usize = 256;

/// What the firewall reports.
#[derive(Debug)]
pub enum Notice {
    /// Something was refused or redirected; `count` says how often.
    Event(KernelEvent),
    /// Events of a run found no room: that many since the last report.
    Lost { run: u64, count: u64 },
    /// Someone waits until everything before this was dealt with: to be answered then.
    Flushed(oneshot::Sender<()>),
}

/// An event that someone waits for.
#[derive(Debug)]
struct Expected {
    run: u64,
    dst: SocketAddr,
    found: oneshot::Sender<KernelEvent>,
}

#[derive(Debug)]
enum Request {
    Expect(Expected),
    Flush(oneshot::Sender<()>),
}

/// Asks things of a running [`Firewall`].
#[derive(Clone, Debug)]
pub struct Witness(mpsc::Sender<Request>);

impl Witness {
    /// Gives the next event of a run about this destination. The expectation stands when this returns.
    pub async fn expect(&self, run: u64, dst: SocketAddr) -> oneshot::Receiver<KernelEvent> {
        let (found, receiver) = oneshot::channel();
        // If the firewall is gone the receiver ends, which its owner sees.
        let _ = self.0.send(Request::Expect(Expected { run, dst, found })).await;
        receiver
    }

    /// Returns once everything that the kernel had seen before this call was reported (ring, repeats, losses) and
    /// the reader of the reports has answered [`Notice::Flushed`]. False if the firewall is gone.
    pub async fn flush(&self) -> bool {
        let (done, receiver) = oneshot::channel();
        self.0.send(Request::Flush(done)).await.is_ok() && receiver.await.is_ok()
    }
}

/// A key of FOLD as it was last seen.
#[derive(Debug)]
struct Seen {
    count: u64,
    idle: u32,
}

/// Drains the kernel's events. Make one per instance and drive it with [`Firewall::run`].
#[derive(Debug)]
pub struct Firewall {
    gate: Arc<Gate>,
    ring: Ring,
    ready: AsyncFd<OwnedFd>,
    folds: aya::maps::HashMap<MapData, [u8; FoldKey::LEN], [u8; Fold::LEN]>,
    seen: HashMap<[u8; FoldKey::LEN], Seen>,
    lost: HashMap<u64, u64>,
    expected: Vec<Expected>,
    requests: mpsc::Receiver<Request>,
    reports: mpsc::Sender<Notice>,
}

/// The ring, with a name in debug output.
struct Ring(RingBuf<MapData>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

/// Why the firewall can't start or stopped.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// A map of the gate can't be opened or read.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The ring can't be waited for.
    #[error("the ring of kernel events can't be waited for: {0}")]
    Ring(io::Error),
    /// Whoever read the reports is gone.
    #[error("nobody reads the kernel's events any more")]
    Unread,
}

fn map_error(map: &'static str) -> impl Fn(aya::maps::MapError) -> FirewallError {
    move |source| GateError::Map { map, source: Box::new(source) }.into()
}

impl Firewall {
    /// Opens the ring and the table of repeats. Needs a tokio runtime.
    ///
    /// # Errors
    /// If they can't be opened.
    pub fn open(gate: Arc<Gate>, reports: mpsc::Sender<Notice>) -> Result<(Self, Witness), FirewallError> {
        let ring = RingBuf::try_from(open_map(gate.instance(), EVENTS)?).map_err(map_error(EVENTS))?;
        let folds = open_map(gate.instance(), FOLD)?.try_into().map_err(map_error(FOLD))?;
        // What was lost before, an earlier agent reported or nobody can: its run is over or its count is kept.
        let lost = gate.accounts().into_iter().map(|(run, account)| (run, account.lost)).collect();
        let (sender, requests) = mpsc::channel(16);
        let firewall = Self {
            gate,
            ready: sys::readable(&ring).map_err(FirewallError::Ring)?,
            ring: Ring(ring),
            folds,
            seen: HashMap::new(),
            lost,
            expected: Vec::new(),
            requests,
            reports,
        };
        Ok((firewall, Witness(sender)))
    }

    /// Reports until the reader is gone.
    ///
    /// # Errors
    /// [`FirewallError::Unread`] in the end; others if the kernel refuses.
    pub async fn run(mut self) -> Result<(), FirewallError> {
        let mut tick = tokio::time::interval(TICK);
        let mut sweep = tokio::time::interval(SWEEP);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked = true;
        loop {
            tokio::select! {
                biased;
                request = self.requests.recv(), if asked => match request {
                    Some(Request::Expect(expected)) => self.expected.push(expected),
                    Some(Request::Flush(done)) => {
                        self.drain().await?;
                        self.sweep().await?;
                        self.tell(Notice::Flushed(done)).await?;
                    }
                    None => asked = false,
                },
                _ = sweep.tick() => {
                    self.drain().await?;
                    self.sweep().await?;
                }
                ready = self.ready.readable() => {
                    ready.map_err(FirewallError::Ring)?.clear_ready();
                    self.drain().await?;
                }
                _ = tick.tick() => self.drain().await?,
            }
        }
    }

    /// Empties the ring.
    async fn drain(&mut self) -> Result<(), FirewallError> {
        loop {
            let mut batch = Vec::new();
            let ring = &mut self.ring.0;
            while batch.len() < BATCH
                && let Some(item) = ring.next()
            {
                // A record of another length is of another object; the gate doesn't adopt those.
                if let Ok(bytes) = <&[u8; Event::LEN]>::try_from(&*item) {
                    batch.push(KernelEvent::from_ring(&Event::from_bytes(bytes)));
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            for event in batch {
                self.report(event).await?;
            }
        }
    }

    async fn report(&mut self, mut event: KernelEvent) -> Result<(), FirewallError> {
        self.expected.retain(|expected| !expected.found.is_closed());
        let found = self
            .expected
            .iter()
            .position(|expected| expected.run == event.run && Some(expected.dst) == event.dst);
        if let Some(at) = found {
            event.awaited = true;
            let _ = self.expected.swap_remove(at).found.send(event.clone());
        }
        self.tell(Notice::Event(event)).await
    }

    async fn tell(&self, notice: Notice) -> Result<(), FirewallError> {
        self.reports.send(notice).await.map_err(|_| FirewallError::Unread)
    }

    /// Reports repeats and losses.
    async fn sweep(&mut self) -> Result<(), FirewallError> {
        let entries: Vec<_> = self.folds.iter().flatten().collect();
        let mut freed: HashMap<u64, u64> = HashMap::new();
        for (bytes, value) in entries {
            let (key, fold) = (FoldKey::from_bytes(&bytes), Fold::from_bytes(&value));
            let seen = self.seen.entry(bytes).or_insert(Seen { count: 0, idle: 0 });
            let more = fold.count.saturating_sub(seen.count);
            seen.count = fold.count;
            if more > 0 {
                seen.idle = 0;
                self.report(KernelEvent::from_fold(&key, &fold, more)).await?;
                continue;
            }
            seen.idle += 1;
            if seen.idle >= IDLE_SWEEPS {
                self.forget(&bytes, &key).await?;
                *freed.entry(key.run).or_default() += 1;
            }
        }
        for (run, count) in freed {
            self.gate.free_folds(run, count)?;
        }
        self.losses().await
    }

    /// Gives up an idle key. A repeat that came at this very moment is reported, as it's read once more.
    async fn forget(&mut self, bytes: &[u8; FoldKey::LEN], key: &FoldKey) -> Result<(), FirewallError> {
        let seen = self.seen.remove(bytes).map_or(0, |seen| seen.count);
        let last = self.folds.get(bytes, 0).map(|value| Fold::from_bytes(&value));
        match self.folds.remove(bytes) {
            Err(aya::maps::MapError::KeyNotFound) | Ok(()) => {}
            Err(source) => return Err(map_error(FOLD)(source)),
        }
        match last {
            Ok(fold) if fold.count > seen => {
                self.report(KernelEvent::from_fold(key, &fold, fold.count - seen)).await
            }
            _ => Ok(()),
        }
    }

    async fn losses(&mut self) -> Result<(), FirewallError> {
        let accounts = self.gate.accounts();
        self.lost.retain(|run, _| accounts.iter().any(|(known, _)| known == run));
        for (run, account) in accounts {
            let before = self.lost.insert(run, account.lost).unwrap_or(0);
            let count = account.lost.saturating_sub(before);
            if count > 0 {
                self.tell(Notice::Lost { run, count }).await?;
            }
        }
        Ok(())
    }
}
