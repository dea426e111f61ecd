//! Kill without an agent: root's last resort, from kernel objects and the files of live runs alone.

use std::io;

use strait_contract::ids::RunId;

use super::{
    cgroup::{CgroupError, Hierarchies},
    live::Live,
};
use crate::{
    gate::{Gate, GateError},
    instance::Instance,
};

/// Why a run could not be killed.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// What lives can't be told.
    #[error("the files of live runs can't be read: this needs root")]
    List(#[source] io::Error),
    /// The next agent will record another reason for the end.
    #[error("that the run was killed can't be noted for the next agent")]
    Note(#[source] io::Error),
    /// The cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The gate; processes are frozen and killed nevertheless.
    #[error(transparent)]
    Gate(#[from] GateError),
}

/// Runs that an agent left behind, dead or alive.
///
/// # Errors
/// [`OfflineError::List`].
pub fn list(instance: &Instance) -> Result<Vec<Live>, OfflineError> {
    Live::all(instance).map_err(OfflineError::List)
}

/// Cuts the runs' flows, freezes and kills them. The next agent records that `by` did, and clears away.
///
/// # Errors
/// [`OfflineError`], after everything that could be done was done.
pub fn kill(instance: &Instance, runs: &[Live], by: &str) -> Result<Vec<RunId>, OfflineError> {
    let hierarchies = Hierarchies::find()?;
    let gate = Gate::open(instance);
    let mut killed = Vec::new();
    let mut first_fault: Option<OfflineError> = None;
    for live in runs {
        let group = hierarchies.of(instance, live.id.as_str());
        let cut = match &gate {
            Ok(gate) => gate.kill_number(live.number).map_err(OfflineError::from),
            Err(_) => Ok(()),
        };
        let frozen = group.freeze();
        let noted = Live { killed_by: Some(by.to_owned()), ..live.clone() }
            .write(instance)
            .map_err(OfflineError::Note);
        let done = group.kill().map_err(OfflineError::from);
        // A kernel that can't freeze can still kill.
        drop(frozen);
        match done.and(cut).and(noted) {
            Ok(()) => killed.push(live.id.clone()),
            Err(fault) => {
                first_fault.get_or_insert(fault);
            }
        }
    }
    match (first_fault, gate) {
        (Some(fault), _) => Err(fault),
        (None, Err(fault)) if !runs.is_empty() => Err(fault.into()),
        _ => Ok(killed),
    }
}
