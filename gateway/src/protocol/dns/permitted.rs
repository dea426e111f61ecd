//! Record types that policy decides on: decided, put on record, asked upstream, answered.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hickory_resolver::{
    lookup::Lookup as Found,
    net::{DnsError, NetError},
    proto::{
        op::ResponseCode,
        rr::{RData, Record, RecordType},
        serialize::binary::{BinEncodable, BinEncoder, NameEncoding},
    },
};
use strait_contract::{code::Code, flow::Flow};

use super::{
    Resolver,
    fold::{Lookup, Said},
    wire::{Query, Rcode},
};
use crate::{
    call::{Call, Caller, DnsCall, Via, What},
    decide::{self, Permitted},
    forward::dial::Dialer,
    record::Outcome,
    runs::Run,
};

/// Most lookups of a run that wait for policy or upstream at a time.
const UNDER_WAY: u32 = 32;
/// How long upstream may take; a loop of CNAMEs ends before.
const UPSTREAM: Duration = Duration::from_secs(5);
/// Most CNAMEs of a name.
const CHAIN: u32 = 8;
/// Largest answer over TCP, bytes, header and question not counted.
const MAX_TCP: usize = 60_000;

/// Lookups that wait, by run number.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay(Arc<Mutex<HashMap<u64, u32>>>);

/// One lookup's place, given back on drop.
#[derive(Debug)]
pub(super) struct Place {
    all: UnderWay,
    run: u64,
}

impl UnderWay {
    /// A place for one more lookup of the run, if it has one left.
    pub(super) fn enter(&self, run: u64) -> Option<Place> {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = runs.entry(run).or_default();
        if *count >= UNDER_WAY {
            return None;
        }
        *count = count.saturating_add(1);
        Some(Place { all: self.clone(), run })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut runs = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = runs.get_mut(&self.run) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                runs.remove(&self.run);
            }
        }
    }
}

/// A question for policy.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) run: Arc<Run>,
    pub(super) flow: Option<Flow>,
    pub(super) packet: Vec<u8>,
    pub(super) call: DnsCall,
}

/// An answer from upstream.
struct Upstream {
    code: Rcode,
    count: u16,
    encoded: Vec<u8>,
    outcome: Outcome,
}

impl Resolver {
    /// Answers over UDP: what is too long is asked for again over TCP (case 19).
    pub(super) async fn ask(&self, asked: Asked) -> Option<Vec<u8>> {
        self.decide(asked, |query| query.udp_size()).await
    }

    /// Answers over TCP.
    pub(super) async fn ask_tcp(&self, asked: Asked) -> Option<Vec<u8>> {
        self.decide(asked, |_| usize::from(u16::MAX)).await
    }

    /// Refuses because too many lookups of the run are under way.
    pub(super) fn busy(self: &Arc<Self>, run: &Arc<Run>, packet: &[u8], tcp: bool, out: &mut Vec<u8>) {
        let mut name = String::new();
        if let Ok(query) = Query::read(packet, &mut name) {
            query.empty(Rcode::Refused, out);
            self.note(run, &Lookup { name: &name, qtype: query.qtype, said: Said::Busy, tcp });
        }
    }

    async fn decide(&self, asked: Asked, most: impl Fn(&Query<'_>) -> usize) -> Option<Vec<u8>> {
        let Asked { run, flow, packet, call } = asked;
        // Read before: this can't fail, and if it did there would be nothing to answer.
        let query = Query::read(&packet, &mut String::new()).ok()?;
        let mut out = Vec::new();
        let caller = Arc::new(Caller { run, flow });
        let call = Call::new(caller, Via::Egress, What::Dns(call));
        match decide::decide(&self.gateway, call).await {
            Ok(permitted) => self.forward(permitted, &query, most(&query), &mut out).await,
            Err(refused) if refused.code == Code::RecordUnavailable => query.empty(Rcode::ServFail, &mut out),
            Err(_) => query.empty(Rcode::Refused, &mut out),
        }
        Some(out)
    }

    async fn forward(&self, permitted: Permitted, query: &Query<'_>, most: usize, out: &mut Vec<u8>) {
        let found = match &permitted.call().what {
            What::Dns(call) => self.upstream(call, query.qtype).await,
            What::Http(_) | What::Mcp(_) | What::Stream(_) => {
                Upstream::failed(Code::Internal, "not a lookup".to_owned())
            }
        };
        let recorded = permitted.done(&found.outcome).await;
        match found.code {
            _ if recorded.is_err() => query.empty(Rcode::ServFail, out),
            Rcode::NoError => query.records(found.count, &found.encoded, out),
            code => query.empty(code, out),
        }
        if out.len() > most {
            query.truncated(out);
        }
    }

    async fn upstream(&self, call: &DnsCall, qtype: u16) -> Upstream {
        let Some(settings) = self.gateway.settings() else {
            return Upstream::failed(Code::Internal, "there are no settings".to_owned());
        };
        let dialer = &settings.dialer;
        let lookup = async {
            let found = match dialer.records(&call.name, RecordType::from(qtype)).await {
                Ok(found) => Upstream::found(&found),
                Err(error) => Upstream::error(error),
            };
            if found.code == Rcode::NoError && found.count == 0 && has_no_end(dialer, &call.name).await {
                let reason = format!("the CNAMEs of the name have no end within {CHAIN} steps");
                return Upstream::failed(Code::UpstreamProtocol, reason);
            }
            found
        };
        match tokio::time::timeout(UPSTREAM, lookup).await {
            Ok(found) => found,
            Err(_) => Upstream::failed(Code::UpstreamTimeout, "the name servers took too long".to_owned()),
        }
    }
}

impl Upstream {
    fn found(found: &Found) -> Self {
        let records = found.answers();
        let count = u16::try_from(records.len()).unwrap_or(u16::MAX);
        match encode(records) {
            Some(encoded) if encoded.len() <= MAX_TCP => {
                let types: Vec<_> = records.iter().map(|record| record.record_type().to_string()).collect();
                let answer =
                    format!("{count} records: {}", types.join(" ").chars().take(200).collect::<String>());
                let bytes_in = u64::try_from(encoded.len()).unwrap_or_default();
                let outcome = Outcome { answer: Some(answer), bytes_in, ..Outcome::default() };
                Self { code: Rcode::NoError, count, encoded, outcome }
            }
            _ => Self::failed(Code::UpstreamProtocol, "the answer can't be passed on".to_owned()),
        }
    }

    fn error(error: NetError) -> Self {
        match error {
            NetError::Dns(DnsError::NoRecordsFound(none)) => {
                let (code, answer) = match none.response_code {
                    ResponseCode::NXDomain => (Rcode::NxDomain, "NXDOMAIN"),
                    ResponseCode::NoError => (Rcode::NoError, "NODATA"),
                    other => return Self::failed(Code::UpstreamName, other.to_string()),
                };
                let outcome = Outcome { answer: Some(answer.to_owned()), ..Outcome::default() };
                Self { code, count: 0, encoded: Vec::new(), outcome }
            }
            NetError::Timeout => {
                Self::failed(Code::UpstreamTimeout, "no name server answered in time".to_owned())
            }
            error => Self::failed(Code::UpstreamName, error.to_string()),
        }
    }

    fn failed(code: Code, reason: String) -> Self {
        let answer = Some("SERVFAIL".to_owned());
        let outcome = Outcome { answer, ..Outcome::failed(code, reason) };
        Self { code: Rcode::ServFail, count: 0, encoded: Vec::new(), outcome }
    }
}

/// Whether the CNAMEs of a name lead in a circle, or nowhere in time. The resolver's word for that is "no
/// records", as for a chain that ends (case 20).
async fn has_no_end(dialer: &Dialer, name: &str) -> bool {
    let mut at = name.to_owned();
    for _ in 0..CHAIN {
        let Ok(found) = dialer.records(&at, RecordType::CNAME).await else { return false };
        let next = found.answers().iter().find_map(|record| match &record.data {
            RData::CNAME(to) => Some(to.0.to_ascii()),
            _ => None,
        });
        match next {
            Some(next) => next.trim_end_matches('.').clone_into(&mut at),
            None => return false,
        }
    }
    true
}

/// Records with uncompressed names, so that they can stand behind any question.
fn encode(records: &[Record]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_name_encoding(NameEncoding::Uncompressed);
    for record in records {
        record.emit(&mut encoder).ok()?;
    }
    Some(bytes)
}
