//! A gateway with two runs at loopback addresses, and everything it has put on record.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hickory_resolver::proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RecordType},
    serialize::binary::{BinDecodable, BinEncodable},
};
use rustix::fs::{MemfdFlags, memfd_create};
use strait_contract::{
    ids::RunId,
    message::{Intermediate, Limits, PolicyFile, Resolver, Secret, Setup},
    record::{Activity, Body, Record},
    run::RunInfo,
};
use strait_gateway::{FlowSource, Gateway, Settings, protocol::dns};
use strait_policies::Snapshot;
use tokio::sync::watch;

/// Permits TXT, and SRV of one name.
const POLICY: &str = r#"
    @id("txt") permit (principal, action == Action::"dns", resource)
      when { context.recordType == "TXT" && resource == Name::"ok.test.example" };
    @id("any-below") permit (principal, action == Action::"dns", resource in Domain::"permitted.example");
"#;

pub(crate) struct Rig {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) server: SocketAddr,
    /// Address of the first run.
    pub(crate) run: Ipv4Addr,
    records: Arc<Mutex<Vec<Record>>>,
    /// Whether the agent acknowledges; records wait while it doesn't.
    pub(crate) acknowledges: Arc<AtomicBool>,
    up: Arc<dyn Fn(bool) + Send + Sync>,
    _stop: watch::Sender<bool>,
}

/// One port for both; a free one of UDP may be taken in TCP.
pub(crate) fn listeners() -> (UdpSocket, std::net::TcpListener) {
    loop {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        match std::net::TcpListener::bind(udp.local_addr().unwrap()) {
            Ok(tcp) => return (udp, tcp),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        }
    }
}

impl Rig {
    pub(crate) fn start(upstream: SocketAddr, limits: Limits) -> Self {
        let (gateway, queue, _questions) = Gateway::new(FlowSource::new(|_, _| None));
        gateway.set_up(Settings::new(setup(upstream, limits.clone())).unwrap());
        gateway.policy.store(Arc::new(policy()));
        let run = Ipv4Addr::new(127, 0, 0, 2);
        for (number, addr) in [(1, run), (2, Ipv4Addr::new(127, 0, 0, 3))] {
            gateway.runs.started(info(number, addr), memfd(), &limits, 1).unwrap();
        }
        let records = Arc::new(Mutex::new(Vec::new()));
        let acknowledges = Arc::new(AtomicBool::new(true));
        let (up, ups) = watch::channel(true);
        queue.set_up(true);
        tokio::spawn(agent(queue, ups, Arc::clone(&records), Arc::clone(&acknowledges)));
        let (udp, tcp) = listeners();
        let server = udp.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(dns::serve(Arc::clone(&gateway), udp, tcp, stopped));
        let up = Arc::new(move |is: bool| up.send(is).unwrap());
        Self { gateway, server, run, records, acknowledges, up, _stop: stop }
    }

    /// Says whether there is an agent, and waits until the gateway has seen it.
    pub(crate) async fn agent(&self, up: bool) {
        (self.up)(up);
        while self.gateway.recorder.is_up() != up {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_at(self.run)
    }

    pub(crate) fn client_at(&self, addr: Ipv4Addr) -> Client {
        let socket = UdpSocket::bind((addr, 0)).unwrap();
        socket.connect(self.server).unwrap();
        socket.set_nonblocking(true).unwrap();
        Client(tokio::net::UdpSocket::from_std(socket).unwrap())
    }

    pub(crate) async fn answer(&self, name: &str, qtype: RecordType) -> Message {
        self.client().ask(&query(name, qtype)).await
    }

    pub(crate) async fn code(&self, name: &str, qtype: RecordType) -> ResponseCode {
        self.answer(name, qtype).await.metadata.response_code
    }

    /// The address in the answer.
    pub(crate) async fn address(&self, name: &str) -> Ipv4Addr {
        let answer = self.answer(name, RecordType::A).await;
        answer.answers.first().unwrap_or_else(|| panic!("{answer}")).data.to_string().parse().unwrap()
    }

    pub(crate) fn records(&self) -> Vec<Activity> {
        let records = self.records.lock().unwrap();
        let activity = |record: &Record| match &record.body {
            Body::Activity(activity) => Some(Activity::clone(activity)),
            Body::Event(_) | Body::Trace(_) => None,
        };
        records.iter().filter_map(activity).collect()
    }

    /// Whether records belong to a run.
    pub(crate) fn host_records(&self) -> usize {
        self.records.lock().unwrap().iter().filter(|record| record.run.is_none()).count()
    }

    /// Waits until the records of `name` and `answer` stand for `count` lookups; gives their number.
    pub(crate) async fn counted(&self, name: &str, record_type: &str, count: u64) -> usize {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let of_name = |activity: &Activity| {
                activity.dns.as_ref().is_some_and(|dns| dns.name == name && dns.record_type == record_type)
            };
            let found: Vec<_> = self.records().into_iter().filter(of_name).collect();
            let sum: u64 = found.iter().map(|activity| activity.count).sum();
            if sum >= count {
                assert_eq!(sum, count, "{found:?}");
                return found.len();
            }
            assert!(Instant::now() < end, "{sum} of {count} lookups of `{name}` are on record");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(crate) struct Client(tokio::net::UdpSocket);

impl Client {
    pub(crate) async fn ask(&self, message: &Message) -> Message {
        let packet = self.ask_bytes(&message.to_bytes().unwrap()).await;
        let answer = Message::from_bytes(&packet.expect("an answer within 5 s")).unwrap();
        assert_eq!(answer.metadata.id, message.metadata.id);
        answer
    }

    /// `None` if nothing comes within 5 s.
    pub(crate) async fn ask_bytes(&self, packet: &[u8]) -> Option<Vec<u8>> {
        self.ask_within(packet, Duration::from_secs(5)).await
    }

    pub(crate) async fn ask_within(&self, packet: &[u8], time: Duration) -> Option<Vec<u8>> {
        self.0.send(packet).await.unwrap();
        self.receive(time).await
    }

    pub(crate) async fn send(&self, packet: &[u8]) {
        self.0.send(packet).await.unwrap();
    }

    pub(crate) async fn receive(&self, time: Duration) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 65_535];
        let len = tokio::time::timeout(time, self.0.recv(&mut buffer)).await.ok()?.unwrap();
        buffer.truncate(len);
        Some(buffer)
    }
}

pub(crate) fn query(name: &str, qtype: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    let mut asked = Query::query(Name::from_ascii(name).unwrap(), qtype);
    asked.set_query_class(DNSClass::IN);
    message.add_query(asked);
    message
}

pub(crate) fn with_edns(mut message: Message, size: u16) -> Message {
    let mut edns = Edns::new();
    edns.set_max_payload(size);
    message.edns = Some(edns);
    message
}

/// The agent's end: takes records and acknowledges them.
async fn agent(
    mut queue: strait_gateway::record::Queue,
    mut up: watch::Receiver<bool>,
    records: Arc<Mutex<Vec<Record>>>,
    acknowledges: Arc<AtomicBool>,
) {
    loop {
        let entry = tokio::select! {
            entry = queue.entries.recv() => entry,
            changed = up.changed() => {
                if changed.is_err() {
                    return;
                }
                queue.set_up(*up.borrow());
                continue;
            }
        };
        let Some(entry) = entry else { return };
        while !acknowledges.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        records.lock().unwrap().extend([Some(entry.first), entry.second].into_iter().flatten());
        if let Some(waiter) = entry.waiter {
            let _ = waiter.send(Ok(()));
        }
    }
}

pub(crate) fn memfd() -> OwnedFd {
    memfd_create("names", MemfdFlags::CLOEXEC).unwrap()
}

pub(crate) fn id(number: u64) -> RunId {
    format!("coder-{number}").parse().unwrap()
}

fn info(number: u64, addr: Ipv4Addr) -> RunInfo {
    RunInfo {
        id: id(number),
        number,
        addr,
        agent: "coder".parse().unwrap(),
        version: "1".to_owned(),
        started_by: "alice".to_owned(),
        labels: Vec::new(),
        addresses: Vec::new(),
        token: strait_contract::token::TokenHash::of("test"),
    }
}

fn policy() -> Snapshot {
    let file = PolicyFile { name: "test.cedar".to_owned(), guardrail: false, text: POLICY.to_owned() };
    Snapshot::compile(&[file], 1).unwrap_or_else(|refused| panic!("{refused}"))
}

fn setup(upstream: SocketAddr, limits: Limits) -> Setup {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let chain = params.self_signed(&key).unwrap().pem();
    Setup {
        gateway: Ipv4Addr::new(10, 203, 0, 1),
        resolver: Resolver::Servers(vec![upstream]),
        proxy: None,
        hosts: vec![("db.corp.internal".to_owned(), "10.1.2.3".parse().unwrap())],
        passthrough: Vec::new(),
        doh: Vec::new(),
        anchors: String::new(),
        system_anchors: false,
        ca: Intermediate { chain, key: Secret::new(key.serialize_pem()) },
        limits,
    }
}
