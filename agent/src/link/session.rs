//! One gateway's connection, from hello to end.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use strait_contract::{
    CONTRACT,
    message::{MAX_PACKET, ToAgent, ToGateway},
    seqpacket::LinkError,
};
use tokio::{
    io::unix::AsyncFd,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};

use super::{
    Link, Packet,
    calls::Calls,
    credentials, drifts, held, misused,
    reader::{self, News, Over},
    socket::{self, Peer, Socket},
    spool::Spool,
    tokens,
};
use crate::{authority::INTERMEDIATE_DAYS, log, run::process::ProcessName};

/// How long a connection may take to say hello, and a packet to be taken by the gateway.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Questions about processes that are looked into at once, or whose answers the gateway hasn't taken yet.
const QUESTIONS: usize = 16;
/// Connections that may be at their hello: each holds a thread of those that also write records and end runs.
const GREETINGS: usize = 4;

/// Takes connections for ever.
pub(super) async fn accept(listener: AsyncFd<OwnedFd>, link: Link) {
    let greetings = Arc::new(Semaphore::new(GREETINGS));
    loop {
        // Whoever is one too many waits in the backlog.
        let Ok(greeting) = Arc::clone(&greetings).acquire_owned().await else { return };
        match socket::accept(&listener).await {
            Ok((_, peer)) if peer.uid != link.0.gateway_uid => {
                tracing::warn!(
                    uid = peer.uid,
                    pid = peer.pid,
                    "a user who isn't the gateway's dialled the link: refused"
                );
                let facts = [("uid", peer.uid.to_string()), ("pid", peer.pid.to_string())];
                let _ = link.0.parts.log.append(vec![log::event(None, "link.refused", &facts)]).await;
            }
            Ok((socket, peer)) => {
                tokio::spawn(serve(socket, peer, link.clone(), greeting));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the link could not be taken");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("no hello came")]
    Silent,
    #[error("the gateway is version {version} with contract {contract}, this agent is {} with {CONTRACT}: start both from one release", env!("CARGO_PKG_VERSION"))]
    Version { version: String, contract: String },
    #[error("the gateway's setup can't be made: {0}")]
    Setup(String),
    #[error("a spool for the gateway's records can't be made: {0}")]
    Spool(#[source] io::Error),
    #[error("the gateway doesn't read what it is sent")]
    Stuck,
    #[error("the gateway's intermediate certificate is to be renewed")]
    Renewal,
    #[error("another gateway took over")]
    Replaced,
    #[error(transparent)]
    Reader(#[from] Over),
}

async fn serve(socket: Socket, peer: Peer, link: Link, greeting: OwnedSemaphorePermit) {
    let greeted = greet(&socket, peer, &link).await;
    drop(greeting);
    let Greeted { number, packets, calls, spool } = match greeted {
        Ok(greeted) => greeted,
        Err(error) => {
            tracing::error!(pid = peer.pid, %error, "a gateway could not be taken on");
            return;
        }
    };
    tracing::info!(pid = peer.pid, "the gateway is connected");
    let (error, calls) = converse(&socket, &link, number, packets, calls).await;
    let current = {
        let mut state = link.state();
        let current = state.outbox.as_ref().is_some_and(|(known, _)| *known == number);
        if current {
            state.outbox = None;
            // Dropping these tells who waits that this gateway won't answer.
            state.candidate = None;
            state.closing.clear();
            state.coming.clear();
        }
        current
    };
    tracing::warn!(pid = peer.pid, %error, "the link to the gateway ended");
    link.0.parts.approvals.session_ended(number);
    link.left(peer.pid, calls, spool);
    link.state().talking.remove(&number);
    if let Ended::Reader(Over::Violation(what)) = &error {
        let facts = [("what", (*what).to_owned())];
        let _ = link.0.parts.log.append(vec![log::event(None, "link.violation", &facts)]).await;
    }
    if current {
        link.0.gateway.send_replace(None);
        link.0.parts.listeners.gateway_gone();
    }
}

/// Talks with a gateway until one side has enough. Gives the calls that were under way then.
async fn converse(
    socket: &Socket,
    link: &Link,
    number: u64,
    packets: mpsc::UnboundedReceiver<Packet>,
    calls: Calls,
) -> (Ended, Calls) {
    let (mut news, reader) = match reader::start(socket.clone(), link.0.parts.log.clone(), calls) {
        Ok(started) => started,
        Err(error) => return (LinkError::Io(error).into(), Calls::default()),
    };
    let renewal = Duration::from_secs(u64::try_from(INTERMEDIATE_DAYS).unwrap_or(30) * 86_400 * 2 / 3);
    let mut calls = Calls::default();
    let error = tokio::select! {
        error = write(socket, packets) => error,
        error = listen(&mut news, link, number, &mut calls) => error,
        () = tokio::time::sleep(renewal) => Ended::Renewal,
    };
    // What the gateway sent before this is read and written yet.
    socket.end();
    while let Some(told) = news.recv().await {
        if let News::Over(_, left) = told {
            calls.add(left);
        }
    }
    let _ = tokio::task::spawn_blocking(move || reader.join()).await;
    (error, calls)
}

/// A gateway that was taken on.
struct Greeted {
    number: u64,
    packets: mpsc::UnboundedReceiver<Packet>,
    /// Calls that it began over an earlier connection.
    calls: Calls,
    spool: Spool,
}

/// Takes the hello and queues everything a gateway needs: setup, policies, runs.
async fn greet(socket: &Socket, peer: Peer, link: &Link) -> Result<Greeted, Ended> {
    let waiting = socket.clone();
    let hello =
        tokio::task::spawn_blocking(move || waiting.receive_within(&mut vec![0; MAX_PACKET], PATIENCE));
    let hello = hello.await.map_err(|_| Ended::Silent)??;
    let has_listeners = match hello.ok_or(Ended::Silent)?.0 {
        ToAgent::Hello { version, contract, has_listeners } => {
            if version != env!("CARGO_PKG_VERSION") || contract != CONTRACT {
                return Err(Ended::Version { version, contract });
            }
            has_listeners
        }
        _ => return Err(Ended::Silent),
    };
    let setup = (link.0.parts.setup)().map_err(Ended::Setup)?;
    let spool = spool(link, peer).await.map_err(Ended::Spool)?;
    let listeners = if has_listeners {
        Vec::new()
    } else {
        link.0.parts.listeners.get().await.map_err(|error| Ended::Setup(error.to_string()))?
    };
    let (outbox, packets) = mpsc::unbounded_channel();
    if !has_listeners {
        link.predecessors_counted(peer.pid).await;
    }
    let number = {
        let (mut state, (agents, runs)) = loop {
            let resets = link.state().resets;
            let used = link.0.parts.log.model_use().await;
            let state = link.state();
            // One that came between the two would be told to nobody.
            if state.resets == resets {
                break (state, used);
            }
        };
        state.connections += 1;
        let number = state.connections;
        let mut queue = vec![Packet::new(&ToGateway::Setup(Box::new(setup)), listeners)?];
        queue.push(link.tools()?);
        queue.push(link.providers()?);
        queue.push(link.budgets()?);
        queue.extend(state.policy.as_ref().map(super::Policy::packet).transpose()?);
        for run in state.runs.values() {
            let message = ToGateway::RunStarted(run.info.clone());
            queue.push(Packet::new(&message, vec![Arc::clone(&run.names)])?);
        }
        let used = agents.into_iter().map(ToGateway::AgentUse).chain(runs.into_iter().map(ToGateway::RunUse));
        for message in used {
            queue.push(Packet::new(&message, Vec::new())?);
        }
        queue.extend(state.drifts.packets());
        queue.push(Packet::new(&ToGateway::Spool, vec![spool.fd()])?);
        queue.push(Packet::new(&ToGateway::Announced, Vec::new())?);
        for packet in queue {
            let _ = outbox.send(packet);
        }
        // A policy still waited for by its caller goes out by this link's next `adopt`.
        state.candidate = None;
        state.outbox = Some((number, outbox));
        state.talking.insert(number, peer.pid);
        number
    };
    link.0.gateway.send_replace(Some(peer.pid));
    let calls = link.calls_of(peer.pid, has_listeners).await;
    Ok(Greeted { number, packets, calls, spool })
}

/// The spool of a gateway's process.
async fn spool(link: &Link, peer: Peer) -> io::Result<Spool> {
    let folder = link.0.spools.clone();
    let made = tokio::task::spawn_blocking(move || {
        let pid = i32::try_from(peer.pid).map_err(io::Error::other)?;
        Spool::of(&folder, ProcessName::of(pid)?)
    });
    made.await.map_err(io::Error::other)?
}

/// Sends what is queued; ends when another link took over or the gateway stops reading.
async fn write(socket: &Socket, mut packets: mpsc::UnboundedReceiver<Packet>) -> Ended {
    while let Some(packet) = packets.recv().await {
        match tokio::time::timeout(PATIENCE, socket.send(&packet)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.into(),
            Err(_) => return Ended::Stuck,
        }
    }
    Ended::Replaced
}

/// Takes what the reader tells, until the connection is over.
async fn listen(news: &mut mpsc::Receiver<News>, link: &Link, number: u64, calls: &mut Calls) -> Ended {
    let questions = Arc::new(Semaphore::new(QUESTIONS));
    let mut mismatches = tokens::Mismatches::default();
    let mut asked = credentials::Asked::default();
    let mut told_drifts = credentials::Asked::default();
    let mut canaries = misused::Canaries::default();
    let mut pieces = held::Pieces::default();
    while let Some(told) = news.recv().await {
        match told {
            News::Message(ToAgent::PolicyCompiled { epoch, refused }) => compiled(link, epoch, refused),
            News::Message(ToAgent::WhoIs { ticket, run, tgid }) => {
                let link = link.clone();
                let Ok(permit) = Arc::clone(&questions).acquire_owned().await else { break };
                tokio::task::spawn_blocking(move || {
                    let live = link.state().runs.contains_key(&run);
                    let process = live.then(|| link.0.parts.processes.whois(&run, tgid)).flatten();
                    reply(&link, number, &ToGateway::Process { ticket, process }, permit);
                });
            }
            News::Message(ToAgent::RunClosed(id)) => link.run_closed(&id),
            News::Message(ToAgent::ToolsSeen { ticket, piece, last }) => {
                link.seen_piece(ticket, &piece, last)
            }
            News::Message(ToAgent::Credential { ticket, name }) => {
                let Ok(permit) = Arc::clone(&questions).acquire_owned().await else { break };
                if !asked.admits() {
                    let value = Err("credentials are asked for too often".to_owned());
                    reply(link, number, &ToGateway::Credential { ticket, value }, permit);
                    continue;
                }
                tokio::spawn(credentials::hand_over(link.clone(), number, ticket, name, permit));
            }
            News::Message(ToAgent::TokenMismatch { from, owner }) => mismatches.tell(link, from, owner).await,
            News::Message(ToAgent::PlaceholderMisused(misused)) => {
                let Ok(permit) = Arc::clone(&questions).acquire_owned().await else { break };
                if canaries.admits(&misused.run) {
                    tokio::spawn(misused::tell(link.clone(), misused, permit));
                }
            }
            News::Message(ToAgent::ToolDrifted { run, drifted }) => {
                drifts::tell(link, run, drifted, &mut told_drifts).await
            }
            News::Message(ToAgent::ToolAgrees { server, tool }) => link.state().drifts.forget(server, tool),
            News::Message(ToAgent::HeldPiece { call, bytes }) => pieces.take(call, &bytes),
            News::Message(ToAgent::Held(held)) => held::ask(link, number, held, &mut pieces).await,
            News::Message(ToAgent::Withdrawn { call }) => held::withdraw(link, call).await,
            News::Message(ToAgent::Hello { .. } | ToAgent::Records { .. }) => {}
            News::Over(over, left) => {
                calls.add(left);
                return over.into();
            }
        }
    }
    Ended::Replaced
}

/// Queues an answer for the link that asked, if it's still there. `permit` is given back once it is sent.
pub(super) fn reply(link: &Link, number: u64, message: &ToGateway, permit: OwnedSemaphorePermit) {
    let state = link.state();
    if state.outbox.as_ref().is_some_and(|(known, _)| *known == number)
        && let Ok(packet) = Packet::new(message, Vec::new())
    {
        state.send(Packet { _permit: Some(permit), ..packet });
    }
}

fn compiled(link: &Link, epoch: u64, refused: Option<String>) {
    let candidate = {
        let mut state = link.state();
        match state.candidate.take() {
            Some(candidate) if candidate.policy.epoch == epoch => Some(candidate),
            other => {
                state.candidate = other;
                None
            }
        }
    };
    match (candidate, refused) {
        (Some(candidate), refused) => {
            let _ = candidate.outcome.send(refused.map_or(Ok(()), Err));
        }
        (None, Some(why)) => {
            tracing::error!(epoch, %why, "the gateway refused policies that were good before: it refuses calls");
        }
        (None, None) => {}
    }
}
