//! The rig: an instance of its own, a gateway that answers with the flow it was given, and an "internet"
//! namespace with invented public addresses that sees every packet that reaches it.
//!
//! The `strait` namespace gets an uplink to that internet, which a real one never has: the worst case.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use strait_agent::{
    firewall::{Firewall, KernelEvent, Notice, Witness},
    gate::{Admission, Gate, Quota},
    instance::Instance,
    netns::{self, RunNetns},
};
use strait_contract::{ids::RunId, run::Range};
use tokio::{runtime::Runtime, sync::mpsc};

use crate::probe::Outcome;

pub(crate) const OTHER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 443);

pub(crate) struct Rig {
    pub(crate) instance: Instance,
    pub(crate) gate: Arc<Gate>,
    pub(crate) witness: Witness,
    pub(crate) runtime: Runtime,
    notices: Arc<Mutex<Vec<Notice>>>,
    servers: Vec<Child>,
    canary: Arc<Mutex<Vec<String>>>,
    datagrams: Arc<AtomicU64>,
    next: AtomicU32,
}

/// A run without a workload.
pub(crate) struct Run {
    pub(crate) id: RunId,
    pub(crate) number: u64,
    pub(crate) addr: Ipv4Addr,
    pub(crate) netns: RunNetns,
    pub(crate) cgroup: PathBuf,
    pub(crate) index: u32,
}

/// How a run differs from the usual.
pub(crate) struct Shape {
    pub(crate) ranges: Vec<Range>,
    pub(crate) transparent: bool,
    pub(crate) quota: Quota,
}

impl Default for Shape {
    fn default() -> Self {
        Self { ranges: Vec::new(), transparent: true, quota: Quota::default() }
    }
}

fn lib_dir() -> PathBuf {
    std::env::var_os("STRAIT_LIB")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/lib"), PathBuf::from)
}

/// Runs `ip` on behalf of the rig only; Strait itself speaks netlink.
pub(crate) fn ip(arguments: &str) {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().expect("`ip`; run `cargo xtask setup`");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Rig {
    pub(crate) fn build() -> Self {
        Self::named("")
    }

    /// One of its own, for a test that breaks it.
    pub(crate) fn named(suffix: &str) -> Self {
        assert!(rustix::process::geteuid().is_root(), "containment tests need root; see `cargo xtask setup`");
        let object = lib_dir().join("gate.bpf.o");
        assert!(object.exists(), "`{}` isn't there; run `cargo xtask build`", object.display());
        let name = format!("kt{}{suffix}", std::process::id());
        let instance = Instance { lib_dir: lib_dir(), ..Instance::standard(name.parse().unwrap()) };
        netns::ensure_strait(&instance).unwrap();
        let gate = Arc::new(Gate::open(&instance).unwrap());
        gate.attach_listeners(&gate.listeners_cgroup()).unwrap();
        let runtime = Runtime::new().unwrap();
        let (sender, mut receiver) = mpsc::channel(1024);
        let (firewall, witness) = {
            let _inside = runtime.enter();
            Firewall::open(gate.clone(), sender).unwrap()
        };
        runtime.spawn(firewall.run());
        let notices = Arc::new(Mutex::new(Vec::new()));
        let seen = notices.clone();
        runtime.spawn(async move {
            while let Some(notice) = receiver.recv().await {
                match notice {
                    Notice::Flushed(done) => drop(done.send(())),
                    notice => seen.lock().unwrap().push(notice),
                }
            }
        });
        let mut rig = Self {
            instance,
            gate,
            witness,
            runtime,
            notices,
            servers: Vec::new(),
            canary: Arc::default(),
            datagrams: Arc::default(),
            next: AtomicU32::new(1),
        };
        rig.internet();
        rig.serve();
        rig
    }

    pub(crate) fn internet_netns(&self) -> PathBuf {
        Path::new("/run/netns").join(self.internet_name())
    }

    pub(crate) fn internet_name(&self) -> String {
        format!("{}-inet", self.instance.name)
    }

    /// The internet, its sniffer, and the forbidden uplink.
    fn internet(&mut self) {
        let (inet, strait) = (self.internet_name(), self.instance.strait_netns());
        ip(&format!("netns add {inet}"));
        ip(&format!("-n {inet} link set lo up"));
        for addr in ["192.0.2.1/32", "8.8.8.8/32", "203.0.113.7/32"] {
            ip(&format!("-n {inet} addr add {addr} dev lo"));
        }
        let uplink = File::open(&strait).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&uplink);
        ip(&format!(
            "-n {inet} link add down0 type veth peer name up0 netns /proc/{}/fd/{fd}",
            std::process::id()
        ));
        ip(&format!("-n {inet} addr add 100.64.0.2/30 dev down0"));
        ip(&format!("-n {inet} link set down0 up"));
        ip(&format!("-n {inet} route add 10.203.0.0/16 via 100.64.0.1 onlink dev down0"));
        netns::within(&strait, || {
            ip("addr add 100.64.0.1/30 dev up0");
            ip("link set up0 up");
            ip("route add default via 100.64.0.2");
        })
        .unwrap();
        let netns = self.internet_netns();
        let (child, lines) = spawn(Some(&netns), None, "internet", Stdio::piped());
        let seen = self.canary.clone();
        let mut lines = BufReader::new(lines.unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                seen.lock().unwrap().push(line);
            }
        });
        self.servers.push(child);
    }

    /// The gateway: a process in the listeners' cgroup.
    fn serve(&mut self) {
        let netns = self.instance.strait_netns();
        let cgroup = self.gate.listeners_cgroup();
        let (child, lines) = spawn(Some(&netns), Some(&cgroup), "gateway", Stdio::piped());
        let mut lines = BufReader::new(lines.unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let seen = self.datagrams.clone();
        std::thread::spawn(move || {
            for _ in lines.map_while(Result::ok) {
                seen.fetch_add(1, Ordering::SeqCst);
            }
        });
        self.servers.push(child);
    }

    /// Whether this kernel has the hook: one is optional.
    pub(crate) fn has(&self, hook: &str) -> bool {
        self.instance.bpffs.join("prog").join(hook).exists()
    }

    /// Sends a signal to the gateway.
    pub(crate) fn signal_gateway(&mut self, signal: Signal) {
        let gateway = self.servers.last_mut().unwrap();
        kill_process(Pid::from_child(gateway), signal).unwrap();
        if signal == Signal::KILL {
            gateway.wait().unwrap();
        }
    }

    /// How many packets the internet has seen so far.
    pub(crate) fn canary(&self) -> usize {
        std::thread::sleep(Duration::from_millis(60));
        self.canary.lock().unwrap().len()
    }

    /// Nothing has reached the internet since [`Rig::canary`] said `before`.
    pub(crate) fn nothing_left(&self, before: usize) {
        self.canary();
        let seen = self.canary.lock().unwrap();
        assert!(seen.len() == before, "it left: {:?}", &seen[before..]);
    }

    /// Datagrams that the gateway has got so far.
    pub(crate) fn datagrams(&self) -> u64 {
        std::thread::sleep(Duration::from_millis(60));
        self.datagrams.load(Ordering::SeqCst)
    }

    pub(crate) fn run(&self) -> Run {
        self.run_with(Shape::default())
    }

    pub(crate) fn run_with(&self, shape: Shape) -> Run {
        let (run, admission) = self.prepare(shape);
        self.gate.admit(&admission).unwrap();
        netns::raise(&self.instance, &run.netns, &admission.veth).unwrap();
        run
    }

    /// A run that's plumbed but not admitted and not raised.
    pub(crate) fn prepare(&self, shape: Shape) -> (Run, Admission) {
        let index = self.next.fetch_add(1, Ordering::SeqCst);
        let id: RunId = format!("{}-r{index}", self.instance.name).parse().unwrap();
        let netns = netns::create_run(&self.instance, &id).unwrap();
        let [low, high, ..] = (index + 1).to_le_bytes();
        let addr = Ipv4Addr::new(10, 203, high, low);
        let veth = netns::plumb(&self.instance, &netns, addr, index).unwrap();
        let run = Run {
            number: u64::from(index) + 1000,
            cgroup: self.gate.cgroup_of(&id),
            id: id.clone(),
            addr,
            netns: netns.clone(),
            index,
        };
        let admission = Admission {
            run: id,
            number: run.number,
            netns_cookie: netns.cookie,
            veth,
            ranges: shape.ranges,
            cgroup: run.cgroup.clone(),
            transparent: shape.transparent,
            quota: shape.quota,
        };
        (run, admission)
    }

    pub(crate) fn end(&self, run: &Run) {
        self.gate.release(&run.id).unwrap();
        netns::unplumb(&self.instance, run.index).unwrap();
        netns::remove_run(&self.instance, &run.id).unwrap();
        self.gate.collect_garbage_of(&run.cgroup);
    }

    /// Acts as a process of the run.
    pub(crate) fn act(&self, run: &Run, action: &str) -> Vec<Outcome> {
        act(Some(&run.netns.path), Some(&run.cgroup), action)
    }

    /// Acts in a namespace without Strait: the positive control.
    pub(crate) fn act_free(&self, netns: &Path, action: &str) -> Vec<Outcome> {
        act(Some(netns), None, action)
    }

    /// Everything reported about a run so far.
    pub(crate) fn events(&self, run: &Run) -> Vec<KernelEvent> {
        self.events_of(run.number)
    }

    pub(crate) fn events_of(&self, number: u64) -> Vec<KernelEvent> {
        assert!(self.runtime.block_on(self.witness.flush()));
        let of_run = |notice: &Notice| match notice {
            Notice::Event(event) if event.run == number => Some(event.clone()),
            _ => None,
        };
        self.notices.lock().unwrap().iter().filter_map(of_run).collect()
    }

    pub(crate) fn lost(&self, run: &Run) -> u64 {
        assert!(self.runtime.block_on(self.witness.flush()));
        let lost = |notice: &Notice| match notice {
            Notice::Lost { run: number, count } if *number == run.number => *count,
            _ => 0,
        };
        self.notices.lock().unwrap().iter().map(lost).sum()
    }
}

/// Waits for something to become true.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(3), "{what}: not within 3 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn act(netns: Option<&Path>, cgroup: Option<&Path>, action: &str) -> Vec<Outcome> {
    let (child, lines) = spawn(netns, cgroup, action, Stdio::piped());
    let outcomes =
        BufReader::new(lines.unwrap()).lines().map_while(Result::ok).map(|line| Outcome::parse(&line));
    let outcomes: Vec<_> = outcomes.collect();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "probe `{action}` failed after {outcomes:?}");
    outcomes
}

/// Starts this binary again as a probe, inside a namespace and a cgroup.
pub(crate) fn spawn(
    netns: Option<&Path>,
    cgroup: Option<&Path>,
    action: &str,
    stdout: Stdio,
) -> (Child, Option<std::process::ChildStdout>) {
    let netns = netns.map(|path| File::open(path).unwrap());
    let procs = cgroup.map(|path| File::options().write(true).open(path.join("cgroup.procs")).unwrap());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("STRAIT_PROBE", action).stdin(Stdio::null()).stdout(stdout);
    crate::probe::before_exec(&mut command, move || {
        if let Some(procs) = &procs {
            rustix::io::write(procs, b"0")?;
        }
        if let Some(netns) = &netns {
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        Ok(())
    });
    let mut child = command.spawn().unwrap();
    let lines = child.stdout.take();
    (child, lines)
}

impl Drop for Rig {
    fn drop(&mut self) {
        for child in &mut self.servers {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.gate.collect_garbage(&[]);
        let _ = netns::remove_strait(&self.instance);
        for entry in std::fs::read_dir(self.instance.run_dir.join("netns")).into_iter().flatten().flatten() {
            let _ = rustix::mount::unmount(entry.path(), rustix::mount::UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_dir_all(&self.instance.run_dir);
        let _ = std::fs::remove_dir_all(&self.instance.bpffs);
        let _ = Command::new("ip").args(["netns", "del", &self.internet_name()]).output();
        self.gate.collect_garbage_of(&self.gate.listeners_cgroup());
        if let Some(root) = self.gate.listeners_cgroup().parent() {
            self.gate.collect_garbage_of(root);
        }
    }
}
