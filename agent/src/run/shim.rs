//! The agent's side of a shim ([`strait-tool shim`](../../tool)): starts it, hears how the run gets on.
//!
//! The shim speaks first: `created INIT_PID SHIM_PID`, when init waits; is told `start`; says `started`; at the end
//! `exited CODE SIGNAL` and closes when the container is deleted; or says `failed WHY` instead.
#![expect(unsafe_code, reason = "one descriptor must be inherited across exec, and only by the shim")]

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::io::{FdFlags, fcntl_setfd};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::{
    folder::Folder,
    process::{Process, ProcessName},
};

/// Most bytes of `failed WHY` that are passed on; the shim bounds them too.
const MESSAGE: usize = 2048;

/// Why a run's processes could not be started or followed.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// The helper isn't installed or can't be executed.
    #[error("the helper `{path}` can't be started: `cargo xtask build` or the package installs it", path = path.display())]
    Start {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It, or runc, said no.
    #[error("{0}")]
    Failed(String),
    /// It ended without a word.
    #[error("the shim ended without saying why: see the agent's log")]
    Silent,
    /// The socket to it failed.
    #[error("the shim can't be talked to")]
    Talk(#[from] io::Error),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// Exit code, 128 + signal included.
    pub exit_code: u8,
    /// The signal that ended the whole run.
    pub signal: Option<i32>,
}

/// What to start.
#[derive(Debug)]
pub struct Start<'a> {
    /// The helper on the host.
    pub tool: &'a Path,
    /// The OCI runtime.
    pub runc: &'a Path,
    /// Its state folder.
    pub root: &'a Path,
    /// Container id.
    pub id: &'a str,
    /// The run's folder.
    pub folder: &'a Folder,
    /// Cgroup of the shims.
    pub cgroup: &'a Path,
    /// Whether the run has a terminal.
    pub terminal: bool,
    /// stdin, stdout, stderr.
    pub stdio: [OwnedFd; 3],
}

/// A shim with a created container that waits.
#[derive(Debug)]
pub struct Created {
    /// The run's init.
    pub init: ProcessName,
    /// The shim.
    pub shim: ProcessName,
    lines: Lines<BufReader<OwnedReadHalf>>,
    speak: OwnedWriteHalf,
}

/// A shim with a running container.
#[derive(Debug)]
pub struct Running {
    lines: Lines<BufReader<OwnedReadHalf>>,
    _speak: OwnedWriteHalf,
}

/// Starts a shim and waits until its container is created.
///
/// # Errors
/// [`ShimError`]; nothing is left of the container then.
pub async fn create(start: Start<'_>) -> Result<Created, ShimError> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = theirs.into_std()?;
    // The shim has no runtime: it reads and writes blocking, and the mode belongs to the socket, not to our copy.
    theirs.set_nonblocking(false)?;
    let theirs = OwnedFd::from(theirs);
    spawn(start, &theirs).await?;
    drop(theirs);
    let (read, speak) = ours.into_split();
    let mut lines = BufReader::new(read).lines();
    let line = next(&mut lines).await?;
    let mut words = line.split(' ');
    let pids = match (words.next(), words.next(), words.next()) {
        (Some("created"), Some(init), Some(shim)) => init.parse().ok().zip(shim.parse().ok()),
        _ => None,
    };
    let Some((init, shim)) = pids else { return Err(ShimError::Failed(line)) };
    Ok(Created { init: ProcessName::of(init)?, shim: ProcessName::of(shim)?, lines, speak })
}

impl Created {
    /// Has the container deleted instead: without a word from us its init runs nothing. Waits until it's gone.
    pub async fn abandon(mut self) {
        drop(self.speak);
        // It says that it failed, as it was told to.
        while let Ok(Some(_)) = self.lines.next_line().await {}
    }

    /// Lets the container go on.
    ///
    /// # Errors
    /// [`ShimError`]; the container has been deleted then.
    pub async fn start(mut self) -> Result<Running, ShimError> {
        self.speak.write_all(b"start\n").await?;
        match next(&mut self.lines).await?.as_str() {
            "started" => Ok(Running { lines: self.lines, _speak: self.speak }),
            other => Err(ShimError::Failed(other.to_owned())),
        }
    }
}

impl Running {
    /// Waits for the end of the run: its init has been waited for, so none of its processes is left.
    ///
    /// # Errors
    /// [`ShimError`] if the shim was killed: the run's exit is not known then.
    pub async fn exited(mut self) -> Result<(Exit, Leaving), ShimError> {
        let line = next(&mut self.lines).await?;
        let mut words = line.split(' ');
        let exit = match (words.next(), words.next(), words.next()) {
            (Some("exited"), Some(code), Some(signal)) => {
                code.parse().ok().map(|exit_code| Exit { exit_code, signal: signal.parse().ok() })
            }
            _ => None,
        };
        exit.map(|exit| (exit, Leaving(self.lines))).ok_or(ShimError::Failed(line))
    }
}

/// A shim whose run has ended and whose container is being deleted.
#[derive(Debug)]
pub struct Leaving(Lines<BufReader<OwnedReadHalf>>);

impl Leaving {
    /// Waits until the container is deleted. A failure is said in the agent's log, and the tear-down of the cgroup
    /// deals with what is left.
    pub async fn deleted(mut self) {
        while let Ok(Some(line)) = self.0.next_line().await {
            tracing::warn!(shim = %line, "a container was not deleted cleanly");
        }
    }
}

async fn next(lines: &mut Lines<BufReader<OwnedReadHalf>>) -> Result<String, ShimError> {
    let line = lines.next_line().await?.ok_or(ShimError::Silent)?;
    match line.strip_prefix("failed ") {
        Some(why) => Err(ShimError::Failed(why.chars().take(MESSAGE).collect())),
        None => Ok(line),
    }
}

async fn spawn(start: Start<'_>, control: &OwnedFd) -> Result<(), ShimError> {
    let [stdin, stdout, stderr] = start.stdio;
    let mut command = Command::new(start.tool);
    command.env_clear().arg("shim");
    command.arg("--bundle").arg(start.folder.bundle()).args(["--id", start.id]);
    command.arg("--runc").arg(start.runc).arg("--root").arg(start.root);
    command.arg("--exit-file").arg(start.folder.exit_file()).arg("--pid-file").arg(start.folder.pid_file());
    command.args(["--control-fd", &control.as_raw_fd().to_string()]).arg("--cgroup").arg(start.cgroup);
    if start.terminal {
        command.arg("--console-socket").arg(start.folder.console_socket());
    }
    command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
    let inherited = control.try_clone()?;
    let number = control.as_raw_fd();
    // SAFETY: the closure runs between fork and exec and calls fcntl(2) alone, which is async-signal-safe; `number`
    // is the descriptor `control`, which the parent keeps open until the child has been spawned.
    unsafe {
        command.pre_exec(move || {
            let _keep = &inherited;
            let control = std::os::fd::BorrowedFd::borrow_raw(number);
            Ok(fcntl_setfd(control, FdFlags::empty())?)
        });
    }
    // Its first half ends at once; a shim that can't start says so on its way out.
    let path = start.tool.to_owned();
    let child = tokio::process::Command::from(command).spawn();
    let status = child.map_err(|source| ShimError::Start { path, source })?.wait().await?;
    if status.success() { Ok(()) } else { Err(ShimError::Failed(format!("the shim ended with {status}"))) }
}

/// What the exit file says; `None` if there is none.
pub fn read_exit(folder: &Folder) -> Option<Exit> {
    serde_json::from_slice(&fs::read(folder.exit_file()).ok()?).ok()
}

/// Waits for a shim that an earlier agent started.
///
/// # Errors
/// If the process can't be watched.
pub async fn wait_for(process: &Process) -> io::Result<()> {
    let watched = crate::readiness::watch(process.pidfd().try_clone_to_owned()?)?;
    // A pidfd becomes readable when its process ends (pidfd_open(2)).
    let _ready = watched.readable().await?;
    Ok(())
}
