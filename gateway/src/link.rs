//! The link to the agent: settings, policies and runs come in, records go out.
//!
//! Takes packets from the one peer that owns `/run/strait/link.sock`; for ever dials again when it is gone.
//! While there is no agent, calls that begin are refused and those under way go on.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use strait_contract::{
    ids::RunId,
    message::{Drifted, Limits, Misused, Secret},
    run::Process,
    tool::ToolName,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    gateway::Gateway,
    hold,
    record::{Entry, Queue},
};

mod batches;
mod held;
mod policies;
mod session;
mod socket;

pub use session::Handover;

/// Longest pause between two attempts to reach the agent.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How long a question to the agent may take before it counts as unanswered.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// How long a credential may take, a program that prints it included.
const CREDENTIAL_WITHIN: Duration = Duration::from_secs(12);

/// Asks the agent who is behind a process id.
#[derive(Debug)]
pub struct WhoIs {
    ask: mpsc::Sender<Question>,
}

/// Questions on their way to the agent.
#[derive(Debug)]
pub struct Questions {
    processes: mpsc::Receiver<Question>,
    held: hold::Queue,
}

#[derive(Debug)]
enum Question {
    Process {
        run: RunId,
        tgid: u32,
        answer: oneshot::Sender<Option<Process>>,
    },
    Credential {
        name: ToolName,
        answer: oneshot::Sender<Result<Secret, String>>,
    },
    /// No question: a tool isn't what was pinned.
    ToolDrifted {
        run: RunId,
        drifted: Drifted,
    },
    /// No question: a tool that wasn't what was pinned is again.
    ToolAgrees {
        server: ToolName,
        tool: String,
    },
    /// No question: the run `from` presented the token of `owner`.
    TokenMismatch {
        from: RunId,
        owner: RunId,
    },
    /// No question: a placeholder was on its way to where it isn't for.
    Misused(Misused),
}

impl WhoIs {
    /// The asking end and the link's end, to which the queue of held calls is added.
    pub(crate) fn new(held: hold::Queue) -> (Self, Questions) {
        let (ask, processes) = mpsc::channel(256);
        (Self { ask }, Questions { processes, held })
    }

    /// Executable and digest of a process; `None` if the agent can't tell, isn't there or takes too long.
    pub async fn ask(&self, run: &RunId, tgid: u32) -> Option<Process> {
        let (answer, told) = oneshot::channel();
        self.ask.try_send(Question::Process { run: run.clone(), tgid, answer }).ok()?;
        tokio::time::timeout(ANSWER_WITHIN, told).await.ok()?.ok()?
    }

    /// A credential's value.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn credential(&self, name: &ToolName) -> Result<Secret, String> {
        let away = || "strait-agent isn't there to hand it over".to_owned();
        let (answer, told) = oneshot::channel();
        self.ask.try_send(Question::Credential { name: name.clone(), answer }).map_err(|_| away())?;
        match tokio::time::timeout(CREDENTIAL_WITHIN, told).await {
            Ok(Ok(value)) => value,
            Ok(Err(_)) => Err(away()),
            Err(_) => {
                Err(format!("strait-agent did not hand it over within {} s", CREDENTIAL_WITHIN.as_secs()))
            }
        }
    }

    /// Has it written down that a run presented another's workload token.
    pub(crate) fn token_mismatch(&self, from: RunId, owner: RunId) {
        // The refusal itself is on record; an event more or less in a flood of them tells nothing new.
        let _ = self.ask.try_send(Question::TokenMismatch { from, owner });
    }

    /// Has it written down that a tool of an MCP server isn't what was pinned.
    pub(crate) fn tool_drifted(&self, run: RunId, drifted: Drifted) {
        // Lost if the agent is away: calls of the tool are refused, and that is on record.
        let _ = self.ask.try_send(Question::ToolDrifted { run, drifted });
    }

    /// Has it forgotten that a tool had drifted.
    pub(crate) fn tool_agrees(&self, server: ToolName, tool: String) {
        // Lost if the agent is away: then a later gateway refuses the tool until it has seen a list.
        let _ = self.ask.try_send(Question::ToolAgrees { server, tool });
    }
}

impl WhoIs {
    /// Has it written down that a placeholder was on its way to where it isn't for.
    pub(crate) fn misused(&self, misused: Misused) {
        // As above: the refusal is on record.
        let _ = self.ask.try_send(Question::Misused(misused));
    }
}

/// The gateway's end of the link.
#[derive(Debug)]
pub struct Link {
    path: PathBuf,
    gateway: Arc<Gateway>,
    queue: Queue,
    questions: Questions,
    handover: mpsc::Sender<Handover>,
    has_listeners: bool,
    /// Listeners that have come but are not served yet.
    held: Option<Handover>,
    /// Sessions so far.
    sessions: u64,
    kept: batches::Kept,
    /// Entries that are about to be sent.
    gathered: Vec<Entry>,
}

impl Link {
    /// A link that will dial `path`. Listeners are handed over when the first agent has sent them.
    pub fn new(
        path: &Path,
        gateway: Arc<Gateway>,
        queue: Queue,
        questions: Questions,
    ) -> (Self, mpsc::Receiver<Handover>) {
        let (handover, listeners) = mpsc::channel(1);
        let kept = batches::Kept::default();
        let path = path.to_owned();
        (
            Self {
                path,
                gateway,
                queue,
                questions,
                handover,
                has_listeners: false,
                held: None,
                sessions: 0,
                kept,
                gathered: Vec::new(),
            },
            listeners,
        )
    }

    /// Serves the link for ever.
    pub async fn run(mut self) {
        let mut pause = Duration::from_millis(5);
        loop {
            match socket::dial(&self.path) {
                Ok(socket) => match self.session(socket).await {
                    Ok(()) => pause = Duration::from_millis(5),
                    Err(error) => tracing::warn!(%error, "the link to the agent broke"),
                },
                Err(error) => tracing::debug!(%error, "the agent can't be reached"),
            }
            self.lose();
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    /// Serves one connected socket until it breaks; for tests, which connect by a socket pair.
    ///
    /// # Errors
    /// Why the session ended.
    pub async fn serve(&mut self, socket: std::os::fd::OwnedFd) -> Result<(), session::SessionError> {
        let served = self.session(socket::Socket::new(socket)?).await;
        self.lose();
        served
    }

    fn limits(&self) -> Limits {
        self.gateway.settings().map(|settings| settings.limits.clone()).unwrap_or_default()
    }
}
