//! The operator's policies: read by the agent alone, compiled once in a child process before anyone else sees
//! them (deep nesting can abort Cedar's parser), then handed to the gateway over the link.
//!
//! A set that is refused changes nothing: the last good one stays. With none every call is refused.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};
use strait_contract::message::PolicyFile;
use strait_policies::Snapshot;

use crate::{
    child::Program,
    link::{Applied, Link, NotApplied},
};

/// First argument of the child that compiles.
pub const CHILD: &str = "__policies";
/// Most bytes of all policy files.
const MOST_BYTES: u64 = 16 * 1024 * 1024;
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
    #[error("`{path}` can't be read: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
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
    program: Program,
}

impl PolicySource {
    /// The policies of a config folder.
    pub fn new(config_dir: &Path, program: Program) -> Self {
        Self { folder: config_dir.join("policies"), program }
    }

    /// Reads and compiles what is there now, without making it live. Blocks.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn check(&self) -> Result<Checked, PolicyError> {
        let files = read(&self.folder)?;
        let digest = compile_in_child(&self.program, &files)?;
        Ok(Checked { files, digest })
    }

    /// Reads, compiles and makes live; the last good set stays on any error.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub async fn reload(&self, link: &Link) -> Result<(Checked, Applied), PolicyError> {
        let source = self.clone();
        let checked = tokio::task::spawn_blocking(move || source.check())
            .await
            .map_err(|error| PolicyError::Check(error.to_string()))??;
        let applied = link.set_policy(&checked.files, checked.digest.clone()).await?;
        Ok((checked, applied))
    }
}

/// All `*.cedar` files of the folder and of `guardrails/` in it, by name. A folder that isn't there has none.
fn read(folder: &Path) -> Result<Vec<PolicyFile>, PolicyError> {
    let mut files = Vec::new();
    let mut left = MOST_BYTES;
    for (guardrail, place) in [(true, folder.join("guardrails")), (false, folder.to_owned())] {
        let fault = |path: &Path| {
            let path = path.to_owned();
            move |source| PolicyError::File { path, source }
        };
        let entries = match fs::read_dir(&place) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(fault(&place)(error)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(fault(&place))?.path();
            if path.extension().is_some_and(|extension| extension == "cedar") {
                paths.push(path);
            }
        }
        paths.sort();
        for path in paths {
            let file = fs::File::open(&path).map_err(fault(&path))?;
            let mut text = String::new();
            let length = file.take(left + 1).read_to_string(&mut text).map_err(fault(&path))?;
            let length = u64::try_from(length).unwrap_or(u64::MAX);
            left = left.checked_sub(length).ok_or_else(|| PolicyError::TooLarge(folder.to_owned()))?;
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
            files.push(PolicyFile { name, guardrail, text });
        }
    }
    Ok(files)
}

fn compile_in_child(program: &Program, files: &[PolicyFile]) -> Result<String, PolicyError> {
    let check = |error: io::Error| PolicyError::Check(error.to_string());
    let input = postcard::to_stdvec(files).map_err(|error| PolicyError::Check(error.to_string()))?;
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
                return Err(PolicyError::Check(format!("compiling takes longer than {} s", COMPILE_WITHIN.as_secs())));
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
    let files: Vec<PolicyFile> = postcard::from_bytes(&input)?;
    let compiled = match Snapshot::compile(&files, 0) {
        Ok(snapshot) => Compiled::Digest(snapshot.digest().to_owned()),
        Err(refused) => Compiled::Refused(refused.to_string()),
    };
    io::stdout().write_all(&postcard::to_stdvec(&compiled)?)?;
    Ok(())
}
