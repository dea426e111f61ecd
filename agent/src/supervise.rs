//! Keeps a gateway running where no service manager does: as its own user, without capabilities or a way to
//! regain any, in the netns it dials from, with an environment of two variables.
//!
//! A gateway that outlived an earlier agent is watched rather than doubled.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use strait_contract::{names, redact::redact_text};
use tokio::{io::AsyncReadExt as _, process::ChildStderr, sync::watch, task::JoinHandle};

use crate::{
    child::{self, Program},
    instance::Instance,
    readiness,
    run::process::{Process, ProcessName},
};

/// First argument of the child that becomes the gateway.
pub const CHILD: &str = "__gateway";
/// How long an agent that starts waits for a live gateway of an earlier agent to dial, its own start included.
const ADOPTION: Duration = Duration::from_secs(5);
/// A gateway that lived this long starts again without a pause.
const STEADY: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a gateway may take to end when asked to.
const GRACE: Duration = Duration::from_secs(5);
/// Open files a gateway may have.
const FILES: u64 = 65_536;

/// How the child becomes the gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Role {
    executable: PathBuf,
    uid: u32,
    gid: u32,
    netns: Option<PathBuf>,
    link: PathBuf,
    note: PathBuf,
    log: Option<String>,
}

/// The gateway that an earlier agent of the instance has left, if it lives.
pub fn left_behind(instance: &Instance) -> Option<Process> {
    let name: ProcessName = serde_json::from_slice(&fs::read(note(instance)).ok()?).ok()?;
    name.open().ok().flatten()
}

/// Which process the gateway is, for an agent that comes later.
fn note(instance: &Instance) -> PathBuf {
    instance.run_dir.join("gateway.json")
}

/// A supervisor at work.
#[derive(Debug)]
pub struct Supervisor {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Supervisor {
    /// Starts it; it waits for the gateway that an earlier agent left ([`left_behind`]) and else starts one at once.
    /// `connected` tells which gateway is on the link ([`crate::link::Link::gateway`]).
    pub fn start(
        instance: &Instance,
        program: Program,
        connected: watch::Receiver<Option<u32>>,
        left: Option<Process>,
    ) -> Self {
        let role = Role {
            executable: instance.lib_dir.join("strait-gateway"),
            uid: instance.gateway_uid,
            gid: instance.gateway_gid,
            netns: instance.dial_netns.clone(),
            link: instance.link_socket(),
            note: note(instance),
            log: std::env::var("RUST_LOG").ok(),
        };
        let (stop, stopping) = watch::channel(false);
        let task = tokio::spawn(supervise(role, program, connected, stopping, left));
        Self { stop, task }
    }

    /// Ends the gateway and the supervisor.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

async fn supervise(
    role: Role,
    program: Program,
    mut connected: watch::Receiver<Option<u32>>,
    mut stopping: watch::Receiver<bool>,
    left: Option<Process>,
) {
    if let Some(left) = left {
        adopt(&left, &mut connected, &mut stopping).await;
    }
    let mut pause = Duration::ZERO;
    while !*stopping.borrow() {
        let started = Instant::now();
        match run_once(&role, &program, &mut stopping).await {
            Ok(status) if *stopping.borrow() => tracing::info!(%status, "the gateway has ended"),
            Ok(status) => {
                tracing::error!(%status, signal = status.signal(), "the gateway died and is started again")
            }
            Err(error) => {
                tracing::error!(%error, gateway = %role.executable.display(), "the gateway can't be started");
            }
        }
        pause = if started.elapsed() >= STEADY { Duration::ZERO } else { longer(pause) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stopped(&mut stopping) => {}
        }
    }
}

/// Waits until the supervisor is told to stop.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// The pause after a short life: first short enough to be back within a second, then doubling.
fn longer(pause: Duration) -> Duration {
    if pause.is_zero() { Duration::from_millis(20) } else { (pause * 2).min(LONGEST_PAUSE) }
}

/// Watches a gateway that an earlier agent left, until it ends.
async fn adopt(
    left: &Process,
    connected: &mut watch::Receiver<Option<u32>>,
    stopping: &mut watch::Receiver<bool>,
) {
    let pid = left.name().pid;
    let Ok(handle) = left.pidfd().try_clone_to_owned().and_then(readiness::watch) else { return };
    let dialled = connected.wait_for(|known| known.and_then(|known| i32::try_from(known).ok()) == Some(pid));
    let dials = tokio::select! {
        _ = dialled => true,
        _ = handle.readable() => return,
        () = stopped(stopping) => true,
        () = tokio::time::sleep(ADOPTION) => false,
    };
    if !dials {
        // As long as it lives it may hold the listeners, and another can't have any.
        tracing::error!(
            pid,
            "the gateway of an earlier agent lives but does not dial: it is killed and another started"
        );
        let _ = pidfd_send_signal(handle.get_ref(), Signal::KILL);
        let _ = tokio::time::timeout(GRACE, handle.readable()).await;
        return;
    }
    tracing::info!(pid, "the gateway of an earlier agent goes on");
    tokio::select! {
        _ = handle.readable() => tracing::error!(pid, "the gateway died and is started again"),
        () = stopped(stopping) => {
            let _ = pidfd_send_signal(handle.get_ref(), Signal::TERM);
            let _ = tokio::time::timeout(GRACE, handle.readable()).await;
        }
    }
}

async fn run_once(
    role: &Role,
    program: &Program,
    stopping: &mut watch::Receiver<bool>,
) -> io::Result<ExitStatus> {
    let mut command = program.command(CHILD);
    command
        .arg(serde_json::to_string(role)?)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .current_dir("/");
    let mut running = tokio::process::Command::from(command).spawn()?;
    if let Some(pid) = running.id().and_then(|pid| i32::try_from(pid).ok())
        && let Err(error) = take_note(pid, &role.note)
    {
        tracing::warn!(%error, "an agent that comes later won't know the gateway");
    }
    if let Some(stderr) = running.stderr.take() {
        tokio::spawn(relay(stderr));
    }
    tokio::select! {
        status = running.wait() => return status,
        () = stopped(stopping) => {}
    }
    if let Some(handle) = running.id().and_then(open_pidfd) {
        let _ = pidfd_send_signal(&handle, Signal::TERM);
    }
    match tokio::time::timeout(GRACE, running.wait()).await {
        Ok(status) => status,
        Err(_) => {
            running.kill().await?;
            running.wait().await
        }
    }
}

fn take_note(pid: i32, note: &Path) -> io::Result<()> {
    fs::write(note, serde_json::to_vec(&ProcessName::of(pid)?)?)
}

fn open_pidfd(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
}

/// What the gateway says goes to the agent's log, line by line, bounded and without keys or control characters.
async fn relay(mut stderr: ChildStderr) {
    let mut buffer = vec![0; 8192];
    let mut line = Vec::new();
    while let Ok(length @ 1..) = stderr.read(&mut buffer).await {
        for byte in buffer.iter().take(length) {
            if *byte != b'\n' {
                line.push(*byte);
            }
            if *byte == b'\n' || line.len() >= 4096 {
                let text = redact_text(&String::from_utf8_lossy(&line), 2048);
                tracing::info!(target: "strait_gateway", "{text}");
                line.clear();
            }
        }
    }
}

/// The child: gives up everything the gateway must not have and becomes it.
///
/// # Errors
/// A step failed; nothing was started.
pub fn child_main(argument: &str) -> anyhow::Result<()> {
    use anyhow::Context as _;
    let role: Role = serde_json::from_str(argument).context("reading what to start")?;
    if let Some(netns) = &role.netns {
        child::enter_netns(netns).with_context(|| format!("entering the netns `{}`", netns.display()))?;
    }
    let limit = |resource, most| {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(resource, limit)
    };
    limit(Resource::Core, 0).context("forbidding core dumps")?;
    // The only files it may write are the runs' synthetic names: it can't fill their tmpfs.
    limit(Resource::Fsize, u64::from(names::MAX_NAMES) * names::SLOT as u64)
        .context("limiting file sizes")?;
    // Raising the hard limit takes CAP_SYS_RESOURCE, which root in a container may lack.
    let most = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(FILES);
    if limit(Resource::Nofile, FILES).is_err() {
        limit(Resource::Nofile, FILES.min(most)).context("raising the limit of open files")?;
    }
    drop_privileges(&role)?;
    let mut command = Command::new(&role.executable);
    command.env_clear().env("STRAIT_LINK", &role.link);
    if let Some(log) = &role.log {
        command.env("RUST_LOG", log);
    }
    // Comes back only if it failed.
    let error = command.exec();
    Err(error).with_context(|| format!("starting `{}` as user {}", role.executable.display(), role.uid))
}

/// Root no more: bounding set empty, ids changed for good, nothing to be gained by exec.
fn drop_privileges(role: &Role) -> anyhow::Result<()> {
    use anyhow::Context as _;
    use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
    for capability in rustix::thread::CapabilitySet::all() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Kernels know fewer capabilities than the list.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error).context("emptying the capability bounding set"),
        }
    }
    rustix::thread::clear_ambient_capability_set().context("clearing the ambient capabilities")?;
    let (uid, gid) = (Uid::from_raw(role.uid), Gid::from_raw(role.gid));
    setgroups(&[]).context("dropping groups")?;
    setresgid(gid, gid, gid).context("changing the group")?;
    setresuid(uid, uid, uid).context("changing the user")?;
    rustix::thread::set_no_new_privs(true).context("setting no_new_privs")?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    Ok(())
}
