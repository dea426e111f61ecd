//! Policies from a sealed memfd to a compiled snapshot.

use std::{fs::File, io::Read, os::fd::OwnedFd};

use strait_contract::message::PolicyFile;
use strait_policies::Snapshot;

/// Most bytes of all policies together.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Reads and compiles; an error is the text for the person who wrote the policies.
pub(super) fn compile(fd: OwnedFd, epoch: u64) -> Result<Snapshot, String> {
    let mut bytes = Vec::new();
    let file = File::from(fd);
    // The descriptor's offset is the agent's: read from the start whatever it is.
    let mut at = AtStart { file, offset: 0 };
    at.by_ref()
        .take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("the policies can't be read from the agent: {error}"))?;
    let files: Vec<PolicyFile> =
        postcard::from_bytes(&bytes).map_err(|error| format!("the policies can't be decoded: {error}"))?;
    Snapshot::compile(&files, epoch).map_err(|refused| refused.to_string())
}

struct AtStart {
    file: File,
    offset: u64,
}

impl Read for AtStart {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = std::os::unix::fs::FileExt::read_at(&self.file, buffer, self.offset)?;
        self.offset = self.offset.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        Ok(read)
    }
}
