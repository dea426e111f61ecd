//! The terminal of a run: runc makes the pty and hands over its master by the console socket.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::net::UnixListener;

/// Waits on a console socket.
#[derive(Debug)]
pub struct Console {
    listener: UnixListener,
}

impl Console {
    /// Listens at `path`, which only root can reach.
    ///
    /// # Errors
    /// If it can't.
    pub fn listen(path: &Path) -> io::Result<Self> {
        Ok(Self { listener: UnixListener::bind(path)? })
    }

    /// The master that runc sends: one message with one descriptor.
    ///
    /// # Errors
    /// If something else comes.
    pub async fn master(self) -> io::Result<OwnedFd> {
        let (stream, _) = self.listener.accept().await?;
        loop {
            stream.readable().await?;
            match stream.try_io(tokio::io::Interest::READABLE, || receive(&stream)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }
}

fn receive(stream: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // runc sends the path of the slave as text beside the descriptor.
    let mut text = [0; 256];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(stream, &mut [io::IoSliceMut::new(&mut text)], &mut control, flags)?;
    let found = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    found.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the runtime sent no terminal"))
}
