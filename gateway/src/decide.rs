//! The one place where a call is permitted or refused, and the only one that makes a [`Permitted`].
//!
//! Architecture invariant: a [`Permitted`] exists only after the `decided` record of its call is on record.

use strait_contract::{code::Code, ids::RecordId, record::Unrecorded, run::RunInfo};
use strait_policies::{Ask, Question, Snapshot, Verdict};

use crate::{
    call::Call,
    gateway::Gateway,
    hold::{self, Carried, Unapproved},
    record::{Guard, Outcome, facts::Line, now_ms},
    refuse,
};

/// A call that policy permits and whose decision is on record. Whatever forwards takes one of these.
#[derive(Debug)]
pub struct Permitted {
    call: Call,
    guard: Guard,
}

impl Permitted {
    /// The call.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Ends a call whose answer is complete: writes its `done` line and waits for it.
    ///
    /// # Errors
    /// [`Unrecorded`]: the end of the answer must not be released.
    pub async fn done(self, outcome: &Outcome) -> Result<(), Unrecorded> {
        self.guard.done(outcome).await
    }

    /// Splits off what writes the `done` line once the answer has ended.
    pub(crate) fn into_parts(self) -> (Call, Guard) {
        (self.call, self.guard)
    }
}

/// A call that was refused, with everything that its protocol needs to say why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Of its records.
    pub id: RecordId,
    /// Stable code.
    pub code: Code,
    /// Rules that refused it; empty if none permitted it.
    pub rules: Vec<String>,
    /// A sentence for people.
    pub reason: String,
    /// What to do next.
    pub hint: Option<String>,
}

/// Why a call is refused before policy is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Stable code.
    pub code: Code,
    /// A sentence for people.
    pub reason: String,
    /// What to do next.
    pub hint: Option<String>,
}

impl Refusal {
    /// A refusal without a hint.
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), hint: None }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Asks policy and writes the decision down. A call that carries nothing besides itself.
///
/// # Errors
/// As [`decide_with`].
pub async fn decide(gateway: &Gateway, call: Call) -> Result<Permitted, Refused> {
    decide_with(gateway, call, Carried::Nothing).await
}

/// Asks policy, and a person if policy wants one, and writes the decision down. `carried` is what is sent besides the
/// call; it is read before a person is asked.
///
/// # Errors
/// [`Refused`] if policy or a person refuses, if nobody can be asked, or if the decision can't be recorded.
pub async fn decide_with(
    gateway: &Gateway,
    call: Call,
    mut carried: Carried<'_>,
) -> Result<Permitted, Refused> {
    let mut guard = Guard::open(&gateway.recorder, call.id, call.caller.run.info.id.clone(), Line::of(&call));
    if let Some(exposure) = &call.caller.run.exposure {
        match exposure.check(&call, carried.fields()) {
            Ok(found) => guard.add_placeholders(&found),
            Err(misuse) => {
                let refusal = misuse.tell(&gateway.whois, &call.caller);
                return Err(write_down(guard, call.status(refusal.code), refusal, Vec::new()).await);
            }
        }
    }
    let mut approved = None;
    loop {
        let (verdict, hint) = ask(gateway, &call, &mut guard).await;
        match verdict {
            Verdict::Permit { rules } => return allow(call, guard, rules).await,
            Verdict::Refuse { code, rules, reason } => {
                let refusal = Refusal { code, reason, hint };
                return Err(write_down(guard, call.status(refusal.code), refusal, rules).await);
            }
            // INVARIANT: what a person approved was held by exactly these rules; by others it is asked about anew.
            Verdict::Hold { rules, why } if approved.as_ref() == Some(&(rules.clone(), why.clone())) => {
                return allow(call, guard, rules).await;
            }
            Verdict::Hold { rules, why } => {
                let held = Box::pin(hold::hold(gateway, &call, &mut carried, &rules, &why));
                match held.await {
                    Ok(approval) => {
                        guard.set_approval(approval);
                        approved = Some((rules, why));
                    }
                    Err(unapproved) => return Err(unapprove(&call, guard, *unapproved, rules).await),
                }
            }
        }
    }
}

async fn allow(call: Call, mut guard: Guard, rules: Vec<String>) -> Result<Permitted, Refused> {
    match guard.allow(rules).await {
        Ok(()) => Ok(Permitted { call, guard }),
        Err(why) => Err(unrecorded(call.id, why)),
    }
}

/// Refuses a call that was held.
async fn unapprove(call: &Call, mut guard: Guard, why: Unapproved, rules: Vec<String>) -> Refused {
    let Unapproved { refusal, approval, agent_gone } = why;
    if let Some(approval) = approval {
        guard.set_approval(approval);
    }
    let status = call.status(refusal.code);
    if !agent_gone {
        return write_down(guard, status, refusal, rules).await;
    }
    // Its lines follow when the agent is back; the client need not wait for that to be told that nothing was done.
    let Refusal { code, reason, hint } = refusal;
    guard.deny_later(code, rules.clone(), &reason, status);
    Refused { id: call.id, code, rules, reason, hint }
}

/// Refuses a call that policy isn't asked about, and writes that down.
pub async fn refuse(gateway: &Gateway, call: &Call, refusal: Refusal) -> Refused {
    let run = call.caller.run.info.id.clone();
    let guard = Guard::open(&gateway.recorder, call.id, run, Line::of(call));
    write_down(guard, call.status(refusal.code), refusal, Vec::new()).await
}

/// Refuses what never became a call.
pub(crate) async fn refuse_line(
    gateway: &Gateway,
    caller: &crate::call::Caller,
    line: Line,
    status: Option<u16>,
    refusal: Refusal,
) -> Refused {
    let run = caller.run.info.id.clone();
    let guard = Guard::open(&gateway.recorder, RecordId::now(), run, line);
    write_down(guard, status, refusal, Vec::new()).await
}

async fn write_down(guard: Guard, status: Option<u16>, refusal: Refusal, rules: Vec<String>) -> Refused {
    let id = guard.id();
    let Refusal { code, reason, hint } = refusal;
    match guard.deny(code, rules.clone(), &reason, status).await {
        Ok(()) => Refused { id, code, rules, reason, hint },
        Err(why) => unrecorded(id, why),
    }
}

pub(crate) fn unrecorded(id: RecordId, why: Unrecorded) -> Refused {
    Refused {
        id,
        code: Code::RecordUnavailable,
        rules: Vec::new(),
        reason: format!("the call can't be put on record: {why}"),
        hint: Some("this is an outage and not policy: try again later".to_owned()),
    }
}

/// Policy's answer, with what would permit the call if nothing does.
async fn ask(gateway: &Gateway, call: &Call, guard: &mut Guard) -> (Verdict, Option<String>) {
    let policy = gateway.policy.load_full();
    let run = &call.caller.run.info;
    if call.model().is_some() {
        // INVARIANT: only `protocol::model` makes one, after it has judged the call by config and budget.
        return (Verdict::Permit { rules: Vec::new() }, None);
    }
    if let Some(mcp) = call.mcp().filter(|mcp| mcp.protocol) {
        return greeted(&policy, run, mcp.server());
    }
    let mut process = call.caller.process();
    let question = Question { run, now_ms: now_ms(), ask: call.ask(), process: process.as_ref() };
    if let Some(flow) = &call.caller.flow
        && policy.reads_process(&question)
    {
        process = gateway.whois.ask(&run.id, flow.tgid).await.or(process);
        if let Some(process) = &process {
            guard.set_process(process.clone());
        }
    }
    let question = Question { run, now_ms: now_ms(), ask: call.ask(), process: process.as_ref() };
    let verdict = policy.decide(&question);
    let unpermitted = matches!(&verdict, Verdict::Refuse { rules, .. } if rules.is_empty());
    let hint = unpermitted.then(|| refuse::how_to_allow(&question));
    (verdict, hint)
}

/// Policy's word on a part of a call, with what would permit it if nothing does.
pub(crate) async fn ask_part(
    gateway: &Gateway,
    caller: &crate::call::Caller,
    ask: Ask<'_>,
) -> (Verdict, Option<String>) {
    let policy = gateway.policy.load_full();
    let run = &caller.run.info;
    let mut process = caller.process();
    let question = Question { run, now_ms: now_ms(), ask: ask.clone(), process: process.as_ref() };
    if let Some(flow) = &caller.flow
        && policy.reads_process(&question)
    {
        process = gateway.whois.ask(&run.id, flow.tgid).await.or(process);
    }
    let question = Question { run, now_ms: now_ms(), ask, process: process.as_ref() };
    let verdict = policy.decide(&question);
    let unpermitted = matches!(&verdict, Verdict::Refuse { rules, .. } if rules.is_empty());
    let hint = unpermitted.then(|| refuse::how_to_allow(&question));
    (verdict, hint)
}

/// What every client of an MCP server says passes if policy could permit anything of the server.
fn greeted(policy: &Snapshot, run: &RunInfo, server: &str) -> (Verdict, Option<String>) {
    if policy.addressable(run, server) {
        return (Verdict::Permit { rules: Vec::new() }, None);
    }
    let reason = format!("no policy permits anything of the tool `{server}`");
    let hint = format!(
        "the operator permits its tools by a rule for `action in Action::\"tools/call\"` and `resource in Tool::\"{server}\"`"
    );
    (Verdict::Refuse { code: Code::ToolCallDenied, rules: Vec::new(), reason }, Some(hint))
}

impl Call {
    /// HTTP status of a refusal, if the call is one of HTTP.
    fn status(&self, code: Code) -> Option<u16> {
        self.http().is_some().then(|| refuse::status(code).as_u16())
    }
}
