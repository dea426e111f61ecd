//! Checks a chain against itself and its signed head, and names the line where it breaks.

use std::{
    fmt, fs, io,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use ed25519_dalek::VerifyingKey;

use super::{
    chain::{CURRENT, HOST, chain_start, segment_name},
    head::{BadHead, Head},
    key::{KeyError, public_key},
    line::{self, Hash, hex},
};

/// How long a live chain's head may stay behind its lines.
const HEAD_PATIENCE: Duration = Duration::from_secs(2);

/// What a check found.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every line is as it was written.
    Intact {
        /// Lines in the chain.
        lines: u64,
        /// Hash of the last, hex.
        hash: String,
        /// Whether the chain is closed.
        sealed: bool,
    },
    /// The chain was changed.
    Broken(Flaw),
}

/// Where a chain breaks and how.
#[derive(Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The file.
    pub file: PathBuf,
    /// Line of the chain, counting from 1 over all its files; 0 if it's the head that is wrong.
    pub line: u64,
    /// What is wrong there.
    pub reason: Reason,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its hash isn't that of its bytes.
    Changed,
    /// It doesn't follow the line before: one was removed, added or moved.
    OutOfOrder,
    /// It isn't whole.
    Half,
    /// It and perhaps more after it is missing; the head knows this many lines.
    Missing(u64),
    /// The signed head knows another line here.
    NotTheHeads,
    /// It stands after the end that the signed head attests.
    AfterTheHead,
    /// The head can't be believed.
    Head(String),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line;
        match &self.reason {
            Reason::Changed => write!(f, "line {line} was changed")?,
            Reason::OutOfOrder => write!(f, "line {line} doesn't follow line {}", line.saturating_sub(1))?,
            Reason::Half => write!(f, "line {line} isn't whole")?,
            Reason::Missing(known) => write!(f, "line {line} is missing: the signed head knows {known}")?,
            Reason::NotTheHeads => write!(f, "line {line} isn't the one the signed head knows")?,
            Reason::AfterTheHead => write!(
                f,
                "line {line} stands after the end that the signed head knows (if strait-agent was killed, its next start takes the chain up)"
            )?,
            Reason::Head(why) => f.write_str(why)?,
        }
        write!(f, " (`{}`)", self.file.display())
    }
}

/// Why a chain could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A file can't be read.
    #[error("`{path}` can't be read: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no key to check signatures with.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Checks the chain of `run` (`None`: the host's) below `state_dir`.
///
/// # Errors
/// Files or the key can't be read; a chain that is broken is a [`Verdict`].
pub fn verify(state_dir: &Path, run: Option<&str>) -> Result<Verdict, VerifyError> {
    let key = public_key(state_dir)?;
    let folder = match run {
        Some(run) => state_dir.join("runs").join(run),
        None => state_dir.join(HOST),
    };
    fs::read_dir(&folder).map_err(|source| VerifyError::File { path: folder.clone(), source })?;
    verify_folder(&folder, run, &key)
}

/// Checks the chain in `folder` with a given key.
///
/// # Errors
/// As [`verify`].
pub fn verify_folder(folder: &Path, run: Option<&str>, key: &VerifyingKey) -> Result<Verdict, VerifyError> {
    let name = run.unwrap_or(HOST);
    let read_head = || match Head::read(folder, name, key) {
        Ok(head) => Ok(Ok(head)),
        Err(BadHead::Io(source)) => Err(VerifyError::File { path: folder.join(super::head::FILE), source }),
        Err(bad) => Ok(Err(Flaw {
            file: folder.join(super::head::FILE),
            line: 0,
            reason: Reason::Head(bad.to_string()),
        })),
    };
    let mut head = read_head()?;
    let mut scan = Scan::new(folder, run);
    let mut waited = Duration::ZERO;
    loop {
        let known = head.as_ref().map_or(0, |head| head.seq);
        if let Some(flaw) = scan.advance(known)? {
            return Ok(Verdict::Broken(flaw));
        }
        if let Ok(head) = &head
            && let Some(flaw) = scan.against(head)
        {
            return Ok(Verdict::Broken(flaw));
        }
        if let Some(flaw) = scan.advance(u64::MAX)? {
            return Ok(Verdict::Broken(flaw));
        }
        let settled = match &head {
            Ok(head) => scan.seq == head.seq && scan.half.is_none(),
            Err(_) => false,
        };
        let sealed = head.as_ref().is_ok_and(|head| head.sealed);
        if settled {
            return Ok(Verdict::Intact { lines: scan.seq, hash: hex(&scan.hash), sealed });
        }
        // A live chain's head follows within the sync interval.
        if sealed || waited >= HEAD_PATIENCE {
            return Ok(Verdict::Broken(match head {
                Ok(head) => scan.unattested(&head),
                Err(flaw) => flaw,
            }));
        }
        thread::sleep(Duration::from_millis(25));
        waited += Duration::from_millis(25);
        let newer = read_head()?;
        // A head behind what was read already attests nothing about the rest.
        if newer.as_ref().is_ok_and(|newer| newer.seq >= scan.seq) {
            head = newer;
        }
    }
}

/// A reading position in a chain.
struct Scan<'a> {
    folder: &'a Path,
    run: Option<&'a str>,
    seq: u64,
    hash: Hash,
    segment: u32,
    bytes: u64,
    reader: Option<(PathBuf, BufReader<fs::File>)>,
    /// A line without its end, so far.
    half: Option<Vec<u8>>,
}

impl<'a> Scan<'a> {
    fn new(folder: &'a Path, run: Option<&'a str>) -> Self {
        let hash = chain_start(run);
        Self { folder, run, seq: 0, hash, segment: 0, bytes: 0, reader: None, half: None }
    }

    fn path(&self) -> PathBuf {
        let sealed = self.folder.join(segment_name(self.segment + 1));
        if sealed.exists() { sealed } else { self.folder.join(CURRENT) }
    }

    fn flaw(&self, line: u64, reason: Reason) -> Flaw {
        let file = self.reader.as_ref().map_or_else(|| self.path(), |(path, _)| path.clone());
        Flaw { file, line, reason }
    }

    /// Reads lines up to number `to` or the end of the chain as it is now.
    fn advance(&mut self, to: u64) -> Result<Option<Flaw>, VerifyError> {
        while self.seq < to {
            let mut line = self.half.take().unwrap_or_default();
            let path = self.path();
            let fault = |source| VerifyError::File { path: path.clone(), source };
            if self.reader.is_none() {
                match fs::File::open(&path) {
                    Ok(file) => {
                        self.reader = Some((path.clone(), BufReader::with_capacity(256 * 1024, file)))
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                    Err(error) => return Err(fault(error)),
                }
            }
            let Some((_, reader)) = &mut self.reader else { return Ok(None) };
            reader.read_until(b'\n', &mut line).map_err(fault)?;
            if line.is_empty() {
                if self.folder.join(segment_name(self.segment + 1)).exists() {
                    (self.segment, self.bytes, self.reader) = (self.segment + 1, 0, None);
                    continue;
                }
                return Ok(None);
            }
            if line.last() != Some(&b'\n') {
                self.half = Some(line);
                return Ok(self.is_sealed_segment().then(|| self.flaw(self.seq + 1, Reason::Half)));
            }
            let Some(hash) = line::checked_hash(&line) else {
                return Ok(Some(self.flaw(self.seq + 1, Reason::Changed)));
            };
            if super::chain::follows(&line, self.run, self.seq, &self.hash).is_none() {
                return Ok(Some(self.flaw(self.seq + 1, Reason::OutOfOrder)));
            }
            self.seq += 1;
            self.hash = hash;
            self.bytes += u64::try_from(line.len()).unwrap_or(0);
        }
        Ok(None)
    }

    fn is_sealed_segment(&self) -> bool {
        self.folder.join(segment_name(self.segment + 1)).exists()
    }

    /// Compares the position with the head, which claims to know it.
    fn against(&self, head: &Head) -> Option<Flaw> {
        if self.seq < head.seq {
            let reason = if self.half.is_some() { Reason::Half } else { Reason::Missing(head.seq) };
            return Some(self.flaw(self.seq + 1, reason));
        }
        if self.seq > head.seq {
            return None;
        }
        let place = (self.segment, self.bytes) == (head.segment, head.bytes)
            || (self.bytes == 0 && head.segment + 1 == self.segment);
        (hex(&self.hash) != head.hash || !place).then(|| self.flaw(self.seq, Reason::NotTheHeads))
    }

    fn unattested(&self, head: &Head) -> Flaw {
        let reason =
            if self.half.is_some() && self.seq == head.seq { Reason::Half } else { Reason::AfterTheHead };
        self.flaw(head.seq + 1, reason)
    }
}

/// Compares what the host's chain says about closed runs with what is there: a run's chain that was removed, or
/// replaced by an older state of itself with its older head, is named.
///
/// # Errors
/// Files or the key can't be read.
pub fn verify_seals(state_dir: &Path) -> Result<Vec<String>, VerifyError> {
    let key = public_key(state_dir)?;
    let folder = state_dir.join(HOST);
    let fault = |source| VerifyError::File { path: folder.clone(), source };
    let mut seals = std::collections::BTreeMap::new();
    for path in super::chain::segments(&folder).map_err(fault)? {
        for line in BufReader::new(fs::File::open(&path).map_err(fault)?).lines() {
            let line = line.map_err(fault)?;
            if !line.contains("\"event\":\"log.") {
                continue;
            }
            let value: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
            let fact = |key: &str| {
                value.get("facts").and_then(|facts| facts.get(key)).and_then(|fact| fact.as_str())
            };
            let Some(run) = fact("run") else { continue };
            match value.get("event").and_then(|event| event.as_str()) {
                Some("log.sealed") => {
                    seals.insert(run.to_owned(), fact("head").unwrap_or_default().to_owned());
                }
                // Taken up again, or removed by retention: its own later seal counts.
                Some("log.opened" | "log.removed") => {
                    seals.remove(run);
                }
                _ => {}
            }
        }
    }
    let mut missing = Vec::new();
    for (run, hash) in seals {
        let folder = state_dir.join("runs").join(&run);
        match Head::read(&folder, &run, &key) {
            Ok(head) if head.hash == hash => {}
            Ok(head) => missing.push(format!(
                "{run}: it ends with line {} and another hash than the host's chain knows (`{}`)",
                head.seq,
                folder.display()
            )),
            Err(BadHead::Missing) => {
                missing.push(format!("{run}: its records were removed (`{}`)", folder.display()))
            }
            // `verify` names it.
            Err(_) => {}
        }
    }
    Ok(missing)
}
