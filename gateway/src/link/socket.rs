//! The SEQPACKET socket under tokio.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixDatagram as StdDatagram,
    },
    path::Path,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use strait_contract::{
    message::{MAX_PACKET, ToGateway},
    seqpacket::{self, LinkError},
};
use tokio::{io::Interest, net::UnixDatagram};

/// A connected link. tokio has no type for SEQPACKET; the one for datagrams does all that is asked of it here,
/// which is to wait for readiness.
#[derive(Debug)]
pub(super) struct Socket(UnixDatagram);

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
        let socket = StdDatagram::from(fd);
        socket.set_nonblocking(true)?;
        UnixDatagram::from_std(socket).map(Self)
    }

    /// The next message if one waits, without blocking.
    pub(super) fn try_receive(&self, scratch: &mut [u8]) -> Result<Option<Received>, LinkError> {
        ready(self.attempt(Interest::READABLE, || seqpacket::receive(self.0.as_fd(), scratch)))
    }

    /// The next message.
    pub(super) async fn receive(&self, scratch: &mut [u8]) -> Result<Received, LinkError> {
        loop {
            self.0.readable().await?;
            if let Some(got) = self.try_receive(scratch)? {
                return Ok(got);
            }
        }
    }

    /// Sends a packet if there is room; `false` if there is none.
    pub(super) fn try_send(&self, packet: &[u8]) -> Result<bool, LinkError> {
        let sent = self.attempt(Interest::WRITABLE, || seqpacket::send(self.0.as_fd(), packet, &[]));
        ready(sent).map(|sent| sent.is_some())
    }

    /// Sends a packet as soon as there is room.
    pub(super) async fn send(&self, packet: &[u8]) -> Result<(), LinkError> {
        loop {
            self.0.writable().await?;
            if self.try_send(packet)? {
                return Ok(());
            }
        }
    }

    /// Tries an operation and lets tokio know if the socket wasn't ready for it.
    fn attempt<T>(
        &self,
        interest: Interest,
        operation: impl FnOnce() -> Result<T, LinkError>,
    ) -> Result<T, LinkError> {
        let mut failed = None;
        let tried = self.0.try_io(interest, || {
            operation().map_err(|error| match error {
                LinkError::Io(error) => error,
                other => {
                    failed = Some(other);
                    io::ErrorKind::Other.into()
                }
            })
        });
        tried.map_err(|error| failed.unwrap_or(LinkError::Io(error)))
    }
}

fn ready<T>(tried: Result<T, LinkError>) -> Result<Option<T>, LinkError> {
    match tried {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.would_block() => Ok(None),
        Err(error) => Err(error),
    }
}
