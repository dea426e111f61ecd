//! One connection to the agent, from the hello to its end.

use std::{collections::HashMap, io, os::fd::OwnedFd, time::Duration};

use strait_contract::{
    CONTRACT,
    message::{LISTENERS, MAX_BATCH, SEEN_PIECE, Secret, Setup, ToAgent, ToGateway},
    run::Process,
    seqpacket::{self, LinkError},
};
use strait_policies::Snapshot;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    Link, Question, policies,
    socket::{Socket, scratch},
};
use crate::{
    gateway::{Settings, SettingsError},
    names::NamesError,
    record::Entry,
    tools::ToolsError,
};

/// Pause before records are sent again that the log refused.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// How long an agent that has come takes to announce its runs.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(5);
/// How long the agent may leave records or a hello unanswered. One that hangs is no better than none: calls are
/// refused then rather than kept waiting.
const SILENCE: Duration = Duration::from_secs(5);
/// Most packets that wait for room in the socket.
const MAX_UNDER_WAY: usize = 64;
/// How long entries that nobody waits for are gathered before they are sent: each packet wakes the agent, and its answer
/// this process.
const GATHERING: Duration = Duration::from_millis(1);

/// Listeners as the agent made them, in the order of [`LISTENERS`].
#[derive(Debug)]
pub struct Handover {
    /// Their descriptors.
    pub listeners: Vec<OwnedFd>,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The socket broke, or a packet can't be read.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The socket can't be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The agent doesn't answer.
    #[error("the agent has not answered for {} s: it hangs, or its disk does", SILENCE.as_secs())]
    Silent,
    /// The agent is of another version, or confused.
    #[error("the agent said something out of order: {0}")]
    OutOfOrder(&'static str),
    /// The settings can't be put in force.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A tool can't be used.
    #[error(transparent)]
    Tools(#[from] ToolsError),
    /// A run's names can't be used.
    #[error(transparent)]
    Names(#[from] NamesError),
}

/// Who waits for an answer of the agent.
enum Asked {
    Process(oneshot::Sender<Option<Process>>),
    Credential(oneshot::Sender<Result<Secret, String>>),
}

impl Asked {
    fn is_over(&self) -> bool {
        match self {
            Self::Process(answer) => answer.is_closed(),
            Self::Credential(answer) => answer.is_closed(),
        }
    }
}

type Compiled = (u64, Result<Snapshot, String>);

/// What a session keeps besides the link itself.
pub(super) struct Session {
    socket: Socket,
    scratch: Vec<u8>,
    asked: HashMap<u64, Asked>,
    ticket: u64,
    pub(super) held: super::held::Waiting,
    compiling: Option<JoinHandle<Compiled>>,
    /// A newer set that came while one was being compiled.
    to_compile: Option<(u64, OwnedFd)>,
    /// Packets for which the socket had no room.
    unsent: Vec<Vec<u8>>,
    /// Not before this instant: the log has just refused.
    again_at: Option<tokio::time::Instant>,
    /// Whether every live run has been announced.
    announced: bool,
    /// When runs count as over that this agent has not announced.
    forget_at: Option<tokio::time::Instant>,
    /// When to look whether the agent still answers.
    look: tokio::time::Interval,
    /// When to send what has been gathered; nothing has been without one.
    send_at: Option<tokio::time::Instant>,
}

impl Link {
    /// Serves a connected socket until it breaks.
    pub(super) async fn session(&mut self, socket: Socket) -> Result<(), SessionError> {
        let mut session = Session {
            socket,
            scratch: scratch(),
            asked: HashMap::new(),
            ticket: 0,
            held: super::held::Waiting::default(),
            compiling: None,
            to_compile: None,
            unsent: Vec::new(),
            again_at: None,
            announced: false,
            forget_at: tokio::time::Instant::now().checked_add(ANNOUNCED_WITHIN),
            look: tokio::time::interval(SILENCE / 5),
            send_at: None,
        };
        self.hello(&mut session).await?;
        self.sessions = self.sessions.saturating_add(1);
        self.queue.set_up(true);
        self.gateway.recorder.tell_missed();
        tracing::info!("the agent is there");
        loop {
            self.step(&mut session).await?;
        }
    }

    /// The link is gone: nobody waits for it any longer.
    pub(super) fn lose(&mut self) {
        self.queue.set_up(false);
        self.kept.link_lost();
        for entry in std::mem::take(&mut self.gathered) {
            self.kept.unsent(entry);
        }
        while let Ok(entry) = self.queue.entries.try_recv() {
            self.kept.unsent(entry);
        }
        // Whoever waits for a person is told that the agent has gone.
        while self.questions.held.0.try_recv().is_ok() {}
    }

    async fn hello(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let hello = ToAgent::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            contract: CONTRACT.to_owned(),
            // Those of an agent that died before they were served count: as long as they are open here, no agent can
            // open others.
            has_listeners: self.has_listeners || self.held.is_some(),
        };
        session.socket.send(&seqpacket::encode(&hello)?).await?;
        let answer = session.socket.receive(&mut session.scratch);
        let (message, fds) =
            tokio::time::timeout(SILENCE, answer).await.map_err(|_| SessionError::Silent)??;
        let ToGateway::Setup(setup) = message else {
            return Err(SessionError::OutOfOrder("the first message is not the setup"));
        };
        self.set_up(*setup, fds).await?;
        for drifted in self.gateway.drift.all() {
            let message = ToAgent::ToolDrifted { run: None, drifted };
            session.socket.send(&seqpacket::encode(&message)?).await?;
        }
        Ok(())
    }

    async fn set_up(&mut self, setup: Setup, fds: Vec<OwnedFd>) -> Result<(), SessionError> {
        self.gateway.set_up(Settings::new(setup)?);
        if self.has_listeners || self.held.is_some() {
            return Ok(());
        }
        if fds.len() != LISTENERS.len() {
            return Err(SessionError::OutOfOrder("the setup has not the listeners that it should have"));
        }
        self.held = Some(Handover { listeners: fds });
        Ok(())
    }

    /// Hands the listeners over once all runs are known and the policies that came with them are in force: until
    /// then a call would be refused by an empty set, in the name of a digest that permits it.
    async fn serve_when_ready(&mut self, session: &Session) {
        let compiling = session.compiling.is_some() || session.to_compile.is_some();
        if session.announced
            && !compiling
            && let Some(handover) = self.held.take()
        {
            self.has_listeners = self.handover.send(handover).await.is_ok();
        }
    }

    async fn step(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let mut entries = Vec::new();
        let may_send = session.unsent.is_empty();
        let again = may_send && self.kept.has_more();
        if again && session.again_at.is_none() {
            // Before anything that came later: a call's end must not overtake its beginning.
            self.kept.take_again(&mut entries);
            return self.send_records(session, entries);
        }
        tokio::select! {
            // Answers first: they let callers go on.
            biased;
            got = session.socket.receive(&mut session.scratch) => {
                let (message, fds) = got?;
                self.handle(session, message, fds).await?;
            }
            () = at(session.again_at), if again => session.again_at = None,
            () = at(session.send_at), if may_send => {
                session.send_at = None;
                self.gather(&mut entries);
            }
            got = self.queue.entries.recv_many(&mut entries, MAX_BATCH),
                if may_send && session.send_at.is_none() =>
            {
                if got == 0 {
                    return Err(SessionError::OutOfOrder("the recorder is gone"));
                }
                if entries.iter().all(|entry| entry.waiter.is_none()) && entries.len() < MAX_BATCH / 2 {
                    self.gathered.append(&mut entries);
                    session.send_at = tokio::time::Instant::now().checked_add(GATHERING);
                } else {
                    // Whatever else is ready to run may have a record too: one packet for all of them.
                    tokio::task::yield_now().await;
                    self.gather(&mut entries);
                }
            }
            Some(question) = self.questions.processes.recv(), if may_send => session.ask(question)?,
            Some(message) = self.questions.held.0.recv(), if may_send => session.hold(message)?,
            Some(compiled) = compiled(&mut session.compiling) => {
                self.compiled(session, compiled)?;
                self.serve_when_ready(session).await;
            }
            _ = session.look.tick() => {
                if self.kept.waits_longer_than(SILENCE) {
                    return Err(SessionError::Silent);
                }
            }
            () = at(session.forget_at) => {
                session.forget_at = None;
                self.gateway.runs.forget_before(self.sessions);
            }
            sent = flush(&session.socket, &mut session.unsent), if !may_send => sent?,
        }
        self.send_records(session, entries)
    }

    /// Takes what was gathered and what has come meanwhile, at most a batch.
    fn gather(&mut self, entries: &mut Vec<Entry>) {
        entries.append(&mut self.gathered);
        while entries.len() < MAX_BATCH
            && let Ok(entry) = self.queue.entries.try_recv()
        {
            entries.push(entry);
        }
    }

    fn send_records(&mut self, session: &mut Session, entries: Vec<Entry>) -> Result<(), SessionError> {
        if entries.is_empty() {
            return Ok(());
        }
        if let Some(packet) = self.kept.pack(entries)? {
            session.send(packet.0)?;
        }
        Ok(())
    }

    /// Sends all that has been recorded so far.
    fn send_all(&mut self, session: &mut Session) -> Result<(), SessionError> {
        session.send_at = None;
        while session.unsent.is_empty() {
            let mut entries = Vec::new();
            self.gather(&mut entries);
            if entries.is_empty() {
                break;
            }
            self.send_records(session, entries)?;
        }
        Ok(())
    }

    async fn handle(
        &mut self,
        session: &mut Session,
        message: ToGateway,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(), SessionError> {
        match message {
            ToGateway::Recorded { batch, refused } => {
                if refused.is_some() {
                    session.again_at = tokio::time::Instant::now().checked_add(TRY_AGAIN);
                }
                self.kept.answered(batch, refused, &self.gateway.recorder);
            }
            ToGateway::Setup(setup) => self.set_up(*setup, fds).await?,
            ToGateway::Policy { epoch, digest } => {
                let fd = fds.pop().ok_or(SessionError::OutOfOrder("policies came without their text"))?;
                tracing::info!(epoch, digest, "policies came");
                session.to_compile = Some((epoch, fd));
                session.compile_next();
            }
            ToGateway::RunStarted(info) => {
                let fd = fds.pop().ok_or(SessionError::OutOfOrder("a run came without its names"))?;
                self.gateway.runs.started(info, fd, &self.limits(), self.sessions)?;
            }
            ToGateway::Budgets(budgets) => self.gateway.budgets.set(budgets),
            ToGateway::AgentUse(told) => self.gateway.budgets.agent_use(told),
            ToGateway::RunUse(told) => {
                if let Some(run) = self.gateway.runs.by_id(&told.run) {
                    self.gateway.budgets.run_use(&run.models, told.spent);
                }
            }
            ToGateway::Announced => {
                self.gateway.budgets.begin();
                session.announced = true;
                self.serve_when_ready(session).await;
            }
            ToGateway::RunEnded(id) => {
                self.gateway.runs.ended(&id);
                self.send_all(session)?;
                session.send(seqpacket::encode(&ToAgent::RunClosed(id))?)?;
            }
            ToGateway::Spool => {
                let fd = fds.pop().ok_or(SessionError::OutOfOrder("a spool came without its file"))?;
                self.gateway.recorder.set_spool(fd.into())?;
            }
            ToGateway::Process { ticket, process } => {
                if let Some(Asked::Process(answer)) = session.asked.remove(&ticket) {
                    let _ = answer.send(process);
                }
            }
            ToGateway::ToolsSeen { ticket, server } => {
                let list = self.gateway.seen.of(&server).unwrap_or_default();
                for packet in pieces(ticket, list.as_bytes())? {
                    session.send(packet)?;
                }
            }
            ToGateway::ToolDrifted(drifted) => self.gateway.drift.known(drifted),
            ToGateway::Tools(tools) => self.gateway.set_tools(*tools)?,
            ToGateway::Providers(told) => self.gateway.set_providers(*told)?,
            ToGateway::Credential { ticket, value } => {
                if let Some(Asked::Credential(answer)) = session.asked.remove(&ticket) {
                    let _ = answer.send(value);
                }
            }
            ToGateway::Answer { call, answer } => session.held.answered(call, answer),
        }
        Ok(())
    }

    fn compiled(&mut self, session: &mut Session, (epoch, result): Compiled) -> Result<(), SessionError> {
        let refused = match result {
            Ok(snapshot) => {
                self.gateway.policy.store(std::sync::Arc::new(snapshot));
                self.gateway.reloaded.send_replace(());
                tracing::info!(epoch, "policies are in force");
                None
            }
            Err(why) => Some(why),
        };
        session.send(seqpacket::encode(&ToAgent::PolicyCompiled { epoch, refused })?)?;
        session.compile_next();
        Ok(())
    }
}

impl Session {
    pub(super) fn send(&mut self, packet: Vec<u8>) -> Result<(), LinkError> {
        if self.unsent.is_empty() && self.socket.try_send(&packet)? {
            return Ok(());
        }
        if self.unsent.len() >= MAX_UNDER_WAY {
            return Err(LinkError::TooLarge);
        }
        self.unsent.push(packet);
        Ok(())
    }

    fn ask(&mut self, question: Question) -> Result<(), LinkError> {
        // Answers that never came would pile up; who asked has stopped waiting.
        self.asked.retain(|_, asked| !asked.is_over());
        self.ticket = self.ticket.wrapping_add(1);
        let ticket = self.ticket;
        let (message, asked) = match question {
            Question::Process { run, tgid, answer } => {
                (ToAgent::WhoIs { ticket, run, tgid }, Some(Asked::Process(answer)))
            }
            Question::Credential { name, answer } => {
                (ToAgent::Credential { ticket, name }, Some(Asked::Credential(answer)))
            }
            Question::TokenMismatch { from, owner } => (ToAgent::TokenMismatch { from, owner }, None),
            Question::Misused(misused) => (ToAgent::PlaceholderMisused(misused), None),
            Question::ToolDrifted { run, drifted } => {
                (ToAgent::ToolDrifted { run: Some(run), drifted }, None)
            }
            Question::ToolAgrees { server, tool } => (ToAgent::ToolAgrees { server, tool }, None),
        };
        self.asked.extend(asked.map(|asked| (ticket, asked)));
        self.send(seqpacket::encode(&message)?)
    }

    /// Starts to compile what waits, one set at a time, so that sets are put in force in order.
    fn compile_next(&mut self) {
        if self.compiling.is_some() {
            return;
        }
        if let Some((epoch, fd)) = self.to_compile.take() {
            self.compiling = Some(tokio::task::spawn_blocking(move || (epoch, policies::compile(fd, epoch))));
        }
    }
}

/// A list of tools in packets.
fn pieces(ticket: u64, list: &[u8]) -> Result<Vec<Vec<u8>>, LinkError> {
    let mut pieces: Vec<&[u8]> = list.chunks(SEEN_PIECE).collect();
    let last = pieces.pop().unwrap_or_default();
    let message = |piece: &[u8], last| ToAgent::ToolsSeen { ticket, piece: piece.to_vec(), last };
    let before = pieces.into_iter().map(|piece| message(piece, false));
    before.chain([message(last, true)]).map(|message| seqpacket::encode(&message)).collect()
}

/// Resolves at an instant; never without one.
async fn at(instant: Option<tokio::time::Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

async fn compiled(compiling: &mut Option<JoinHandle<Compiled>>) -> Option<Compiled> {
    let done = match compiling {
        Some(task) => task.await,
        None => std::future::pending().await,
    };
    *compiling = None;
    done.ok()
}

async fn flush(socket: &Socket, unsent: &mut Vec<Vec<u8>>) -> Result<(), LinkError> {
    while let Some(packet) = unsent.first() {
        socket.send(packet).await?;
        unsent.remove(0);
    }
    Ok(())
}
