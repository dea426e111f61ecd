//! DNS over TCP (RFC 7766): two bytes of length before each message.

use std::{io, net::SocketAddr, os::fd::AsFd, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use super::{
    Reply, Resolver,
    fold::{Lookup, Said},
    permitted::Asked,
};
use crate::{gateway::Settings, runs::Run};

/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(10);
/// Largest query, bytes.
const MAX_QUERY: usize = 4096;

/// Accepts until `stop` says so.
pub(super) async fn serve(
    resolver: Arc<Resolver>,
    listener: std::net::TcpListener,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        match accepted {
            Ok((socket, peer)) => {
                let Some(run) = resolver.run(peer) else { continue };
                let resolver = Arc::clone(&resolver);
                tokio::spawn(async move { connection(&resolver, &run, socket, peer).await });
            }
            // Out of descriptors, or a connection that died in the backlog.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn connection(resolver: &Arc<Resolver>, run: &Arc<Run>, mut socket: TcpStream, peer: SocketAddr) {
    let Some(settings) = resolver.gateway.settings() else { return };
    let Some(_admission) = run.admit(&settings.limits) else {
        resolver.note(run, &Lookup { name: "", qtype: 0, said: Said::Busy, tcp: true });
        return;
    };
    let flow = resolver.gateway.flows.of(socket.as_fd(), peer);
    let flow = flow.filter(|flow| flow.run == run.info.number);
    let (mut packet, mut name, mut out) = (Vec::new(), String::new(), Vec::new());
    loop {
        let read = tokio::select! {
            read = timeout(IDLE, message(&mut socket, &mut packet)) => read,
            () = run.ended() => return,
        };
        match read {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => {
                let said = Said::Dropped("a length that no query has");
                resolver.note(run, &Lookup { name: "", qtype: 0, said, tcp: true });
                return;
            }
            Ok(Err(_)) | Err(_) => return,
        }
        if !answer(resolver, &settings, run, &packet, flow, &mut name, &mut out).await {
            return;
        }
        let Ok(len) = u16::try_from(out.len()) else { return };
        let mut framed = Vec::with_capacity(out.len().saturating_add(2));
        framed.extend(len.to_be_bytes());
        framed.extend(&out);
        if !matches!(timeout(IDLE, socket.write_all(&framed)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Whether there is an answer in `out`.
async fn answer(
    resolver: &Arc<Resolver>,
    settings: &Settings,
    run: &Arc<Run>,
    packet: &[u8],
    flow: Option<strait_contract::flow::Flow>,
    name: &mut String,
    out: &mut Vec<u8>,
) -> bool {
    match resolver.answer(settings, run, packet, true, name, out) {
        Reply::Now => true,
        Reply::Nothing => false,
        Reply::Ask(call) => {
            let Some(_place) = resolver.under_way.enter(run.info.number) else {
                resolver.busy(run, packet, true, out);
                return true;
            };
            let asked = Asked { run: Arc::clone(run), flow, packet: packet.to_vec(), call };
            match resolver.ask_tcp(asked).await {
                Some(answer) => {
                    *out = answer;
                    true
                }
                None => false,
            }
        }
    }
}

/// Reads one message; false if its length can't be one.
async fn message(socket: &mut TcpStream, packet: &mut Vec<u8>) -> io::Result<bool> {
    let len = usize::from(socket.read_u16().await?);
    if !(12..=MAX_QUERY).contains(&len) {
        return Ok(false);
    }
    packet.resize(len, 0);
    socket.read_exact(packet).await?;
    Ok(true)
}
