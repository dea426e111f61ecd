//! Approvals: people are asked about calls that policy permits only with their consent (A21, A22).
//!
//! The gateway brings calls that wait, people answer by the control API. One task owns everything, so what is asked,
//! answered and written happens in one order. An approval is on record, synced, before a call is let go, and it is used
//! up by letting it go, whatever becomes of the call then: nothing runs twice.
//!
//! Architecture invariant: nothing here outlives this process but the records and a list of what was waiting. After a
//! restart every call has been refused and every approval is worth nothing.

mod file;
mod notify;
mod prompts;
pub(crate) mod shown;
pub mod view;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use strait_contract::{
    approval::{Answer, ApprovalId, Held},
    ids::{RecordId, RunId},
    record::Record,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use self::{
    notify::Notifier,
    prompts::{Asked, Bounds, Effects, End, Past, Prompt, Prompts, Worth},
    view::{ApprovalView, now},
};
use crate::{
    config::{ApprovalMode, Config},
    log::{self, Log},
    run::account::Account,
};

pub(crate) use prompts::{Owner, Scope};

/// Most that is done before records are written for it.
const AT_ONCE: usize = 256;
/// Longest note, bytes.
const MAX_NOTE: usize = 1024;
/// Letters and digits of a prompt's name: none that are mistaken for each other.
const ALPHABET: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz023456789";
/// Length of a prompt's name.
const ID_LENGTH: usize = 8;

/// Asks people; clones share everything.
#[derive(Clone, Debug)]
pub struct Approvals {
    commands: mpsc::UnboundedSender<Command>,
    /// Room for what a gateway asks: one that asks faster than records are written has to wait.
    room: Arc<Semaphore>,
}

/// A place among what waits to be taken up.
pub(crate) type Place = OwnedSemaphorePermit;

/// What is asked of the task that owns the prompts.
#[derive(Debug)]
enum Command {
    Recover,
    Held {
        session: u64,
        owner: Owner,
        held: Box<Held>,
        content: Vec<u8>,
        answer: oneshot::Sender<Answer>,
        place: Place,
    },
    Withdrawn(RecordId, Place),
    SessionEnded(u64),
    RunEnded(RunId),
    List(oneshot::Sender<Vec<ApprovalView>>),
    Show(ApprovalId, oneshot::Sender<Option<ApprovalView>>),
    Approve(ApprovalId, Scope, Account, Reply),
    Deny(ApprovalId, Option<String>, Account, Reply),
}

type Reply = oneshot::Sender<Result<ApprovalView, ApprovalError>>;

/// Why a person's answer was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApprovalError {
    /// No such prompt is open.
    #[error("no prompt `{0}` is open: it was answered, has expired, or never was")]
    Unknown(ApprovalId),
    /// Somebody has approved it, and it can still be used.
    #[error("`{0}` is approved already; `strait approvals deny {0}` takes that back")]
    Approved(ApprovalId),
    /// The log can't be written.
    #[error("the answer can't be put on record, so nothing was let go: {0}")]
    Unrecorded(strait_contract::record::Unrecorded),
    /// The agent is stopping.
    #[error("the agent is shutting down")]
    Stopping,
}

impl Approvals {
    /// Starts the task that owns the prompts. Call it within a tokio runtime.
    pub fn start(log: Log, config: watch::Receiver<Arc<Config>>) -> Self {
        let (commands, asked) = mpsc::unbounded_channel();
        let folder = config.borrow().instance.state_dir.join("approvals");
        let desk = Desk {
            log,
            config,
            folder,
            notifier: Notifier::new(),
            prompts: Prompts::default(),
            answers: HashMap::new(),
            held: BTreeMap::new(),
        };
        tokio::spawn(desk.run(asked));
        Self { commands, room: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Puts on record, as expired, what an earlier agent left waiting. Open the runs' chains before.
    pub fn recover(&self) {
        self.send(Command::Recover);
    }

    /// Waits for room to ask, or to take back, one call; `None` if the agent is stopping.
    pub(crate) async fn place(&self) -> Option<Place> {
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    /// A call waits. The answer comes at some time; a closed channel means that it isn't waited for any more.
    pub(crate) fn held(
        &self,
        session: u64,
        owner: Owner,
        (held, content): (Box<Held>, Vec<u8>),
        place: Place,
    ) -> oneshot::Receiver<Answer> {
        let (answer, told) = oneshot::channel();
        self.send(Command::Held { session, owner, held, content, answer, place });
        told
    }

    /// A call waits no longer.
    pub(crate) fn withdrawn(&self, call: RecordId, place: Place) {
        self.send(Command::Withdrawn(call, place));
    }

    /// A gateway's connection is over.
    pub(crate) fn session_ended(&self, session: u64) {
        self.send(Command::SessionEnded(session));
    }

    /// A run is over.
    pub(crate) fn run_ended(&self, run: &RunId) {
        self.send(Command::RunEnded(run.clone()));
    }

    /// Every prompt: open ones, then those that are over, the oldest first.
    ///
    /// # Errors
    /// [`ApprovalError::Stopping`].
    pub async fn list(&self) -> Result<Vec<ApprovalView>, ApprovalError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::List(reply));
        answer.await.map_err(|_| ApprovalError::Stopping)
    }

    /// One open prompt, whole.
    ///
    /// # Errors
    /// [`ApprovalError::Unknown`].
    pub async fn show(&self, id: &ApprovalId) -> Result<ApprovalView, ApprovalError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Show(id.clone(), reply));
        let found = answer.await.map_err(|_| ApprovalError::Stopping)?;
        found.ok_or_else(|| ApprovalError::Unknown(id.clone()))
    }

    /// A person approves. Returns when that is on record and the calls are let go.
    ///
    /// # Errors
    /// [`ApprovalError`]; nothing was let go then.
    pub(crate) async fn approve(
        &self,
        id: ApprovalId,
        scope: Scope,
        account: Account,
    ) -> Result<ApprovalView, ApprovalError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Approve(id, scope, account, reply));
        answer.await.unwrap_or(Err(ApprovalError::Stopping))
    }

    /// A person refuses, or takes back what was granted. Returns when that is on record.
    ///
    /// # Errors
    /// [`ApprovalError`]; the calls go on waiting then.
    pub(crate) async fn deny(
        &self,
        id: ApprovalId,
        note: Option<String>,
        account: Account,
    ) -> Result<ApprovalView, ApprovalError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Deny(id, note, account, reply));
        answer.await.unwrap_or(Err(ApprovalError::Stopping))
    }

    fn send(&self, command: Command) {
        // The task lives as long as the process; what is asked of one that panicked is dropped, and so refused.
        let _ = self.commands.send(command);
    }
}

/// The task that owns the prompts.
struct Desk {
    log: Log,
    config: watch::Receiver<Arc<Config>>,
    folder: PathBuf,
    notifier: Notifier,
    prompts: Prompts,
    answers: HashMap<RecordId, oneshot::Sender<Answer>>,
    /// Events of calls that have begun to wait, not yet written, by run.
    held: BTreeMap<RunId, Vec<(RecordId, Record)>>,
}

impl Desk {
    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Command>) {
        let mut commands = Vec::new();
        loop {
            let next = self.prompts.next_end();
            tokio::select! {
                got = asked.recv_many(&mut commands, AT_ONCE) => if got == 0 { return },
                () = at(next) => {}
            }
            for command in commands.drain(..) {
                self.take(command).await;
            }
            self.write_held().await;
            let effects = self.prompts.expire(clock());
            self.carry_out(effects).await;
        }
    }

    async fn take(&mut self, command: Command) {
        match command {
            Command::Recover => self.recover().await,
            Command::Held { session, owner, held, content, answer, place: _place } => {
                self.ask(*held, (session, owner, content), answer).await;
            }
            Command::Withdrawn(call, _place) => {
                self.prompts.withdraw(call);
                self.answers.remove(&call);
            }
            Command::SessionEnded(session) => {
                let effects = self.prompts.session_ended(session, log::now_ms());
                self.carry_out(effects).await;
            }
            Command::RunEnded(run) => {
                let effects = self.prompts.run_ended(&run, log::now_ms());
                self.carry_out(effects).await;
            }
            Command::List(reply) => {
                let open =
                    self.prompts.all().into_iter().map(|prompt| ApprovalView::of(prompt, now(), false));
                let all = open.chain(self.prompts.past().map(ApprovalView::past)).collect();
                let _ = reply.send(all);
            }
            Command::Show(id, reply) => {
                let _ = reply.send(self.prompts.get(&id).map(|prompt| ApprovalView::of(prompt, now(), true)));
            }
            Command::Approve(id, scope, account, reply) => {
                let _ = reply.send(self.approve(&id, scope, &account).await);
            }
            Command::Deny(id, note, account, reply) => {
                let _ = reply.send(self.deny(&id, note, &account).await);
            }
        }
    }

    async fn ask(&mut self, held: Held, by: (u64, Owner, Vec<u8>), answer: oneshot::Sender<Answer>) {
        let config = self.config.borrow().approvals.clone();
        if config.mode == ApprovalMode::Refuse {
            let why = "nobody is asked here (`approvals.mode` is `\"refuse\"`)".to_owned();
            let _ = answer.send(Answer::Unavailable(why));
            return;
        }
        let (call, run) = (held.call, held.run.clone());
        let bounds = Bounds {
            prompts_per_run: config.per_run,
            timeout: held.timeout_seconds.map_or(config.timeout, Duration::from_secs),
        };
        let (asked, effects) = self.prompts.ask(held, by, self.fresh_id(), bounds, clock());
        match asked {
            Asked::Answered(now) => {
                let _ = answer.send(now);
            }
            Asked::Waits { id, new } => {
                self.answers.insert(call, answer);
                if let Some(prompt) = self.prompts.get(&id) {
                    let facts = held_facts(prompt, call, bounds.timeout);
                    let event = log::event(Some(run.clone()), "call.held", &facts);
                    self.held.entry(run).or_default().push((call, event));
                    if new {
                        self.announce(prompt, &config.notify);
                    }
                }
            }
        }
        self.carry_out(effects).await;
    }

    fn announce(&self, prompt: &Prompt, command: &[String]) {
        if let Err(error) = file::write(&self.folder, prompt) {
            tracing::warn!(%error, "a prompt can't be kept: a later agent won't know that it was waiting");
        }
        if !command.is_empty()
            && let Ok(text) = serde_json::to_vec(&ApprovalView::of(prompt, now(), true))
        {
            self.notifier.tell(command.to_vec(), text);
        }
    }

    /// Writes that calls have begun to wait. One whose event can't be written doesn't.
    async fn write_held(&mut self) {
        for (run, events) in std::mem::take(&mut self.held) {
            let (calls, records): (Vec<_>, Vec<_>) = events.into_iter().unzip();
            let Err(why) = self.log.append(records).await else { continue };
            tracing::warn!(%run, %why, "calls that wait for a person can't be put on record: they are refused");
            for call in calls {
                self.prompts.withdraw(call);
                self.answer(
                    call,
                    Answer::Unavailable(format!("that it waits can't be put on record: {why}")),
                );
            }
        }
    }

    async fn approve(
        &mut self,
        id: &ApprovalId,
        scope: Scope,
        account: &Account,
    ) -> Result<ApprovalView, ApprovalError> {
        self.write_held().await;
        let prompt = self.prompts.get(id).ok_or_else(|| ApprovalError::Unknown(id.clone()))?;
        if prompt.worth != Worth::Nothing {
            return Err(ApprovalError::Approved(id.clone()));
        }
        let mut facts = answer_facts(prompt, account);
        let (scope_fact, let_go) = match scope {
            Scope::Run => ("run".to_owned(), prompt.waiting()),
            Scope::Times(times) => {
                (times.to_string(), prompt.waiting().min(usize::try_from(times).unwrap_or(usize::MAX)))
            }
        };
        facts.extend([("scope", scope_fact), ("released", let_go.to_string())]);
        let run = prompt.matter.key.run.clone();
        self.log.event(Some(run), "approval.granted", &facts).await.map_err(ApprovalError::Unrecorded)?;
        let effects = self.prompts.approve(id, scope, &account.name, clock());
        self.carry_out(effects.unwrap_or_default()).await;
        Ok(self.view(id))
    }

    async fn deny(
        &mut self,
        id: &ApprovalId,
        note: Option<String>,
        account: &Account,
    ) -> Result<ApprovalView, ApprovalError> {
        self.write_held().await;
        let prompt = self.prompts.get(id).ok_or_else(|| ApprovalError::Unknown(id.clone()))?;
        let name = if prompt.worth == Worth::Nothing { "approval.denied" } else { "approval.revoked" };
        let mut facts = answer_facts(prompt, account);
        facts.push(("refused", prompt.waiting().to_string()));
        let run = prompt.matter.key.run.clone();
        self.log.event(Some(run), name, &facts).await.map_err(ApprovalError::Unrecorded)?;
        let note = note
            .map(|note| strait_contract::redact::redact_text(&note, MAX_NOTE))
            .filter(|note| !note.is_empty());
        let effects = self.prompts.deny(id, note.as_deref(), &account.name, clock());
        self.carry_out(effects.unwrap_or_default()).await;
        Ok(self.view(id))
    }

    /// A prompt as it is after a change, open or just over.
    fn view(&self, id: &ApprovalId) -> ApprovalView {
        match self.prompts.get(id) {
            Some(prompt) => ApprovalView::of(prompt, now(), false),
            None => self
                .prompts
                .past()
                .filter(|past| past.id == *id)
                .last()
                .map(ApprovalView::past)
                .unwrap_or_default(),
        }
    }

    async fn recover(&mut self) {
        for past in file::take(&self.folder, log::now_ms()) {
            self.expired(&past).await;
            self.prompts.remember(past);
        }
    }

    /// Gives answers, and takes note of prompts that are over.
    async fn carry_out(&mut self, effects: Effects) {
        let Effects { answers, closed } = effects;
        for (call, answer) in answers {
            self.answer(call, answer);
        }
        for past in closed {
            file::remove(&self.folder, &past.id);
            self.expired(&past).await;
        }
    }

    /// Writes that a prompt ended without a person's answer.
    async fn expired(&self, past: &Past) {
        if matches!(past.end, End::Approved | End::Denied | End::Revoked) {
            return;
        }
        let facts = [("approval", past.id.to_string()), ("cause", past.end.as_str().to_owned())];
        if let Err(why) = self.log.event(Some(past.run.clone()), "approval.expired", &facts).await {
            tracing::debug!(run = %past.run, %why, "that a prompt expired can't be put on record");
        }
    }

    fn answer(&mut self, call: RecordId, answer: Answer) {
        if let Some(waiter) = self.answers.remove(&call) {
            let _ = waiter.send(answer);
        }
    }

    fn fresh_id(&self) -> ApprovalId {
        loop {
            let mut bytes = [0_u8; ID_LENGTH];
            // Without randomness names are told apart by the clock: they are names, not secrets.
            if getrandom::fill(&mut bytes).is_err() {
                bytes = log::boot_ns().to_le_bytes();
            }
            let letters = bytes.iter().filter_map(|byte| ALPHABET.get(usize::from(byte % 32)));
            let name: String = letters.map(|letter| char::from(*letter)).collect();
            if let Ok(id) = name.parse()
                && !self.prompts.knows(&id)
            {
                return id;
            }
        }
    }
}

fn held_facts(prompt: &Prompt, call: RecordId, timeout: Duration) -> Vec<(&'static str, String)> {
    vec![
        ("approval", prompt.id.to_string()),
        ("record", call.to_string()),
        ("rules", prompt.matter.rules.join(", ")),
        ("digest", prompt.matter.key.digest.to_string()),
        ("count", prompt.asked.to_string()),
        ("timeoutSeconds", timeout.as_secs().to_string()),
    ]
}

fn answer_facts(prompt: &Prompt, account: &Account) -> Vec<(&'static str, String)> {
    vec![
        ("approval", prompt.id.to_string()),
        ("digest", prompt.matter.key.digest.to_string()),
        ("by", account.name.clone()),
        ("uid", account.uid.to_string()),
    ]
}

fn clock() -> (Instant, u64) {
    (Instant::now(), log::now_ms())
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
