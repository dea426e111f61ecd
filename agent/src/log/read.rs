//! Reads records from their files: the newest that fit a filter, and new ones as they come.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    fs, io,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use strait_contract::ids::RunId;

use super::chain::{CURRENT, HOST, MAX_LINE, segments};

/// How far a record's own clock may be from the time it was written, milliseconds.
const SLACK_MS: i64 = 10_000;
/// Bytes read at once.
const BLOCK: u64 = 64 * 1024;

/// Which records are wanted; an absent member wants all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this run.
    pub run: Option<RunId>,
    /// Not older than this, Unix milliseconds.
    pub since_ms: Option<i64>,
    /// With this decision, `allow` or `deny`.
    pub decision: Option<String>,
    /// To this host or one below it.
    pub host: Option<String>,
    /// Of this stream: `trace`, `activity` or `event`.
    pub stream: Option<String>,
    /// Of this kind of activity, or events of this name.
    pub kind: Option<String>,
}

/// A record as it stands in the log.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its line, without the line feed.
    pub line: String,
    /// Its members.
    pub value: Value,
    /// When it was made, Unix milliseconds.
    pub ts_ms: i64,
}

impl Entry {
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?.trim_end_matches('\n').to_owned();
        let value: Value = serde_json::from_str(&line).ok()?;
        let ts_ms = value.get("ts")?.as_str()?.parse::<jiff::Timestamp>().ok()?.as_millisecond();
        Some(Self { line, value, ts_ms })
    }

    /// A text member by its path: `dst.name`.
    pub fn text(&self, path: &str) -> Option<&str> {
        path.split('.').try_fold(&self.value, |value, key| value.get(key))?.as_str()
    }

    fn seq(&self) -> u64 {
        self.value.get("seq").and_then(Value::as_u64).unwrap_or(0)
    }
}

impl Filter {
    /// Whether a record is wanted.
    pub fn wants(&self, entry: &Entry) -> bool {
        let is = |path: &str, wanted: &Option<String>| {
            wanted.as_deref().is_none_or(|wanted| entry.text(path) == Some(wanted))
        };
        self.since_ms.is_none_or(|since| entry.ts_ms >= since)
            && self.run.as_ref().is_none_or(|run| entry.text("run") == Some(run.as_str()))
            && is("decision", &self.decision)
            && is("stream", &self.stream)
            && (is("kind", &self.kind) || is("event", &self.kind))
            && self.host.as_deref().is_none_or(|host| {
                ["dst.name", "dst.addr", "dns.name"].iter().any(|path| {
                    entry.text(path).is_some_and(|name| {
                        name.strip_suffix(host).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
                    })
                })
            })
    }
}

/// The folders of all chains below `state_dir`, or that of one run: the host's has no run.
///
/// # Errors
/// The folder can't be read: `strait log` needs root or group `strait-audit`.
pub fn folders(state_dir: &Path, run: Option<&RunId>) -> io::Result<Vec<PathBuf>> {
    let runs = state_dir.join("runs");
    if let Some(run) = run {
        let folder = runs.join(run.as_str());
        fs::metadata(&folder).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::new(error.kind(), no_records(run)),
            _ => error,
        })?;
        return Ok(vec![folder]);
    }
    let mut found = Vec::new();
    let host = state_dir.join(HOST);
    if host.try_exists()? {
        found.push(host);
    }
    match fs::read_dir(&runs) {
        Ok(entries) => {
            for entry in entries {
                found.push(entry?.path());
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(found)
}

fn no_records(run: &RunId) -> String {
    format!("there are no records of a run `{run}`: the column RUN of `strait log` names those there are")
}

/// The newest `most` records that fit, oldest first. Reads files from their ends and only as far as needed.
///
/// # Errors
/// A file can't be read. A line that isn't a record is left out: `strait log verify` names it.
pub fn newest(state_dir: &Path, filter: &Filter, most: usize) -> io::Result<Vec<Entry>> {
    let mut chains = Vec::new();
    for folder in folders(state_dir, filter.run.as_ref())? {
        let changed = fs::metadata(folder.join(CURRENT)).and_then(|found| found.modified());
        chains.push((changed.map_or(i64::MAX, unix_ms), folder));
    }
    chains.sort_by_key(|chain| Reverse(chain.0));
    let mut kept: BinaryHeap<Reverse<(i64, u64, usize)>> = BinaryHeap::new();
    let mut entries: BTreeMap<usize, Entry> = BTreeMap::new();
    let mut number = 0;
    for (changed, folder) in chains {
        let floor = |kept: &BinaryHeap<Reverse<(i64, u64, usize)>>| {
            let oldest = kept.peek().filter(|_| kept.len() >= most).map(|Reverse((ts, ..))| *ts);
            oldest.max(filter.since_ms).map(|floor| floor.saturating_sub(SLACK_MS))
        };
        if floor(&kept).is_some_and(|floor| changed < floor) {
            break;
        }
        let mut files = segments(&folder)?;
        'chain: while let Some(path) = files.pop() {
            let mut lines = Backward::open(&path)?;
            while let Some(line) = lines.next_line()? {
                let Some(entry) = Entry::parse(&line) else { continue };
                if floor(&kept).is_some_and(|floor| entry.ts_ms < floor) {
                    break 'chain;
                }
                if filter.wants(&entry) {
                    kept.push(Reverse((entry.ts_ms, entry.seq(), number)));
                    entries.insert(number, entry);
                    number += 1;
                    if kept.len() > most
                        && let Some(Reverse((.., dropped))) = kept.pop()
                    {
                        entries.remove(&dropped);
                    }
                }
            }
        }
    }
    let mut order: Vec<_> = kept.into_iter().map(|Reverse(key)| key).collect();
    order.sort_unstable();
    Ok(order.into_iter().filter_map(|(.., number)| entries.remove(&number)).collect())
}

fn unix_ms(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Lines of a file from its end.
pub(super) struct Backward {
    file: fs::File,
    /// Bytes before `at` aren't read yet.
    at: u64,
    /// Read bytes that aren't given out, in file order.
    buffer: Vec<u8>,
}

impl Backward {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = fs::File::open(path)?;
        let at = file.metadata()?.len();
        Ok(Self { file, at, buffer: Vec::new() })
    }

    pub(super) fn next_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let end = self.buffer.len().saturating_sub(1);
            let newline =
                self.buffer.get(..end).and_then(|before| before.iter().rposition(|byte| *byte == b'\n'));
            if let Some(newline) = newline {
                return Ok(Some(self.buffer.split_off(newline + 1)));
            }
            if self.at == 0 || self.buffer.len() > MAX_LINE {
                let line = std::mem::take(&mut self.buffer);
                self.at = if line.len() > MAX_LINE { 0 } else { self.at };
                return Ok((!line.is_empty()).then_some(line));
            }
            let length = self.at.min(BLOCK);
            self.at -= length;
            self.file.seek(SeekFrom::Start(self.at))?;
            let mut block = vec![0; usize::try_from(length).unwrap_or(0)];
            self.file.read_exact(&mut block)?;
            block.append(&mut self.buffer);
            self.buffer = block;
        }
    }
}

/// Follows chains as they grow.
#[derive(Debug)]
pub struct Follow {
    state_dir: PathBuf,
    filter: Filter,
    /// Per folder: sealed segments read, bytes read of the one after.
    read: BTreeMap<PathBuf, (usize, u64)>,
}

impl Follow {
    /// Begins at the present ends.
    ///
    /// # Errors
    /// A folder can't be read.
    pub fn new(state_dir: &Path, filter: Filter) -> io::Result<Self> {
        let mut read = BTreeMap::new();
        for folder in folders(state_dir, filter.run.as_ref())? {
            let files = segments(&folder)?;
            let current = files.iter().filter(|path| path.ends_with(CURRENT)).count();
            let bytes = fs::metadata(folder.join(CURRENT)).map_or(0, |found| found.len());
            read.insert(folder, (files.len() - current, bytes));
        }
        Ok(Self { state_dir: state_dir.to_owned(), filter, read })
    }

    /// Records written since the last call, in the order of their time.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn poll(&mut self) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        for folder in folders(&self.state_dir, self.filter.run.as_ref())? {
            let (segment, bytes) = self.read.entry(folder.clone()).or_insert((0, 0));
            let files = segments(&folder)?;
            for path in files.iter().skip(*segment) {
                let sealed = !path.ends_with(CURRENT);
                let mut file = fs::File::open(path)?;
                if file.metadata()?.len() > *bytes {
                    file.seek(SeekFrom::Start(*bytes))?;
                    let mut text = Vec::new();
                    file.read_to_end(&mut text)?;
                    for line in text.split_inclusive(|byte| *byte == b'\n') {
                        if line.last() != Some(&b'\n') {
                            break;
                        }
                        *bytes += u64::try_from(line.len()).unwrap_or(0);
                        found.extend(Entry::parse(line).filter(|entry| self.filter.wants(entry)));
                    }
                }
                if sealed {
                    (*segment, *bytes) = (*segment + 1, 0);
                }
            }
        }
        found.sort_by_key(|entry| (entry.ts_ms, entry.seq()));
        Ok(found)
    }
}
