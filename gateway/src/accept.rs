//! Accepting connections of runs on the listeners that the agent made.

use std::{
    io,
    net::{SocketAddr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};

use strait_contract::message::{LISTENERS, Listener};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{gateway::Gateway, link::Handover, pipeline, protocol::dns};

/// A connection of which nothing is known yet but its two ends.
#[derive(Debug)]
pub struct Accepted {
    /// The socket.
    pub socket: TcpStream,
    /// The other end.
    pub peer: SocketAddrV4,
    /// Where it arrived.
    pub listener: Listener,
}

/// Serves the listeners that the agent has made.
///
/// # Errors
/// The first of them that is not a socket of its kind.
pub fn start(gateway: &Arc<Gateway>, handover: Handover, stop: &watch::Receiver<bool>) -> io::Result<()> {
    let (mut udp, mut tcp) = (None, None);
    for (fd, kind) in handover.listeners.into_iter().zip(LISTENERS) {
        match kind {
            Listener::Transparent | Listener::Gateway => {
                let listener = std::net::TcpListener::from(fd);
                listener.set_nonblocking(true)?;
                let listener = TcpListener::from_std(listener)?;
                tokio::spawn(listen(Arc::clone(gateway), listener, kind, stop.clone()));
            }
            Listener::DnsUdp => udp = Some(std::net::UdpSocket::from(fd)),
            Listener::DnsTcp => tcp = Some(std::net::TcpListener::from(fd)),
        }
    }
    if let (Some(udp), Some(tcp)) = (udp, tcp) {
        tokio::spawn(dns::serve(Arc::clone(gateway), udp, tcp, stop.clone()));
    }
    Ok(())
}

/// Accepts connections until `stop` says so; each is served by a task of its own.
pub async fn listen(
    gateway: Arc<Gateway>,
    listener: TcpListener,
    kind: Listener,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        match accepted {
            Ok((socket, SocketAddr::V4(peer))) => {
                // Latency before bandwidth: bodies are written in large pieces anyway.
                let _ = socket.set_nodelay(true);
                let accepted = Accepted { socket, peer, listener: kind };
                tokio::spawn(pipeline::serve(Arc::clone(&gateway), accepted, stop.clone()));
            }
            Ok((_, SocketAddr::V6(_))) => {}
            Err(error) => pause(&error).await,
        }
    }
}

/// A connection that died in the backlog concerns nobody else; running out of descriptors does, and passes.
async fn pause(error: &io::Error) {
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        tracing::warn!(%error, "a connection can't be accepted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
