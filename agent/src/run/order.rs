//! What a person asked for, and what came of it: a run, or the reason why there is none.

use std::{io, os::fd::OwnedFd, path::PathBuf, sync::Arc};

use strait_contract::{
    ids::{AgentName, BadName},
    record::Unrecorded,
};

use super::{
    Run,
    account::Account,
    bundle::BundleError,
    cgroup::CgroupError,
    exposure::ExposureError,
    folder::FolderError,
    mounts::{MountRefused, Offered},
    pool::NameError,
    shim::ShimError,
};
use crate::{gate::GateError, link::ServeError, log::LogError, netns::NetnsError, selftest::SelfTestError};

/// What a person asked for, as far as it has been checked.
#[derive(Debug)]
pub struct Order {
    /// Who, by the kernel's word.
    pub account: Account,
    /// Agent name, if one was given.
    pub agent: Option<AgentName>,
    /// Command and arguments, at least one.
    pub argv: Vec<String>,
    /// `--env` and what describes the terminal.
    pub env: Vec<(String, String)>,
    /// The caller's whole environment, from which the agent's configuration may pick.
    pub offered_env: Vec<(String, String)>,
    /// Current folder inside.
    pub cwd: Option<PathBuf>,
    /// Folders to search first.
    pub program_path: Vec<PathBuf>,
    /// Rows and columns.
    pub terminal: Option<(u16, u16)>,
    /// Mounts as offered.
    pub mounts: Vec<Offered>,
}

/// A run that has been started.
#[derive(Debug)]
pub struct Started {
    /// The run.
    pub run: Arc<Run>,
    /// Its terminal's master.
    pub master: Option<OwnedFd>,
}

/// Why a run was not started. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A mount isn't acceptable.
    #[error(transparent)]
    Mount(#[from] MountRefused),
    /// No name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The agent's name isn't one.
    #[error(transparent)]
    Agent(#[from] BadName),
    /// Nobody has configured it: a misspelt name would be an agent without tools, limits and rules of its own.
    #[error(
        "there is no `[agents.{agent}]` in the configuration, which has {known}: use one of those, or add it"
    )]
    UnknownAgent {
        /// As it was asked for.
        agent: AgentName,
        /// Those there are.
        known: String,
    },
    /// Too many runs.
    #[error("every address of the pool is in use: stop a run, or widen `network.pool`")]
    PoolEmpty,
    /// The cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The network namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The gate.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// The gate is there but doesn't hold.
    #[error("the gate does not hold, so nothing was started: {0}; see `strait doctor`")]
    SelfTest(#[from] SelfTestError),
    /// The bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The run's folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The home.
    #[error("the private home `{path}` can't be made", path = path.display())]
    Home {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What it is to be shown.
    #[error(transparent)]
    Exposure(#[from] ExposureError),
    /// The record of the start could not be written: no record, no passage.
    #[error(
        "the start can't be recorded ({0}), so nothing was started: is the disk of the state folder full?"
    )]
    Unrecorded(Unrecorded),
    /// The run's log could not be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The gateway can't be told.
    #[error(transparent)]
    Link(#[from] ServeError),
    /// The shim or the runtime.
    #[error(transparent)]
    Shim(#[from] ShimError),
    /// What would be needed to find the run again can't be written.
    #[error("the state folder can't be written")]
    Live(#[source] io::Error),
    /// The terminal.
    #[error("the run's terminal can't be made")]
    Terminal(#[source] io::Error),
    /// A thread of ours failed.
    #[error("a fault inside Strait: {0}")]
    Internal(#[from] tokio::task::JoinError),
}
