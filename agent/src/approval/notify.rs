//! The operator's command that tells people of a prompt: the prompt's JSON on its standard input, nothing in its
//! arguments, an environment of its own.

use std::{process::Stdio, sync::Arc, time::Duration};

use tokio::{io::AsyncWriteExt as _, process::Command, sync::Semaphore};

/// How long a command may take.
const WITHIN: Duration = Duration::from_secs(30);
/// Commands at once; prompts beyond them wait for their turn.
const AT_ONCE: usize = 4;
/// Prompts whose commands wait for their turn; more are told of by `strait approvals` alone.
const MOST: usize = 256;

/// Tells people; clones share the turns.
#[derive(Clone, Debug)]
pub(super) struct Notifier {
    turns: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

/// Why people were not told.
#[derive(Debug, thiserror::Error)]
enum NotTold {
    #[error("`{program}` can't be run: {source}")]
    Start { program: String, source: std::io::Error },
    #[error("`{program}` ended with {status}")]
    Failed { program: String, status: std::process::ExitStatus },
    #[error("`{program}` took longer than {} s", WITHIN.as_secs())]
    Late { program: String },
}

impl Notifier {
    pub(super) fn new() -> Self {
        Self { turns: Arc::new(Semaphore::new(AT_ONCE)), room: Arc::new(Semaphore::new(MOST)) }
    }

    /// Runs `command` with `prompt` on its standard input; a failure is told in the service log.
    pub(super) fn tell(&self, command: Vec<String>, prompt: Vec<u8>) {
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            tracing::warn!("too many prompts at once: people aren't told of each");
            return;
        };
        let turns = Arc::clone(&self.turns);
        tokio::spawn(async move {
            let _turn = turns.acquire().await;
            if let Err(error) = run(&command, &prompt).await {
                tracing::warn!(%error, "people were not told of a prompt");
            }
            drop(place);
        });
    }
}

async fn run(command: &[String], prompt: &[u8]) -> Result<(), NotTold> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let failed = |source| NotTold::Start { program: program.clone(), source };
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let told = async {
        if let Some(mut stdin) = child.stdin.take() {
            // One that doesn't read has its reasons.
            let _ = stdin.write_all(prompt).await;
        }
        child.wait().await.map_err(failed)
    };
    match tokio::time::timeout(WITHIN, told).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(NotTold::Failed { program: program.clone(), status }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(NotTold::Late { program: program.clone() }),
    }
}
