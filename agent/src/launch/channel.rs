//! A connected `launch.sock`, either end, under tokio.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use serde::{Serialize, de::DeserializeOwned};
use strait_contract::{
    message::MAX_PACKET,
    seqpacket::{self, LinkError},
};
use tokio::io::unix::AsyncFd;

/// One end.
#[derive(Debug)]
pub struct Channel {
    socket: AsyncFd<OwnedFd>,
}

impl Channel {
    /// Wraps a connected, non-blocking SEQPACKET socket.
    ///
    /// # Errors
    /// If it can't be watched.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: crate::readiness::watch(socket)? })
    }

    /// Sends a message with descriptors, when there is room for it.
    ///
    /// # Errors
    /// [`LinkError`] if the peer has gone or the message is too large.
    pub async fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
        let packet = seqpacket::encode(message)?;
        loop {
            let mut ready = self.socket.writable().await?;
            match seqpacket::send(&self.socket, &packet, fds) {
                Err(error) if error.would_block() => ready.clear_ready(),
                done => return done,
            }
        }
    }

    /// Sends a message if there is room for it now; a peer that has gone or doesn't read misses it.
    pub fn tell(&self, message: &impl Serialize) {
        if let Ok(packet) = seqpacket::encode(message) {
            let _ = seqpacket::send(&self.socket, &packet, &[]);
        }
    }

    /// The next message.
    ///
    /// # Errors
    /// [`LinkError::Closed`] at the end, others if what came isn't a message.
    pub async fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), LinkError> {
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            let mut ready = self.socket.readable().await?;
            match seqpacket::receive(&self.socket, &mut buffer) {
                Err(error) if error.would_block() => ready.clear_ready(),
                done => return done,
            }
        }
    }

    /// The socket, to ask the kernel who is at the other end.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.get_ref().as_fd()
    }
}
