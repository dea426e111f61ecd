//! Joining two sockets in the kernel by `splice(2)`: bytes go through a pipe and never through this process.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    net::{Shutdown, shutdown},
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};
use tokio::{io::Interest, net::TcpStream};

use super::{Count, Counts, watched};

/// Size of a pipe and of one step, bytes: below 1 MiB the calls cost more than the copying they save.
const PIPE: usize = 1 << 20;
/// Most pipes that are kept for the next stream.
const KEPT: usize = 16;

/// Pipes that are empty and free.
static FREE: Mutex<Vec<Pipe>> = Mutex::new(Vec::new());

/// Carries bytes both ways until both sides have ended.
pub(super) async fn both(
    client: &TcpStream,
    upstream: &TcpStream,
    counts: &Counts,
    idle: Duration,
) -> io::Result<()> {
    let out = one_way(client, upstream, &counts.out);
    let back = one_way(upstream, client, &counts.back);
    watched(counts, idle, async { tokio::try_join!(out, back).map(|_| ()) }).await
}

async fn one_way(from: &TcpStream, to: &TcpStream, count: &Count) -> io::Result<()> {
    loop {
        // No pipe is held while nothing moves: an idle stream costs two sockets.
        from.readable().await?;
        let Some(pipe) = Pipe::take()? else { continue };
        let ended = burst(from, to, &pipe, count).await?;
        pipe.give_back();
        if ended {
            return shut(to);
        }
    }
}

/// Moves what is there; `true` at the end of the stream. The pipe is empty afterwards.
async fn burst(from: &TcpStream, to: &TcpStream, pipe: &Pipe, count: &Count) -> io::Result<bool> {
    loop {
        let filled = match from.try_io(Interest::READABLE, || step(from, &pipe.write)) {
            Ok(0) => return Ok(true),
            Ok(filled) => filled,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut left = filled;
        while left > 0 {
            match to.try_io(Interest::WRITABLE, || step_of(&pipe.read, to, left)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => {
                    left = left.saturating_sub(moved);
                    count.add(moved);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                Err(error) => return Err(error),
            }
        }
    }
}

fn step(from: impl AsFd, to: impl AsFd) -> io::Result<usize> {
    step_of(from, to, PIPE)
}

fn step_of(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    Ok(splice(from, None, to, None, most, flags)?)
}

/// Passes the end of a stream on. A peer that is gone already needs no telling.
fn shut(to: &TcpStream) -> io::Result<()> {
    match shutdown(to, Shutdown::Write) {
        Ok(()) | Err(rustix::io::Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    fn take() -> io::Result<Option<Self>> {
        if let Some(pipe) = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(Some(pipe));
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Past the user's share of pipe memory the kernel refuses; the default size works too.
        let _ = fcntl_setpipe_size(&write, PIPE);
        Ok(Some(Self { read, write }))
    }

    /// Keeps an empty pipe. One that may hold bytes must be dropped instead.
    fn give_back(self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(self);
        }
    }
}
