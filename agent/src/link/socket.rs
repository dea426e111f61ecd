//! The SEQPACKET socket: one thread reads and acknowledges, a task sends the rest.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{PermissionsExt as _, chown},
    },
    path::Path,
    sync::Arc,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
        listen as start_listening, shutdown, socket_with, sockopt::socket_peercred,
    },
};
use strait_contract::{
    message::ToAgent,
    seqpacket::{self, LinkError},
};
use tokio::io::unix::AsyncFd;

use super::Packet;
use crate::readiness::watch;

/// Pause before a full socket is tried again.
const ROOM: Duration = Duration::from_millis(1);

/// Makes the listening socket at `path`, for one user alone.
pub(super) fn listen(path: &Path, uid: u32, gid: u32) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Bound under a name nobody dials until it has its mode and owner.
    let making = path.with_extension("making");
    let _ = fs::remove_file(&making);
    bind(&socket, &SocketAddrUnix::new(&making)?)?;
    fs::set_permissions(&making, fs::Permissions::from_mode(0o600))?;
    chown(&making, Some(uid), Some(gid))?;
    start_listening(&socket, 16)?;
    fs::rename(&making, path)?;
    watch(socket)
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub uid: u32,
    pub pid: u32,
}

/// Takes the next connection.
pub(super) async fn accept(listener: &AsyncFd<OwnedFd>) -> io::Result<(Socket, Peer)> {
    loop {
        let mut ready = listener.readable().await?;
        // Blocking, for the thread that reads it; whatever is done under tokio says `MSG_DONTWAIT`.
        match accept_with(listener.get_ref(), SocketFlags::CLOEXEC) {
            Ok(socket) => {
                let peer = socket_peercred(&socket)?;
                let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
                let peer = Peer { uid: peer.uid.as_raw(), pid };
                return Ok((Socket(Arc::new(socket)), peer));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => ready.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A connected socket; clones share it.
///
/// No epoll knows it: the kernel would wake the runtime for each packet that the reader's thread takes, and for each
/// acknowledgement that the gateway takes.
#[derive(Clone, Debug)]
pub(super) struct Socket(Arc<OwnedFd>);

type Received = (ToAgent, Vec<OwnedFd>);

impl Socket {
    #[cfg(test)]
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(Arc::new(socket))
    }

    /// Waits in this thread for the first packet, at most so long; `None` if none came.
    pub(super) fn receive_within(
        &self,
        buffer: &mut [u8],
        patience: Duration,
    ) -> Result<Option<Received>, LinkError> {
        if self.is_ready(PollFlags::IN, patience)? { self.receive_now(buffer) } else { Ok(None) }
    }

    /// Waits in this thread for the next packet.
    pub(super) fn receive_waiting(&self, buffer: &mut [u8]) -> Result<Received, LinkError> {
        loop {
            match seqpacket::receive_waiting(&self.0, buffer) {
                Err(LinkError::Io(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                // Told once, of a peer that died with unread packets; what it had sent before is still here.
                Err(LinkError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => {}
                other => return other,
            }
        }
    }

    /// The next packet if one waits.
    pub(super) fn receive_now(&self, buffer: &mut [u8]) -> Result<Option<Received>, LinkError> {
        match seqpacket::receive(&self.0, buffer) {
            Ok(received) => Ok(Some(received)),
            Err(error) if error.would_block() => Ok(None),
            Err(LinkError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends from this thread, waiting at most so long for the peer to make room.
    pub(super) fn send_waiting(&self, packet: &[u8], patience: Duration) -> Result<(), LinkError> {
        loop {
            match seqpacket::send(&self.0, packet, &[]) {
                Err(error) if error.would_block() => {}
                other => return other,
            }
            if !self.is_ready(PollFlags::OUT, patience)? {
                return Err(LinkError::Io(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    fn is_ready(&self, what: PollFlags, patience: Duration) -> io::Result<bool> {
        let patience =
            Timespec::try_from(patience).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        loop {
            match poll(&mut [PollFd::new(&self.0, what)], Some(&patience)) {
                Ok(ready) => return Ok(ready > 0),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the connection: whoever waits in it is told. What had arrived can still be read.
    pub(super) fn end(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }

    /// Sends as soon as there is room.
    pub(super) async fn send(&self, packet: &Packet) -> Result<(), LinkError> {
        let fds: Vec<_> = packet.fds.iter().map(|fd| fd.as_fd()).collect();
        loop {
            match seqpacket::send(&self.0, &packet.bytes, &fds) {
                Err(error) if error.would_block() => tokio::time::sleep(ROOM).await,
                other => return other,
            }
        }
    }
}
