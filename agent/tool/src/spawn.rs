//! Starts programs that owe nothing to the signals their parent has blocked, one of them in the foreground of
//! a terminal.
#![expect(unsafe_code, reason = "mask and foreground group are set between fork and exec")]

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
};

use nix::sys::signal::{SigSet, Signal};
use rustix::{process::getpid, stdio::stdin, termios::tcsetpgrp};

/// Has `command` start with an empty signal mask. The standard library lets a child inherit its parent's.
pub(crate) fn unblocked(command: &mut Command) -> &mut Command {
    // SAFETY: the closure runs between fork and exec and makes one system call: no allocation, no lock, no
    // memory shared with the parent.
    unsafe { command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?)) }
}

/// Starts `command` as leader of a new process group with an empty signal mask. With `foreground` that group
/// gets the terminal on stdin before the program starts, so that its first read doesn't stop it.
///
/// # Errors
/// Those of `fork` and `exec`; [`io::ErrorKind::NotFound`] if there is no such program.
pub(crate) fn leader(command: &mut Command, foreground: bool) -> io::Result<Child> {
    command.process_group(0);
    if foreground {
        // SAFETY: as in `unblocked`; the closure makes three raw system calls.
        unsafe { command.pre_exec(take_terminal) };
    }
    unblocked(command).spawn()
}

/// A group that isn't in the foreground is stopped by SIGTTOU for asking to be, unless that is blocked
/// (`tcsetpgrp(3)`).
fn take_terminal() -> io::Result<()> {
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGTTOU);
    blocked.thread_block()?;
    // A terminal that has gone away isn't a reason not to start.
    let _ = tcsetpgrp(stdin(), getpid());
    Ok(())
}
