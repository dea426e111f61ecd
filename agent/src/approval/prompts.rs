//! Prompts, who waits at each, and what approvals are still worth. Plain state: time is passed in, nothing is awaited.
//!
//! A prompt stands for one digest in one run. Identical calls wait at the same one; each approval is worth one execution,
//! used by a call that waits or, within [`GRANT_LASTS`], by an identical one that comes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::{Duration, Instant},
};

use strait_contract::{
    approval::{Answer, ApprovalId, CallDigest, Held, Settled, Shown},
    ids::{RecordId, RunId},
};

/// How long an approval that no call waited for can be used.
pub(crate) const GRANT_LASTS: Duration = Duration::from_secs(600);
/// Calls of one run that may wait at once.
const CALLS_PER_RUN: usize = 1024;
/// Bytes that the prompts of one run may take.
const BYTES_PER_RUN: usize = 8 * 1024 * 1024;
/// Prompts that are remembered when they are over.
const REMEMBERED: usize = 200;

/// What an approval is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) run: RunId,
    pub(super) digest: CallDigest,
}

/// Whose call it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) agent: String,
    pub(crate) user: String,
}

/// What is asked, the same for every call at the prompt.
#[derive(Clone, Debug)]
pub(super) struct Matter {
    pub(super) key: Key,
    pub(super) owner: Owner,
    pub(super) rules: Vec<String>,
    pub(super) why: String,
    pub(super) shown: Shown,
    pub(super) content: Vec<u8>,
}

impl Matter {
    fn bytes(&self) -> usize {
        let fields = self.shown.fields.iter().map(|(name, value)| name.len().saturating_add(value.len()));
        let fixed = self.shown.target.len().saturating_add(self.content.len()).saturating_add(1024);
        fields.fold(fixed, usize::saturating_add)
    }
}

/// A call that waits.
#[derive(Debug)]
struct Waiting {
    call: RecordId,
    session: u64,
    since: Instant,
    deadline: Instant,
}

/// What an approval is still worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// Nothing: people must be asked.
    Nothing,
    /// So many executions, until then.
    Times(u32, Instant),
    /// Every identical call for the rest of the run's life.
    Run,
}

/// How far an approval goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// So many executions.
    Times(u32),
    /// Every identical call for the rest of the run's life.
    Run,
}

/// One prompt.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) id: ApprovalId,
    pub(super) matter: Matter,
    pub(super) opened_ms: u64,
    /// Identical calls so far.
    pub(super) asked: u64,
    pub(super) worth: Worth,
    pub(super) by: Option<String>,
    /// The connection that asked last.
    session: u64,
    waiting: VecDeque<Waiting>,
    /// When it is over, whoever waits.
    expires: Instant,
}

/// A prompt that is over.
#[derive(Clone, Debug)]
pub(super) struct Past {
    pub(super) id: ApprovalId,
    pub(super) run: RunId,
    pub(super) owner: Owner,
    pub(super) action: String,
    pub(super) target: String,
    pub(super) opened_ms: u64,
    pub(super) ended_ms: u64,
    pub(super) end: End,
    pub(super) by: Option<String>,
}

/// How a prompt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Approved,
    Denied,
    Revoked,
    /// Nobody answered in time, or nobody used what was granted.
    Expired,
    RunEnded,
    GatewayGone,
    AgentRestarted,
    /// Nobody waited any more, and the room was needed.
    Withdrawn,
}

impl End {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::RunEnded => "expired: the run ended",
            Self::GatewayGone => "expired: the gateway was restarted",
            Self::AgentRestarted => "expired: the agent was restarted",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// What is to be done about a change, in order.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Calls that have their answer.
    pub(super) answers: Vec<(RecordId, Answer)>,
    /// Prompts that are over.
    pub(super) closed: Vec<Past>,
}

/// What asking comes to at once.
#[derive(Debug)]
pub(super) enum Asked {
    /// The call waits; `new` if nobody was asked about it before.
    Waits { id: ApprovalId, new: bool },
    /// It has its answer.
    Answered(Answer),
}

/// How much asking is allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Prompts of one run at once.
    pub(super) prompts_per_run: usize,
    /// How long a call waits.
    pub(super) timeout: Duration,
}

/// What one run has of the prompts.
#[derive(Debug, Default)]
struct Share {
    prompts: BTreeSet<ApprovalId>,
    calls: usize,
}

/// All prompts.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    prompts: BTreeMap<ApprovalId, Prompt>,
    open: HashMap<Key, ApprovalId>,
    calls: HashMap<RecordId, ApprovalId>,
    /// What each run has here.
    runs: HashMap<RunId, Share>,
    /// When calls have waited long enough, and when prompts are over.
    deadlines: BTreeSet<(Instant, RecordId)>,
    ends: BTreeSet<(Instant, ApprovalId)>,
    past: VecDeque<Past>,
}

impl Prompts {
    /// A call asks. `id` is taken if a new prompt is made.
    pub(super) fn ask(
        &mut self,
        held: Held,
        (session, owner, content): (u64, Owner, Vec<u8>),
        id: ApprovalId,
        bounds: Bounds,
        now: (Instant, u64),
    ) -> (Asked, Effects) {
        let mut effects = Effects::default();
        let Held { call, run, digest, rules, why, timeout_seconds: _, shown } = held;
        let key = Key { run, digest };
        let waiting = Waiting { call, session, since: now.0, deadline: later(now.0, bounds.timeout) };
        if let Some(known) = self.open.get(&key).cloned() {
            return (self.fold(&known, waiting, now, &mut effects), effects);
        }
        let matter = Matter { key: key.clone(), owner, rules, why, shown, content };
        if let Some(why) = self.make_room(&matter, bounds, now.1, &mut effects) {
            return (Asked::Answered(Answer::Unavailable(why)), effects);
        }
        let prompt = Prompt {
            id: id.clone(),
            matter,
            opened_ms: now.1,
            asked: 1,
            worth: Worth::Nothing,
            by: None,
            session,
            waiting: VecDeque::new(),
            expires: waiting.deadline,
        };
        self.open(prompt);
        self.wait(&id, waiting);
        (Asked::Waits { id, new: true }, effects)
    }

    fn open(&mut self, prompt: Prompt) {
        let key = prompt.matter.key.clone();
        self.ends.insert((prompt.expires, prompt.id.clone()));
        self.runs.entry(key.run.clone()).or_default().prompts.insert(prompt.id.clone());
        self.open.insert(key, prompt.id.clone());
        self.prompts.insert(prompt.id.clone(), prompt);
    }

    /// An identical call.
    fn fold(
        &mut self,
        id: &ApprovalId,
        waiting: Waiting,
        now: (Instant, u64),
        effects: &mut Effects,
    ) -> Asked {
        let Some(prompt) = self.prompts.get_mut(id) else {
            return Asked::Answered(Answer::Unavailable("its prompt has just ended".to_owned()));
        };
        prompt.asked = prompt.asked.saturating_add(1);
        prompt.session = waiting.session;
        let granted = Answer::Granted(Settled { id: id.clone(), by: prompt.by.clone(), waited_ms: 0 });
        match prompt.worth {
            Worth::Run => return Asked::Answered(granted),
            Worth::Times(left, until) if left > 0 && until > now.0 => {
                prompt.worth = Worth::Times(left - 1, until);
                if left == 1 {
                    self.close(id, End::Approved, now.1, effects);
                }
                return Asked::Answered(granted);
            }
            // What was granted was not used in time: people are asked again.
            Worth::Times(..) | Worth::Nothing => (prompt.worth, prompt.by) = (Worth::Nothing, None),
        }
        let run = prompt.matter.key.run.clone();
        if self.calls_of(&run) >= CALLS_PER_RUN {
            return Asked::Answered(Answer::Unavailable(format!(
                "{CALLS_PER_RUN} calls of this run wait already"
            )));
        }
        self.wait(id, waiting);
        Asked::Waits { id: id.clone(), new: false }
    }

    fn wait(&mut self, id: &ApprovalId, waiting: Waiting) {
        let Some(prompt) = self.prompts.get_mut(id) else { return };
        self.deadlines.insert((waiting.deadline, waiting.call));
        self.calls.insert(waiting.call, id.clone());
        if waiting.deadline > prompt.expires {
            self.ends.remove(&(prompt.expires, id.clone()));
            prompt.expires = waiting.deadline;
            self.ends.insert((prompt.expires, id.clone()));
        }
        self.runs.entry(prompt.matter.key.run.clone()).or_default().calls += 1;
        prompt.waiting.push_back(waiting);
    }

    /// A call of a run waits no longer.
    fn waits_no_longer(&mut self, run: &RunId, call: RecordId, deadline: Instant) {
        self.calls.remove(&call);
        self.deadlines.remove(&(deadline, call));
        if let Some(share) = self.runs.get_mut(run) {
            share.calls = share.calls.saturating_sub(1);
        }
    }

    /// Why there is no room for another prompt of a run. One that nobody waits at gives way.
    fn make_room(
        &mut self,
        new: &Matter,
        bounds: Bounds,
        now_ms: u64,
        effects: &mut Effects,
    ) -> Option<String> {
        let run = &new.key.run;
        loop {
            let own = || self.of(run);
            let asking = own().filter(|prompt| prompt.worth == Worth::Nothing).count();
            let bytes = own().map(|prompt| prompt.matter.bytes()).fold(new.bytes(), usize::saturating_add);
            let full = if asking >= bounds.prompts_per_run {
                format!("{asking} prompts of this run wait already (`approvals.per_run`)")
            } else if bytes > BYTES_PER_RUN {
                format!("the prompts of this run take {} MiB already", BYTES_PER_RUN / (1024 * 1024))
            } else if self.calls_of(run) >= CALLS_PER_RUN {
                return Some(format!("{CALLS_PER_RUN} calls of this run wait already"));
            } else {
                return None;
            };
            let idle = own()
                .filter(|prompt| prompt.worth == Worth::Nothing && prompt.waiting.is_empty())
                .min_by_key(|prompt| prompt.expires)
                .map(|prompt| prompt.id.clone());
            match idle {
                Some(id) => self.close(&id, End::Withdrawn, now_ms, effects),
                None => return Some(full),
            }
        }
    }

    fn calls_of(&self, run: &RunId) -> usize {
        self.runs.get(run).map_or(0, |share| share.calls)
    }

    /// The prompts of a run.
    fn of(&self, run: &RunId) -> impl Iterator<Item = &Prompt> {
        let ids = self.runs.get(run).into_iter().flat_map(|share| share.prompts.iter());
        ids.filter_map(|id| self.prompts.get(id))
    }

    /// A call waits no longer. Its prompt stays: approving it serves the identical call that may come.
    pub(super) fn withdraw(&mut self, call: RecordId) {
        let Some(id) = self.calls.get(&call) else { return };
        let Some(prompt) = self.prompts.get_mut(id) else { return };
        if let Some(at) = prompt.waiting.iter().position(|waiting| waiting.call == call)
            && let Some(waiting) = prompt.waiting.remove(at)
        {
            let run = prompt.matter.key.run.clone();
            self.waits_no_longer(&run, call, waiting.deadline);
        }
    }

    /// A person approves. What is left over is worth something for [`GRANT_LASTS`]. `None` if there is no such prompt or
    /// it has been approved for good.
    pub(super) fn approve(
        &mut self,
        id: &ApprovalId,
        scope: Scope,
        by: &str,
        now: (Instant, u64),
    ) -> Option<Effects> {
        let mut effects = Effects::default();
        let prompt = self.prompts.get_mut(id)?;
        if prompt.worth != Worth::Nothing {
            return None;
        }
        let mut released = Vec::new();
        let mut left = match scope {
            Scope::Times(times) => times,
            Scope::Run => u32::MAX,
        };
        while left > 0
            && let Some(waiting) = prompt.waiting.pop_front()
        {
            left -= 1;
            let settled =
                Settled { id: id.clone(), by: Some(by.to_owned()), waited_ms: ms(waiting.since, now.0) };
            effects.answers.push((waiting.call, Answer::Granted(settled)));
            released.push((waiting.call, waiting.deadline));
        }
        let run = prompt.matter.key.run.clone();
        let worth = match scope {
            Scope::Run => Worth::Run,
            Scope::Times(_) if left > 0 => Worth::Times(left, later(now.0, GRANT_LASTS)),
            Scope::Times(_) => Worth::Nothing,
        };
        prompt.worth = worth;
        let over = worth == Worth::Nothing && prompt.waiting.is_empty();
        if over || worth != Worth::Nothing {
            prompt.by = Some(by.to_owned());
        }
        if worth != Worth::Nothing {
            self.ends.remove(&(prompt.expires, id.clone()));
        }
        if let Worth::Times(_, until) = worth {
            prompt.expires = until;
            self.ends.insert((until, id.clone()));
        }
        for (call, deadline) in released {
            self.waits_no_longer(&run, call, deadline);
        }
        if over {
            self.close(id, End::Approved, now.1, &mut effects);
        }
        Some(effects)
    }

    /// A person refuses every call that waits, and takes back what was granted before.
    pub(super) fn deny(
        &mut self,
        id: &ApprovalId,
        note: Option<&str>,
        by: &str,
        now: (Instant, u64),
    ) -> Option<Effects> {
        let mut effects = Effects::default();
        let prompt = self.prompts.get_mut(id)?;
        let end = if prompt.worth == Worth::Nothing { End::Denied } else { End::Revoked };
        prompt.by = Some(by.to_owned());
        for waiting in &prompt.waiting {
            let settled =
                Settled { id: id.clone(), by: Some(by.to_owned()), waited_ms: ms(waiting.since, now.0) };
            effects.answers.push((waiting.call, Answer::Denied(settled, note.map(str::to_owned))));
        }
        self.close(id, end, now.1, &mut effects);
        Some(effects)
    }

    /// Ends what has waited long enough.
    pub(super) fn expire(&mut self, now: (Instant, u64)) -> Effects {
        let mut effects = Effects::default();
        while let Some((deadline, call)) = self.deadlines.first().copied()
            && deadline <= now.0
        {
            self.deadlines.pop_first();
            let Some(id) = self.calls.get(&call).cloned() else { continue };
            let since = self.prompts.get(&id).and_then(|prompt| {
                prompt.waiting.iter().find(|waiting| waiting.call == call).map(|waiting| waiting.since)
            });
            self.withdraw(call);
            let settled = Settled { id, by: None, waited_ms: ms(since.unwrap_or(deadline), now.0) };
            effects.answers.push((call, Answer::Expired(settled)));
        }
        while let Some((end, id)) = self.ends.first().cloned()
            && end <= now.0
        {
            self.close(&id, End::Expired, now.1, &mut effects);
        }
        effects
    }

    /// When [`Self::expire`] has something to do next.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let call = self.deadlines.first().map(|(at, _)| *at);
        let prompt = self.ends.first().map(|(at, _)| *at);
        call.into_iter().chain(prompt).min()
    }

    /// A run is over: nothing of it waits, and nothing granted to it is worth anything.
    pub(super) fn run_ended(&mut self, run: &RunId, now_ms: u64) -> Effects {
        let mut effects = Effects::default();
        let ids: Vec<ApprovalId> = self.of(run).map(|prompt| prompt.id.clone()).collect();
        for id in ids {
            let waiting = self.prompts.get(&id).into_iter().flat_map(|prompt| prompt.waiting.iter());
            let gone = |call| (call, Answer::Unavailable("the run has ended".to_owned()));
            effects.answers.extend(waiting.map(|waiting| gone(waiting.call)));
            self.close(&id, End::RunEnded, now_ms, &mut effects);
        }
        effects
    }

    /// A gateway's connection is over, and with it the calls that waited there and the executions that were granted to
    /// them and not used. What is granted until a run ends stays.
    pub(super) fn session_ended(&mut self, session: u64, now_ms: u64) -> Effects {
        let mut effects = Effects::default();
        let concerned = |prompt: &&Prompt| {
            let granted = matches!(prompt.worth, Worth::Times(..)) && prompt.session == session;
            granted || prompt.waiting.iter().any(|waiting| waiting.session == session)
        };
        let ids: Vec<ApprovalId> =
            self.prompts.values().filter(concerned).map(|prompt| prompt.id.clone()).collect();
        for id in ids {
            let waiting = self.prompts.get(&id).into_iter().flat_map(|prompt| prompt.waiting.iter());
            let calls: Vec<RecordId> =
                waiting.filter(|waiting| waiting.session == session).map(|waiting| waiting.call).collect();
            for call in calls {
                self.withdraw(call);
                let why = "the gateway that held it has gone".to_owned();
                effects.answers.push((call, Answer::Unavailable(why)));
            }
            if self.prompts.get(&id).is_some_and(|prompt| prompt.waiting.is_empty()) {
                self.close(&id, End::GatewayGone, now_ms, &mut effects);
            }
        }
        effects
    }

    fn close(&mut self, id: &ApprovalId, end: End, now_ms: u64, effects: &mut Effects) {
        let Some(prompt) = self.prompts.remove(id) else {
            self.ends.retain(|(_, known)| known != id);
            return;
        };
        let run = prompt.matter.key.run.clone();
        self.ends.remove(&(prompt.expires, id.clone()));
        self.open.remove(&prompt.matter.key);
        for waiting in &prompt.waiting {
            self.waits_no_longer(&run, waiting.call, waiting.deadline);
        }
        if let Some(share) = self.runs.get_mut(&run) {
            share.prompts.remove(id);
            if share.prompts.is_empty() {
                self.runs.remove(&run);
            }
        }
        let past = Past {
            id: prompt.id,
            run: prompt.matter.key.run,
            owner: prompt.matter.owner,
            action: prompt.matter.shown.action,
            target: prompt.matter.shown.target,
            opened_ms: prompt.opened_ms,
            ended_ms: now_ms,
            end,
            by: prompt.by,
        };
        effects.closed.push(past.clone());
        self.remember(past);
    }

    /// Keeps a prompt that is over, for lists.
    pub(super) fn remember(&mut self, past: Past) {
        self.past.push_back(past);
        while self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
    }

    /// A prompt that isn't over.
    pub(super) fn get(&self, id: &ApprovalId) -> Option<&Prompt> {
        self.prompts.get(id)
    }

    /// Whether this name is taken.
    pub(super) fn knows(&self, id: &ApprovalId) -> bool {
        self.prompts.contains_key(id) || self.past.iter().any(|past| past.id == *id)
    }

    /// Prompts that aren't over, the oldest first.
    pub(super) fn all(&self) -> Vec<&Prompt> {
        let mut all: Vec<_> = self.prompts.values().collect();
        all.sort_by_key(|prompt| prompt.opened_ms);
        all
    }

    /// Prompts that are over, the oldest first.
    pub(super) fn past(&self) -> impl Iterator<Item = &Past> {
        self.past.iter()
    }
}

impl Prompt {
    /// Calls that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When it is over; none if that is the end of its run.
    pub(super) fn expires(&self) -> Option<Instant> {
        (self.worth != Worth::Run).then_some(self.expires)
    }
}

fn later(now: Instant, by: Duration) -> Instant {
    now.checked_add(by).unwrap_or(now)
}

fn ms(since: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
