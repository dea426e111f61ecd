//! Everything a test needs, on loopback and with addresses of its own.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket},
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use strait_contract::{
    exposure::Exposed,
    flow::Flow,
    message::{Intermediate, Limits, PolicyFile, Resolver, Secret, Setup, ToGateway},
    names::{SLOT, address},
    provider::Providers,
    run::{Range, RunInfo},
    token::TokenHash,
    tool::Tools,
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
/// Address of the other run.
pub const OTHER_RUN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
pub const TOKEN: &str = "strait_0123456789-abcdefghijklmnopqrstuvwxyzABCDEF";
pub const OTHER_TOKEN: &str = "strait_FEDCBAzyxwvutsrqponmlkjihgfedcba_9876543210";
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
    pub tools: Tools,
    pub providers: Providers,
    pub resolver: Resolver,
    /// What the run is shown of credentials.
    pub exposed: Vec<Exposed>,
}

impl Default for Options {
    fn default() -> Self {
        let limits = Limits { head_seconds: 2, connect_seconds: 2, idle_seconds: 5, ..Limits::default() };
        let resolver = Resolver::Servers(vec!["127.0.0.1:1".parse().unwrap()]);
        Self {
            policy: String::new(),
            limits,
            doh: Vec::new(),
            spool: true,
            tools: Tools::default(),
            providers: Providers::default(),
            resolver,
            exposed: Vec::new(),
        }
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
        Self::trusting(options, Arc::new(Ca::new())).await
    }

    /// A world whose gateway trusts this CA.
    pub async fn trusting(options: Options, origin_ca: Arc<Ca>) -> Self {
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
            origin_ca,
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
        agent.tell(ToGateway::Tools(Box::new(self.options.tools.clone())), Vec::new());
        agent.tell(ToGateway::Providers(Box::new(self.options.providers.clone())), Vec::new());
        agent.tell(ToGateway::Announced, Vec::new());
        let run = RunInfo { exposed: self.options.exposed.clone(), ..run_info() };
        agent.tell(ToGateway::RunStarted(run), vec![names()]);
        agent.tell(ToGateway::RunStarted(other_run()), vec![names()]);
        let file =
            PolicyFile { name: "test.cedar".to_owned(), guardrail: false, text: self.options.policy.clone() };
        agent.policies(1, &[file]).await;
        self.agent = Some(agent);
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A reload of the agent's config: waits until the tools are in force.
    pub async fn tell_tools(&mut self, tools: Tools) {
        let before = self.gateway.tools();
        self.options.tools = tools.clone();
        self.agent.as_ref().unwrap().tell(ToGateway::Tools(Box::new(tools)), Vec::new());
        for _ in 0..500 {
            if !Arc::ptr_eq(&before, &self.gateway.tools()) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("the tools did not come into force");
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

    /// Real curl, as a process of the run, at the gateway's own address; gives what it printed and its exit code.
    pub async fn curl(&self, path: &str, arguments: &[&str]) -> Curl {
        self.curl_from(RUN, path, arguments).await
    }

    /// [`Self::curl`] as a process of the run with this address.
    pub async fn curl_from(&self, from: Ipv4Addr, path: &str, arguments: &[&str]) -> Curl {
        // A port that is free now, for which the kernel's account is known before curl dials.
        let port = TcpListener::bind((from, 0)).unwrap().local_addr().unwrap().port();
        let run = if from == OTHER_RUN { other_run().number } else { run_info().number };
        let account = Flow { run, ..flow(GATEWAY, 80) };
        self.flows.lock().unwrap().insert((from, port).into(), account);
        let output = tokio::process::Command::new("curl")
            .args([
                "-sS",
                "-i",
                "--path-as-is",
                "--noproxy",
                "*",
                "-m",
                "20",
                "--interface",
                &from.to_string(),
            ])
            // Of two Host fields curl sends the first.
            .args(["--local-port", &port.to_string()])
            .args(arguments)
            .args(["-H", "Host: strait.internal"])
            .arg(format!("http://{}{path}", self.proxy))
            .output()
            .await
            .expect("curl is missing: cargo xtask setup");
        Curl::read(&output)
    }

    /// [`Self::curl`] with the run's token.
    pub async fn call(&self, path: &str, arguments: &[&str]) -> Curl {
        let token = format!("Authorization: Bearer {TOKEN}");
        self.curl(path, &[&["-H", &token], arguments].concat()).await
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }
}

/// What an agent sends first.
pub fn setup(options: &Options, origin_ca: &Ca, run_ca: &Ca) -> Setup {
    Setup {
        gateway: GATEWAY,
        resolver: options.resolver.clone(),
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
        token: TokenHash::of(TOKEN),
        exposed: Vec::new(),
    }
}

/// Another run, of another agent.
pub fn other_run() -> RunInfo {
    RunInfo {
        id: "writer-1".parse().unwrap(),
        number: 6,
        addr: OTHER_RUN,
        agent: "writer".parse().unwrap(),
        token: TokenHash::of(OTHER_TOKEN),
        ..run_info()
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

/// What curl printed.
#[derive(Clone)]
pub struct Curl {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    pub exit: i32,
    pub said: String,
}

impl std::fmt::Debug for Curl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body: String = self.text().chars().take(1000).collect();
        write!(f, "exit {}: {}\n{}\n{body}", self.exit, self.said, self.head)
    }
}

impl Curl {
    pub fn read(output: &std::process::Output) -> Self {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let out = &output.stdout;
        let end = out.windows(4).position(|four| four == b"\r\n\r\n").map_or(out.len(), |at| at + 4);
        let head = String::from_utf8_lossy(&out[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let exit = output.status.code().unwrap_or(-1);
        Self { status, head, body: out[end..].to_vec(), exit, said }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The `error` object of a refusal.
    pub fn error(&self) -> serde_json::Value {
        let body: serde_json::Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"));
        body["error"].clone()
    }

    /// Status and code of a refusal.
    pub fn refused(&self) -> (u16, String) {
        (self.status, self.error()["code"].as_str().unwrap_or_default().to_owned())
    }
}
