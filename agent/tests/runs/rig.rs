//! A whole agent of its own, but for the gateway: gate, log, link, runs, launch and control sockets.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use strait_agent::{
    activity::Processes,
    approval::Approvals,
    authority::Authority,
    child::Program,
    config::Config,
    control::{self, Api, Reload},
    firewall::{Firewall, Notice},
    gate::Gate,
    instance::Instance,
    launch,
    link::{self, Link},
    listeners::Listeners,
    log::Log,
    netns,
    run::{Parts, Runs, trust::Trust},
};
use tokio::{
    runtime::Runtime,
    sync::{mpsc, watch},
};

static NEXT: AtomicU8 = AtomicU8::new(0);

/// An agent; removed with everything it made.
pub(crate) struct Rig {
    pub(crate) instance: Instance,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) runs: Arc<Runs>,
    pub(crate) reloads: std::sync::Mutex<mpsc::Receiver<Reload>>,
    config: PathBuf,
    runtime: Option<Runtime>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rt{}-{number}", std::process::id());
        let folder = tempfile::Builder::new().prefix(&name).tempdir_in("/var/tmp").unwrap();
        let lib = lib_dir();
        // Apart from the workspaces: Strait's own folders are no workspace, nor is what holds one.
        let config = folder.path().join("etc/strait.toml");
        fs::create_dir(folder.path().join("etc")).unwrap();
        open(&folder.path().join("etc"));
        // A block of its own per rig: rigs of one test binary run side by side.
        let pool = format!("10.211.{number}.0/24");
        let text = format!(
            "[instance]\nname = \"{name}\"\nrun_dir = \"/run/{name}\"\nstate_dir = \"{state}\"\nlib_dir = \"{lib}\"\n\
             bpffs = \"/sys/fs/bpf/{name}\"\ncgroup = \"{name}\"\n[network]\npool = \"{pool}\"\n\
             [agents.coder]\nversion = \"3\"\npass_env = [\"PICKED\"]\n[agents.coder.env]\nMODE = \"fast\"\n",
            state = folder.path().join("state").display(),
            lib = lib.display(),
        );
        fs::write(&config, text).unwrap();
        let loaded = Config::load(Some(&config)).unwrap();
        let instance = loaded.instance.clone();
        fs::create_dir_all(&instance.run_dir).unwrap();
        fs::create_dir_all(&instance.state_dir).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (runs, reloads) = runtime.block_on(start(&instance, loaded));
        Self {
            instance,
            folder,
            runs,
            reloads: std::sync::Mutex::new(reloads),
            config,
            runtime: Some(runtime),
        }
    }

    /// A fresh folder to work in, everybody's.
    pub(crate) fn workspace(&self, name: &str) -> PathBuf {
        // Its real name, which is the one it has inside.
        let path = self.folder.path().canonicalize().unwrap().join("work").join(name);
        fs::create_dir_all(&path).unwrap();
        open(self.folder.path());
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        path
    }

    /// The command line for this agent.
    pub(crate) fn strait(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
        command.arg("--config").arg(&self.config).stdin(Stdio::null());
        command
    }

    /// `strait run` in a fresh workspace.
    pub(crate) fn run(&self, argv: &[&str]) -> Command {
        let mut command = self.strait();
        command.arg("run").arg("--workspace").arg(self.workspace("w")).arg("--").args(argv);
        command
    }

    /// Its output, waited for.
    pub(crate) fn output(&self, argv: &[&str]) -> Output {
        self.run(argv).output().unwrap()
    }

    /// A shell script's output and exit code.
    pub(crate) fn shell(&self, script: &str) -> (String, i32) {
        let output = self.output(&["sh", "-c", script]);
        let errors = String::from_utf8_lossy(&output.stderr);
        (String::from_utf8_lossy(&output.stdout).into_owned() + &errors, output.status.code().unwrap())
    }

    /// Everything on record, every run's lines after each other.
    pub(crate) fn records(&self) -> String {
        let runs = fs::read_dir(self.instance.state_dir.join("runs")).into_iter().flatten().flatten();
        runs.filter_map(|run| fs::read_to_string(run.path().join("log.jsonl")).ok()).collect()
    }

    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.as_ref().unwrap().block_on(work)
    }

    /// Waits until a live run's name is known.
    pub(crate) fn one_run(&self) -> String {
        eventually(|| self.runs.list().first().map(|run| run.id().to_string()))
    }
}

/// Tries for ten seconds.
pub(crate) fn eventually<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1000 {
        if let Some(found) = attempt() {
            return found;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it did not happen within ten seconds");
}

async fn start(instance: &Instance, config: Config) -> (Arc<Runs>, mpsc::Receiver<Reload>) {
    netns::ensure_strait(instance).expect("needs root: run the tests as root");
    let gate = Arc::new(
        Gate::open(instance)
            .expect("needs root and the kernel object: cargo xtask setup && cargo xtask build"),
    );
    let (notices, mut reports) = mpsc::channel(1024);
    tokio::spawn(async move {
        while let Some(notice) = reports.recv().await {
            if let Notice::Flushed(done) = notice {
                let _ = done.send(());
            }
        }
    });
    let (firewall, witness) = Firewall::open(Arc::clone(&gate), notices).unwrap();
    tokio::spawn(firewall.run());
    let log = Log::open(config.log_options()).unwrap();
    let authority = Authority::load_or_make(&instance.state_dir, instance.name.as_str()).unwrap();
    let trust = Trust::build(&instance.run_dir.join("trust"), authority.root_pem()).unwrap();
    let root = gate.listeners_cgroup().parent().unwrap().parent().unwrap().to_owned();
    let setup_config = config.clone();
    let (_, current) = watch::channel(Arc::new(config.clone()));
    let approvals = Approvals::start(log.clone(), current);
    let link = Link::serve(
        instance,
        link::Parts {
            log: log.clone(),
            processes: Processes::new(instance),
            approvals: approvals.clone(),
            listeners: Listeners::new(instance, &root, Program::current().unwrap()),
            setup: Box::new(move || {
                Ok(setup_config.setup(authority.intermediate().map_err(|error| error.to_string())?))
            }),
            tools: Box::new(strait_contract::tool::Tools::default),
            providers: Box::new(strait_contract::provider::Providers::default),
            budgets: Box::new(std::collections::BTreeMap::new),
            credential: Box::new(|_| Err("no credentials in these tests".to_owned())),
            names_per_run: 64,
        },
    )
    .unwrap();
    let (_, config) = watch::channel(Arc::new(config));
    let runs = Runs::new(Parts {
        instance: instance.clone(),
        config,
        gate,
        log,
        link,
        trust,
        runc: PathBuf::from("/usr/sbin/runc"),
        witness,
    })
    .unwrap();
    runs.adopt().await.unwrap();
    let launch = launch::server::listen(&instance.launch_socket()).unwrap();
    tokio::spawn(launch::server::serve(launch, Arc::clone(&runs)));
    let (reload, reloads) = mpsc::channel(1);
    let control = control::listen(&instance.control_socket()).unwrap();
    tokio::spawn(control::serve(control, Api { runs: Arc::clone(&runs), approvals, reload }));
    (runs, reloads)
}

fn lib_dir() -> PathBuf {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/lib").canonicalize();
    let lib = lib.expect("nothing is built: cargo xtask build");
    for part in ["gate.bpf.o", "strait-tool"] {
        assert!(lib.join(part).exists(), "`{part}` is missing: cargo xtask build");
    }
    assert!(Path::new("/usr/sbin/runc").exists(), "runc is missing: cargo xtask setup");
    lib
}

fn open(path: &Path) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

impl Drop for Rig {
    fn drop(&mut self) {
        for run in self.runs.list() {
            let _ = self.block_on(self.runs.kill(&run, "test"));
            self.block_on(run.wait_gone());
        }
        // Runs that ended a moment ago are still being tidied away; a test that failed isn't made to wait for ever.
        let runs = self.instance.run_dir.join("runs");
        for _ in 0..500 {
            if fs::read_dir(&runs).map_or(true, |mut left| left.next().is_none()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // The chains of ended runs close two seconds later; nothing here waits for that.
        self.runtime.take().unwrap().shutdown_background();
        let _ = netns::remove_strait(&self.instance);
        let _ = fs::remove_dir_all(&self.instance.bpffs);
        let cgroups = strait_agent::run::cgroup::Hierarchies::find().unwrap();
        for group in [".shims", ".gateway", ""] {
            let _ = cgroups.of(&self.instance, group).remove();
        }
        let _ = fs::remove_dir_all(&self.instance.run_dir);
    }
}
