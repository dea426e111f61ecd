//! The SEQPACKET socket under tokio.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{PermissionsExt as _, chown},
    },
    path::Path,
    sync::Arc,
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen as start_listening,
    socket_with, sockopt::socket_peercred,
};
use strait_contract::{
    message::{MAX_PACKET, ToAgent},
    seqpacket::{self, LinkError},
};
use tokio::io::unix::AsyncFd;

use super::Packet;
use crate::readiness::watch;

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
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(listener.get_ref(), flags) {
            Ok(socket) => {
                let peer = socket_peercred(&socket)?;
                let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
                let peer = Peer { uid: peer.uid.as_raw(), pid };
                return Ok((Socket(Arc::new(watch(socket)?)), peer));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => ready.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A connected socket; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Socket(Arc<AsyncFd<OwnedFd>>);

impl Socket {
    pub(super) async fn receive(&self, buffer: &mut Vec<u8>) -> Result<(ToAgent, Vec<OwnedFd>), LinkError> {
        buffer.resize(MAX_PACKET, 0);
        loop {
            let mut ready = self.0.readable().await?;
            match seqpacket::receive(self.0.get_ref(), buffer) {
                Err(error) if error.would_block() => ready.clear_ready(),
                other => return other,
            }
        }
    }

    pub(super) async fn send(&self, packet: &Packet) -> Result<(), LinkError> {
        let fds: Vec<_> = packet.fds.iter().map(|fd| fd.as_fd()).collect();
        loop {
            let mut ready = self.0.writable().await?;
            match seqpacket::send(self.0.get_ref(), &packet.bytes, &fds) {
                Err(error) if error.would_block() => ready.clear_ready(),
                other => return other,
            }
        }
    }
}
