//! Anonymous memory that is handed over: sealed, so that the peer can't resize it under a reader.

use std::{
    fs,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

fn create(name: &str) -> io::Result<OwnedFd> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

/// Zeroed memory of a fixed size that can be written.
pub(super) fn sized(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let memory = create(name)?;
    ftruncate(&memory, u64::try_from(bytes).unwrap_or(u64::MAX))?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
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
