//! Processes that the agent makes of its own executable for one step that needs another namespace, cgroup,
//! user, or a stack that may overflow: `strait-agent __role ARGUMENT`.

use std::{
    env, fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{listeners, policy_source, supervise};

/// The executable that has the roles: `strait-agent`.
#[derive(Clone, Debug)]
pub struct Program(PathBuf);

impl Program {
    /// The running executable, which must call [`dispatch`].
    ///
    /// # Errors
    /// The kernel doesn't tell its path.
    pub fn current() -> io::Result<Self> {
        env::current_exe().map(Self)
    }

    /// The executable at `path`.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// A command that runs it in `role`, with an empty environment.
    pub(crate) fn command(&self, role: &str) -> Command {
        let mut command = Command::new(&self.0);
        command.arg(role).env_clear();
        command
    }
}

/// Runs the role that the arguments name, if they name one; to be called first in `main`.
pub fn dispatch() -> Option<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    let role = arguments.next()?.into_string().ok()?;
    let argument = arguments.next().and_then(|argument| argument.into_string().ok()).unwrap_or_default();
    let outcome = match role.as_str() {
        listeners::CHILD => listeners::child_main(&argument),
        policy_source::CHILD => policy_source::child_main(),
        supervise::CHILD => supervise::child_main(&argument),
        _ => return None,
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strait-agent {role}: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Moves the calling thread into the network namespace pinned at `path`.
pub(crate) fn enter_netns(path: &Path) -> io::Result<()> {
    let netns = fs::File::open(path)?;
    Ok(move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?)
}
