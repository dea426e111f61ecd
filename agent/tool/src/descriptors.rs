//! Descriptors that came with the process: one is taken into ownership, the others are closed.
#![expect(unsafe_code, reason = "ownership of an inherited descriptor can only be asserted")]

use std::{
    fs, io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
};

use rustix::io::{FdFlags, fcntl_setfd};

/// Takes descriptor `keep`, makes it close-on-exec, and closes every other one above stderr.
///
/// To be called once, before anything else has opened a descriptor.
///
/// # Errors
/// If `keep` isn't open or is one of the standard three, or `/proc` can't be read.
pub(crate) fn keep_only(keep: RawFd) -> io::Result<OwnedFd> {
    let mut open = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        open.extend(name.to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    if keep <= 2 || !open.contains(&keep) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {keep} isn't open")));
    }
    for fd in open {
        if fd > 2 && fd != keep {
            // The one of the listing itself is closed already.
            let _ = nix::unistd::close(fd);
        }
    }
    // SAFETY: `keep` is open, was inherited across exec and is therefore owned by nothing in this process.
    let kept = unsafe { OwnedFd::from_raw_fd(keep) };
    fcntl_setfd(&kept, FdFlags::CLOEXEC)?;
    Ok(kept)
}
