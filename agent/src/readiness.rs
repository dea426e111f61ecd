//! Readiness of descriptors under tokio.

use std::{io, os::fd::OwnedFd};

use tokio::io::unix::AsyncFd;

/// Watches a descriptor that the caller owns. It must be non-blocking.
///
/// # Errors
/// The descriptor can't be polled.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "unsound only for types that may close their descriptor early; an `OwnedFd` can't, and the \
                  replacement is `unsafe` for every type"
    )]
    AsyncFd::new(fd)
}
