//! A strict filter before hyper: HTTP/1.x heads that some other reader could take apart differently never get
//! further (case 25, RFC 9112 section 11.2).
//!
//! [`Strict`] wraps the server side of a connection. hyper reads through it and sees a head, chunk size or trailer
//! only when it's whole and passed; bodies flow through uncopied. After a [`Violation`] hyper sees the end of input
//! and nothing of the offending message; the connection's owner asks the [`Watch`] what was wrong and answers on the
//! raw stream. What hyper writes isn't looked at: a status line can't be told from a body that looks like one, so the
//! owner says when the connection stops being HTTP ([`Watch::upgraded`]).
//!
//! Architecture invariant: bytes reach hyper in the order in which they came or not at all; none is changed.

mod fields;
mod framing;
#[cfg(any(test, fuzzing))]
pub mod properties;
#[cfg(test)]
mod tests;

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

pub use fields::Violation;
use framing::Framing;

/// Bounds of what is buffered.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Bytes of a head (request line and fields), and of a trailer section.
    pub bytes: usize,
    /// Fields of a head or trailer section. hyper's own default is 100.
    pub fields: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { bytes: 64 * 1024, fields: 100 }
    }
}

/// Most bytes read ahead while the answer to a CONNECT is awaited.
const AHEAD: usize = 64 * 1024;

/// hyper's side of a filtered connection.
#[derive(Debug)]
pub struct Strict<IO>(Arc<Mutex<Shared<IO>>>);

/// The owner's side of a filtered connection.
#[derive(Debug)]
pub struct Watch<IO>(Arc<Mutex<Shared<IO>>>);

#[derive(Debug)]
struct Shared<IO> {
    /// `None` once the owner has taken it.
    io: Option<IO>,
    framing: Framing,
    /// Read but not yet given to hyper: the first `passed` bytes may be, the rest not yet.
    held: Vec<u8>,
    passed: usize,
    violation: Option<Violation>,
    /// Who waits for [`Watch::upgraded`].
    reader: Option<Waker>,
}

impl<IO> Strict<IO> {
    /// Wraps a stream at the beginning of its first head.
    pub fn new(io: IO, limits: HeadLimits) -> (Self, Watch<IO>) {
        let shared = Arc::new(Mutex::new(Shared {
            io: Some(io),
            framing: Framing::new(limits),
            held: Vec::new(),
            passed: 0,
            violation: None,
            reader: None,
        }));
        (Self(shared.clone()), Watch(shared))
    }

    /// The raw stream and what was read from it but not by hyper, once [`Watch::upgraded`] has been said. `None`
    /// before that, after a violation, and if the owner has taken the stream.
    pub fn into_parts(self) -> Option<(IO, Vec<u8>)> {
        let mut shared = lock(&self.0);
        if shared.violation.is_some() || !shared.framing.is_opaque() {
            return None;
        }
        let held = std::mem::take(&mut shared.held);
        shared.io.take().map(|io| (io, held))
    }
}

impl<IO> Watch<IO> {
    /// What was wrong with the input, if anything was.
    pub fn violation(&self) -> Option<Violation> {
        lock(&self.0).violation
    }

    /// Heads that have passed. While it exceeds the answers given, an answer is under way and nothing may be
    /// written over it.
    pub fn heads(&self) -> u64 {
        lock(&self.0).framing.heads()
    }

    /// The connection stops being HTTP/1: what comes from now on passes as it is. Say it before the 101 of an upgrade
    /// or the 2xx of a CONNECT is given to hyper.
    pub fn upgraded(&self) {
        lock(&self.0).settle(true);
    }

    /// A CONNECT was refused, so the next head may come. What follows a CONNECT is held until this or
    /// [`Self::upgraded`] is said; after any other request, an upgrade too, the next head is read without it.
    pub fn refused(&self) {
        lock(&self.0).settle(false);
    }

    /// Takes the raw stream, when hyper is done with it; hyper's side then sees the end of input. `None` if it's
    /// gone already.
    pub fn into_stream(self) -> Option<IO> {
        lock(&self.0).io.take()
    }

    /// Writes raw bytes and ends the writing side, when hyper is done: the refusal of a malformed head.
    ///
    /// # Errors
    /// I/O errors of the stream; `NotConnected` if it is gone already.
    pub async fn write_raw(self, bytes: &[u8]) -> io::Result<()>
    where
        IO: AsyncWrite + Unpin,
    {
        let mut io = self.into_stream().ok_or(io::ErrorKind::NotConnected)?;
        io.write_all(bytes).await?;
        io.shutdown().await
    }
}

fn lock<IO>(shared: &Mutex<Shared<IO>>) -> MutexGuard<'_, Shared<IO>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<IO> Shared<IO> {
    /// An awaited answer is there, or the owner says so.
    fn settle(&mut self, opaque: bool) {
        self.framing.settle(opaque);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Lets framing judge what is held beyond `passed`.
    fn scan(&mut self) {
        let fresh = self.held.get(self.passed..).unwrap_or_default();
        match self.framing.pass(fresh) {
            Ok(more) => self.passed += more,
            Err((more, violation)) => {
                self.passed += more;
                self.held.truncate(self.passed);
                self.violation = Some(violation);
            }
        }
    }

    /// Gives passed bytes to hyper.
    fn hand_over(&mut self, buf: &mut ReadBuf<'_>) {
        let len = self.passed.min(buf.remaining());
        buf.put_slice(self.held.get(..len).unwrap_or_default());
        self.held.drain(..len);
        self.passed -= len;
        if self.held.is_empty() {
            // Idle connections keep no buffer.
            self.held = Vec::new();
        }
    }
}

impl<IO: AsyncRead + Unpin> Shared<IO> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.passed == 0 && self.violation.is_none() && !self.held.is_empty() {
                self.scan();
            }
            if self.passed > 0 {
                self.hand_over(buf);
                return Poll::Ready(Ok(()));
            }
            let Some(io) = self.io.as_mut().filter(|_| self.violation.is_none()) else {
                return Poll::Ready(Ok(()));
            };
            if self.framing.awaits() {
                // Read on, so that a client that goes away is noticed.
                self.reader = Some(cx.waker().clone());
                if self.held.len() >= AHEAD {
                    return Poll::Pending;
                }
            }
            let start = buf.filled().len();
            ready!(Pin::new(io).poll_read(cx, buf))?;
            if buf.filled().len() == start {
                // What is held is half a message; it stays here.
                return Poll::Ready(Ok(()));
            }
            if !self.held.is_empty() {
                self.held.extend_from_slice(buf.filled().get(start..).unwrap_or_default());
                buf.set_filled(start);
            } else if self.judge_in_place(buf, start) {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Judges bytes where they were read to. What may not pass yet is moved to `held`, so a whole head or a piece
    /// of body costs no copy. Whether hyper gets anything: bytes, or the end of input after a violation.
    fn judge_in_place(&mut self, buf: &mut ReadBuf<'_>, start: usize) -> bool {
        let fresh = buf.filled().get(start..).unwrap_or_default();
        let (passed, violation) = match self.framing.pass(fresh) {
            Ok(passed) => (passed, None),
            Err((passed, violation)) => (passed, Some(violation)),
        };
        if violation.is_none() {
            self.held.extend_from_slice(fresh.get(passed..).unwrap_or_default());
        }
        self.violation = violation;
        buf.set_filled(start + passed);
        passed > 0 || violation.is_some()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Strict<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        lock(&self.0).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> Strict<IO> {
    /// Runs `poll` on the stream, unless the owner has taken it.
    fn with_io<T>(&self, poll: impl FnOnce(Pin<&mut IO>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match lock(&self.0).io.as_mut() {
            Some(io) => poll(Pin::new(io)),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Strict<IO> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with_io(|io| io.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with_io(|io| io.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.0).io.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with_io(|io| io.poll_flush(cx))
    }

    /// After a violation the stream stays open, so that the owner can still answer.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = lock(&self.0);
        let keep = shared.violation.is_some();
        match shared.io.as_mut() {
            Some(io) if keep => Pin::new(io).poll_flush(cx),
            Some(io) => Pin::new(io).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}
