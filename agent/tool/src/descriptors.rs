//! Descriptors that came with the process: one is taken into ownership, the others are closed. And the one that a
//! run's init is given.
#![expect(unsafe_code, reason = "ownership of an inherited descriptor can only be asserted")]

use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};

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
    // Out of the way of [`WORD`].
    Ok(fcntl_dupfd_cloexec(&kept, WORD + 1)?)
}

/// Where an init that waits hears its word: the first descriptor that `runc run --preserve-fds 1` hands on.
pub(crate) const WORD: RawFd = 3;

/// A pipe whose reading end is [`WORD`] and survives exec. To be called when only the standard three are open below it.
///
/// # Errors
/// If the reading end got another number, or there are no descriptors left.
pub(crate) fn word() -> io::Result<(io::PipeReader, io::PipeWriter)> {
    let (hear, say) = io::pipe()?;
    if hear.as_raw_fd() != WORD {
        return Err(io::Error::other(format!("descriptor {WORD} is taken")));
    }
    fcntl_setfd(&hear, FdFlags::empty())?;
    Ok((hear, say))
}

/// Takes [`WORD`], as the process was given it, into ownership.
///
/// # Errors
/// If it isn't open.
pub(crate) fn given_word() -> io::Result<fs::File> {
    // SAFETY: borrowed for one fcntl(2), which fails if nothing is open there.
    fcntl_getfd(unsafe { BorrowedFd::borrow_raw(WORD) })?;
    // SAFETY: it's open, was inherited across exec, and nothing else in this process owns it: this is called once,
    // before anything was opened.
    let word = fs::File::from(unsafe { OwnedFd::from_raw_fd(WORD) });
    fcntl_setfd(&word, FdFlags::CLOEXEC)?;
    Ok(word)
}
