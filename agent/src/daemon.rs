//! The daemon's composition root: every part made once, in the order that closes before it opens.
//!
//! namespace → gate → witness → log → link → runs → policies → gateway → the sockets people use; what needs none of
//! these (compiling, certificates, the gateway's own start) goes on beside them. A step that
//! fails stops the start, and what the kernel already enforces stays in force. Stopping leaves runs alone: they
//! go on behind the gate, and the next agent adopts them.

mod reload;
mod watch;

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use strait_contract::{ids::RunId, record::Unrecorded};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch as channel},
    task::{JoinHandle, JoinSet, spawn_blocking},
};

use crate::{
    activity::Processes,
    approval::Approvals,
    authority::Authority,
    child::Program,
    config::Config,
    control,
    firewall::{Firewall, Notice},
    gate::{Gate, cgroup},
    instance::Instance,
    launch,
    link::{self, Link},
    listeners::Listeners,
    log::Log,
    netns,
    policy_source::{Checking, PolicySource},
    preflight::{self, Finding, Level},
    run::{Parts, Runs, trust::Trust},
    supervise::{self, Supervisor},
};

use self::reload::Reloader;

/// Notices between the ring and the log; beyond it the ring fills and the kernel counts.
const NOTICES: usize = 4096;
/// How long a stop waits for the last kernel events to be on record.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// Runs the agent until it's told to stop.
///
/// # Errors
/// The step that failed, with what to do.
pub fn run(config: Config) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let outcome = runtime.block_on(serve(Arc::new(config)));
    runtime.shutdown_background();
    outcome
}

async fn serve(config: Arc<Config>) -> anyhow::Result<()> {
    let instance = &config.instance;
    let program = Program::current().context("finding this program")?;
    fit(instance)?;
    folders(instance)?;
    // What takes long and changes nothing that is in force goes on beside the rest.
    let checking = PolicySource::new(&config, program.clone()).begin();
    let runtime = spawn_blocking(preflight::runtime);
    let trusted = beside(instance, trust);
    let gate = beside(instance, gate);
    let log = Log::open(config.log_options()).context("opening the log")?;
    let begun = tokio::spawn(first_record(log.clone()));
    let gate = Arc::new(gate.await??);
    let (notices, seen) = mpsc::channel(NOTICES);
    let (firewall, witness) =
        Firewall::open(Arc::clone(&gate), notices).context("reading the kernel's events")?;
    let processes = Processes::new(instance);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { firewall.run().await.context("reading the kernel's events") });
    tasks.spawn(watch::record(seen, Arc::clone(&gate), processes.clone(), log.clone()));

    let (current, configs) = channel::channel(Arc::clone(&config));
    let (authority, trust) = trusted.await??;
    say(&[runtime.await?])?;
    begun.await?.context("writing the first record")?;
    let left = supervise::left_behind(instance);
    let approvals = Approvals::start(log.clone(), configs.clone());
    let asking = approvals.clone();
    let link =
        link(&config, configs.clone(), &authority, &log, (processes, asking), &program, left.is_none())?;
    // It waits at the link's door until that is opened.
    let supervisor = Supervisor::start(instance, program.clone(), link.gateway(), left);
    let parts = Parts {
        instance: instance.clone(),
        config: configs,
        gate,
        log: log.clone(),
        link: link.clone(),
        trust,
        runc: runtime_of_containers()?,
        witness: witness.clone(),
    };
    let reloader = Reloader::new(current, link, log.clone(), program);
    let outcome = async {
        open_up(parts, approvals, reloader, checking, &mut tasks).await?;
        until_stopped(&mut tasks).await
    };
    let outcome = outcome.await;
    supervisor.stop().await;
    // Bounded: with a log that can't be written there is nothing to wait for.
    let _ = tokio::time::timeout(LAST_EVENTS, witness.flush()).await;
    let _ = log.event(None, "agent.stopped", &[]).await;
    log.shutdown().await;
    outcome
}

/// Takes up what an earlier agent left, lets the gateway in, then people.
async fn open_up(
    parts: Parts,
    approvals: Approvals,
    reloader: Reloader,
    checking: Checking,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let (gate, link, log) = (Arc::clone(&parts.gate), parts.link.clone(), parts.log.clone());
    let instance = parts.instance.clone();
    let runs = Runs::new(parts).context("finding the cgroups")?;
    let adopted = runs.adopt().await.context("adopting the runs of an earlier agent")?;
    approvals.recover();
    let live: Vec<RunId> = runs.list().iter().map(|run| run.id().clone()).collect();
    gate.collect_garbage(&live).context("removing what ended runs left")?;
    reloader.first(checking).await;
    link.set_budgets().await.context("putting budgets in force")?;
    link.open();
    watch::listening(&link).await;
    let origin = gate.origin();
    tasks.spawn(watch::sweep_flows(Arc::clone(&gate), link.gateway()));
    tasks.spawn(watch::enforce(Arc::clone(&runs), gate, log.clone()));
    tasks.spawn(watch::keep_ledger(log));

    let (asked, wishes) = mpsc::channel(4);
    let launcher = launch::server::listen(&instance.launch_socket()).context("opening launch.sock")?;
    let controller = control::listen(&instance.control_socket()).context("opening control.sock")?;
    {
        let runs = Arc::clone(&runs);
        tasks
            .spawn(async move { launch::server::serve(launcher, runs).await.context("serving launch.sock") });
    }
    let api = control::Api { runs, approvals, reload: asked };
    tasks.spawn(async move { control::serve(controller, api).await.context("serving control.sock") });
    tasks.spawn(reloader.run(wishes));
    tracing::info!(
        instance = %instance.name, gate = ?origin, adopted = adopted.adopted, ended = adopted.ended, "ready"
    );
    Ok(())
}

/// Does a step of the start on another thread.
fn beside<T: Send + 'static>(
    instance: &Instance,
    step: fn(&Instance) -> anyhow::Result<T>,
) -> JoinHandle<anyhow::Result<T>> {
    let instance = instance.clone();
    spawn_blocking(move || step(&instance))
}

async fn first_record(log: Log) -> Result<(), Unrecorded> {
    log.event(None, "agent.started", &[("version", env!("CARGO_PKG_VERSION").to_owned())]).await
}

/// Waits for a signal, or for a part to fail.
async fn until_stopped(tasks: &mut JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        Some(ended) = tasks.join_next() => match ended {
            Ok(Ok(())) => bail!("a part of the agent ended by itself"),
            Ok(Err(error)) => Err(error),
            Err(error) => Err(error).context("a part of the agent broke"),
        },
    }
}

/// Stops before anything is changed if the host lacks what enforcement needs; says what it does without.
fn fit(instance: &Instance) -> anyhow::Result<()> {
    say(&preflight::enforcement(instance).findings)
}

/// Says what was found; an error if something failed.
fn say(findings: &[Finding]) -> anyhow::Result<()> {
    for finding in findings {
        match finding.level {
            Level::Ok => {}
            Level::Degraded => tracing::warn!(fix = finding.fix, "{}: {}", finding.name, finding.detail),
            Level::Failed => tracing::error!(fix = finding.fix, "{}: {}", finding.name, finding.detail),
        }
    }
    if findings.iter().any(|finding| finding.level == Level::Failed) {
        bail!("this host can't enforce: mend what is named above; `strait doctor` shows it again");
    }
    Ok(())
}

fn folders(instance: &Instance) -> anyhow::Result<()> {
    // The run folder is passed through by users to their sockets; what is private in it has its own mode.
    for (folder, mode) in [
        (instance.run_dir.clone(), 0o755),
        (instance.state_dir.clone(), 0o755),
        (instance.run_dir.join("netns"), 0o700),
    ] {
        make(&folder, mode).with_context(|| format!("making `{}`", folder.display()))?;
    }
    Ok(())
}

fn make(folder: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))
}

fn gate(instance: &Instance) -> anyhow::Result<Gate> {
    netns::ensure_strait(instance).context("making the `strait` network namespace")?;
    let gate = Gate::open(instance).context("opening the gate")?;
    let listeners = gate.listeners_cgroup();
    fs::create_dir_all(&listeners).with_context(|| format!("making the cgroup `{}`", listeners.display()))?;
    gate.attach_listeners(&listeners).context("attaching to the listeners' cgroup")?;
    Ok(gate)
}

fn trust(instance: &Instance) -> anyhow::Result<(Arc<Authority>, Trust)> {
    let authority =
        Authority::load_or_make(&instance.state_dir, instance.name.as_str()).context("opening the CA")?;
    let trust = Trust::build(&instance.state_dir.join("trust"), authority.root_pem())?;
    Ok((Arc::new(authority), trust))
}

/// `fresh` says that no gateway has listeners yet: they are opened at once.
fn link(
    config: &Config,
    configs: channel::Receiver<Arc<Config>>,
    authority: &Arc<Authority>,
    log: &Log,
    (processes, approvals): (Processes, Approvals),
    program: &Program,
    fresh: bool,
) -> anyhow::Result<Link> {
    let root = cgroup::v2_root()?.context("this host has no cgroup v2 mount: see `strait doctor`")?;
    let authority = Arc::clone(authority);
    let (tools, providers) = (configs.clone(), configs.clone());
    let (credentials, budgets) = (configs.clone(), configs.clone());
    let setup = move || {
        let ca = authority.intermediate().map_err(|error| error.to_string())?;
        Ok(configs.borrow().setup(ca))
    };
    let listeners = Listeners::new(&config.instance, &root, program.clone());
    if fresh {
        let listeners = listeners.clone();
        // A failure shows again, and is told, when the gateway wants them.
        tokio::spawn(async move { listeners.get().await.map(drop) });
    }
    let parts = link::Parts {
        log: log.clone(),
        processes,
        approvals,
        listeners,
        setup: Box::new(setup),
        tools: Box::new(move || tools.borrow().tools.clone()),
        providers: Box::new(move || providers.borrow().providers.clone()),
        budgets: Box::new(move || budgets.borrow().budgets()),
        credential: Box::new(move |name| {
            let config = Arc::clone(&credentials.borrow());
            config.credential(name)
        }),
        names_per_run: config.limits.names_per_run,
    };
    Link::serve(&config.instance, parts).context("opening link.sock")
}

/// The OCI runtime for `strait run`.
fn runtime_of_containers() -> anyhow::Result<PathBuf> {
    let places = ["/usr/bin/runc", "/usr/sbin/runc", "/usr/local/sbin/runc", "/usr/local/bin/runc"];
    let found = places.iter().map(Path::new).find(|path| path.exists());
    found.map(Path::to_owned).context("`runc` isn't installed: `apt-get install runc`")
}
