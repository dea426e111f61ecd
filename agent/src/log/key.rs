//! The host's Ed25519 key, which signs the heads of the chains.

use std::{
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

use super::line::{hex, unhex};

/// The key that signs for this host. Its file never leaves it.
#[derive(Debug)]
pub struct HostKey {
    key: SigningKey,
    name: String,
}

/// Why the host's key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file can't be read or made.
    #[error("the key `{path}` can't be used: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file doesn't hold a key.
    #[error(
        "`{0}` doesn't hold an Ed25519 key in hex: restore it from a backup, or move it away to begin anew"
    )]
    Malformed(PathBuf),
}

impl HostKey {
    /// Reads the key in `state_dir`, or makes it on first use: `keys/log.key` (0600) and `keys/log.pub`.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn load_or_make(state_dir: &Path) -> Result<Self, KeyError> {
        let folder = state_dir.join("keys");
        let path = folder.join("log.key");
        let fault = |path: &Path| {
            let path = path.to_owned();
            move |source| KeyError::File { path, source }
        };
        let bytes = match fs::read_to_string(&path) {
            Ok(text) => unhex(text.trim_end()).ok_or_else(|| KeyError::Malformed(path.clone()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut bytes = [0; 32];
                getrandom::fill(&mut bytes).map_err(|error| fault(&path)(error.into()))?;
                fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder).map_err(fault(&folder))?;
                write_new(&path, 0o600, &hex(&bytes)).map_err(fault(&path))?;
                bytes
            }
            Err(error) => return Err(fault(&path)(error)),
        };
        let key = SigningKey::from_bytes(&bytes);
        let public = hex(key.verifying_key().as_bytes());
        let public_path = folder.join("log.pub");
        if fs::read_to_string(&public_path).map(|text| text.trim_end() != public).unwrap_or(true) {
            write_new(&public_path, 0o644, &public).map_err(fault(&public_path))?;
        }
        let name = public.chars().take(16).collect();
        Ok(Self { key, name })
    }

    /// First 16 hex digits of the public key: which key signed.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn sign(&self, message: &[u8]) -> Signature {
        self.key.sign(message)
    }

    /// The public half.
    pub fn public(&self) -> VerifyingKey {
        self.key.verifying_key()
    }
}

/// Reads the public key beside the records in `state_dir`.
///
/// # Errors
/// See [`KeyError`].
pub(super) fn public_key(state_dir: &Path) -> Result<VerifyingKey, KeyError> {
    let path = state_dir.join("keys/log.pub");
    let text = fs::read_to_string(&path).map_err(|source| KeyError::File { path: path.clone(), source })?;
    unhex(text.trim_end())
        .and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok())
        .ok_or(KeyError::Malformed(path))
}

/// Writes a whole small file so that a crash leaves the old one or the new one.
fn write_new(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let _ = fs::remove_file(&temporary);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}
