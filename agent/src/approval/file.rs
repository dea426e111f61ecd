//! One small file per prompt, so that a later agent can tell people what was waiting: never enough to execute anything.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use strait_contract::{
    approval::ApprovalId,
    ids::RunId,
    redact::{redact_text, redact_url},
};

use super::prompts::{End, Owner, Past, Prompt};

/// Longest target in a file, bytes.
const MAX_TARGET: usize = 1024;

/// What is kept.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kept {
    id: ApprovalId,
    run: RunId,
    agent: String,
    user: String,
    action: String,
    target: String,
    opened_ms: u64,
}

/// Writes a prompt's file.
pub(super) fn write(folder: &Path, prompt: &Prompt) -> io::Result<()> {
    let (matter, shown) = (&prompt.matter, &prompt.matter.shown);
    let kept = Kept {
        id: prompt.id.clone(),
        run: matter.key.run.clone(),
        agent: matter.owner.agent.clone(),
        user: matter.owner.user.clone(),
        action: redact_text(&shown.action, 64),
        target: redact_url(&shown.target, MAX_TARGET),
        opened_ms: prompt.opened_ms,
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path(folder, &prompt.id))?;
    file.write_all(&serde_json::to_vec(&kept)?)
}

/// Removes a prompt's file.
pub(super) fn remove(folder: &Path, id: &ApprovalId) {
    // One that stays would be shown as expired by the next agent, no more.
    let _ = fs::remove_file(path(folder, id));
}

/// The prompts that an earlier agent left, and takes their files away.
pub(super) fn take(folder: &Path, now_ms: u64) -> Vec<Past> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut left = Vec::new();
    for file in files {
        if let Ok(bytes) = fs::read(file.path())
            && let Ok(kept) = serde_json::from_slice::<Kept>(&bytes)
        {
            let Kept { id, run, agent, user, action, target, opened_ms } = kept;
            let (owner, end) = (Owner { agent, user }, End::AgentRestarted);
            left.push(Past { id, run, owner, action, target, opened_ms, ended_ms: now_ms, end, by: None });
        }
        let _ = fs::remove_file(file.path());
    }
    left.sort_by_key(|past| past.opened_ms);
    left
}

fn path(folder: &Path, id: &ApprovalId) -> PathBuf {
    folder.join(format!("{id}.json"))
}
