//! The SEQPACKET socket under tokio.

use std::{io, os::fd::OwnedFd, path::Path, time::Duration};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use strait_contract::{
    message::{MAX_PACKET, ToGateway},
    seqpacket::{self, LinkError},
};
use tokio::io::{Interest, unix::AsyncFd};

/// Pause before a full socket is tried again.
const ROOM: Duration = Duration::from_millis(1);

/// A connected link. Only its readability is watched: watching for room to write, the kernel would wake this process
/// for each packet that the agent takes.
#[derive(Debug)]
pub(super) struct Socket(AsyncFd<OwnedFd>);

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
        #[expect(
            deprecated,
            reason = "unsound only for types that may close their descriptor early; an `OwnedFd` can't, and the \
                      replacement is `unsafe` for every type"
        )]
        AsyncFd::with_interest(fd, Interest::READABLE).map(Self)
    }

    fn try_receive(&self, scratch: &mut [u8]) -> Result<Option<Received>, LinkError> {
        ready(seqpacket::receive(self.0.get_ref(), scratch))
    }

    /// The next message.
    pub(super) async fn receive(&self, scratch: &mut [u8]) -> Result<Received, LinkError> {
        loop {
            let mut readable = self.0.readable().await?;
            match self.try_receive(scratch)? {
                Some(got) => return Ok(got),
                None => readable.clear_ready(),
            }
        }
    }

    /// Sends a packet if there is room; `false` if there is none.
    pub(super) fn try_send(&self, packet: &[u8]) -> Result<bool, LinkError> {
        ready(seqpacket::send(self.0.get_ref(), packet, &[])).map(|sent| sent.is_some())
    }

    /// Sends a packet as soon as there is room.
    pub(super) async fn send(&self, packet: &[u8]) -> Result<(), LinkError> {
        while !self.try_send(packet)? {
            tokio::time::sleep(ROOM).await;
        }
        Ok(())
    }
}

fn ready<T>(tried: Result<T, LinkError>) -> Result<Option<T>, LinkError> {
    match tried {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.would_block() => Ok(None),
        Err(error) => Err(error),
    }
}
