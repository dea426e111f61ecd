//! The signed head of a chain: how far it goes and with which hash, so that a change of the last line, or its
//! loss, is visible too.
//!
//! One line of [`LENGTH`] bytes, written in place: less than a disk sector, so it's never half old.

use std::{fs, io, os::unix::fs::FileExt as _, path::Path};

use ed25519_dalek::{Signature, VerifyingKey};
use serde::{Deserialize, Serialize};

use super::{
    key::HostKey,
    line::{hex, unhex},
};

/// Bytes of a head file.
pub(super) const LENGTH: usize = 512;
/// Name of the head file in a chain's folder.
pub(super) const FILE: &str = "head";
/// What stands between a head's signed bytes and its signature.
const SIGNATURE: &str = ",\"sig\":\"";

/// How far a chain goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    /// The run, or `host`.
    pub chain: String,
    /// Number of the last line.
    pub seq: u64,
    /// Hash of the last line; of the chain's name if there is none.
    pub hash: String,
    /// How many sealed segments come before the file the last line is in.
    pub segment: u32,
    /// Bytes of that file up to the last line's end.
    pub bytes: u64,
    /// Whether the chain is closed: nothing comes after.
    pub sealed: bool,
    /// Which key signs.
    pub key: String,
}

/// Why a head can't be believed.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadHead {
    /// It isn't there.
    #[error("the head is missing")]
    Missing,
    /// It can't be read.
    #[error("the head can't be read: {0}")]
    Io(io::Error),
    /// It isn't a head.
    #[error("the head is damaged")]
    Malformed,
    /// Its signature isn't this host's.
    #[error("the head's signature doesn't fit this host's key")]
    Signature,
    /// It is another chain's.
    #[error("the head is that of `{0}`")]
    Foreign(String),
}

impl Head {
    /// The file's bytes.
    ///
    /// # Errors
    /// A name too long for a head, which [`strait_contract::ids::RunId`] rules out.
    pub(super) fn encode(&self, key: &HostKey) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_string(self)?;
        text.pop();
        let signature = key.sign(text.as_bytes());
        text.push_str(SIGNATURE);
        text.push_str(&hex(&signature.to_bytes()));
        text.push_str("\"}");
        if text.len() >= LENGTH {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = text.into_bytes();
        bytes.resize(LENGTH - 1, b' ');
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Writes the head file in place.
    ///
    /// # Errors
    /// I/O errors; the file is as it was or as it should be.
    pub(super) fn write(&self, key: &HostKey, file: &fs::File, durable: bool) -> io::Result<()> {
        file.write_all_at(&self.encode(key)?, 0)?;
        if durable { file.sync_data() } else { Ok(()) }
    }

    /// Reads and checks the head in a chain's folder.
    ///
    /// # Errors
    /// See [`BadHead`].
    pub(super) fn read(folder: &Path, chain: &str, key: &VerifyingKey) -> Result<Self, BadHead> {
        let bytes = match fs::read(folder.join(FILE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(BadHead::Missing),
            Err(error) => return Err(BadHead::Io(error)),
        };
        if bytes.is_empty() {
            return Err(BadHead::Missing);
        }
        let head = Self::parse(&bytes, key)?;
        if head.chain == chain { Ok(head) } else { Err(BadHead::Foreign(head.chain)) }
    }

    fn parse(bytes: &[u8], key: &VerifyingKey) -> Result<Self, BadHead> {
        let text = std::str::from_utf8(bytes).map_err(|_| BadHead::Malformed)?;
        let line = text.strip_suffix('\n').filter(|_| bytes.len() == LENGTH).ok_or(BadHead::Malformed)?;
        let line = line.trim_end_matches(' ');
        let (signed, rest) = line.split_once(SIGNATURE).ok_or(BadHead::Malformed)?;
        let signature = rest.strip_suffix("\"}").and_then(unhex::<64>).ok_or(BadHead::Malformed)?;
        key.verify_strict(signed.as_bytes(), &Signature::from_bytes(&signature))
            .map_err(|_| BadHead::Signature)?;
        serde_json::from_str(&format!("{signed}}}")).map_err(|_| BadHead::Malformed)
    }
}
