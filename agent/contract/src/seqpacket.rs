//! The link's transport: SEQPACKET on a Unix socket, one postcard message a packet, descriptors by SCM_RIGHTS.
//!
//! Without a runtime of its own. But for [`receive_waiting`] nothing blocks: the caller waits for readiness and tries
//! again on [`io::ErrorKind::WouldBlock`].

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::message::MAX_PACKET;

/// Most descriptors in one packet.
pub const MAX_FDS: usize = 8;

/// Why a packet could not be sent or read.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The socket failed, or would block.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer closed the link.
    #[error("the peer closed the link")]
    Closed,
    /// The packet isn't a message of this contract.
    #[error("a packet of the link can't be read: {0}")]
    Malformed(postcard::Error),
    /// The packet is larger than [`MAX_PACKET`] or carries more than [`MAX_FDS`] descriptors.
    #[error("a packet of the link is too large")]
    TooLarge,
}

impl LinkError {
    /// Whether to wait for readiness and try again.
    pub fn would_block(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Encodes a message; an error means that it would not fit a packet.
///
/// # Errors
/// [`LinkError::TooLarge`] if it is longer than [`MAX_PACKET`].
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, LinkError> {
    let bytes = postcard::to_stdvec(message).map_err(LinkError::Malformed)?;
    if bytes.len() > MAX_PACKET { Err(LinkError::TooLarge) } else { Ok(bytes) }
}

/// Sends an encoded message with descriptors as one packet, without blocking.
///
/// # Errors
/// I/O errors of `sendmsg(2)`, among them `WouldBlock` when the peer's queue is full.
pub fn send(socket: impl AsFd, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
    if fds.len() > MAX_FDS {
        return Err(LinkError::TooLarge);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(LinkError::TooLarge);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[io::IoSlice::new(packet)], &mut control, flags).map_err(io::Error::from)?;
    Ok(())
}

/// Receives one packet without blocking. `buffer` is scratch space of at least [`MAX_PACKET`] bytes. Received
/// descriptors are close-on-exec.
///
/// # Errors
/// `WouldBlock` if nothing waits, [`LinkError::Closed`] at the end, [`LinkError::Malformed`] or
/// [`LinkError::TooLarge`] for what isn't a message; the link is of no use after those.
pub fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> Result<(T, Vec<OwnedFd>), LinkError> {
    receive_with(socket, buffer, RecvFlags::DONTWAIT)
}

/// As [`receive`], but waits for a packet if the socket is a blocking one.
///
/// # Errors
/// As [`receive`].
pub fn receive_waiting<T: DeserializeOwned>(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> Result<(T, Vec<OwnedFd>), LinkError> {
    receive_with(socket, buffer, RecvFlags::empty())
}

fn receive_with<T: DeserializeOwned>(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<(T, Vec<OwnedFd>), LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got =
        recvmsg(socket, &mut [io::IoSliceMut::new(buffer)], &mut control, flags).map_err(io::Error::from)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.contains(ReturnFlags::TRUNC) || got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(LinkError::TooLarge);
    }
    if got.bytes == 0 {
        return Err(LinkError::Closed);
    }
    let packet = buffer.get(..got.bytes).ok_or(LinkError::TooLarge)?;
    let message = postcard::from_bytes(packet).map_err(LinkError::Malformed)?;
    Ok((message, fds))
}
