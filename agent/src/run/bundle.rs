//! The OCI bundle of `strait run`: what the run sees, may do and is told.
//!
//! Takes a [`Plan`]; gives `config.json` and the files of the root file system. Decides nothing about who may have
//! what: mounts were admitted in [`super::mounts`].

mod etc;
mod spec;
#[cfg(test)]
mod tests;

use std::{io, net::Ipv4Addr, path::PathBuf};

use oci_spec::OciSpecError;
use strait_contract::ids::{AgentName, RunId};

pub use self::spec::{PIDS_LIMIT, config};
use super::{
    account::Account,
    folder::{Folder, FolderError},
    mounts::{Access, Admitted},
    trust::Trust,
};

/// Where the static helper is inside a run; it is also the run's PID 1.
pub const TOOL_INSIDE: &str = "/tools/bin/strait-tool";

/// Everything a bundle is made from.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The run.
    pub run: &'a RunId,
    /// What it runs as.
    pub agent: &'a AgentName,
    /// Who started it; also the user the processes have.
    pub account: &'a Account,
    /// Command and arguments.
    pub argv: &'a [String],
    /// `NAME=value` lines ([`super::environment`]).
    pub env: Vec<String>,
    /// Current folder.
    pub cwd: PathBuf,
    /// Rows and columns, if the run has a terminal.
    pub terminal: Option<(u16, u16)>,
    /// Address that names are asked of and `strait.internal` means.
    pub gateway: Ipv4Addr,
    /// The prepared network namespace.
    pub netns: PathBuf,
    /// Cgroup below every hierarchy's root: `/<instance>/<run>/box`.
    pub cgroup: PathBuf,
    /// The static helper on the host.
    pub tool: PathBuf,
    /// The person's persistent home for this agent, on the host.
    pub home: PathBuf,
    /// Certificates.
    pub trust: &'a Trust,
    /// Staged mounts.
    pub binds: Vec<Bind>,
}

/// A bind mount: a staged or trusted path on the host, and where it is inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// On the host.
    pub source: PathBuf,
    /// In the run.
    pub target: PathBuf,
    /// What the run may do with it.
    pub access: Access,
}

/// Why a bundle could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file or mount failed.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The OCI library refused the configuration.
    #[error("the OCI configuration is not acceptable")]
    Spec(#[from] OciSpecError),
    /// `config.json` could not be written.
    #[error("`config.json` can't be written")]
    Write(#[source] io::Error),
}

impl Bind {
    /// Stages an admitted mount in the run's folder.
    ///
    /// # Errors
    /// [`FolderError`] if it can't be cloned.
    pub fn stage(folder: &Folder, index: usize, mount: &Admitted) -> Result<Self, FolderError> {
        let source = folder.stage(index, mount)?;
        Ok(Self { source, target: mount.path.clone(), access: mount.access })
    }
}

/// Writes the root file system's files and `config.json`.
///
/// # Errors
/// [`BundleError`] names what failed.
pub fn write(folder: &Folder, plan: &Plan<'_>) -> Result<(), BundleError> {
    for (path, content) in etc::files(plan) {
        folder.write(path, content.as_bytes())?;
    }
    for (path, content) in etc::copied() {
        folder.write(path, &content)?;
    }
    let spec = config(folder, plan)?;
    let text = serde_json::to_vec(&spec).map_err(|error| BundleError::Write(error.into()))?;
    std::fs::write(folder.bundle().join("config.json"), text).map_err(BundleError::Write)
}
