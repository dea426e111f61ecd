//! Who is calling and where to: from the kernel's account of the connection, never from what the caller says.

use std::{
    net::Ipv4Addr,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use strait_contract::{
    code::Code,
    flow::Flow,
    ids::RecordId,
    message::Listener,
    names::SYNTHETIC,
    record::{Body, Destination, Kind},
};
use tokio::net::TcpStream;

use crate::{
    accept::Accepted,
    call::{Caller, Endpoint, Via},
    decide::{Refusal, Refused, refuse_line},
    gateway::{Gateway, Settings},
    record::{
        facts::{Line, blank},
        now_ms, record,
    },
    runs::{Admission, Run},
    url::Host,
};

/// A connection whose run and destination are known.
#[derive(Debug)]
pub struct Identified {
    /// The socket.
    pub socket: TcpStream,
    /// Who.
    pub caller: Arc<Caller>,
    /// Where to.
    pub to: Place,
    /// Its place in the run's quota.
    pub admission: Admission,
    /// The settings at its beginning.
    pub settings: Arc<Settings>,
}

/// Where a connection leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// To the gateway itself: explicit proxy or endpoints.
    Gateway,
    /// Somewhere else, by a looked-up name or a listed address.
    Outside(Endpoint),
}

/// Why a connection could not be identified.
#[derive(Debug)]
pub enum Unidentified {
    /// Its address is that of no run.
    Stranger,
    /// A run's, but refused; already on record. The socket is given back so that it can be told.
    Refused(TcpStream, Listener, Box<Refused>),
    /// There are no settings yet.
    NotReady,
}

/// Identifies a connection.
///
/// # Errors
/// [`Unidentified`]; the refusal is on record.
pub async fn identify(gateway: &Gateway, accepted: Accepted) -> Result<Identified, Unidentified> {
    let settings = gateway.settings().ok_or(Unidentified::NotReady)?;
    let Some(run) = gateway.runs.by_addr(*accepted.peer.ip()) else {
        stranger(gateway, &accepted);
        return Err(Unidentified::Stranger);
    };
    let flow = gateway.flows.of(accepted.socket.as_fd(), accepted.peer.into());
    let read = flow.ok_or_else(no_flow).and_then(|flow| place(&run, &settings, flow, accepted.listener));
    let admission = run.admit(&settings.limits);
    let caller = Arc::new(Caller { run, flow });
    let refusal = match (read, admission) {
        (Ok(to), Some(admission)) => {
            return Ok(Identified { socket: accepted.socket, caller, to, admission, settings });
        }
        (Err(refusal), _) => refusal,
        (Ok(_), None) => too_many(&settings),
    };
    let dst =
        flow.map(|flow| Destination { name: None, addr: Some(flow.addr.into()), port: Some(flow.port) });
    let line = Line::connection(Kind::Connect, &caller, Via::Egress, dst.unwrap_or_default());
    let refused = refuse_line(gateway, &caller, line, None, refusal).await;
    Err(Unidentified::Refused(accepted.socket, accepted.listener, Box::new(refused)))
}

/// Where the flow leads, if it is one of this run on this listener.
fn place(run: &Run, settings: &Settings, flow: Flow, listener: Listener) -> Result<Place, Refusal> {
    if flow.run != run.info.number || flow.proto != 6 {
        let reason = "the kernel's account of this connection is not one of this run";
        return Err(Refusal::new(Code::FlowUnknown, reason));
    }
    if listener == Listener::Gateway {
        return if flow.addr == settings.gateway {
            Ok(Place::Gateway)
        } else {
            Err(Refusal::new(
                Code::FlowUnknown,
                "the connection was made for another address than the gateway's",
            ))
        };
    }
    let host = destination(run, settings, flow.addr)?;
    Ok(Place::Outside(Endpoint { host, port: flow.port }))
}

fn destination(run: &Run, settings: &Settings, addr: Ipv4Addr) -> Result<Host, Refusal> {
    if SYNTHETIC.contains(addr) {
        let name = run.names.name_of(addr).and_then(|name| Host::parse_with(&name, &settings.names).ok());
        return name.ok_or_else(|| {
            Refusal::new(
                Code::NameRefused,
                format!("`{addr}` stands for no name that this run has looked up"),
            )
            .hint("look the name up again and connect to the address in the answer")
        });
    }
    if run.info.addresses.iter().any(|range| range.contains(addr)) {
        return Ok(Host::Address(addr.into()));
    }
    Err(Refusal::new(Code::AddressRefused, format!("`{addr}` is not in an address range of this agent"))
        .hint("connect by name, or have the operator list the range in `addresses` of the agent"))
}

fn no_flow() -> Refusal {
    Refusal::new(Code::FlowUnknown, "the kernel has no account of this connection")
        .hint("enforcement may be degraded: the operator should run `strait doctor`")
}

fn too_many(settings: &Settings) -> Refusal {
    let most = settings.limits.connections_per_run;
    Refusal::new(Code::LimitExceeded, format!("the run has {most} connections open, which is its limit"))
        .hint("close connections, or have the operator raise `connections_per_run`")
}

/// A connection from an address that is no run's: a host record, at most one a second.
fn stranger(gateway: &Gateway, accepted: &Accepted) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let second = now_ms() / 1000;
    if LAST.swap(second, Ordering::Relaxed) == second {
        return;
    }
    tracing::warn!(peer = %accepted.peer, "a connection came from an address that is no run's");
    let mut activity = blank(Kind::Connect, None, None);
    activity.code = Some(Code::FlowUnknown);
    activity.reason = Some(format!("a connection from `{}`, which is no run's address", accepted.peer.ip()));
    gateway.recorder.tell_once(record(RecordId::now(), None, None, Body::Activity(activity)));
}
