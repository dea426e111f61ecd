//! The operator's policies: read by the agent alone, compiled once in a child process before anyone else sees
//! them (deep nesting can abort Cedar's parser), then handed to the gateway over the link.
//!
//! A set that is refused changes nothing: the last good one stays. With none every call is refused.

use std::{
    io,
    io::{Read as _, Write as _},
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};
use strait_contract::message::PolicyFile;
use strait_policies::{ReadError, Snapshot, read_dir};

use crate::{
    child::Program,
    config::Config,
    link::{Applied, Link, NotApplied},
};

/// First argument of the child that compiles.
pub const CHILD: &str = "__policies";
/// Most bytes of all policy files.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// How long compiling may take.
const COMPILE_WITHIN: Duration = Duration::from_secs(30);
/// Address space that compiling may take, bytes.
const COMPILE_MEMORY: u64 = 4 * 1024 * 1024 * 1024;

/// A set that compiled.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Its files.
    pub files: Vec<PolicyFile>,
    /// Its digest.
    pub digest: String,
}

/// Why policies aren't live.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A file or folder can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The files are too long.
    #[error("the policies in `{0}` are longer than {MOST_BYTES} bytes")]
    TooLarge(PathBuf),
    /// They don't compile; the text names file, line and column.
    #[error("{0}")]
    Refused(String),
    /// The process that compiles could not be run, or died.
    #[error("the policies could not be checked: {0}")]
    Check(String),
    /// The gateway didn't take them.
    #[error(transparent)]
    Link(#[from] NotApplied),
}

/// What the child is asked.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    files: Vec<PolicyFile>,
    passthrough: Vec<String>,
}

/// What the child answers.
#[derive(Debug, Serialize, Deserialize)]
enum Compiled {
    Digest(String),
    Refused(String),
}

/// Where policies come from.
#[derive(Clone, Debug)]
pub struct PolicySource {
    folder: PathBuf,
    passthrough: Vec<String>,
    program: Program,
}

impl PolicySource {
    /// The policies beside a config. Its passthrough hosts can't have rules about paths, since nobody reads them.
    pub fn new(config: &Config, program: Program) -> Self {
        Self {
            folder: config.instance.config_dir.join("policies"),
            passthrough: config.network.passthrough.clone(),
            program,
        }
    }

    /// Reads and compiles what is there now, without making it live. Blocks.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn check(&self) -> Result<Checked, PolicyError> {
        let files = read_dir(&self.folder)?;
        if files.iter().map(|file| file.text.len()).sum::<usize>() > MOST_BYTES {
            return Err(PolicyError::TooLarge(self.folder.clone()));
        }
        let task = Task { files, passthrough: self.passthrough.clone() };
        let digest = compile_in_child(&self.program, &task)?;
        Ok(Checked { files: task.files, digest })
    }

    /// Reads, compiles and makes live; the last good set stays on any error.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub async fn reload(&self, link: &Link) -> Result<(Checked, Applied), PolicyError> {
        self.begin().apply(link).await
    }

    /// Begins to read and compile on another thread. Needs a tokio runtime.
    pub fn begin(&self) -> Checking {
        let source = self.clone();
        Checking(tokio::task::spawn_blocking(move || source.check()))
    }
}

/// A set being compiled.
#[derive(Debug)]
pub struct Checking(tokio::task::JoinHandle<Result<Checked, PolicyError>>);

impl Checking {
    /// Waits until it has compiled and makes it live; the last good set stays on any error.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub async fn apply(self, link: &Link) -> Result<(Checked, Applied), PolicyError> {
        let checked = self.0.await.map_err(|error| PolicyError::Check(error.to_string()))??;
        let applied = link.set_policy(&checked.files, checked.digest.clone()).await?;
        Ok((checked, applied))
    }
}

fn compile_in_child(program: &Program, task: &Task) -> Result<String, PolicyError> {
    let check = |error: io::Error| PolicyError::Check(error.to_string());
    let input = postcard::to_stdvec(task).map_err(|error| PolicyError::Check(error.to_string()))?;
    let mut child = program
        .command(CHILD)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(check)?;
    // The child reads everything before it answers, so neither pipe can block the other. One that dies
    // early breaks the pipe, which its exit status explains better.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(&input);
    }
    let deadline = Instant::now() + COMPILE_WITHIN;
    let reader = child.stdout.take().map(|mut stdout| {
        std::thread::spawn(move || {
            let mut output = Vec::new();
            stdout.read_to_end(&mut output).map(|_| output)
        })
    });
    let status = loop {
        match child.try_wait().map_err(check)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(PolicyError::Check(format!(
                    "compiling takes longer than {} s",
                    COMPILE_WITHIN.as_secs()
                )));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let output = reader.and_then(|reader| reader.join().ok()).and_then(Result::ok).unwrap_or_default();
    match postcard::from_bytes(&output) {
        Ok(Compiled::Digest(digest)) if status.success() => Ok(digest),
        Ok(Compiled::Refused(why)) => Err(PolicyError::Refused(why)),
        _ => Err(PolicyError::Check(format!(
            "the compiler died ({status}): a policy is nested too deeply or takes too much memory"
        ))),
    }
}

/// The child: compiles what standard input holds and answers on standard output.
///
/// # Errors
/// The input can't be read or the answer not written.
pub fn child_main() -> anyhow::Result<()> {
    let most = Some(COMPILE_MEMORY);
    rustix::process::setrlimit(Resource::As, Rlimit { current: most, maximum: most })?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input)?;
    let Task { files, passthrough } = postcard::from_bytes(&input)?;
    let compiled = match Snapshot::compile(&files, 0) {
        Ok(snapshot) => match unread_path(&snapshot, &passthrough) {
            None => Compiled::Digest(snapshot.digest().to_owned()),
            Some(why) => Compiled::Refused(why),
        },
        Err(refused) => Compiled::Refused(refused.to_string()),
    };
    io::stdout().write_all(&postcard::to_stdvec(&compiled)?)?;
    Ok(())
}

/// Says which rule is about the paths of a host whose TLS isn't read (case 42).
fn unread_path(snapshot: &Snapshot, passthrough: &[String]) -> Option<String> {
    snapshot.hosts_with_path_rules().iter().find_map(|rule| {
        let host = passthrough.iter().find(|host| rule.host.names(host))?;
        Some(format!(
            "rule `{}` is about requests to `{host}`, which `network.passthrough` leaves unread: take the host out of \
             `passthrough`, or write a rule of action `connect`",
            rule.rule
        ))
    })
}
