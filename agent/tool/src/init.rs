//! PID 1 of a run: starts the command, hands it the signals, collects orphans, ends with its code.
//!
//! Without an init the kernel drops signals that a PID 1 has no handler for, so `kill -TERM $$` and a stop
//! from outside would do nothing.
//!
//! With `--wait` it starts the command only when a byte comes over the descriptor that the shim gave it, and ends
//! if that closes instead: so the container is built while the gate around it is still being proven.
//!
//! Architecture invariant: it opens no file and reads no byte of its stdin.

use std::{
    ffi::OsString,
    io::{self, Read},
    os::unix::process::ExitStatusExt,
    process::{Command, ExitCode, ExitStatus},
};

use nix::{
    errno::Errno,
    sys::signal::{SigSet, Signal, kill, killpg},
    unistd::Pid,
};
use rustix::{
    process::{WaitOptions, WaitStatus, getpid, ioctl_tiocsctty, set_child_subreaper, setsid, wait},
    stdio::stdin,
    termios::isatty,
};

use crate::{STRAIT_FAILED, complain, descriptors, failed, spawn};

/// Has init wait for its word.
const WAIT: &str = "--wait";

/// Exit code for a command that is there and can't be executed (POSIX, XCU 2.8.2).
const NOT_EXECUTABLE: u8 = 126;
/// Exit code for a command that isn't there.
const NOT_FOUND: u8 = 127;

/// Signals that a fault of this process itself raises: blocked, they would kill it or loop.
const FAULTS: [Signal; 7] = [
    Signal::SIGABRT,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGSEGV,
    Signal::SIGSYS,
    Signal::SIGTRAP,
];

/// Runs the command after an optional `--` and gives its exit code: its own, or 128 and the signal that ended
/// it, or 127 and 126 as a shell would if it can't be started.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // Blocked before anything else, so that neither the child's end nor a signal to us is missed: the kernel drops what
    // a PID 1 neither handles nor blocks.
    let signals = handled();
    if let Err(error) = signals.thread_block() {
        return failed(format_args!("init can't block signals: {error}"));
    }
    let mut arguments = arguments.peekable();
    if arguments.next_if(|argument| argument == WAIT).is_some()
        && let Err(error) = wait_for_word()
    {
        return failed(format_args!("the run was not started, nobody gave the word: {error}"));
    }
    arguments.next_if(|argument| argument == "--");
    let Some(program) = arguments.next() else { return failed("init needs a command: `init -- COMMAND`") };
    let mut command = Command::new(&program);
    command.args(arguments);
    // As PID 1 it is the reaper anyway; elsewhere it becomes one.
    let _ = set_child_subreaper(Some(getpid()));
    match spawn::leader(&mut command, claim_terminal()) {
        Ok(child) => match i32::try_from(child.id()) {
            Ok(pid) => watch(Pid::from_raw(pid), &signals),
            Err(_) => ExitCode::from(STRAIT_FAILED),
        },
        Err(error) => cannot_start(&program, &error),
    }
}

/// Waits until the shim says go. The end of file means that nobody is left who could.
fn wait_for_word() -> io::Result<()> {
    descriptors::given_word()?.read_exact(&mut [0])
}

fn handled() -> SigSet {
    Signal::iterator().filter(|signal| !FAULTS.contains(signal)).collect()
}

/// Makes a terminal on stdin the controlling one; true if there is one. An engine that has done so already
/// makes both calls fail, which is as good.
fn claim_terminal() -> bool {
    if !isatty(stdin()) {
        return false;
    }
    let _ = setsid();
    let _ = ioctl_tiocsctty(stdin());
    true
}

fn cannot_start(program: &OsString, error: &io::Error) -> ExitCode {
    let program = program.display();
    if error.kind() == io::ErrorKind::NotFound {
        complain(format_args!("`{program}` is not there: is it installed, and visible inside the run?"));
        return ExitCode::from(NOT_FOUND);
    }
    complain(format_args!("`{program}` can't be executed: {error}"));
    ExitCode::from(NOT_EXECUTABLE)
}

/// Waits for signals until the child is gone.
fn watch(child: Pid, signals: &SigSet) -> ExitCode {
    loop {
        match signals.wait() {
            Ok(Signal::SIGCHLD) => {
                if let Some(code) = collect(child) {
                    return code;
                }
            }
            // The terminal's wish to stop a background init: it neither reads nor writes there.
            Ok(Signal::SIGTTIN | Signal::SIGTTOU) => {}
            Ok(signal) => forward(child, signal),
            // EINTR, or a real-time signal that has no name: nothing to do for either.
            Err(_) => {}
        }
    }
}

/// To the whole group, as a terminal does; to the process if it left its group.
fn forward(child: Pid, signal: Signal) {
    if killpg(child, signal) == Err(Errno::ESRCH) {
        let _ = kill(child, signal);
    }
}

/// Collects every process that has ended; the child's exit code if it is among them.
fn collect(child: Pid) -> Option<ExitCode> {
    loop {
        let (pid, status) = match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some(ended)) => ended,
            Ok(None) => return None,
            Err(rustix::io::Errno::INTR) => continue,
            // No child at all: its status is lost, which is a fault of ours.
            Err(_) => return Some(ExitCode::from(STRAIT_FAILED)),
        };
        if pid.as_raw_nonzero().get() != child.as_raw() {
            continue;
        }
        match ended(status) {
            Some(code) => return Some(ExitCode::from(code)),
            None => resume(child, status),
        }
    }
}

/// Nobody in the run could continue a command that `^Z` stopped: there is no shell above it.
fn resume(child: Pid, status: WaitStatus) {
    if status.stopping_signal() == Some(Signal::SIGTSTP as i32) {
        forward(child, Signal::SIGCONT);
    }
}

/// The exit code for a process that has ended: 128 and the number for a signal.
pub(crate) fn ended(status: WaitStatus) -> Option<u8> {
    let status = ExitStatus::from_raw(status.as_raw());
    let code = status.code().or_else(|| status.signal().and_then(|signal| signal.checked_add(128)))?;
    u8::try_from(code).ok()
}
