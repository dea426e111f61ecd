//! The one system call of this crate: `getsockopt(2)` with an option that only our kernel program answers, so
//! that no safe wrapper knows it.
#![expect(unsafe_code, reason = "an option of our own has no safe wrapper")]

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{FLOW_LEN, FLOW_LEVEL, FLOW_OPTION, Flow};

/// The kernel's account of an accepted connection. `None` if there is none, for whatever reason: without the
/// program the kernel answers `ENOPROTOOPT`, with it and without a flow `ENOENT`.
pub fn of(socket: BorrowedFd<'_>) -> Option<Flow> {
    let mut bytes = [0u8; FLOW_LEN];
    let mut len = libc::socklen_t::try_from(FLOW_LEN).ok()?;
    // SAFETY: `socket` is open for the whole call, `bytes` has room for the `len` bytes that the kernel may
    // write at most, and `len` is a valid pointer to their count.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), FLOW_LEVEL, FLOW_OPTION, bytes.as_mut_ptr().cast(), &raw mut len)
    };
    let len = usize::try_from(len).ok()?;
    if result == 0 { Flow::from_bytes(bytes.get(..len)?) } else { None }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, os::fd::AsFd};

    use super::*;

    #[test]
    fn a_socket_that_no_program_knows_has_no_flow() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(of(listener.as_fd()), None);
    }
}
