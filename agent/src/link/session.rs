//! One gateway's connection, from hello to end.

use std::{
    collections::VecDeque,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use strait_contract::{
    CONTRACT,
    message::{MAX_BATCH, ToAgent, ToGateway},
    record::{Body, Record, Source, Unrecorded},
    seqpacket::LinkError,
};
use tokio::{
    io::unix::AsyncFd,
    sync::{Semaphore, mpsc},
};

use super::{
    Link, Packet,
    socket::{self, Peer, Socket},
};
use crate::{
    authority::INTERMEDIATE_DAYS,
    log::{self, Pending},
};

/// How long a connection may take to say hello, and a packet to be taken by the gateway.
const PATIENCE: Duration = Duration::from_secs(10);
/// Questions about processes that are looked into at once.
const QUESTIONS: usize = 16;
/// Records without a run that a gateway may write a second: lookups from addresses that are no run's.
const HOST_RECORDS: u32 = 50;

/// Takes connections for ever.
pub(super) async fn accept(listener: AsyncFd<OwnedFd>, link: Link) {
    loop {
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
                tokio::spawn(serve(socket, peer, link.clone()));
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
    #[error("the gateway doesn't read what it is sent")]
    Stuck,
    #[error("the gateway's intermediate certificate is to be renewed")]
    Renewal,
    #[error("another gateway took over")]
    Replaced,
    #[error("the gateway sent {0}, which it must not")]
    Violation(&'static str),
}

async fn serve(socket: Socket, peer: Peer, link: Link) {
    let mut buffer = Vec::new();
    let (number, packets) = match greet(&socket, peer, &link, &mut buffer).await {
        Ok(greeted) => greeted,
        Err(error) => {
            tracing::error!(pid = peer.pid, %error, "a gateway could not be taken on");
            return;
        }
    };
    tracing::info!(pid = peer.pid, "the gateway is connected");
    let renewal = Duration::from_secs(u64::try_from(INTERMEDIATE_DAYS).unwrap_or(30) * 86_400 * 2 / 3);
    let (answers, acks) = mpsc::channel(256);
    let error = tokio::select! {
        error = write(&socket, packets) => error,
        error = read(&socket, &link, number, buffer, &answers) => error,
        () = acknowledge(acks, &link, number) => Ended::Replaced,
        () = tokio::time::sleep(renewal) => Ended::Renewal,
    };
    let current = {
        let mut state = link.state();
        let current = state.outbox.as_ref().is_some_and(|(known, _)| *known == number);
        if current {
            state.outbox = None;
            // Dropping it tells `set_policy` that this gateway won't answer.
            state.candidate = None;
        }
        current
    };
    tracing::warn!(pid = peer.pid, %error, "the link to the gateway ended");
    if let Ended::Violation(what) = &error {
        let facts = [("what", (*what).to_owned())];
        let _ = link.0.parts.log.append(vec![log::event(None, "link.violation", &facts)]).await;
    }
    if current {
        link.0.gateway.send_replace(None);
        link.0.parts.listeners.gateway_gone();
    }
}

/// Takes the hello and queues everything a gateway needs: setup, policies, runs.
async fn greet(
    socket: &Socket,
    peer: Peer,
    link: &Link,
    buffer: &mut Vec<u8>,
) -> Result<(u64, mpsc::UnboundedReceiver<Packet>), Ended> {
    let hello = tokio::time::timeout(PATIENCE, socket.receive(buffer)).await.map_err(|_| Ended::Silent)?;
    let has_listeners = match hello?.0 {
        ToAgent::Hello { version, contract, has_listeners } => {
            if version != env!("CARGO_PKG_VERSION") || contract != CONTRACT {
                return Err(Ended::Version { version, contract });
            }
            has_listeners
        }
        _ => return Err(Ended::Silent),
    };
    let setup = (link.0.parts.setup)().map_err(Ended::Setup)?;
    let listeners = if has_listeners {
        Vec::new()
    } else {
        link.0.parts.listeners.get().await.map_err(|error| Ended::Setup(error.to_string()))?
    };
    let (outbox, packets) = mpsc::unbounded_channel();
    let number = {
        let mut state = link.state();
        state.connections += 1;
        let number = state.connections;
        let mut queue = vec![Packet::new(&ToGateway::Setup(Box::new(setup)), listeners)?];
        queue.extend(state.policy.as_ref().map(super::Policy::packet).transpose()?);
        for run in state.runs.values() {
            let message = ToGateway::RunStarted(run.info.clone());
            queue.push(Packet::new(&message, vec![Arc::clone(&run.names)])?);
        }
        queue.push(Packet::new(&ToGateway::Announced, Vec::new())?);
        for packet in queue {
            let _ = outbox.send(packet);
        }
        // A policy still waited for by its caller goes out by this link's next `adopt`.
        state.candidate = None;
        state.outbox = Some((number, outbox));
        number
    };
    link.0.gateway.send_replace(Some(peer.pid));
    Ok((number, packets))
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

/// Reads until the link breaks or is broken for cause.
async fn read(
    socket: &Socket,
    link: &Link,
    number: u64,
    mut buffer: Vec<u8>,
    answers: &mpsc::Sender<(u64, Answer)>,
) -> Ended {
    let questions = Arc::new(Semaphore::new(QUESTIONS));
    let mut host_records = VecDeque::new();
    // What was made before this link may have been written over the last one, whose answer got lost.
    let begun_ms = log::now_ms();
    loop {
        let (message, fds) = match socket.receive(&mut buffer).await {
            Ok(received) => received,
            Err(error) => return error.into(),
        };
        if !fds.is_empty() {
            return Ended::Violation("a descriptor");
        }
        match message {
            ToAgent::Hello { .. } => return Ended::Violation("a second hello"),
            ToAgent::Records { batch, records } => {
                let answer = match check(&records, &mut host_records) {
                    Ok(()) => {
                        let may_repeat = records.iter().any(|record| record.ts_ms <= begun_ms);
                        Answer::Pending(link.0.parts.log.submit(records, may_repeat).await)
                    }
                    Err(Refusal::Over(refused)) => Answer::Refused(refused),
                    Err(Refusal::Violation(what)) => return Ended::Violation(what),
                };
                if answers.send((batch, answer)).await.is_err() {
                    return Ended::Replaced;
                }
            }
            ToAgent::PolicyCompiled { epoch, refused } => compiled(link, epoch, refused),
            ToAgent::WhoIs { ticket, run, tgid } => {
                let link = link.clone();
                // With too many under way the rest wait here, and so do the gateway's records: its own doing.
                let Ok(permit) = Arc::clone(&questions).acquire_owned().await else { return Ended::Replaced };
                tokio::task::spawn_blocking(move || {
                    let live = link.state().runs.contains_key(&run);
                    let process = live.then(|| link.0.parts.processes.whois(&run, tgid)).flatten();
                    reply(&link, number, &ToGateway::Process { ticket, process });
                    drop(permit);
                });
            }
        }
    }
}

/// What becomes of a batch.
enum Answer {
    Pending(Pending),
    Refused(Unrecorded),
}

/// Why a batch isn't handed to the log.
enum Refusal {
    Over(Unrecorded),
    Violation(&'static str),
}

/// Whether a batch is one that a gateway may write.
fn check(records: &[Record], host_records: &mut VecDeque<Instant>) -> Result<(), Refusal> {
    if records.len() > MAX_BATCH {
        return Err(Refusal::Violation("an oversized batch"));
    }
    let now = Instant::now();
    while host_records.front().is_some_and(|at| now.duration_since(*at) > Duration::from_secs(1)) {
        host_records.pop_front();
    }
    for record in records {
        match &record.body {
            Body::Activity(activity) if activity.source == Source::Gateway => {}
            Body::Activity(_) => return Err(Refusal::Violation("a kernel record")),
            Body::Event(_) => return Err(Refusal::Violation("an event")),
        }
        if record.run.is_none() {
            if host_records.len() >= usize::try_from(HOST_RECORDS).unwrap_or(0) {
                return Err(Refusal::Over(Unrecorded::Quota));
            }
            host_records.push_back(now);
        }
    }
    Ok(())
}

/// Answers batches in their order, each when its outcome is known.
async fn acknowledge(mut acks: mpsc::Receiver<(u64, Answer)>, link: &Link, number: u64) {
    while let Some((batch, answer)) = acks.recv().await {
        let outcome = match answer {
            Answer::Pending(pending) => pending.outcome().await,
            Answer::Refused(refused) => Err(refused),
        };
        reply(link, number, &ToGateway::Recorded { batch, refused: outcome.err() });
    }
}

/// Queues an answer for the link that asked, if it's still there.
fn reply(link: &Link, number: u64, message: &ToGateway) {
    let state = link.state();
    if state.outbox.as_ref().is_some_and(|(known, _)| *known == number)
        && let Ok(packet) = Packet::new(message, Vec::new())
    {
        state.send(packet);
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
