//! Everything a test needs, on loopback and with addresses of its own.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket},
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use strait_contract::{
    flow::Flow,
    message::{Intermediate, Limits, PolicyFile, Resolver, Secret, Setup, ToGateway},
    names::{SLOT, address},
    run::{Range, RunInfo},
};
use strait_gateway::{FlowSource, Gateway, accept, link::Link};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::watch,
};

use crate::agent::{Agent, Shared};

/// Names that the run has looked up, in the order of their addresses. `evil.test` isn't in `hosts`.
pub const NAMES: &[&str] = &["ok.test", "no.test", "pass.test", "dns.google", "other.test", "evil.test"];
/// Address of the run; that of the gateway is the same as the origins'.
pub const RUN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);

type Flows = Arc<Mutex<HashMap<SocketAddr, Flow>>>;

pub struct World {
    pub gateway: Arc<Gateway>,
    pub agent: Option<Agent>,
    pub log: Arc<Shared>,
    pub transparent: SocketAddr,
    pub proxy: SocketAddr,
    /// The CA that runs trust, PEM.
    pub run_ca: String,
    pub origin_ca: Arc<Ca>,
    link: Option<Link>,
    flows: Flows,
    listeners: Option<Vec<OwnedFd>>,
    stop: watch::Sender<bool>,
    sessions: Vec<tokio::task::JoinHandle<Link>>,
    options: Options,
}

/// What a test may choose.
#[derive(Clone)]
pub struct Options {
    pub policy: String,
    pub limits: Limits,
    pub doh: Vec<String>,
    /// Whether the gateway is given a spool; without one every call waits for the agent.
    pub spool: bool,
}

impl Default for Options {
    fn default() -> Self {
        let limits = Limits { head_seconds: 2, connect_seconds: 2, idle_seconds: 5, ..Limits::default() };
        Self { policy: String::new(), limits, doh: Vec::new(), spool: true }
    }
}

/// A CA that makes certificates for origins.
pub struct Ca {
    pub pem: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let key_pem = key.serialize_pem();
        Self { pem: certificate.pem(), key: key_pem, issuer: Issuer::new(params, key) }
    }

    pub fn leaf(&self, names: &[&str]) -> (rustls_pki_types::CertificateDer<'static>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        for name in names {
            params.subject_alt_names.push(SanType::DnsName((*name).try_into().unwrap()));
        }
        (params.signed_by(&key, &self.issuer).unwrap().der().clone(), key.serialize_der())
    }
}

impl World {
    /// A world with this policy and no spool.
    pub async fn without_spool(policy: &str) -> Self {
        Self::new(Options { policy: policy.to_owned(), spool: false, ..Options::default() }).await
    }

    /// A world with this policy.
    pub async fn with(policy: &str) -> Self {
        Self::new(Options { policy: policy.to_owned(), ..Options::default() }).await
    }

    pub async fn new(options: Options) -> Self {
        let flows: Flows = Arc::default();
        let table = Arc::clone(&flows);
        let source = FlowSource::new(move |_, peer| table.lock().unwrap().get(&peer).copied());
        let (gateway, queue, questions) = Gateway::new(source);
        let (link, mut handover) = Link::new("/nowhere".as_ref(), Arc::clone(&gateway), queue, questions);
        let transparent = TcpListener::bind((GATEWAY, 0)).unwrap();
        let proxy = TcpListener::bind((GATEWAY, 0)).unwrap();
        let addrs = (transparent.local_addr().unwrap(), proxy.local_addr().unwrap());
        let dns = (UdpSocket::bind((GATEWAY, 0)).unwrap(), TcpListener::bind((GATEWAY, 0)).unwrap());
        let listeners = vec![transparent.into(), proxy.into(), dns.0.into(), dns.1.into()];
        let run_ca = Ca::new();
        let (stop, stopping) = watch::channel(false);
        let mut world = Self {
            gateway: Arc::clone(&gateway),
            agent: None,
            log: Shared::new(),
            transparent: addrs.0,
            proxy: addrs.1,
            run_ca: run_ca.pem.clone(),
            origin_ca: Arc::new(Ca::new()),
            link: Some(link),
            flows,
            listeners: Some(listeners),
            stop,
            sessions: Vec::new(),
            options,
        };
        world.agent_comes(&run_ca).await;
        let handover = handover.recv().await.unwrap();
        accept::start(&gateway, handover, &stopping).unwrap();
        world
    }

    async fn agent_comes(&mut self, run_ca: &Ca) {
        let (agent, socket) = Agent::begin(&self.log);
        let mut link = self.link.take().unwrap();
        self.sessions.push(tokio::spawn(async move {
            let _ = link.serve(socket).await;
            link
        }));
        let setup = setup(&self.options, &self.origin_ca, run_ca);
        agent.tell(ToGateway::Setup(Box::new(setup)), self.listeners.take().unwrap_or_default());
        if self.options.spool {
            agent.tell(ToGateway::Spool, vec![self.log.spool.try_clone().unwrap().into()]);
        }
        agent.tell(ToGateway::Announced, Vec::new());
        agent.tell(ToGateway::RunStarted(run_info()), vec![names()]);
        let file =
            PolicyFile { name: "test.cedar".to_owned(), guardrail: false, text: self.options.policy.clone() };
        agent.policies(1, &[file]).await;
        self.agent = Some(agent);
    }

    /// The agent goes away.
    pub async fn agent_dies(&mut self) {
        self.agent.take().unwrap().die().await;
        self.link = Some(self.sessions.pop().unwrap().await.unwrap());
    }

    /// An agent comes (back).
    pub async fn agent_returns(&mut self) {
        self.log.compiled.lock().unwrap().clear();
        let run_ca = Ca::new();
        self.run_ca.clone_from(&run_ca.pem);
        self.agent_comes(&run_ca).await;
    }

    pub fn run_ends(&self) {
        self.agent.as_ref().unwrap().tell(ToGateway::RunEnded(run_info().id), Vec::new());
    }

    /// Connects as the run does to `name:port`: by the synthetic address, redirected by the kernel.
    pub async fn connect(&self, name: &str, port: u16) -> TcpStream {
        let index = NAMES.iter().position(|known| *known == name).unwrap();
        self.connect_to(address(u32::try_from(index).unwrap()).unwrap(), port).await
    }

    /// Connects as the run does to a literal address.
    pub async fn connect_to(&self, addr: Ipv4Addr, port: u16) -> TcpStream {
        self.dial(self.transparent, Some(flow(addr, port))).await
    }

    /// Connects to the gateway's own address.
    pub async fn connect_to_proxy(&self) -> TcpStream {
        self.dial(self.proxy, Some(flow(GATEWAY, 80))).await
    }

    /// Connects with the given account of the kernel.
    pub async fn dial(&self, to: SocketAddr, flow: Option<Flow>) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddrV4::new(RUN, 0).into()).unwrap();
        let from = socket.local_addr().unwrap();
        match flow {
            Some(flow) => self.flows.lock().unwrap().insert(from, flow),
            None => self.flows.lock().unwrap().remove(&from),
        };
        socket.connect(to).await.unwrap()
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

/// What an agent sends first.
pub fn setup(options: &Options, origin_ca: &Ca, run_ca: &Ca) -> Setup {
    Setup {
        gateway: GATEWAY,
        resolver: Resolver::Servers(vec!["127.0.0.1:1".parse().unwrap()]),
        proxy: None,
        hosts: NAMES
            .iter()
            .filter(|name| **name != "evil.test")
            .map(|name| ((*name).to_owned(), GATEWAY.into()))
            .collect(),
        passthrough: vec!["PASS.test.".to_owned()],
        doh: options.doh.clone(),
        anchors: origin_ca.pem.clone(),
        system_anchors: false,
        ca: Intermediate { chain: run_ca.pem.clone(), key: Secret::new(run_ca.key.clone()) },
        limits: options.limits.clone(),
    }
}

pub fn flow(addr: Ipv4Addr, port: u16) -> Flow {
    let mut comm = [0u8; 16];
    comm[..4].copy_from_slice(b"curl");
    Flow { cookie: 77, run: 5, netns: 9, addr, port, proto: 6, tgid: 4242, uid: 1000, comm }
}

pub fn run_info() -> RunInfo {
    RunInfo {
        id: "coder-1".parse().unwrap(),
        number: 5,
        addr: RUN,
        agent: "coder".parse().unwrap(),
        version: "1".to_owned(),
        started_by: "ana".to_owned(),
        labels: Vec::new(),
        addresses: vec![Range { addr: Ipv4Addr::new(203, 0, 113, 0), prefix: 24 }],
    }
}

fn names() -> OwnedFd {
    let memfd = rustix::fs::memfd_create("names", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut table = vec![0u8; SLOT * 64];
    for (slot, name) in table.chunks_mut(SLOT).zip(NAMES) {
        slot[0] = u8::try_from(name.len()).unwrap();
        slot[1..=name.len()].copy_from_slice(name.as_bytes());
    }
    rustix::io::write(&memfd, &table).unwrap();
    memfd
}

/// Policies that tests start from.
pub const READ_OK: &str = r#"
@id("read-ok")
permit(principal in Agent::"coder", action == Action::"http", resource in Host::"ok.test")
when { ["GET", "HEAD"].contains(context.method) };
"#;
pub const ALL_OK: &str = r#"
@id("all-ok")
permit(principal in Agent::"coder", action == Action::"http", resource in Host::"ok.test");
"#;
