//! From typed facts to the fields of a record, bounded, with secrets hidden.

use std::{borrow::Cow, net::IpAddr, time::Duration};

use strait_contract::{
    approval::Approval,
    code::Code,
    ids::{RecordId, RunId},
    record::{
        Activity, Body, Decision, Destination, Dns, Kind, MAX_ARGUMENTS, ModelStep, Phase, Record, Request,
        Source, Step, ToolKind, Traffic,
    },
    redact::{redact_text, redact_url},
    run::Process,
    tool::ToolName,
};

use super::MAX_TEXT;
use crate::{
    budget::Reservation,
    call::{Call, Caller, DnsCall, Endpoint, HttpCall, McpCall, Via, What},
    protocol::model::answer::Answered,
};

/// Most bytes of a model's name in a record.
const MAX_MODEL: usize = 256;
/// Most bytes of a URL in a record.
const MAX_URL: usize = 2048;

/// How a call ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What went wrong after the decision.
    pub code: Option<Code>,
    /// In words.
    pub reason: Option<String>,
    /// The vetted address that was dialled.
    pub addr: Option<IpAddr>,
    /// HTTP status that the client got.
    pub status: Option<u16>,
    /// Bytes from the run.
    pub bytes_out: u64,
    /// Bytes to the run.
    pub bytes_in: u64,
    /// DNS answer given.
    pub answer: Option<String>,
    /// Whether the answer was cut at its limit.
    pub truncated: bool,
    /// What a model call came to.
    pub model: Option<Box<Answered>>,
}

impl Outcome {
    /// A failure after the decision.
    pub fn failed(code: Code, reason: String) -> Self {
        Self { code: Some(code), reason: Some(reason), ..Self::default() }
    }

    /// Nobody is left to answer: the client went away, or the task that served it panicked.
    pub fn gone() -> Self {
        if std::thread::panicking() {
            Self::failed(Code::Internal, "a fault inside the gateway ended the call".to_owned())
        } else {
            Self::failed(Code::ClientGone, "the client went away before the end".to_owned())
        }
    }
}

/// What is told of one call, from the moment it is known to its last line.
#[derive(Debug)]
pub(crate) struct Line {
    activity: Box<Activity>,
    /// Of a call of a tool: the step of the trace. The activity is then what of it leaves the host, and only told if
    /// something does.
    step: Option<Box<Trace>>,
}

#[derive(Debug)]
struct Trace {
    step: Step,
    /// Of the activity's two lines.
    leg: RecordId,
    /// Whether it was permitted, so that something leaves the host.
    passed: bool,
    /// Whether nothing does in any case.
    inbound: bool,
    /// What a budget holds for it.
    reservation: Option<Reservation>,
}

impl Line {
    /// The facts of a call.
    pub(crate) fn of(call: &Call) -> Self {
        let mut activity = blank(Kind::Request, Some(call.caller.as_ref()), Some(call.via));
        match &call.what {
            What::Http(http) => http_facts(&mut activity, http, &call.caller),
            What::Mcp(mcp) => http_facts(&mut activity, &mcp.http, &call.caller),
            What::Stream(to) => {
                activity.kind = Kind::Stream;
                activity.dst = destination(to);
                activity.dst.name = activity.dst.name.map(|name| unshown(&call.caller, &name).into_owned());
            }
            What::Dns(question) => {
                let name = unshown(&call.caller, &question.name).into_owned();
                let question = DnsCall { name, record_type: question.record_type.clone() };
                dns_facts(&mut activity, &question, call.caller.flow.is_some());
            }
        }
        let step = step(call).map(|step| {
            Box::new(Trace {
                step,
                leg: RecordId::now(),
                passed: false,
                inbound: call.mcp().is_some_and(|mcp| mcp.inbound),
                reservation: call.model().and_then(|model| model.reservation.clone()),
            })
        });
        activity.step = step.is_some().then_some(call.id);
        Self { activity, step }
    }

    /// A connection of which nothing more is known than who made it and where to.
    pub(crate) fn connection(kind: Kind, caller: &Caller, via: Via, to: Destination) -> Self {
        let mut activity = blank(kind, Some(caller), Some(via));
        activity.dst = to;
        Self { activity, step: None }
    }

    /// A request that could not be read as a call: what of it is fit to be shown.
    pub(crate) fn unread(caller: &Caller, via: Via, to: Destination, request: Request) -> Self {
        let mut activity = blank(Kind::Request, Some(caller), Some(via));
        activity.dst = to;
        let url = redact_url(&unshown(caller, &request.url), MAX_URL);
        activity.request = Some(Request { url, method: redact_text(&request.method, 64), ..request });
        Self { activity, step: None }
    }

    /// Puts in what the agent told of the calling process.
    pub(super) fn set_process(&mut self, process: Process) {
        let process = Some(process.for_record());
        if let Some(trace) = &mut self.step {
            trace.step.process.clone_from(&process);
        }
        self.activity.process = process;
    }

    /// Puts in whose placeholders stand in the call.
    pub(super) fn add_placeholders(&mut self, found: &[ToolName]) {
        let step = self.step.as_mut().map(|trace| &mut trace.step.placeholders);
        for list in step.into_iter().chain([&mut self.activity.placeholders]) {
            list.extend(found.iter().cloned());
            list.sort_unstable();
            list.dedup();
        }
    }

    /// Puts in what asking a person came to.
    pub(super) fn set_approval(&mut self, approval: Approval) {
        if let Some(trace) = &mut self.step {
            trace.step.approval = Some(approval.clone());
        }
        self.activity.approval = Some(approval);
    }

    pub(super) fn rules(&self) -> &[String] {
        &self.activity.rules
    }

    pub(super) fn allow(&mut self, rules: Vec<String>) {
        if let Some(trace) = &mut self.step {
            trace.passed = !trace.inbound;
            trace.step.decision = Decision::Allow;
            trace.step.rules.clone_from(&rules);
        }
        self.activity.decision = Decision::Allow;
        self.activity.rules = rules;
    }

    pub(super) fn deny(&mut self, code: Code, rules: Vec<String>, reason: &str) {
        let reason = Some(redact_text(reason, MAX_TEXT));
        if let Some(trace) = &mut self.step {
            let step = &mut trace.step;
            step.decision = Decision::Deny;
            step.code = Some(code);
            step.rules.clone_from(&rules);
            step.reason.clone_from(&reason);
        }
        self.activity.decision = Decision::Deny;
        self.activity.code = Some(code);
        self.activity.rules = rules;
        self.activity.reason = reason;
    }

    /// The `decided` lines: of a permitted call of a tool two, else one.
    pub(super) fn decided(&self, id: RecordId, run: &RunId) -> (Record, Option<Record>) {
        let activity = || Body::Activity(self.activity.clone());
        let line = |id, body| super::record(id, Some(run.clone()), Some(Phase::Decided), body);
        match &self.step {
            None => (line(id, activity()), None),
            Some(trace) => {
                let leg = trace.passed.then(|| line(trace.leg, activity()));
                (line(id, Body::Trace(Box::new(trace.step.clone()))), leg)
            }
        }
    }

    /// The `done` lines, of the same number.
    pub(super) fn done(
        self,
        id: RecordId,
        run: &RunId,
        outcome: &Outcome,
        took: Duration,
    ) -> (Record, Option<Record>) {
        let line = |id, body| super::record(id, Some(run.clone()), Some(Phase::Done), body);
        let Self { activity, step } = self;
        match step {
            None => (line(id, Body::Activity(Box::new(ended(*activity, outcome, took)))), None),
            Some(trace) => {
                let Trace { mut step, leg, passed, reservation, .. } = *trace;
                // What it was settled at; all that was held if it was sent and nobody has settled it.
                step.charge = reservation.map(|reservation| reservation.close());
                let leg =
                    passed.then(|| line(leg, Body::Activity(Box::new(ended(*activity, outcome, took)))));
                (line(id, Body::Trace(Box::new(step_ended(step, outcome, took)))), leg)
            }
        }
    }
}

/// An activity with its outcome.
fn ended(mut activity: Activity, outcome: &Outcome, took: Duration) -> Activity {
    if let Some(code) = outcome.code {
        activity.code = Some(code);
        // Permitted by policy, refused afterwards: by its address, say. Nothing went out.
        if code.is_refusal() {
            activity.decision = Decision::Deny;
        }
    }
    if let Some(reason) = &outcome.reason {
        activity.reason = Some(redact_text(reason, MAX_TEXT));
    }
    if outcome.addr.is_some() {
        activity.dst.addr = outcome.addr;
    }
    let (bytes_out, bytes_in) = (outcome.bytes_out, outcome.bytes_in);
    if let Some(request) = &mut activity.request {
        request.status = outcome.status;
        request.bytes_out = Some(bytes_out);
        request.bytes_in = Some(bytes_in);
    }
    if activity.kind == Kind::Stream {
        activity.stream = Some(Traffic { bytes_out, bytes_in });
    }
    if let (Some(dns), Some(answer)) = (&mut activity.dns, &outcome.answer) {
        dns.answer.clone_from(answer);
    }
    activity.duration_us = Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    activity
}

/// A step with its outcome.
fn step_ended(mut step: Step, outcome: &Outcome, took: Duration) -> Step {
    let why = outcome.reason.as_deref().map(|reason| redact_text(reason, MAX_TEXT));
    match outcome.code {
        Some(code) if code.is_refusal() => {
            step.decision = Decision::Deny;
            step.code = Some(code);
            step.reason = why;
        }
        Some(code) => {
            step.code = Some(code);
            step.error = why;
        }
        None => {}
    }
    if let (Some(step), Some(answered)) = (&mut step.model, &outcome.model) {
        let Answered { tokens, cost, used, complete, first_token_us, attempts, content } = &**answered;
        step.tokens.clone_from(tokens);
        (step.cost, step.complete, step.first_token_us, step.attempts) =
            (*cost, *complete, *first_token_us, *attempts);
        if let Some(kept) = &mut step.content {
            kept.answer.clone_from(content);
        }
        if let Some(used) = used {
            step.used = Some(redact_text(used, MAX_MODEL));
        }
    }
    step.status = outcome.status;
    step.bytes_out = Some(outcome.bytes_out);
    step.bytes_in = Some(outcome.bytes_in);
    step.truncated = outcome.truncated;
    step.duration_us = Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    step
}

/// The step of the trace that a call is, if it is one of a tool.
fn step(call: &Call) -> Option<Step> {
    let http = match &call.what {
        What::Http(http) => http,
        What::Mcp(mcp) => return mcp_step(call, mcp),
        What::Stream(_) | What::Dns(_) => return None,
    };
    let tool = http.tool.as_ref()?;
    let target = &http.target;
    let model = http.model.as_ref();
    let url = unshown(&call.caller, target.url());
    let place = url.split_once('?').map_or_else(|| url.as_ref(), |(place, _)| place);
    Some(Step {
        target: redact_text(http.method.as_str(), 64) + " " + &redact_url(place, MAX_URL),
        args: url.split_once('?').map(|(_, query)| {
            // As the query of a URL: more names count as those of secrets there than in a text.
            let shown = redact_url(&format!("?{query}"), MAX_ARGUMENTS);
            shown.strip_prefix('?').map(str::to_owned).unwrap_or(shown)
        }),
        parent: model.and_then(|model| model.parent),
        process: call.caller.process().map(Process::for_record),
        model: model.map(|model| {
            let asked = redact_text(&unshown(&call.caller, &model.step.asked), MAX_MODEL);
            Box::new(ModelStep { asked, ..model.step.clone() })
        }),
        charge: model.and_then(|model| Some(model.reservation.as_ref()?.held())),
        ..Step::new(tool.name.to_string(), tool.kind(), Decision::Deny)
    })
}

/// A text with what its run was shown of credentials hidden: what looks like a key is known by its looks, this isn't.
fn unshown<'a>(caller: &Caller, text: &'a str) -> Cow<'a, str> {
    match &caller.run.exposure {
        Some(exposure) => Cow::Owned(exposure.hide(text)),
        None => Cow::Borrowed(text),
    }
}

fn mcp_step(call: &Call, mcp: &McpCall) -> Option<Step> {
    let shown = match &mcp.name {
        Some(_) => Some(mcp.arguments.json()),
        None => mcp.shown.as_ref(),
    };
    Some(Step {
        target: redact_text(&mcp.method, MAX_URL),
        args: shown.map(|json| redact_text(&unshown(&call.caller, &json.to_string()), MAX_ARGUMENTS)),
        process: call.caller.process().map(Process::for_record),
        ..Step::new(redact_text(&mcp.target(), MAX_URL), ToolKind::Mcp, Decision::Deny)
    })
}

/// An activity of this caller that says nothing yet; refused until decided.
pub(crate) fn blank(kind: Kind, caller: Option<&Caller>, via: Option<Via>) -> Box<Activity> {
    Box::new(Activity {
        proto: "tcp".to_owned(),
        via: via.map(|via| via.as_str().to_owned()).unwrap_or_default(),
        process: caller.and_then(Caller::process),
        cookie: caller.and_then(|caller| caller.flow).map(|flow| flow.cookie),
        ..Activity::new(Source::Gateway, kind, Decision::Deny)
    })
}

fn http_facts(activity: &mut Activity, call: &HttpCall, caller: &Caller) {
    activity.dst = Destination {
        name: call.target.host().name().map(|name| unshown(caller, name.as_str()).into_owned()),
        addr: call.target.host().address(),
        port: Some(call.target.port()),
    };
    activity.request = Some(Request {
        method: call.method.as_str().to_owned(),
        url: redact_url(&unshown(caller, call.target.url()), MAX_URL),
        version: version(call.version).to_owned(),
        status: None,
        bytes_out: None,
        bytes_in: None,
    });
}

fn dns_facts(activity: &mut Activity, question: &DnsCall, over_tcp: bool) {
    activity.kind = Kind::Dns;
    if !over_tcp {
        activity.proto = "udp".to_owned();
    }
    activity.dst.name = Some(question.name.clone());
    activity.dns = Some(Dns {
        name: redact_text(&question.name, 512),
        record_type: question.record_type.clone(),
        answer: String::new(),
    });
}

/// The far end as records show it.
pub(crate) fn destination(to: &Endpoint) -> Destination {
    let name = to.host.name().map(|name| name.as_str().to_owned());
    Destination { name, addr: to.host.address(), port: Some(to.port) }
}

/// The version as records spell it.
pub(crate) fn version(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "1.0",
        http::Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
