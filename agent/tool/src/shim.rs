//! Watches over one run from outside, so that the run outlives the agent and its exit code isn't lost.
//!
//! It detaches (own session, own cgroup), becomes the subreaper of what `runc run` leaves behind, gives the container's
//! init its word when told to start, waits for its end, writes the exit file and deletes the container.
//!
//! One `runc run`, not `create` and `start`: a second process of runc's costs a run 12 ms, and init waits just as well
//! as runc does.
//!
//! The agent speaks to it over the socket `--control-fd`, in lines:
//!
//! ```text
//! shim  → created INIT_PID SHIM_PID     the container is there and waits
//! agent → start
//! shim  → started                       from here on the agent may die: nothing depends on it
//! shim  → exited CODE SIGNAL            written after the exit file; SIGNAL is `-` or a number
//! shim  → failed WHY                    instead of any of these; the container has been deleted
//! end of file                           the container is deleted: tear-down may begin
//! ```
//!
//! If the agent goes away before `start`, the container is deleted and there is no exit file: nothing ran.

use std::{
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    process::{Command, ExitCode},
};

use nix::sys::signal::SigSet;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, WaitOptions, getpid, set_child_subreaper, setsid, wait},
    stdio::{dup2_stderr, dup2_stdin, dup2_stdout},
};

use crate::{
    descriptors, failed,
    shim::{
        arguments::Arguments,
        exit_file::Exit,
        runc::{Runc, RuncFailed},
    },
};

mod arguments;
mod exit_file;
mod runc;

/// How long init may take to hear its word, seconds; it is as good as started then.
const HEARD_WITHIN: i64 = 2;

/// Why a shim gave up before its container ran.
#[derive(Debug)]
enum Fault {
    /// A step of setting up the shim itself.
    Shim(&'static str, io::Error),
    /// `runc` said no.
    Runc(RuncFailed),
    /// The agent closed the control socket or said something else before `start`.
    NotStarted,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shim(step, error) => write!(f, "the shim can't {step}: {error}"),
            Self::Runc(error) => error.fmt(f),
            Self::NotStarted => f.write_str("the agent went away before it started the run"),
        }
    }
}

impl From<RuncFailed> for Fault {
    fn from(error: RuncFailed) -> Self {
        Self::Runc(error)
    }
}

/// Runs the role. The first process only starts the second and ends, so that the agent isn't its parent.
pub(crate) fn run(arguments: &[OsString]) -> ExitCode {
    let parsed = match Arguments::parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return failed(error),
    };
    if parsed.detached {
        return stay(&parsed);
    }
    // Nothing of the agent's environment: `runc` acts on NOTIFY_SOCKET and LISTEN_FDS.
    let started = Command::new("/proc/self/exe")
        .env_clear()
        .args(["shim", arguments::DETACHED])
        .args(arguments)
        .spawn();
    match started {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => failed(format_args!("the shim can't start its detached half: {error}")),
    }
}

/// The detached half, from beginning to end.
fn stay(arguments: &Arguments) -> ExitCode {
    let mut control = match descriptors::keep_only(arguments.control_fd) {
        Ok(fd) => UnixStream::from(fd),
        Err(error) => return failed(format_args!("the shim has no control socket: {error}")),
    };
    let runc = Runc::new(arguments);
    let outcome = detach(arguments).and_then(|()| carry(&runc, arguments, &mut control));
    // In every case: a container that was never created makes this a no-op.
    let deleted = runc.delete();
    match (outcome, deleted) {
        (Ok(()), Ok(())) => ExitCode::SUCCESS,
        (Ok(()), Err(error)) => {
            say(&mut control, &format!("failed {error}"));
            ExitCode::from(crate::STRAIT_FAILED)
        }
        (Err(fault), _) => {
            say(&mut control, &format!("failed {fault}"));
            ExitCode::from(crate::STRAIT_FAILED)
        }
    }
}

/// Leaves the agent's session, cgroup and signals behind and becomes the parent of orphans.
fn detach(arguments: &Arguments) -> Result<(), Fault> {
    setsid().map_err(|error| Fault::Shim("make a session", error.into()))?;
    // Only SIGKILL ends a shim: an exit code lost is lost for good.
    SigSet::all().thread_block().map_err(|error| Fault::Shim("block signals", error.into()))?;
    if let Some(cgroup) = &arguments.cgroup {
        fs::write(cgroup.join("cgroup.procs"), "0")
            .map_err(|error| Fault::Shim("move to its cgroup", error))?;
    }
    set_child_subreaper(Some(getpid())).map_err(|error| Fault::Shim("become a subreaper", error.into()))?;
    std::env::set_current_dir("/").map_err(|error| Fault::Shim("change to `/`", error))
}

/// Run, let go when told, wait, write down.
fn carry(runc: &Runc<'_>, arguments: &Arguments, control: &mut UnixStream) -> Result<(), Fault> {
    let (hear, mut word) = descriptors::word().map_err(|error| Fault::Shim("make a pipe", error))?;
    let init = runc.run()?;
    drop(hear);
    // The container has its stdio; a copy here would keep its reader waiting after it has ended.
    release_stdio().map_err(|error| Fault::Shim("let go of stdio", error))?;
    say(control, &format!("created {} {}", init.as_raw_nonzero(), getpid().as_raw_nonzero()));
    if !told_to_start(control) {
        return Err(Fault::NotStarted);
    }
    // An init that has died already shows by its exit.
    let _ = word.write_all(b"!");
    until_heard(&word);
    drop(word);
    say(control, "started");
    let exit = wait_for(init).map_err(|error| Fault::Shim("wait for the run", error))?;
    exit.write(&arguments.exit_file).map_err(|error| Fault::Shim("write the exit file", error))?;
    let signal = exit.signal.map_or_else(|| "-".to_owned(), |signal| signal.to_string());
    say(control, &format!("exited {} {signal}", exit.code));
    Ok(())
}

/// Waits until init has its word: before that it may be `runc` still, which loses what it is signalled.
fn until_heard(word: &impl AsFd) {
    let patience = Timespec { tv_sec: HEARD_WITHIN, tv_nsec: 0 };
    // An error of the writing end is that nobody has the reading end open any more.
    let _ = poll(&mut [PollFd::new(word, PollFlags::empty())], Some(&patience));
}

fn release_stdio() -> io::Result<()> {
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    Ok(())
}

/// One line to the agent. An agent that has gone isn't a fault: the exit file is for the next one.
fn say(control: &mut UnixStream, line: &str) {
    let line = line.replace('\n', " ");
    let _ = control.write_all(format!("{line}\n").as_bytes());
}

fn told_to_start(control: &mut UnixStream) -> bool {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < 16 {
        match control.read(&mut byte) {
            Ok(1) if byte == [b'\n'] => return line == b"start",
            Ok(1) => line.extend(byte),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => return false,
        }
    }
    false
}

/// Collects every orphan until `init` is among them.
fn wait_for(init: Pid) -> io::Result<Exit> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == init => {
                if let Some(exit) = Exit::of(status) {
                    return Ok(exit);
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
