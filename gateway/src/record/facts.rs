//! From typed facts to the fields of a record, bounded, with secrets hidden.

use std::{net::IpAddr, time::Duration};

use strait_contract::{
    approval::Approval,
    code::Code,
    record::{Activity, Decision, Destination, Dns, Kind, Request, Source, Traffic},
    redact::{redact_text, redact_url},
    run::Process,
};

use super::MAX_TEXT;
use crate::call::{Call, Caller, DnsCall, Endpoint, HttpCall, Via, What};

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

/// The activity of one call, from the moment it is known to its last line.
#[derive(Debug)]
pub(crate) struct Line(Box<Activity>);

impl Line {
    /// The facts of a call.
    pub(crate) fn of(call: &Call) -> Self {
        let mut activity = blank(Kind::Request, Some(call.caller.as_ref()), Some(call.via));
        match &call.what {
            What::Http(http) => http_facts(&mut activity, http),
            What::Stream(to) => {
                activity.kind = Kind::Stream;
                activity.dst = destination(to);
            }
            What::Dns(question) => dns_facts(&mut activity, question, call.caller.flow.is_some()),
        }
        Self(activity)
    }

    /// A connection of which nothing more is known than who made it and where to.
    pub(crate) fn connection(kind: Kind, caller: &Caller, via: Via, to: Destination) -> Self {
        let mut activity = blank(kind, Some(caller), Some(via));
        activity.dst = to;
        Self(activity)
    }

    /// A request that could not be read as a call: what of it is fit to be shown.
    pub(crate) fn unread(caller: &Caller, via: Via, to: Destination, request: Request) -> Self {
        let mut activity = blank(Kind::Request, Some(caller), Some(via));
        activity.dst = to;
        let url = redact_url(&request.url, MAX_URL);
        activity.request = Some(Request { url, method: redact_text(&request.method, 64), ..request });
        Self(activity)
    }

    /// Puts in what the agent told of the calling process.
    pub(super) fn set_process(&mut self, process: Process) {
        self.0.process = Some(process.for_record());
    }

    /// Puts in what asking a person came to.
    pub(super) fn set_approval(&mut self, approval: Approval) {
        self.0.approval = Some(approval);
    }

    pub(super) fn rules(&self) -> &[String] {
        &self.0.rules
    }

    pub(super) fn allow(&mut self, rules: Vec<String>) {
        self.0.decision = Decision::Allow;
        self.0.rules = rules;
    }

    pub(super) fn deny(&mut self, code: Code, rules: Vec<String>, reason: &str) {
        self.0.decision = Decision::Deny;
        self.0.code = Some(code);
        self.0.rules = rules;
        self.0.reason = Some(redact_text(reason, MAX_TEXT));
    }

    pub(super) fn activity(&self) -> Activity {
        Activity::clone(&self.0)
    }

    pub(super) fn done(self, outcome: &Outcome, took: Duration) -> Activity {
        let mut activity = *self.0;
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

fn http_facts(activity: &mut Activity, call: &HttpCall) {
    activity.dst = Destination {
        name: call.target.host().name().map(|name| name.as_str().to_owned()),
        addr: call.target.host().address(),
        port: Some(call.target.port()),
    };
    activity.request = Some(Request {
        method: call.method.as_str().to_owned(),
        url: redact_url(call.target.url(), MAX_URL),
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
