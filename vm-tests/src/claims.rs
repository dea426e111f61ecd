//! What must hold on every kernel of the matrix, each with its positive control.

use std::{
    fs,
    io::Read,
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use strait_agent::{
    firewall::{Firewall, KernelEvent, Notice, Witness},
    gate::{Admission, Gate, Quota},
    instance::Instance,
    netns, selftest,
};
use strait_contract::{flow, ids::RunId, message::TRANSPARENT_PORT};
use tokio::sync::mpsc;

use crate::contained;

/// A synthetic address.
const NAMED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 443);
pub(crate) const ADDR: Ipv4Addr = Ipv4Addr::new(10, 203, 0, 2);
const NUMBER: u64 = 7;

pub(crate) struct Rig {
    pub(crate) instance: Instance,
    pub(crate) gate: Arc<Gate>,
    pub(crate) run: RunId,
    pub(crate) netns: netns::RunNetns,
    witness: Witness,
    notices: Mutex<mpsc::Receiver<Notice>>,
    transparent: TcpListener,
    /// A listener where the packet filter lets nobody through.
    other: TcpListener,
}

pub(crate) type Claim = (&'static str, fn(&Rig) -> Result<()>);

const CLAIMS: [Claim; 3] = [
    ("a_canary_is_refused_and_its_event_arrives", canary),
    ("a_synthetic_address_is_redirected_and_its_flow_is_told", redirect),
    ("packets_to_other_ports_are_dropped_by_the_filter_alone", filter),
];

/// Checks the claims whose names contain `filter`; how many hold and how many don't.
pub(crate) fn check(filter: Option<&str>) -> Result<(u32, u32)> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _guard = runtime.enter();
    let rig = Rig::new()?;
    let (mut passed, mut failed) = (0_u32, 0_u32);
    for (name, claim) in CLAIMS.iter().chain(contained::CLAIMS) {
        if filter.is_some_and(|filter| !name.contains(filter)) {
            continue;
        }
        match claim(&rig) {
            Ok(()) => {
                passed = passed.saturating_add(1);
                println!("vm: ok {name}");
            }
            Err(error) => {
                failed = failed.saturating_add(1);
                println!("vm: FAILED {name}: {error:#}");
                for notice in rig.told() {
                    println!("vm:   {notice:?}");
                }
            }
        }
    }
    Ok((passed, failed))
}

impl Rig {
    fn new() -> Result<Self> {
        let mut instance = Instance::standard("vm".parse()?);
        instance.lib_dir = "/lib/strait".into();
        netns::ensure_strait(&instance)?;
        let gate = Gate::open(&instance).context("the programs don't load")?;
        let run: RunId = "vm-1".parse()?;
        let netns = netns::create_run(&instance, &run)?;
        let veth = netns::plumb(&instance, &netns, ADDR, 1)?;
        gate.admit(&Admission {
            run: run.clone(),
            number: NUMBER,
            netns_cookie: netns.cookie,
            veth: veth.clone(),
            ranges: Vec::new(),
            cgroup: gate.cgroup_of(&run),
            transparent: true,
            quota: Quota::default(),
        })?;
        netns::raise(&instance, &netns, &veth)?;
        let cgroup = gate.listeners_cgroup();
        fs::create_dir_all(&cgroup)?;
        gate.attach_listeners(&cgroup)?;
        // Accepted sockets inherit the cgroup in which the listener was made.
        fs::write(cgroup.join("cgroup.procs"), "0")?;
        let listen = |port| TcpListener::bind((instance.gateway(), port));
        let listeners = netns::within(&instance.strait_netns(), || (listen(TRANSPARENT_PORT), listen(22)))?;
        fs::write("/sys/fs/cgroup/cgroup.procs", "0")?;
        contained::serve(&instance)?;
        let gate = Arc::new(gate);
        let (reports, notices) = mpsc::channel(1024);
        let (firewall, witness) = Firewall::open(Arc::clone(&gate), reports)?;
        tokio::spawn(firewall.run());
        let notices = Mutex::new(notices);
        let (transparent, other) = (listeners.0?, listeners.1?);
        Ok(Self { instance, gate, run, netns, witness, notices, transparent, other })
    }

    /// What the kernel programs have told since the last call.
    pub(crate) fn told(&self) -> Vec<Notice> {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| notices.try_recv().ok()).collect()
    }

    /// Waits for an event of the kernel programs.
    pub(crate) fn saw(&self, what: &str, is: impl Fn(&KernelEvent) -> bool) -> Result<()> {
        let begun = Instant::now();
        let mut others = Vec::new();
        while begun.elapsed() < Duration::from_secs(3) {
            for notice in self.told() {
                match notice {
                    Notice::Event(event) if is(&event) => return Ok(()),
                    other => others.push(other),
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("nobody was told of {what}, but of {others:?}")
    }

    fn place(&self) -> selftest::Place {
        selftest::Place {
            number: NUMBER,
            cgroup: self.gate.cgroup_of(&self.run),
            netns: self.netns.path.clone(),
        }
    }
}

fn canary(rig: &Rig) -> Result<()> {
    let proven = selftest::prove(&rig.gate, &rig.witness, &rig.run, None);
    Ok(tokio::runtime::Handle::current().block_on(proven)?)
}

fn redirect(rig: &Rig) -> Result<()> {
    let place = rig.place();
    rig.transparent.set_nonblocking(true)?;
    ensure!(rig.transparent.accept().is_err(), "a connection waits before one was made");
    place.dial(NAMED)?.context("the dial to a synthetic address failed")?;
    let (mut socket, peer) = rig.transparent.accept().context("nothing arrived at the gateway")?;
    ensure!(peer.ip() == ADDR, "it came from {peer}");
    let flow = flow::of(socket.as_fd()).context("the kernel has no flow of it")?;
    ensure!(flow.run == NUMBER && flow.netns == rig.netns.cookie, "the flow is of another run: {flow:?}");
    ensure!(flow.addr == *NAMED.ip() && flow.port == NAMED.port(), "it leads elsewhere: {flow:?}");
    socket.set_nonblocking(false)?;
    // The dialling process is gone: its end is closed.
    ensure!(socket.read(&mut [0; 8])? == 0, "bytes that nobody sent");
    Ok(())
}

/// From the run's namespace but not its cgroup, so that only the packet filter is in the way.
fn filter(rig: &Rig) -> Result<()> {
    let dial = |port| {
        let to = SocketAddrV4::new(rig.instance.gateway(), port);
        let begun = Instant::now();
        let dialled = netns::within(&rig.netns.path, || {
            TcpStream::connect_timeout(&to.into(), Duration::from_secs(2)).map(drop)
        });
        dialled.map(|result| (result, begun.elapsed()))
    };
    let (open, _) = dial(TRANSPARENT_PORT)?;
    open.context("the positive control: an offered port")?;
    rig.other.set_nonblocking(true)?;
    let (closed, took) = dial(22)?;
    if closed.is_ok() || rig.other.accept().is_ok() {
        bail!("port 22 was reached");
    }
    ensure!(took > Duration::from_secs(1), "port 22 was refused, not dropped, after {took:?}");
    Ok(())
}
