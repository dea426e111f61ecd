//! Calls that wait for a person: bound, put to the agent, and waited for on the open connection.
//!
//! The agent keeps the prompts and says what became of a call; here is who waits. A call whose client goes away, whose
//! run ends or whose agent is gone stops waiting, and nothing is executed for it.

use bytes::Bytes;
use strait_contract::{
    approval::{Answer, Approval, Held, Outcome, Settled},
    code::Code,
    ids::RecordId,
    redact::redact_text,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    call::{Call, What},
    decide::Refusal,
    gateway::Gateway,
};

mod bound;

pub use bound::Carried;

/// Longest note that a client is shown, bytes.
const MAX_NOTE: usize = 1024;

/// Where calls are handed in that wait for a person.
#[derive(Debug)]
pub struct Desk(mpsc::UnboundedSender<Message>);

/// The link's end of the desk.
#[derive(Debug)]
pub(crate) struct Queue(pub(crate) mpsc::UnboundedReceiver<Message>);

/// What the link is to tell the agent.
#[derive(Debug)]
pub(crate) enum Message {
    /// A call waits.
    Held { held: Box<Held>, content: Bytes, answer: oneshot::Sender<Answer> },
    /// It doesn't any more, and was not executed.
    Withdrawn(RecordId),
}

/// Why a call that was held must not pass.
#[derive(Debug)]
pub(crate) struct Unapproved {
    pub(crate) refusal: Refusal,
    pub(crate) approval: Option<Approval>,
    /// Nobody is there who could write it down now.
    pub(crate) agent_gone: bool,
}

impl Desk {
    /// The desk and its queue.
    pub(crate) fn new() -> (Self, Queue) {
        // Unbounded so that whoever waits can be dropped anywhere. Its length is bounded by the calls in flight.
        let (desk, queue) = mpsc::unbounded_channel();
        (Self(desk), Queue(queue))
    }

    /// Waits for the agent's answer; `None` if the agent has gone.
    async fn ask(&self, held: Box<Held>, content: Bytes) -> Option<Answer> {
        let (answer, told) = oneshot::channel();
        let mut waiting = Waiting { desk: self, call: Some(held.call) };
        self.0.send(Message::Held { held, content, answer }).ok()?;
        let answer = told.await.ok();
        waiting.call = None;
        answer
    }
}

/// Takes a call back that stops waiting before it has its answer.
struct Waiting<'a> {
    desk: &'a Desk,
    call: Option<RecordId>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            let _ = self.desk.0.send(Message::Withdrawn(call));
        }
    }
}

/// Holds a call until a person has approved it. Policy is to be asked again afterwards: it may have changed.
///
/// # Errors
/// [`Unapproved`]: somebody refused it, nobody answered in time, or nobody can be asked.
pub(crate) async fn hold(
    gateway: &Gateway,
    call: &Call,
    carried: &mut Carried<'_>,
    rules: &[String],
    why: &str,
) -> Result<Approval, Box<Unapproved>> {
    if matches!(call.what, What::Dns(_)) {
        return Err(unavailable("a lookup can't wait for a person: permit it by a rule without `@approval`"));
    }
    if !gateway.recorder.is_up() {
        return Err(gone());
    }
    let bound = bound::bind(gateway, call, carried, rules, why)
        .await
        .map_err(|refusal| Box::new(Unapproved { refusal, approval: None, agent_gone: false }))?;
    let run = &call.caller.run;
    let held = Held {
        call: call.id,
        run: run.info.id.clone(),
        digest: bound.digest,
        rules: rules.to_vec(),
        why: why.to_owned(),
        timeout_seconds: gateway.policy.load().approval_timeout(rules),
        shown: bound.shown,
    };
    let asked = gateway.desk.ask(Box::new(held), bound.content);
    let answer = tokio::select! {
        answer = asked => answer,
        () = run.ended() => return Err(unavailable("the run ended while the call waited for a person")),
    };
    settle(answer.ok_or_else(gone)?)
}

fn settle(answer: Answer) -> Result<Approval, Box<Unapproved>> {
    let (refusal, approval) = match answer {
        Answer::Granted(settled) => return Ok(approval(settled, Outcome::Granted)),
        Answer::Denied(settled, note) => {
            let by = settled.by.as_deref().unwrap_or("an operator").to_owned();
            let reason = match note {
                Some(note) => format!("`{by}` refused it: {}", redact_text(&note, MAX_NOTE)),
                None => format!("`{by}` refused it"),
            };
            let refusal = Refusal::new(Code::ApprovalDenied, reason).hint(
                "a person has looked at exactly this call: don't send it again, ask what to do instead",
            );
            (refusal, approval(settled, Outcome::Denied))
        }
        Answer::Expired(settled) => {
            let seconds = settled.waited_ms / 1000;
            let reason = format!("nobody approved it within {seconds} s (prompt `{}`)", settled.id);
            let refusal = Refusal::new(Code::ApprovalTimeout, reason)
                .hint("sent again it asks again; an operator sees what waits by `strait approvals`");
            (refusal, approval(settled, Outcome::Expired))
        }
        Answer::Unavailable(why) => return Err(unavailable(&why)),
    };
    Err(Box::new(Unapproved { refusal, approval: Some(approval), agent_gone: false }))
}

fn approval(settled: Settled, outcome: Outcome) -> Approval {
    let Settled { id, by, waited_ms } = settled;
    Approval { id, by, outcome, waited_ms }
}

fn unavailable(why: &str) -> Box<Unapproved> {
    let refusal = Refusal::new(Code::ApprovalUnavailable, format!("only a person can permit this: {why}"));
    Box::new(Unapproved { refusal, approval: None, agent_gone: false })
}

fn gone() -> Box<Unapproved> {
    let why = "the agent, which asks people, is not there or was started anew; nothing was executed";
    Box::new(Unapproved { agent_gone: true, ..*unavailable(why) })
}
