//! The OCI runtime as a child process.

use std::{
    fmt, fs, io,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
};

use rustix::process::Pid;

use crate::{shim::arguments::Arguments, spawn};

/// What `runc` gets as environment: it looks for its own helpers on PATH and needs nothing else.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Most of `runc`'s message that is passed on, bytes.
const MESSAGE: usize = 1024;

/// One container of one runtime.
#[derive(Debug)]
pub(crate) struct Runc<'a> {
    arguments: &'a Arguments,
    log: PathBuf,
}

/// A step that `runc` didn't do.
#[derive(Debug)]
pub(crate) struct RuncFailed {
    step: &'static str,
    why: String,
}

impl fmt::Display for RuncFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "runc {} failed: {}", self.step, self.why)
    }
}

impl<'a> Runc<'a> {
    pub(crate) fn new(arguments: &'a Arguments) -> Self {
        Self { arguments, log: arguments.bundle.join("runc.log") }
    }

    /// Runs the container with our stdio and descriptor 3, over which its init waits for its word. Gives the init's
    /// process id, which is our child by the rules of `PR_SET_CHILD_SUBREAPER`.
    pub(crate) fn run(&self) -> Result<Pid, RuncFailed> {
        let mut command = self.command("run");
        command.args(["--detach", "--preserve-fds", "1"]);
        command.arg("--bundle").arg(&self.arguments.bundle);
        command.arg("--pid-file").arg(&self.arguments.pid_file);
        if let Some(socket) = &self.arguments.console_socket {
            command.arg("--console-socket").arg(socket);
        }
        self.finish("run", command.arg(&self.arguments.id))?;
        let pid = fs::read_to_string(&self.arguments.pid_file)
            .map_err(|error| RuncFailed { step: "run", why: error.to_string() })?;
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| RuncFailed { step: "run", why: "its pid file holds no process id".to_owned() })
    }

    /// Removes whatever there is of the container.
    pub(crate) fn delete(&self) -> Result<(), RuncFailed> {
        let mut command = self.command("delete");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.finish("delete", command.arg("--force").arg(&self.arguments.id))
    }

    fn command(&self, step: &'static str) -> Command {
        let mut command = Command::new(&self.arguments.runc);
        command.env_clear().env("PATH", PATH).arg("--log").arg(&self.log);
        if let Some(root) = &self.arguments.root {
            command.arg("--root").arg(root);
        }
        command.arg(step);
        command
    }

    fn finish(&self, step: &'static str, command: &mut Command) -> Result<(), RuncFailed> {
        match spawn::unblocked(command).status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(RuncFailed { step, why: self.last_message(status) }),
            Err(error) => Err(RuncFailed { step, why: self.missing(&error) }),
        }
    }

    fn missing(&self, error: &io::Error) -> String {
        format!("`{}` can't be executed: {error}", self.arguments.runc.display())
    }

    /// The last error in its log, or how it ended.
    fn last_message(&self, status: ExitStatus) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let last = log.lines().rfind(|line| line.contains("level=error"));
        let message = last.and_then(|line| line.split_once("msg=")).map(|(_, message)| message);
        message.map_or_else(|| status.to_string(), |message| message.chars().take(MESSAGE).collect())
    }
}
