//! Lookups that the gateway answers by itself, on record: the first at once, repeats with a count.
//!
//! A lookup storm must not become a record storm, so each run has a bound on lines a window; what goes beyond
//! it is counted in one line under the name `*`. Every lookup is in exactly one count.

use std::{
    borrow::Cow,
    collections::HashMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hickory_resolver::proto::rr::RecordType;
use strait_contract::{
    code::Code,
    ids::RecordId,
    record::{Decision, Dns, Kind, Record},
    redact::redact_text,
};

use crate::{
    call::Via,
    record::{Recorder, facts::blank, record},
    runs::Run,
};

/// How long repeats are held back.
pub(super) const WINDOW: Duration = Duration::from_secs(1);
/// Most different lookups of a run in a window that get a line of their own.
const LINES: usize = 64;
/// Most bytes of a name in a record.
const MAX_NAME: usize = 512;

/// What was said to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Said {
    /// This address.
    Address(Ipv4Addr),
    /// The name exists and has no such record.
    NoData,
    /// The name behind a synthetic address.
    Pointer,
    /// Not a name that may leave the host.
    NoSuchName,
    /// A type that asks for everything or nothing.
    MetaType,
    /// A class other than IN.
    Class,
    /// Not a query.
    Malformed(&'static str),
    /// As [`Self::Malformed`], and not worth an answer.
    Dropped(&'static str),
    /// The run's names are used up.
    Full,
    /// The run has too many lookups under way.
    Busy,
    /// The run's names can't be written.
    Broken,
}

impl Said {
    fn answer(self) -> Cow<'static, str> {
        match self {
            Self::Address(addr) => addr.to_string().into(),
            Self::NoData => "NODATA".into(),
            Self::Pointer => "PTR".into(),
            Self::NoSuchName => "NXDOMAIN".into(),
            Self::MetaType | Self::Class | Self::Full | Self::Busy => "REFUSED".into(),
            Self::Malformed(_) => "FORMERR".into(),
            Self::Dropped(_) => "DROPPED".into(),
            Self::Broken => "SERVFAIL".into(),
        }
    }

    fn fault(self) -> Option<(Code, &'static str)> {
        Some(match self {
            Self::Address(_) | Self::NoData | Self::Pointer => return None,
            Self::NoSuchName => (Code::NameRefused, "not a public name of two or more labels"),
            Self::MetaType => (Code::DnsTypeRefused, "this record type is never answered"),
            Self::Class => (Code::DnsTypeRefused, "only class IN is answered"),
            Self::Malformed(why) | Self::Dropped(why) => (Code::MalformedRequest, why),
            Self::Full => (Code::LimitExceeded, "the run has looked up as many names as it may"),
            Self::Busy => (Code::LimitExceeded, "the run has too many lookups under way"),
            Self::Broken => (Code::Internal, "the run's names can't be written"),
        })
    }
}

/// One lookup and what was said to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup<'a> {
    /// Name asked for, in presentation form.
    pub(super) name: &'a str,
    /// Type asked for.
    pub(super) qtype: u16,
    /// Answer.
    pub(super) said: Said,
    /// Whether it came over TCP.
    pub(super) tcp: bool,
}

/// Repeats that are held back, by run.
#[derive(Debug, Default)]
pub(super) struct Folds(Mutex<HashMap<u64, Held>>);

#[derive(Debug)]
struct Held {
    run: Arc<Run>,
    /// Lookups answered from the table, by address: the hot path looks here.
    hits: HashMap<(Ipv4Addr, u16), Repeats>,
    /// Everything else.
    others: HashMap<(Box<str>, u16, Said), Repeats>,
    /// What had no room in `others`.
    beyond: u64,
}

#[derive(Debug, Default)]
struct Repeats {
    count: u64,
    tcp: bool,
}

impl Repeats {
    fn add(&mut self, tcp: bool) {
        self.count = self.count.saturating_add(1);
        self.tcp = tcp;
    }
}

/// What to do with a lookup that was just counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// Held back; the run's first in this window if true.
    Held(bool),
    /// Not held back: write it now; the run's first in this window if true.
    Now(bool),
}

impl Folds {
    /// Counts a repeat of a lookup that is answered from the table. `name` isn't needed: the address has it.
    pub(super) fn hit(&self, run: &Arc<Run>, addr: Ipv4Addr, qtype: u16, tcp: bool) -> Counted {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (held, first) = held(&mut runs, run);
        held.hits.entry((addr, qtype)).or_default().add(tcp);
        Counted::Held(first)
    }

    /// Counts a lookup that isn't answered from the table.
    pub(super) fn other(&self, run: &Arc<Run>, lookup: &Lookup<'_>) -> Counted {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (held, first) = held(&mut runs, run);
        let key = (Box::from(lookup.name), lookup.qtype, lookup.said);
        if let Some(repeats) = held.others.get_mut(&key) {
            repeats.add(lookup.tcp);
            return Counted::Held(first);
        }
        if held.others.len() < LINES {
            held.others.insert(key, Repeats::default());
            return Counted::Now(first);
        }
        held.beyond = held.beyond.saturating_add(1);
        Counted::Held(first)
    }

    /// Takes out what is held back for every run.
    pub(super) fn flush(&self, recorder: &Recorder) {
        let runs = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for held in runs.into_values() {
            held.write(recorder);
        }
    }

    /// Takes out what is held back for one run.
    pub(super) fn flush_run(&self, number: u64, recorder: &Recorder) {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        if let Some(held) = held {
            held.write(recorder);
        }
    }
}

fn held<'a>(runs: &'a mut HashMap<u64, Held>, run: &Arc<Run>) -> (&'a mut Held, bool) {
    let mut first = false;
    let held = runs.entry(run.info.number).or_insert_with(|| {
        first = true;
        let run = Arc::clone(run);
        Held { run, hits: HashMap::new(), others: HashMap::new(), beyond: 0 }
    });
    (held, first)
}

impl Held {
    fn write(self, recorder: &Recorder) {
        let Self { run, hits, others, beyond } = self;
        let tell = |lookup: &Lookup<'_>, count| recorder.tell(line(&run, lookup, count));
        let mut left = beyond;
        let mut lines = 0_usize;
        for ((addr, qtype), repeats) in hits {
            lines = lines.saturating_add(1);
            if lines > LINES {
                left = left.saturating_add(repeats.count);
                continue;
            }
            let name = run.names.name_of(addr);
            let said = if qtype == super::wire::types::A { Said::Address(addr) } else { Said::NoData };
            let name = name.as_deref().unwrap_or_default();
            tell(&Lookup { name, qtype, said, tcp: repeats.tcp }, repeats.count);
        }
        for ((name, qtype, said), repeats) in others {
            if repeats.count > 0 {
                tell(&Lookup { name: &name, qtype, said, tcp: repeats.tcp }, repeats.count);
            }
        }
        if left > 0 {
            recorder.tell(rest(&run, left));
        }
    }
}

/// A record of a lookup, of this moment.
pub(super) fn line(run: &Run, lookup: &Lookup<'_>, count: u64) -> Record {
    let mut activity = blank(Kind::Dns, None, Some(Via::Egress));
    activity.proto = if lookup.tcp { "tcp" } else { "udp" }.to_owned();
    let name = redact_text(lookup.name, MAX_NAME);
    if let Some((code, why)) = lookup.said.fault() {
        activity.code = Some(code);
        activity.reason = Some(why.to_owned());
    } else {
        activity.decision = Decision::Allow;
        activity.dst.name = Some(name.clone());
    }
    let record_type = type_name(lookup.qtype);
    activity.dns = Some(Dns { name, record_type, answer: lookup.said.answer().into_owned() });
    activity.count = count;
    record(
        RecordId::now(),
        Some(run.info.id.clone()),
        None,
        strait_contract::record::Body::Activity(activity),
    )
}

/// A record of lookups that had no room for lines of their own.
fn rest(run: &Run, count: u64) -> Record {
    let mut activity = blank(Kind::Dns, None, Some(Via::Egress));
    activity.proto = "udp".to_owned();
    activity.code = Some(Code::LimitExceeded);
    activity.reason = Some(format!("more than {LINES} different lookups in a second: only counted"));
    activity.dns = Some(Dns { name: "*".to_owned(), record_type: "*".to_owned(), answer: "*".to_owned() });
    activity.count = count;
    record(
        RecordId::now(),
        Some(run.info.id.clone()),
        None,
        strait_contract::record::Body::Activity(activity),
    )
}

/// `TXT`, or `TYPE65280` for a type without a name (RFC 3597).
pub(super) fn type_name(number: u16) -> String {
    match RecordType::from(number) {
        RecordType::Unknown(number) => format!("TYPE{number}"),
        known => known.to_string(),
    }
}
