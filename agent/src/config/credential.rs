//! Credentials by reference: `file:/path` or `env:NAME`.

use std::{env, fs, io, os::unix::fs::MetadataExt as _, path::PathBuf};

use strait_contract::message::Secret;
use zeroize::Zeroizing;

/// Why a credential can't be resolved. No variant shows a value.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// Not a reference.
    #[error("a credential is named by reference: `file:/path` or `env:NAME`, never by value")]
    NotAReference,
    /// The file can't be read.
    #[error("`{path}` can't be read: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read the file.
    #[error("`{0}` can be read by everybody: chmod 600 it")]
    Open(PathBuf),
    /// The variable isn't set.
    #[error("the variable `{0}` isn't set for strait-agent")]
    Unset(String),
    /// It's empty, or has a line break inside.
    #[error("`{0}` is empty or has more than one line")]
    Malformed(String),
}

/// Resolves a reference to its value.
pub(super) fn resolve(reference: &str) -> Result<Secret, CredentialError> {
    let value = match reference.split_once(':') {
        Some(("file", path)) => {
            let path = PathBuf::from(path);
            let fault = |source| CredentialError::File { path: path.clone(), source };
            if fs::metadata(&path).map_err(fault)?.mode() & 0o004 != 0 {
                return Err(CredentialError::Open(path));
            }
            fs::read_to_string(&path).map_err(fault)?
        }
        Some(("env", name)) => env::var(name).map_err(|_| CredentialError::Unset(name.to_owned()))?,
        _ => return Err(CredentialError::NotAReference),
    };
    let value = Zeroizing::new(value);
    let line = value.trim_end_matches(['\r', '\n']);
    if line.is_empty() || line.contains(['\r', '\n', '\0']) {
        return Err(CredentialError::Malformed(reference.to_owned()));
    }
    Ok(Secret::new(line.to_owned()))
}
