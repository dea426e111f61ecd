//! A process that is named across restarts of the agent: number and start time together never mean another one.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process's name in this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessName {
    /// Process id in the host's pid namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot (proc(5), stat field 22).
    pub started: u64,
}

/// An open process: signals through it reach that process or none.
#[derive(Debug)]
pub struct Process {
    name: ProcessName,
    pidfd: OwnedFd,
}

impl ProcessName {
    /// The name of a live process.
    ///
    /// # Errors
    /// If it isn't there.
    pub fn of(pid: i32) -> io::Result<Self> {
        Ok(Self { pid, started: started(pid)? })
    }

    /// Opens it; `None` if it is gone, even if its number has a new bearer.
    ///
    /// # Errors
    /// If the kernel doesn't answer.
    pub fn open(self) -> io::Result<Option<Process>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Compared after opening: from here on the number can't change hands.
        match started(self.pid) {
            Ok(found) if found == self.started => Ok(Some(Process { name: self, pidfd })),
            _ => Ok(None),
        }
    }
}

impl Process {
    /// Its name.
    pub fn name(&self) -> ProcessName {
        self.name
    }

    /// Its descriptor: readable when the process has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Sends a signal; a process that has ended is no error.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Field 22 of `/proc/PID/stat`; the command name before it may hold spaces and parentheses.
fn started(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    // What follows the name is field 3.
    fields
        .split_whitespace()
        .nth(19)
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no start time in /proc/PID/stat"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_another_start_time_is_another_process() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let name = ProcessName::of(i32::try_from(child.id()).unwrap()).unwrap();
        let other = ProcessName { started: name.started + 1, ..name };
        assert!(other.open().unwrap().is_none());
        let process = name.open().unwrap().expect("it lives");
        process.signal(Signal::KILL).unwrap();
        child.wait().unwrap();
        assert!(process.signal(Signal::TERM).is_ok(), "too late, but no fault");
        assert!(name.open().unwrap().is_none());
    }
}
