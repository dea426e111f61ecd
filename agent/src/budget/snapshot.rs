//! The ledger on disk: one JSON file, replaced as a whole, that says how far each chain was counted.
//!
//! A file that is missing or damaged costs time, never a count: then every chain is counted from its beginning.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use strait_contract::ids::{AgentName, RunId};

use super::{AgentState, Ledger, RunState};

/// Form of the file.
const VERSION: u32 = 1;

/// A place in a chain, between two lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Position {
    /// Sealed segments before it.
    pub segment: u32,
    /// Bytes of its own segment before it.
    pub bytes: u64,
}

/// A ledger with the places to which it has counted.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    version: u32,
    /// Of the host's chain.
    host: Position,
    agents: BTreeMap<AgentName, AgentState>,
    runs: HashMap<RunId, RunState>,
}

/// Where the snapshot is.
pub(crate) fn path(state_dir: &Path) -> PathBuf {
    state_dir.join("budget.json")
}

impl Ledger {
    /// The ledger as it is, if it has changed since this was last asked. `place` tells how far a chain is written, `None`
    /// being the host's.
    pub(crate) fn snapshot(
        &mut self,
        place: impl Fn(Option<&RunId>) -> Option<Position>,
    ) -> Option<Snapshot> {
        if !self.changed {
            return None;
        }
        self.changed = false;
        let runs = self.runs.iter().map(|(run, state)| {
            let at = place(Some(run)).unwrap_or(state.at);
            (run.clone(), RunState { at, ..state.clone() })
        });
        Some(Snapshot {
            version: VERSION,
            host: place(None).unwrap_or_default(),
            agents: self.agents.clone(),
            runs: runs.collect(),
        })
    }

    /// The next snapshot is wanted whatever happens until then: the last one came to nothing.
    pub(crate) fn unsaved(&mut self) {
        self.changed = true;
    }
}

impl Snapshot {
    /// What the file holds; `None` if there is none, or none that can be used, which is told.
    ///
    /// # Errors
    /// It is there and can't be read.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        match serde_json::from_slice::<Self>(&text) {
            Ok(snapshot) if snapshot.version == VERSION => Ok(Some(snapshot)),
            Ok(other) => {
                tracing::warn!(
                    version = other.version,
                    "the ledger of model use has another form: all records are counted anew"
                );
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(%error, "the ledger of model use is damaged: all records are counted anew");
                Ok(None)
            }
        }
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// I/O errors; the old one stays.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        let text = serde_json::to_vec(self)?;
        let mut open = fs::OpenOptions::new();
        let mut file = open.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, path)
    }

    /// The ledger, and how far the host's chain is counted.
    pub(super) fn into_ledger(self) -> (Ledger, Position) {
        let ledger = Ledger { agents: self.agents, runs: self.runs, ..Ledger::default() };
        (ledger, self.host)
    }
}
