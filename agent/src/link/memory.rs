//! Memory that is handed over: sealed where nobody may change it, a file where it has to outlive the agent.

use std::{
    fs,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, open};

fn create(name: &str) -> io::Result<OwnedFd> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

/// The file at `path`, made if it isn't there, with what it holds. It takes no seals; the gateway's limit of file
/// size keeps it from growing.
pub(super) fn kept(path: &Path, bytes: u64) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Memory with a content that nobody can change.
pub(super) fn sealed(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = fs::File::from(create(name)?);
    file.write_all(content)?;
    let memory = OwnedFd::from(file);
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(memory)
}

/// The same memory by a descriptor with a position of its own, for reading.
pub(super) fn reopened(memory: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(fs::File::open(format!("/proc/self/fd/{}", memory.as_raw_fd()))?.into())
}
