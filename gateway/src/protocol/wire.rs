//! A connection of a run whose first bytes may have been read already.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// A TCP stream with what was read ahead of it. Reading gives those bytes first.
#[derive(Debug)]
pub struct Wire {
    ahead: BytesMut,
    socket: TcpStream,
}

impl Wire {
    /// A stream of which nothing has been read.
    pub fn new(socket: TcpStream) -> Self {
        Self { ahead: BytesMut::new(), socket }
    }

    /// Puts bytes back that were read from it.
    pub fn put_back(&mut self, read: &[u8]) {
        let mut ahead = BytesMut::from(read);
        ahead.extend_from_slice(&self.ahead);
        self.ahead = ahead;
    }

    /// What has been read ahead.
    pub fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Reads more ahead; 0 at the end of the stream.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn read_ahead(&mut self) -> io::Result<usize> {
        self.ahead.reserve(4096);
        self.socket.read_buf(&mut self.ahead).await
    }

    /// The socket and what was read ahead.
    pub fn into_parts(self) -> (TcpStream, BytesMut) {
        (self.socket, self.ahead)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, buffer);
        }
        let fitting = self.ahead.len().min(buffer.remaining());
        buffer.put_slice(self.ahead.get(..fitting).unwrap_or_default());
        self.ahead.advance(fitting);
        if self.ahead.is_empty() {
            // Its room is of no use for the rest of the connection.
            self.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }
    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
