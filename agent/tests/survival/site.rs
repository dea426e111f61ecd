//! An installation of its own, with an origin to call.

use std::{
    collections::HashMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU8, Ordering},
    time::{Duration, Instant},
};

static NEXT: AtomicU8 = AtomicU8::new(0);

/// Config, policies, binaries and an origin; what it made is removed at the end.
pub(crate) struct Site {
    folder: tempfile::TempDir,
    config: PathBuf,
    name: String,
    agent: Option<Child>,
    runs: Vec<Child>,
    pub(crate) origin: u16,
}

impl Site {
    /// Ready to take runs, which may call the origin.
    pub(crate) fn new() -> Self {
        Self::with(
            "@id(\"read\")\npermit (principal, action == Action::\"http\", resource in Host::\"origin.example\");\n",
        )
    }

    /// Ready to take runs under this policy.
    pub(crate) fn with(policy: &str) -> Self {
        Self::configured(policy, "")
    }

    /// Ready to take runs under this policy, with more of a config, in which `ORIGIN` is the origin's port and `BASE` the
    /// site's folder.
    pub(crate) fn configured(policy: &str, more: &str) -> Self {
        Self::changed(policy, more, |text| text)
    }

    /// The same, with a last word on the whole config.
    pub(crate) fn changed(policy: &str, more: &str, change: impl FnOnce(String) -> String) -> Self {
        let origin = origin();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sv{}-{number}", std::process::id());
        let folder = tempfile::Builder::new().prefix(&name).tempdir_in("/var/tmp").unwrap();
        let base = folder.path().canonicalize().unwrap();
        fs::set_permissions(&base, fs::Permissions::from_mode(0o755)).unwrap();
        for part in ["etc/policies", "lib", "work"] {
            fs::create_dir_all(base.join(part)).unwrap();
        }
        // The gateway's user can't reach into every checkout.
        for part in ["gate.bpf.o", "strait-tool", "strait-gateway"] {
            let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/lib").join(part);
            fs::copy(&built, base.join("lib").join(part)).expect("run `cargo xtask build` first");
        }
        let text = format!(
            "[instance]\nname = \"{name}\"\nrun_dir = \"/run/{name}\"\nstate_dir = \"{base}/state\"\n\
             lib_dir = \"{base}/lib\"\nbpffs = \"/sys/fs/bpf/{name}\"\ncgroup = \"{name}\"\n\
             [network]\npool = \"10.212.{number}.0/24\"\n[hosts]\n\"origin.example\" = \"127.0.0.1\"\n\
             \"other.example\" = \"127.0.0.1\"\n\"xn--bcher-kva.example\" = \"127.0.0.1\"\n{more}",
            base = base.display(),
            more = more.replace("ORIGIN", &origin.to_string()).replace("BASE", &base.display().to_string()),
        );
        let config = base.join("etc/strait.toml");
        fs::write(&config, change(text)).unwrap();
        fs::write(base.join("etc/policies/read.cedar"), policy).unwrap();
        let mut site = Self { folder, config, name, agent: None, runs: Vec::new(), origin };
        site.start_agent();
        site
    }

    /// Starts the daemon and waits until a gateway is connected.
    pub(crate) fn start_agent(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.path().join("agent.log"));
        let mut agent = Command::new(env!("CARGO_BIN_EXE_strait-agent"));
        agent.arg("--config").arg(&self.config).stdin(Stdio::null()).stderr(log.unwrap());
        self.agent = Some(agent.spawn().unwrap());
        self.until("the gateway is connected", |site| {
            let status = site.strait(&["status", "--json"]);
            status.contains("\"gateway\":true") || status.contains("\"gateway\": true")
        });
    }

    /// Starts a run of this shell script in the work folder.
    pub(crate) fn start_run(&mut self, script: &str) {
        let mut run = self.command(&["run", "--workspace"]);
        run.arg(self.work()).args(["--", "sh", "-c", script]).stdin(Stdio::null());
        self.runs.push(run.spawn().unwrap());
    }

    /// The runs' work folder.
    pub(crate) fn work(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("work")
    }

    /// Puts other policies in force.
    pub(crate) fn reload(&self, policy: &str) {
        fs::write(self.config.parent().unwrap().join("policies/read.cedar"), policy).unwrap();
        let said = self.strait(&["reload"]);
        assert!(said.contains("are live"), "{said}");
    }

    /// Folder of the sockets.
    pub(crate) fn run_dir(&self) -> PathBuf {
        Path::new("/run").join(&self.name)
    }

    /// Process id of the daemon.
    pub(crate) fn agent(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    /// What the run wrote into a file of its work folder so far, as lines.
    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.work().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for something, 20 s at most.
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            if Instant::now() > end {
                let log = fs::read_to_string(self.folder.path().join("agent.log")).unwrap_or_default();
                panic!("waited in vain until {what}; the agent said:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The command line's output.
    pub(crate) fn strait(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// The command line for this site.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
        command.arg("--config").arg(&self.config).args(arguments);
        command
    }

    /// Ends the daemon as a crash would.
    pub(crate) fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// Sends the daemon a signal.
    pub(crate) fn signal_agent(&self, signal: &str) {
        let agent = self.agent.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &agent]).status().unwrap().success());
    }

    /// Has the daemon hang: its sockets are there and nobody answers.
    pub(crate) fn hang_agent(&self) {
        self.signal_agent("-STOP");
    }

    /// Has the gateway hang.
    pub(crate) fn hang_gateway(&self) {
        let gateway = self.gateway().expect("no gateway process").to_string();
        assert!(Command::new("kill").args(["-STOP", &gateway]).status().unwrap().success());
    }

    /// What an agent that died early in a start leaves of a run: folders, and a file that hadn't got its name.
    pub(crate) fn leave_half_a_start(&self, run: &str) {
        let state = self.folder.path().join("state");
        fs::create_dir_all(Path::new("/run").join(&self.name).join("runs").join(run)).unwrap();
        fs::create_dir_all(state.join("runs").join(run)).unwrap();
        fs::create_dir_all(state.join("live")).unwrap();
        fs::write(state.join("live").join(run).with_extension("new"), "{").unwrap();
    }

    /// Files of runs that are known on disk.
    pub(crate) fn live_files(&self) -> usize {
        fs::read_dir(self.folder.path().join("state/live")).into_iter().flatten().count()
    }

    /// Ends the gateway as a crash would.
    pub(crate) fn kill_gateway(&self) {
        let gateway = self.gateway().expect("no gateway process");
        assert!(Command::new("kill").args(["-9", &gateway.to_string()]).status().unwrap().success());
    }

    /// Process id of this site's gateway.
    pub(crate) fn gateway(&self) -> Option<u32> {
        let binary = self.folder.path().canonicalize().unwrap().join("lib/strait-gateway");
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter(|process| fs::read_link(process.path().join("exe")).is_ok_and(|exe| exe == binary))
            .find_map(|process| process.file_name().to_str()?.parse().ok())
    }

    /// Every line of every run, each run's in their order.
    pub(crate) fn records(&self) -> String {
        let runs = fs::read_dir(self.folder.path().join("state/runs")).into_iter().flatten().flatten();
        runs.filter_map(|run| fs::read_to_string(run.path().join("log.jsonl")).ok()).collect()
    }

    /// The folder of the log.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join("state")
    }

    /// Where the maps are pinned.
    pub(crate) fn bpffs(&self) -> PathBuf {
        Path::new("/sys/fs/bpf").join(&self.name)
    }

    /// Asserts that the chains hold together and every call has exactly one `decided` and one `done` line.
    pub(crate) fn assert_records_whole(&self) {
        self.assert_whole(4);
    }

    /// The same for at least so many calls.
    pub(crate) fn assert_whole(&self, calls: usize) {
        let verdict = self.strait(&["log", "verify", "--all"]);
        assert!(!verdict.contains("BROKEN"), "{verdict}");
        let mut phases: HashMap<String, [u32; 2]> = HashMap::new();
        for line in self.strait(&["log", "--json", "--lines", "all"]).lines() {
            let record: serde_json::Value = serde_json::from_str(line).expect(line);
            let Some(phase) = record.get("phase").and_then(|phase| phase.as_str()) else { continue };
            let id = record.get("id").and_then(|id| id.as_str()).unwrap().to_owned();
            let [decided, done] = phases.entry(id).or_default();
            *(if phase == "decided" { decided } else { done }) += 1;
        }
        assert!(phases.len() >= calls, "{} calls on record", phases.len());
        let odd: Vec<_> = phases.iter().filter(|(_, count)| **count != [1, 1]).collect();
        assert!(odd.is_empty(), "calls with other than one decided and one done line: {odd:?}");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.agent.is_none() && !std::thread::panicking() {
            self.start_agent();
        }
        let _ = self.command(&["kill", "--all"]).output();
        for run in &mut self.runs {
            let _ = run.wait();
        }
        std::thread::sleep(Duration::from_millis(300));
        if let Some(mut agent) = self.agent.take() {
            let _ = Command::new("kill").arg(agent.id().to_string()).status();
            let _ = agent.wait();
        }
        if let Some(gateway) = self.gateway() {
            let _ = Command::new("kill").args(["-9", &gateway.to_string()]).status();
        }
        let sweep = "ip netns delete x 2>/dev/null; for n in /run/NAME/netns/*; do umount \"$n\"; done; \
                     umount /run/NAME/runs/* 2>/dev/null; rm -rf /run/NAME /sys/fs/bpf/NAME; \
                     for d in $(find /sys/fs/cgroup -depth -type d -path '*/NAME*'); do rmdir \"$d\"; done";
        let _ = Command::new("sh").args(["-c", &sweep.replace("NAME", &self.name)]).output();
    }
}

/// An origin on loopback that answers every request with its own line, `/slow` with one that never ends; its port.
fn origin() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                    head.push(byte[0]);
                }
                if head.windows(6).any(|part| part == b"/slow ") {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok\n");
                    // Until the gateway has gone.
                    let _ = stream.read(&mut byte);
                    return;
                }
                if head.windows(6).any(|part| part == b"/tells") {
                    let text = format!(
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                        head.len()
                    );
                    let _ = stream.write_all(&[text.as_bytes(), &head].concat());
                    return;
                }
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
            });
        }
    });
    port
}
