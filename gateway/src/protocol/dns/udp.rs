//! DNS over UDP: one socket for all runs.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{net::UdpSocket, sync::watch};

use super::{Reply, Resolver, permitted, wire::MAX_UDP};
use crate::runs::Run;

/// Largest query that is read, bytes; what is longer has been cut and is malformed.
const MAX_QUERY: usize = 4096;
/// Packets served before other tasks get their turn.
const BURST: usize = 64;

/// Serves until `stop` says so.
///
/// One packet a system call: with answers this small, batches by `recvmmsg(2)` gain nothing measurable.
pub(super) async fn serve(
    resolver: Arc<Resolver>,
    socket: std::net::UdpSocket,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let socket = Arc::new(UdpSocket::from_std(socket)?);
    let mut buffers = Buffers {
        packet: vec![0; MAX_QUERY],
        name: String::with_capacity(256),
        out: Vec::with_capacity(usize::from(MAX_UDP)),
    };
    loop {
        tokio::select! {
            ready = socket.readable() => ready?,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
        burst(&resolver, &socket, &mut buffers);
        tokio::task::yield_now().await;
    }
}

struct Buffers {
    packet: Vec<u8>,
    name: String,
    out: Vec<u8>,
}

/// Answers what waits, up to a bound.
fn burst(resolver: &Arc<Resolver>, socket: &Arc<UdpSocket>, buffers: &mut Buffers) {
    let settings = resolver.gateway.settings();
    for _ in 0..BURST {
        let (len, peer) = match socket.try_recv_from(&mut buffers.packet) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // An ICMP error for an earlier answer: that client is gone, which concerns nobody else.
            Err(_) => continue,
        };
        let Some(run) = resolver.run(peer) else { continue };
        let (Some(settings), Some(packet)) = (&settings, buffers.packet.get(..len)) else { continue };
        match resolver.answer(settings, &run, packet, false, &mut buffers.name, &mut buffers.out) {
            // A full socket buffer loses the answer, as the network might.
            Reply::Now => {
                let _ = socket.try_send_to(&buffers.out, peer);
            }
            Reply::Nothing => {}
            Reply::Ask(call) => later(resolver, socket, peer, &run, packet, call),
        }
    }
}

fn later(
    resolver: &Arc<Resolver>,
    socket: &Arc<UdpSocket>,
    peer: SocketAddr,
    run: &Arc<Run>,
    packet: &[u8],
    call: crate::call::DnsCall,
) {
    let Some(place) = resolver.under_way.enter(run.info.number) else {
        let mut out = Vec::new();
        resolver.busy(run, packet, false, &mut out);
        let _ = socket.try_send_to(&out, peer);
        return;
    };
    let (resolver, socket, run) = (Arc::clone(resolver), Arc::clone(socket), Arc::clone(run));
    let packet = packet.to_vec();
    tokio::spawn(async move {
        let asked = permitted::Asked { run, flow: None, packet, call };
        if let Some(answer) = resolver.ask(asked).await {
            // As above: a lost answer is asked for again.
            let _ = socket.send_to(&answer, peer).await;
        }
        drop(place);
    });
}
