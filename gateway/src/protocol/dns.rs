//! DNS for all runs: names become synthetic addresses, and nothing is asked upstream unless policy permits the
//! record type.
//!
//! Takes packets of UDP and TCP port 53, finds the run by the source address, answers at once from the run's
//! table ([`crate::names`]) or turns the question into a call for policy:
//!
//! | question | answer |
//! |---|---|
//! | A of a public name | the name's synthetic address |
//! | AAAA of one | no data |
//! | A of `strait.internal` | the gateway |
//! | single label, reserved suffix, malformed name | NXDOMAIN |
//! | PTR of a synthetic address | its name |
//! | ANY, AXFR, NULL and the like; class other than IN | REFUSED |
//! | any other type | `Action::"dns"` decides; REFUSED unless permitted |
//!
//! The name that is judged is the one asked for; a CNAME chain in a permitted answer is passed on and judges
//! nothing (case 20).
//!
//! Architecture invariant: an address lookup never causes traffic outside the host (cases 16, 18).

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use strait_contract::{code::Code, ids::RecordId, names::SYNTHETIC, record::Kind};
use tokio::sync::watch;

use crate::{
    call::DnsCall,
    gateway::{Gateway, Settings},
    names::{AssignError, Assigned, Lookup as Kept},
    record::{facts::blank, now_ms, record},
    runs::Run,
    url::Name,
};

mod fold;
mod permitted;
mod tcp;
mod udp;
mod wire;

use fold::{Counted, Folds, Lookup, Said};
use wire::{Query, Rcode, Unreadable, types};

/// The gateway's own name, which `hosts` of a run has too.
const GATEWAY: &str = "strait.internal";

/// What holds for any packet, for fuzzers.
#[cfg(fuzzing)]
pub fn properties(packet: &[u8]) {
    wire::properties::read_like_hickory(packet);
}

/// Answers lookups of all runs.
#[derive(Debug)]
pub(crate) struct Resolver {
    gateway: Arc<Gateway>,
    folds: Folds,
    under_way: permitted::UnderWay,
    /// Second of the last host record about a stranger.
    stranger_at: AtomicU64,
}

/// What becomes of a packet.
enum Reply {
    /// The answer is in the buffer.
    Now,
    /// None.
    Nothing,
    /// Policy has to be asked.
    Ask(DnsCall),
}

/// Serves DNS on the agent's sockets until `stop` says so.
pub async fn serve(
    gateway: Arc<Gateway>,
    udp: std::net::UdpSocket,
    tcp: std::net::TcpListener,
    stop: watch::Receiver<bool>,
) {
    let resolver = Arc::new(Resolver {
        gateway,
        folds: Folds::default(),
        under_way: permitted::UnderWay::default(),
        stranger_at: AtomicU64::new(0),
    });
    let result = tokio::try_join!(
        udp::serve(Arc::clone(&resolver), udp, stop.clone()),
        tcp::serve(Arc::clone(&resolver), tcp, stop.clone()),
        resolver.flush_until(stop),
    );
    if let Err(error) = result {
        tracing::error!(%error, "DNS is not served any longer");
    }
}

impl Resolver {
    async fn flush_until(&self, mut stop: watch::Receiver<bool>) -> std::io::Result<()> {
        loop {
            let stopped = tokio::time::timeout(fold::WINDOW, stop.wait_for(|stop| *stop)).await;
            self.folds.flush(&self.gateway.recorder);
            if stopped.is_ok() {
                return Ok(());
            }
        }
    }

    /// The run with this address. An address that is no run's is dropped, with a host record once a second.
    fn run(&self, peer: SocketAddr) -> Option<Arc<Run>> {
        let IpAddr::V4(addr) = peer.ip() else { return None };
        let run = self.gateway.runs.by_addr(addr);
        if run.is_none() {
            self.stranger(addr);
        }
        run
    }

    #[cold]
    fn stranger(&self, addr: Ipv4Addr) {
        let second = now_ms() / 1000;
        if self.stranger_at.swap(second, Ordering::Relaxed) == second {
            return;
        }
        tracing::warn!(peer = %addr, "a lookup came from an address that is no run's");
        let mut activity = blank(Kind::Dns, None, None);
        activity.code = Some(Code::FlowUnknown);
        activity.reason = Some(format!("a lookup from `{addr}`, which is no run's address"));
        self.gateway.recorder.tell_once(record(
            RecordId::now(),
            None,
            None,
            strait_contract::record::Body::Activity(activity),
        ));
    }

    /// Answers one packet. `name` is scratch space and holds the name afterwards.
    fn answer(
        self: &Arc<Self>,
        settings: &Settings,
        run: &Arc<Run>,
        packet: &[u8],
        tcp: bool,
        name: &mut String,
        out: &mut Vec<u8>,
    ) -> Reply {
        let query = match Query::read(packet, name) {
            Ok(query) => query,
            Err(unreadable) => return self.unreadable(run, unreadable, tcp, name, out),
        };
        if !self.gateway.recorder.is_up() {
            return self.without_recorder(run, &query, tcp, name, out);
        }
        let rule = Rule { settings, run, query: &query, name };
        let said = match rule.judge() {
            Judged::Known(assigned) => {
                self.known(run, &query, assigned, tcp, name, out);
                return Reply::Now;
            }
            Judged::Ask(call) => return Reply::Ask(call),
            Judged::Say(said) => said,
            Judged::Pointer(target) => {
                query.pointer(&target, out);
                self.note(run, &Lookup { name, qtype: query.qtype, said: Said::Pointer, tcp });
                return Reply::Now;
            }
        };
        match said {
            Said::Address(addr) => query.address(addr, out),
            said => query.empty(rcode(said), out),
        }
        self.note(run, &Lookup { name, qtype: query.qtype, said, tcp });
        Reply::Now
    }

    /// No record, no answer, and the client will ask again; but a name that is on record already keeps its
    /// address, so that the call itself is refused in words.
    fn without_recorder(
        self: &Arc<Self>,
        run: &Arc<Run>,
        query: &Query<'_>,
        tcp: bool,
        name: &str,
        out: &mut Vec<u8>,
    ) -> Reply {
        let kept = match query.qtype {
            types::A => Some(Kept::A),
            types::AAAA => Some(Kept::Aaaa),
            _ => None,
        };
        match kept.filter(|_| query.class == 1).and_then(|kept| run.names.known(name, kept)) {
            Some(assigned) => self.known(run, query, assigned, tcp, name, out),
            None => query.empty(Rcode::ServFail, out),
        }
        Reply::Now
    }

    fn unreadable(
        self: &Arc<Self>,
        run: &Arc<Run>,
        unreadable: Unreadable,
        tcp: bool,
        name: &str,
        out: &mut Vec<u8>,
    ) -> Reply {
        let (reply, said) = match unreadable {
            Unreadable::Silent(why) => (Reply::Nothing, Said::Dropped(why)),
            Unreadable::Answer(head, code, why) => {
                head.bare(code, out);
                (Reply::Now, Said::Malformed(why))
            }
        };
        self.note(run, &Lookup { name, qtype: 0, said, tcp });
        reply
    }

    /// The hot path: the name has its address.
    fn known(
        self: &Arc<Self>,
        run: &Arc<Run>,
        query: &Query<'_>,
        assigned: Assigned,
        tcp: bool,
        name: &str,
        out: &mut Vec<u8>,
    ) {
        let Assigned { addr, first } = assigned;
        let said = if query.qtype == types::A {
            query.address(addr, out);
            Said::Address(addr)
        } else {
            query.empty(Rcode::NoError, out);
            Said::NoData
        };
        if first {
            let lookup = Lookup { name, qtype: query.qtype, said, tcp };
            self.gateway.recorder.tell(fold::line(run, &lookup, 1));
        } else {
            let counted = self.folds.hit(run, addr, query.qtype, tcp);
            self.watch(run, counted);
        }
    }

    /// Puts a lookup on record, now or folded.
    fn note(self: &Arc<Self>, run: &Arc<Run>, lookup: &Lookup<'_>) {
        let counted = self.folds.other(run, lookup);
        if let Counted::Now(_) = counted {
            self.gateway.recorder.tell(fold::line(run, lookup, 1));
        }
        self.watch(run, counted);
    }

    /// From a run's first lookup in a window until that is over: if the run ends, what is held back is written.
    fn watch(self: &Arc<Self>, run: &Arc<Run>, counted: Counted) {
        let (Counted::Held(first) | Counted::Now(first)) = counted;
        if first {
            let (resolver, run) = (Arc::clone(self), Arc::clone(run));
            tokio::spawn(async move {
                if tokio::time::timeout(fold::WINDOW, run.ended()).await.is_ok() {
                    resolver.folds.flush_run(run.info.number, &resolver.gateway.recorder);
                }
            });
        }
    }
}

fn rcode(said: Said) -> Rcode {
    match said {
        Said::Address(_) | Said::NoData | Said::Pointer => Rcode::NoError,
        Said::NoSuchName => Rcode::NxDomain,
        Said::MetaType | Said::Class | Said::Full | Said::Busy => Rcode::Refused,
        Said::Malformed(_) | Said::Dropped(_) => Rcode::FormErr,
        Said::Broken => Rcode::ServFail,
    }
}

/// One readable query of one run, to be judged.
struct Rule<'a> {
    settings: &'a Settings,
    run: &'a Run,
    query: &'a Query<'a>,
    name: &'a str,
}

enum Judged {
    Known(Assigned),
    Say(Said),
    Pointer(Arc<str>),
    Ask(DnsCall),
}

impl Rule<'_> {
    fn judge(&self) -> Judged {
        if self.query.class != 1 {
            return Judged::Say(Said::Class);
        }
        match self.query.qtype {
            types::A => self.address(Kept::A),
            types::AAAA => self.address(Kept::Aaaa),
            types::PTR => self.pointer(),
            number if types::is_meta(number) => Judged::Say(Said::MetaType),
            _ => self.special(),
        }
    }

    fn address(&self, kept: Kept) -> Judged {
        // What is in the table has been judged when it got there.
        if let Some(assigned) = self.run.names.known(self.name, kept) {
            return Judged::Known(assigned);
        }
        if self.name == GATEWAY {
            let addr = Said::Address(self.settings.gateway);
            return Judged::Say(if kept == Kept::A { addr } else { Said::NoData });
        }
        let Some(name) = self.public_name() else { return Judged::Say(Said::NoSuchName) };
        match self.run.names.assign(name.as_str(), kept) {
            Ok(assigned) => Judged::Known(assigned),
            Err(AssignError::Full(_)) => Judged::Say(Said::Full),
            Err(AssignError::NotCanonical(_)) => Judged::Say(Said::NoSuchName),
            Err(error @ AssignError::Write(_)) => {
                tracing::error!(%error, run = %self.run.info.id, "a lookup can't be answered");
                Judged::Say(Said::Broken)
            }
        }
    }

    fn public_name(&self) -> Option<Name> {
        self.query.plain.then(|| Name::parse_with(self.name, &self.settings.names).ok()).flatten()
    }

    fn pointer(&self) -> Judged {
        let Some(addr) = self.name.strip_suffix(".in-addr.arpa").and_then(reversed) else {
            return Judged::Say(Said::NoSuchName);
        };
        if addr == self.settings.gateway {
            return Judged::Pointer(Arc::from(GATEWAY));
        }
        if !SYNTHETIC.contains(addr) {
            return self.ask();
        }
        self.run.names.name_of(addr).map_or(Judged::Say(Said::NoSuchName), Judged::Pointer)
    }

    /// A name that may be asked about with another type.
    fn special(&self) -> Judged {
        let public = self.query.plain && Name::parse_owner(self.name, &self.settings.names).is_ok();
        if public { self.ask() } else { Judged::Say(Said::NoSuchName) }
    }

    fn ask(&self) -> Judged {
        let record_type = fold::type_name(self.query.qtype);
        Judged::Ask(DnsCall { name: self.name.to_owned(), record_type })
    }
}

/// `4.3.2.1` of `4.3.2.1.in-addr.arpa` is 1.2.3.4.
fn reversed(text: &str) -> Option<Ipv4Addr> {
    let addr: Ipv4Addr = text.parse().ok()?;
    let [a, b, c, d] = addr.octets();
    Some(Ipv4Addr::new(d, c, b, a))
}
