//! The SEQPACKET socket under tokio.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use strait_contract::{
    message::{MAX_PACKET, ToGateway},
    seqpacket::{self, LinkError},
};
use tokio::io::unix::AsyncFd;

/// A connected link.
#[derive(Debug)]
pub(super) struct Socket {
    fd: AsyncFd<OwnedFd>,
}

/// Room for one packet.
pub(super) fn scratch() -> Vec<u8> {
    vec![0; MAX_PACKET]
}

/// A message with its descriptors.
pub(super) type Received = (ToGateway, Vec<OwnedFd>);

/// Dials the agent.
pub(super) fn dial(path: &Path) -> io::Result<Socket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Connecting to a Unix socket doesn't take time: it succeeds, or the backlog is full (`EAGAIN`).
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    Socket::new(fd)
}

impl Socket {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd: AsyncFd::register(fd)? })
    }

    /// The next message if one waits, without blocking.
    pub(super) fn try_receive(&self, scratch: &mut [u8]) -> Result<Option<Received>, LinkError> {
        match seqpacket::receive(self.fd.get_ref().as_fd(), scratch) {
            Ok(got) => Ok(Some(got)),
            Err(error) if error.would_block() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next message.
    pub(super) async fn receive(&self, scratch: &mut [u8]) -> Result<Received, LinkError> {
        loop {
            let mut ready = self.fd.readable().await?;
            match seqpacket::receive(self.fd.get_ref().as_fd(), scratch) {
                Err(error) if error.would_block() => ready.clear_ready(),
                got => return got,
            }
        }
    }

    /// Sends a packet if there is room; `false` if there is none.
    pub(super) fn try_send(&self, packet: &[u8]) -> Result<bool, LinkError> {
        match seqpacket::send(self.fd.get_ref().as_fd(), packet, &[]) {
            Ok(()) => Ok(true),
            Err(error) if error.would_block() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends a packet as soon as there is room.
    pub(super) async fn send(&self, packet: &[u8]) -> Result<(), LinkError> {
        loop {
            let mut ready = self.fd.writable().await?;
            if self.try_send(packet)? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}
