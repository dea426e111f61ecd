//! One chain on disk: its folder, its segments, where it ends, and how it is taken up again after a crash.

use std::{
    collections::{HashSet, VecDeque},
    fs, io,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, chown},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use ed25519_dalek::VerifyingKey;
use sha2::{Digest, Sha256};

use strait_contract::{
    ids::RecordId,
    record::{Decision, Phase, Record},
};

use crate::budget::snapshot::Position;

use super::{
    Begun, LogError, Options, RunMeta,
    head::{BadHead, Head},
    line::{self, Hash},
    read::Backward,
    sync::Tail,
};

/// Name of the segment that is written.
pub(super) const CURRENT: &str = "log.jsonl";
/// Name of the host's chain.
pub(super) const HOST: &str = "host";
/// Longest line that is read back, bytes.
pub(super) const MAX_LINE: usize = 256 * 1024;

/// What the first line of a chain has for `prev`: a digest that names the run, or the host for `None`.
pub fn chain_start(run: Option<&str>) -> [u8; 32] {
    let name = run.map_or_else(|| "host".to_owned(), |run| format!("run {run}"));
    Sha256::digest(format!("strait log 1\n{name}\n")).into()
}

/// A chain that is being written.
#[derive(Debug)]
pub(super) struct Chain {
    /// The run; `None` for the host's chain.
    pub meta: Option<RunMeta>,
    pub folder: PathBuf,
    pub seq: u64,
    pub hash: Hash,
    pub segment: u32,
    /// Bytes of the current segment.
    pub bytes: u64,
    /// Lines not yet in the file.
    pub pending: Vec<u8>,
    /// The file that the last group was written to, until the syncer was told.
    pub written: Option<Arc<fs::File>>,
    /// The folder has a new file that isn't synced.
    pub fresh: bool,
    /// Records refused since the last one that was written.
    pub missed: u64,
    pub rate: Rate,
    /// The last records written, by which one that is sent again is known.
    pub recent: VecDeque<Written>,
    /// More of them, if more may be sent again than are kept otherwise.
    pub earlier: HashSet<Written>,
    /// Shared with the syncer.
    pub tail: Arc<Tail>,
}

/// What tells one record from another: a call has two lines of one id.
pub(super) type Written = (RecordId, Option<Phase>);

/// How many records are remembered.
const RECENT: usize = 4096;
/// Most records that are read back: several times what a spool holds, whatever times a gateway gave its records.
const RECALLED: usize = 1 << 17;

/// Where a chain stood before a record or group was added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    seq: u64,
    hash: Hash,
    pending: usize,
}

/// A call without its `done` line: what kind it is, what was decided.
pub(super) type Open = (RecordId, Begun, Decision);

/// What was found where a chain is taken up.
#[derive(Debug)]
pub(super) struct Taken {
    /// Bytes of a half line that were cut.
    pub cut: u64,
    /// Calls among the last lines that have begun and not ended.
    pub open: Vec<Open>,
}

impl Chain {
    pub(super) fn name(&self) -> &str {
        self.meta.as_ref().map_or(HOST, |meta| meta.id.as_str())
    }

    /// How far it is written.
    pub(super) fn place(&self) -> Position {
        Position { segment: self.segment, bytes: self.bytes }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { seq: self.seq, hash: self.hash, pending: self.pending.len() }
    }

    pub(super) fn rewind(&mut self, mark: &Mark) {
        let added = usize::try_from(self.seq - mark.seq).unwrap_or(usize::MAX);
        self.recent.truncate(self.recent.len().saturating_sub(added));
        self.seq = mark.seq;
        self.hash = mark.hash;
        self.pending.truncate(mark.pending);
    }

    /// Remembers a record that was added.
    pub(super) fn remember(&mut self, record: &Record) {
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((record.id, record.phase));
    }

    /// Whether a record was added lately: the gateway sends again what it didn't hear of when its link broke.
    pub(super) fn has(&self, record: &Record) -> bool {
        let written = (record.id, record.phase);
        self.earlier.contains(&written) || self.recent.iter().rev().any(|known| *known == written)
    }

    /// Reads what was written at `since_ms` or later, for [`Self::has`] to know.
    pub(super) fn recall(&mut self, since_ms: u64) -> io::Result<()> {
        self.earlier.extend(written_since(&self.folder, since_ms)?);
        Ok(())
    }

    /// Opens the chain in `folder`, new or from before.
    pub(super) fn open(
        options: &Options,
        meta: Option<RunMeta>,
        key: &VerifyingKey,
    ) -> Result<(Self, Taken), LogError> {
        let run = meta.as_ref().map(|meta| meta.id.as_str());
        let folder = match run {
            Some(run) => options.state_dir.join("runs").join(run),
            None => super::host_folder(&options.state_dir),
        };
        let fault = |source| LogError::File { path: folder.clone(), source };
        make_folder(options, &folder).map_err(fault)?;
        let found = recover(&folder, run, key)?;
        let (recent, open) = recent(&folder).map_err(fault)?;
        let chain = Self {
            folder: folder.clone(),
            seq: found.seq,
            hash: found.hash,
            segment: found.segment,
            bytes: found.bytes,
            pending: Vec::new(),
            written: None,
            fresh: true,
            missed: 0,
            rate: Rate::new(options.records_per_second),
            recent,
            earlier: HashSet::new(),
            tail: Arc::new(Tail::new(folder, run.unwrap_or(HOST).to_owned(), options.group)),
            meta,
        };
        Ok((chain, Taken { cut: found.cut, open }))
    }

    /// Opens the current segment for appending.
    pub(super) fn open_file(&self, group: Option<u32>) -> io::Result<fs::File> {
        let path = self.folder.join(CURRENT);
        let file = fs::OpenOptions::new().append(true).create(true).mode(0o640).open(&path)?;
        if self.bytes == 0 && group.is_some() {
            chown(&path, None, group)?;
        }
        let length = file.metadata()?.len();
        if length == self.bytes {
            Ok(file)
        } else {
            Err(io::Error::other(format!("it has {length} bytes where {} were written", self.bytes)))
        }
    }

    /// Seals the current segment; the next line begins a new one.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        let next = self.segment + 1;
        fs::rename(self.folder.join(CURRENT), self.folder.join(segment_name(next)))?;
        self.segment = next;
        self.bytes = 0;
        self.fresh = true;
        Ok(())
    }
}

/// The last records of a chain that is taken up again, with the calls among them that have begun and not ended.
fn recent(folder: &Path) -> io::Result<(VecDeque<Written>, Vec<Open>)> {
    #[derive(serde::Deserialize)]
    struct Line<'a> {
        id: RecordId,
        #[serde(borrow)]
        phase: Option<&'a str>,
        #[serde(borrow)]
        kind: Option<&'a str>,
        #[serde(borrow)]
        decision: Option<&'a str>,
        #[serde(borrow)]
        stream: Option<&'a str>,
        tool: Option<String>,
    }
    let mut found = VecDeque::new();
    let (mut ended, mut open) = (HashSet::new(), Vec::new());
    for path in segments(folder)?.iter().rev() {
        let mut lines = Backward::open(path)?;
        while found.len() < RECENT
            && let Some(line) = lines.next_line()?
        {
            let Ok(Line { id, phase, kind, decision, stream, tool }) = serde_json::from_slice(&line) else {
                continue;
            };
            let phase = phase_named(phase);
            match phase {
                Some(Phase::Done) => {
                    ended.insert(id);
                }
                Some(Phase::Decided) if !ended.remove(&id) => {
                    let decision = if decision == Some("allow") { Decision::Allow } else { Decision::Deny };
                    let begun = if stream == Some("trace") {
                        let tool = tool.unwrap_or_default();
                        kind.and_then(line::tool_kind_named).map(|kind| Begun::Step { tool, kind })
                    } else {
                        kind.and_then(line::kind_named).map(Begun::Activity)
                    };
                    open.extend(begun.map(|begun| (id, begun, decision)));
                }
                _ => {}
            }
            found.push_front((id, phase));
        }
    }
    Ok((found, open))
}

fn phase_named(name: Option<&str>) -> Option<Phase> {
    match name {
        Some("decided") => Some(Phase::Decided),
        Some("done") => Some(Phase::Done),
        _ => None,
    }
}

/// Records that were written at `since_ms` or later. Lines are not quite in the order of their times: it is gone back
/// until as many as are always kept in mind were all older.
fn written_since(folder: &Path, since_ms: u64) -> io::Result<HashSet<Written>> {
    #[derive(serde::Deserialize)]
    struct Line<'a> {
        id: RecordId,
        #[serde(borrow)]
        phase: Option<&'a str>,
        ts: &'a str,
    }
    let mut found = HashSet::new();
    let mut older = 0;
    for path in segments(folder)?.iter().rev() {
        let mut lines = Backward::open(path)?;
        while let Some(line) = lines.next_line()? {
            let Ok(Line { id, phase, ts }) = serde_json::from_slice(&line) else { continue };
            let ms =
                ts.parse::<jiff::Timestamp>().ok().and_then(|ts| u64::try_from(ts.as_millisecond()).ok());
            older = if ms.is_some_and(|ms| ms < since_ms) { older + 1 } else { 0 };
            if older > RECENT || found.len() >= RECALLED {
                return Ok(found);
            }
            found.insert((id, phase_named(phase)));
        }
    }
    Ok(found)
}

/// File name of sealed segment `number`, counting from 1.
pub(super) fn segment_name(number: u32) -> String {
    format!("log.{number:06}.jsonl")
}

/// The files of a chain in order: sealed segments by number without a gap, then the current one if it exists.
pub(crate) fn segments(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for number in 1.. {
        let path = folder.join(segment_name(number));
        if !path.try_exists()? {
            break;
        }
        files.push(path);
    }
    let current = folder.join(CURRENT);
    if current.try_exists()? {
        files.push(current);
    }
    Ok(files)
}

fn make_folder(options: &Options, folder: &Path) -> io::Result<()> {
    if !folder.try_exists()? {
        fs::DirBuilder::new().recursive(true).mode(0o750).create(folder)?;
        if options.group.is_some() {
            for each in folder.ancestors().take_while(|each| *each != options.state_dir) {
                chown(each, None, options.group)?;
            }
        }
    }
    Ok(())
}

/// Where a chain ends on disk.
#[derive(Debug)]
struct Found {
    seq: u64,
    hash: Hash,
    segment: u32,
    bytes: u64,
    cut: u64,
}

/// Finds the end of a chain: from its head on, every line must continue it; a half line at the very end is cut.
///
/// What stands before the head isn't read here: `strait log verify` does.
fn recover(folder: &Path, run: Option<&str>, key: &VerifyingKey) -> Result<Found, LogError> {
    let fault = |source| LogError::File { path: folder.to_owned(), source };
    let files = segments(folder).map_err(fault)?;
    let sealed = u32::try_from(files.len()).unwrap_or(u32::MAX) - u32::from(has_current(&files));
    let mut at = match Head::read(folder, run.unwrap_or(HOST), key) {
        Ok(head) => Found {
            seq: head.seq,
            hash: line::unhex(&head.hash).ok_or_else(|| damaged(folder, head.seq))?,
            segment: head.segment,
            bytes: head.bytes,
            cut: 0,
        },
        // A crash before the first sync leaves none; then everything is read.
        Err(BadHead::Missing) => Found { seq: 0, hash: chain_start(run), segment: 0, bytes: 0, cut: 0 },
        Err(_) => return Err(damaged(folder, 0)),
    };
    if at.segment > sealed {
        return Err(damaged(folder, at.seq));
    }
    for (number, path) in (0_u32..).zip(&files) {
        if number < at.segment {
            continue;
        }
        if number > at.segment {
            (at.segment, at.bytes) = (number, 0);
        }
        let last = number == sealed;
        read_on(path, run, &mut at, last)
            .map_err(fault)?
            .map_or(Ok(()), |line| Err(damaged(folder, line)))?;
    }
    if at.segment < sealed {
        (at.segment, at.bytes) = (sealed, 0);
    } else if !has_current(&files) && at.bytes > 0 {
        return Err(damaged(folder, at.seq));
    }
    Ok(at)
}

fn has_current(files: &[PathBuf]) -> bool {
    files.last().is_some_and(|path| path.ends_with(CURRENT))
}

fn damaged(folder: &Path, line: u64) -> LogError {
    LogError::Damaged { path: folder.to_owned(), line }
}

/// Reads one segment from `at.bytes`; gives the number of the first line that doesn't fit.
fn read_on(path: &Path, run: Option<&str>, at: &mut Found, last: bool) -> io::Result<Option<u64>> {
    let mut file = fs::OpenOptions::new().read(true).write(last).open(path)?;
    let length = file.metadata()?.len();
    if length < at.bytes {
        return Ok(Some(at.seq));
    }
    file.seek(SeekFrom::Start(at.bytes))?;
    let mut reader = BufReader::with_capacity(64 * 1024, &file);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            if !last {
                return Ok(Some(at.seq + 1));
            }
            at.cut = length - at.bytes;
            file.set_len(at.bytes)?;
            file.sync_data()?;
            return Ok(None);
        }
        let Some(hash) = follows(&line, run, at.seq, &at.hash) else { return Ok(Some(at.seq + 1)) };
        at.seq += 1;
        at.hash = hash;
        at.bytes += u64::try_from(line.len()).unwrap_or(0);
    }
}

/// The hash of `line` if it is whole and follows line `seq` with hash `prev`.
pub(super) fn follows(line: &[u8], run: Option<&str>, seq: u64, prev: &Hash) -> Option<Hash> {
    let hash = line::checked_hash(line)?;
    let (found, before, named) = line::place(line)?;
    (found == seq + 1 && before == *prev && named.as_deref() == run).then_some(hash)
}

/// A token bucket: an average rate, twice as many at once.
#[derive(Debug)]
pub(super) struct Rate {
    per_second: f64,
    left: f64,
    since: Instant,
}

impl Rate {
    fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second);
        Self { per_second, left: per_second * 2.0, since: Instant::now() }
    }

    /// Takes one token if there is one.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = now;
        self.left = (self.left + passed * self.per_second).min(self.per_second * 2.0);
        let granted = self.left >= 1.0;
        if granted {
            self.left -= 1.0;
        }
        granted
    }
}
