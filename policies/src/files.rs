//! Reading a policy folder: `*.cedar` in it, and guardrails in its `guardrails/`.

use std::{
    io,
    path::{Path, PathBuf},
};

use strait_contract::message::PolicyFile;

use crate::bounds::FILE_BYTES;

/// A policy folder that can't be read whole. Nothing of it is used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The folder or a file in it.
    #[error("`{path}` can't be read: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that isn't text.
    #[error("`{path}` isn't UTF-8 text")]
    NotText {
        /// Which.
        path: PathBuf,
    },
    /// A file that is larger than a policy file may be.
    #[error("`{path}` is larger than {FILE_BYTES} bytes; split it into several files")]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// A file that looks like a policy file but would not be read.
    #[error("`{path}` is not read as a policy; name it `*.cedar` or move it away")]
    Stray {
        /// Which.
        path: PathBuf,
    },
}

/// The policy files of `dir`, in the order of their names: `*.cedar`, and as guardrails `guardrails/*.cedar`. A
/// folder that doesn't exist holds none.
///
/// # Errors
/// Anything in the folder that can't be read, since a set without one of its files is another set; and a `.cedar`
/// file whose name is written so that it would be passed over (`x.CEDAR`, `x.cedar.txt`).
pub fn read_dir(dir: &Path) -> Result<Vec<PolicyFile>, ReadError> {
    let mut files = read_folder(dir, "", false)?;
    files.extend(read_folder(&dir.join("guardrails"), "guardrails/", true)?);
    Ok(files)
}

fn read_folder(dir: &Path, prefix: &str, guardrail: bool) -> Result<Vec<PolicyFile>, ReadError> {
    let failed = |source| ReadError::Io { path: dir.to_owned(), source };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Editors keep their copies under such names.
        if name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        if name.ends_with(".cedar") {
            files.push(PolicyFile { name: format!("{prefix}{name}"), guardrail, text: read(&entry.path())? });
        } else if name.to_ascii_lowercase().contains(".cedar") && !name.ends_with(".cedarschema") {
            return Err(ReadError::Stray { path: entry.path() });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn read(path: &Path) -> Result<String, ReadError> {
    use io::Read;
    let failed = |source| ReadError::Io { path: path.to_owned(), source };
    let limit = u64::try_from(FILE_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > FILE_BYTES {
        return Err(ReadError::TooLarge { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|_| ReadError::NotText { path: path.to_owned() })
}
