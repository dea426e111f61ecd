//! Makes chains durable in groups and writes their signed heads.

use std::{
    fs, io,
    num::NonZeroU64,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, chown},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use rustix::fs::{Advice, fadvise};
use strait_contract::record::Unrecorded;
use tokio::sync::oneshot;

use super::{
    head::{self, Head},
    key::HostKey,
    line::{Hash, hex},
};

/// How far a chain is written; the writer moves it on, the syncer makes it durable.
#[derive(Debug)]
pub(super) struct Tail {
    folder: PathBuf,
    chain: String,
    group: Option<u32>,
    state: Mutex<State>,
    /// Already in the syncer's queue.
    queued: AtomicBool,
    /// A sync failed: what the file holds is unknown until it was read back.
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    seq: u64,
    hash: Hash,
    segment: u32,
    bytes: u64,
    sealed: bool,
    /// Files with unsynced bytes.
    files: Vec<Arc<fs::File>>,
    /// Files were made or renamed since the last sync.
    folder_changed: bool,
    waiters: Vec<Arc<Waiter>>,
    head_synced: Option<Instant>,
    head: Option<fs::File>,
}

/// Someone who waits until several chains are durable.
#[derive(Debug)]
pub(super) struct Waiter {
    left: AtomicUsize,
    failed: AtomicBool,
    reply: Mutex<Option<oneshot::Sender<Result<(), Unrecorded>>>>,
}

impl Waiter {
    pub(super) fn new(chains: usize, reply: oneshot::Sender<Result<(), Unrecorded>>) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(chains),
            failed: AtomicBool::new(false),
            reply: Mutex::new(Some(reply)),
        })
    }

    fn done(&self, durable: bool) {
        if !durable {
            self.failed.store(true, Ordering::Relaxed);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(reply) = self.reply.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            let failed = self.failed.load(Ordering::Relaxed);
            let _ = reply.send(if failed { Err(Unrecorded::Log) } else { Ok(()) });
        }
    }
}

/// Where the writer has got to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    pub seq: u64,
    pub hash: Hash,
    pub segment: u32,
    pub bytes: u64,
    pub sealed: bool,
}

/// Work for the syncer.
#[derive(Debug)]
pub(super) enum Work {
    /// Within the usual time.
    Soon(Arc<Tail>),
    /// At once: someone waits.
    Now(Arc<Tail>),
}

impl Tail {
    pub(super) fn new(folder: PathBuf, chain: String, group: Option<u32>) -> Self {
        Self {
            folder,
            chain,
            group,
            state: Mutex::default(),
            queued: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    /// Notes how far the chain is written; queues it for the syncer if it isn't already.
    pub(super) fn reached(
        self: &Arc<Self>,
        reached: &Reached,
        file: Option<&Arc<fs::File>>,
        folder_changed: bool,
        waiter: Option<Arc<Waiter>>,
        queue: &mpsc::Sender<Work>,
    ) {
        let urgent = waiter.is_some() || reached.sealed;
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let Reached { seq, hash, segment, bytes, sealed } = *reached;
            (state.seq, state.hash, state.segment, state.bytes, state.sealed) =
                (seq, hash, segment, bytes, sealed);
            if let Some(file) = file
                && !state.files.iter().any(|known| Arc::ptr_eq(known, file))
            {
                state.files.push(Arc::clone(file));
            }
            state.folder_changed |= folder_changed;
            state.waiters.extend(waiter);
        }
        if urgent {
            self.queued.store(true, Ordering::Release);
            let _ = queue.send(Work::Now(Arc::clone(self)));
        } else if !self.queued.swap(true, Ordering::AcqRel) {
            let _ = queue.send(Work::Soon(Arc::clone(self)));
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Makes the chain durable as far as it is written now, then its head.
    fn sync(&self, key: &HostKey) {
        self.queued.store(false, Ordering::Release);
        let (reached, files, folder_changed, waiters, head, head_synced) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let State { seq, hash, segment, bytes, sealed, .. } = *state;
            (
                Reached { seq, hash, segment, bytes, sealed },
                std::mem::take(&mut state.files),
                std::mem::take(&mut state.folder_changed),
                std::mem::take(&mut state.waiters),
                state.head.take(),
                state.head_synced,
            )
        };
        if files.is_empty() && waiters.is_empty() && !reached.sealed {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).head = head;
            return;
        }
        // The head follows the data by at most a second even for those who don't wait for it.
        let durable =
            !waiters.is_empty() || reached.sealed || head_synced.is_none_or(|at| at.elapsed().as_secs() >= 1);
        let outcome = self.make_durable(&reached, &files, folder_changed, head, durable, key);
        let failed = outcome.is_err() || self.has_failed();
        match outcome {
            Ok(head) => {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if !reached.sealed {
                    state.head = Some(head);
                }
                if durable {
                    state.head_synced = Some(Instant::now());
                }
            }
            Err(error) => {
                self.failed.store(true, Ordering::Release);
                tracing::error!(chain = %self.chain, %error, "records could not be made durable");
            }
        }
        for waiter in waiters {
            waiter.done(!failed);
        }
    }

    fn make_durable(
        &self,
        reached: &Reached,
        files: &[Arc<fs::File>],
        folder_changed: bool,
        head: Option<fs::File>,
        durable: bool,
        key: &HostKey,
    ) -> io::Result<fs::File> {
        for file in files {
            file.sync_data()?;
            forget_pages(file, reached.bytes);
        }
        if let Some(file) = files.last() {
            let found = file.metadata()?;
            if found.nlink() == 0 || found.len() < reached.bytes {
                return Err(io::Error::other("the file was removed or shortened by someone else"));
            }
        }
        let (head, made) = match head {
            Some(head) => (head, false),
            None => self.open_head()?,
        };
        let Reached { seq, hash, segment, bytes, sealed } = *reached;
        let chain = self.chain.clone();
        let text = Head { chain, seq, hash: hex(&hash), segment, bytes, sealed, key: key.name().to_owned() };
        text.write(key, &head, durable)?;
        if folder_changed || made {
            sync_folder(&self.folder)?;
            self.folder.parent().map_or(Ok(()), sync_folder)?;
        }
        Ok(head)
    }

    fn open_head(&self) -> io::Result<(fs::File, bool)> {
        let path = self.folder.join(head::FILE);
        let made = !path.try_exists()?;
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o640).open(&path)?;
        if made && self.group.is_some() {
            chown(&path, None, self.group)?;
        }
        Ok((file, made))
    }
}

/// Lets the page cache go of what is durable: nobody reads most of a log soon, and on a virtual machine a page used
/// again is much cheaper than a new one. The page that the next line goes to stays, since it would be read back.
fn forget_pages(file: &fs::File, written: u64) {
    const PAGE: u64 = 4096;
    let whole = NonZeroU64::new(written / PAGE * PAGE);
    if let Some(whole) = whole {
        let _ = fadvise(file, 0, Some(whole), Advice::DontNeed);
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// The syncer's loop; ends when the writer is gone and everything is durable.
pub(super) fn run(queue: &mpsc::Receiver<Work>, every: Duration, key: &HostKey) {
    let mut last = Instant::now().checked_sub(every).unwrap_or_else(Instant::now);
    while let Ok(first) = queue.recv() {
        let deadline = last + every;
        let mut tails = Vec::new();
        let mut next = Some(first);
        loop {
            let urgent = match next.take() {
                Some(Work::Now(tail)) => {
                    tails.push(tail);
                    true
                }
                Some(Work::Soon(tail)) => {
                    tails.push(tail);
                    false
                }
                None => false,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if urgent || left.is_zero() {
                break;
            }
            match queue.recv_timeout(left) {
                Ok(work) => next = Some(work),
                Err(_) => break,
            }
        }
        // Whatever else waits joins this group.
        tails.extend(queue.try_iter().map(|work| match work {
            Work::Now(tail) | Work::Soon(tail) => tail,
        }));
        last = Instant::now();
        for tail in tails {
            tail.sync(key);
        }
    }
}
