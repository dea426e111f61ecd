//! Links of programs to cgroups, and the packet filter on a veth: attach, verify, remove.
//!
//! A link is pinned, so it outlives the agent. A cgroup link made by `BPF_LINK_CREATE` stands beside those of
//! others; all of them must allow.

use std::{fs, io, os::fd::AsFd as _, path::Path};

use aya::programs::{
    SchedClassifier, TcAttachType,
    links::Link as _,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle, qdisc_add_clsact},
};
use rustix::io::Errno;

use super::{
    GateError, cgroup,
    hook::PACKET_FILTER,
    object::{Pinned, program_pin},
    sys,
};
use crate::{
    instance::Instance,
    netns::{self, Veth},
};

/// Whether the pin at `path` is a link of this very program to this very cgroup.
fn holds(path: &Path, program: &Pinned, cgroup: u64) -> bool {
    sys::open_pin(path).and_then(|fd| sys::link_info(fd.as_fd())).is_ok_and(|link| {
        link.program == program.id && link.cgroup == cgroup && link.attach_type == program.hook.attach_type
    })
}

/// Attaches what isn't attached and pins it under `folder`. A foreign or dead pin of the name gives way, after
/// the new link is in place.
pub(super) fn attach(folder: &Path, programs: &[Pinned], at: &Path) -> Result<(), GateError> {
    let failed = |hook, source| GateError::Attach { hook, cgroup: at.to_owned(), source };
    fs::create_dir_all(folder).map_err(|source| GateError::Bpffs { path: folder.to_owned(), source })?;
    let id = cgroup::id(at).map_err(|source| failed("cgroup", source))?;
    let directory = fs::File::open(at).map_err(|source| failed("cgroup", source))?;
    for program in programs {
        let pin = folder.join(program.hook.name);
        if holds(&pin, program, id) {
            continue;
        }
        let name = program.hook.name;
        let link = sys::attach(program.fd.as_fd(), directory.as_fd(), program.hook.attach_type)
            .map_err(|source| failed(name, source))?;
        remove(&pin)?;
        sys::pin(link.as_fd(), &pin).map_err(|source| failed(name, source))?;
    }
    Ok(())
}

/// Names of the hooks that aren't attached as they should be.
pub(super) fn missing(folder: &Path, programs: &[Pinned], at: &Path) -> Vec<&'static str> {
    let id = cgroup::id(at).unwrap_or(0);
    programs
        .iter()
        .filter(|program| !holds(&folder.join(program.hook.name), program, id))
        .map(|program| program.hook.name)
        .collect()
}

fn remove(pin: &Path) -> Result<(), GateError> {
    match fs::remove_file(pin) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(GateError::Bpffs { path: pin.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Removes a folder of pins, which detaches its links.
pub(super) fn detach(folder: &Path) -> Result<(), GateError> {
    match fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(GateError::Bpffs { path: folder.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Attaches the packet filter to a veth, at clsact. A filter held by a qdisc outlives the agent as a pin does,
/// and unlike a tcx link it costs no wait for RCU. A filter of another program gives way, after the new one is
/// in place.
pub(super) fn attach_filter(instance: &Instance, veth: &Veth, program: u32) -> Result<(), GateError> {
    let old = netns::filter(instance, veth.ifindex)?;
    if old.is_some_and(|old| old.program == program) {
        return Ok(());
    }
    let pin = program_pin(instance, PACKET_FILTER);
    let name = veth.name.clone();
    netns::within(&instance.strait_netns(), move || place_filter(&pin, &name, old.map(|old| old.priority)))?
        .map_err(|source| GateError::Filter { veth: veth.name.clone(), source: Box::new(source) })
}

/// Handle of our filter at its priority.
const HANDLE: TcHandle = TcHandle::new(0, 1);

/// Puts the filter on, beside an older one, which then goes.
fn place_filter(pin: &Path, veth: &str, old: Option<u16>) -> Result<(), aya::programs::ProgramError> {
    match qdisc_add_clsact(veth) {
        Err(error) if !is_there(&error) => return Err(error.into()),
        _ => {}
    }
    let mut program = SchedClassifier::from_pin(pin)?;
    let priority = if old == Some(1) { 2 } else { 1 };
    let place = NlOptions { priority, handle: HANDLE, ..NlOptions::default() };
    let link = program.attach_with_options(veth, TcAttachType::Ingress, TcAttachOptions::Netlink(place))?;
    // Dropping it would take the filter off.
    std::mem::forget(program.take_link(link)?);
    if let Some(old) = old {
        SchedClassifierLink::attached(veth, TcAttachType::Ingress, old, HANDLE, None)
            .map_err(aya::programs::tc::TcError::IoError)?
            .detach()?;
    }
    Ok(())
}

fn is_there(error: &aya::programs::tc::TcError) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && error.raw_os_error() == Some(Errno::EXIST.raw_os_error())
        {
            return true;
        }
        source = error.source();
    }
    false
}
