//! Reading a policy folder: `*.cedar` in it, guardrails in its `guardrails/`, and the pinned tools beside it.

use std::{
    io,
    path::{Path, PathBuf},
};

use strait_contract::message::PolicyFile;

use crate::{bounds::FILE_BYTES, load::is_pin_name};

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
    #[error("`{path}` is not read; name it `*.cedar` (`*.json` for pinned tools) or move it away")]
    Stray {
        /// Which.
        path: PathBuf,
    },
}

/// The policy files of `dir`, in the order of their names: `*.cedar`, and as guardrails `guardrails/*.cedar`; then the
/// pinned tool lists `../tools/*.json` beside it. A folder that doesn't exist holds none.
///
/// # Errors
/// Anything in the folders that can't be read, since a set without one of its files is another set; and a file whose
/// name is written so that it would be passed over (`x.CEDAR`, `x.cedar.txt`, `x.json.txt`).
pub fn read_dir(dir: &Path) -> Result<Vec<PolicyFile>, ReadError> {
    let mut files = read_folder(dir, "", false)?;
    files.extend(read_folder(&dir.join("guardrails"), "guardrails/", true)?);
    files.extend(read_pins(&dir.join("../tools"))?);
    Ok(files)
}

/// `*.json` of a folder.
fn read_pins(dir: &Path) -> Result<Vec<PolicyFile>, ReadError> {
    let mut files = Vec::new();
    for (name, path) in entries(dir)? {
        if is_pin_name(&name) {
            files.push(PolicyFile { name: format!("../tools/{name}"), guardrail: false, text: read(&path)? });
        } else if name.to_ascii_lowercase().contains(".json") {
            return Err(ReadError::Stray { path });
        }
    }
    Ok(files)
}

/// The files of a folder by name, without those that editors leave; none if there is no folder.
fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>, ReadError> {
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
        if !name.starts_with('.') && !name.ends_with('~') {
            files.push((name, entry.path()));
        }
    }
    files.sort();
    Ok(files)
}

fn read_folder(dir: &Path, prefix: &str, guardrail: bool) -> Result<Vec<PolicyFile>, ReadError> {
    let mut files = Vec::new();
    for (name, path) in entries(dir)? {
        if name.ends_with(".cedar") {
            files.push(PolicyFile { name: format!("{prefix}{name}"), guardrail, text: read(&path)? });
        } else if name.to_ascii_lowercase().contains(".cedar") && !name.ends_with(".cedarschema") {
            return Err(ReadError::Stray { path });
        }
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_come_by_name_and_guardrails_are_marked() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("guardrails")).unwrap();
        for name in [
            "b.cedar",
            "a.cedar",
            "guardrails/g.cedar",
            "notes.txt",
            ".a.cedar.swp",
            "a.cedar~",
            "x.cedarschema",
        ] {
            fs::write(dir.path().join(name), "// text").unwrap();
        }
        let files = read_dir(dir.path()).unwrap();
        let names: Vec<_> = files.iter().map(|file| (file.name.as_str(), file.guardrail)).collect();
        assert_eq!(names, [("a.cedar", false), ("b.cedar", false), ("guardrails/g.cedar", true)]);
        assert_eq!(read_dir(&dir.path().join("missing")).unwrap(), []);
    }

    #[test]
    fn case_81_what_can_not_be_read_is_an_error_and_not_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        write("a.cedar", b"// fine");
        assert_eq!(read_dir(dir.path()).unwrap().len(), 1);
        write("b.CEDAR", b"// fine");
        assert!(matches!(read_dir(dir.path()), Err(ReadError::Stray { .. })));
        fs::rename(dir.path().join("b.CEDAR"), dir.path().join("b.cedar")).unwrap();
        write("b.cedar", b"\xff\xfe");
        assert!(matches!(read_dir(dir.path()), Err(ReadError::NotText { .. })));
        write("b.cedar", &vec![b' '; FILE_BYTES + 1]);
        assert!(matches!(read_dir(dir.path()), Err(ReadError::TooLarge { .. })));
        fs::remove_file(dir.path().join("b.cedar")).unwrap();
        fs::create_dir(dir.path().join("b.cedar")).unwrap();
        assert!(matches!(read_dir(dir.path()), Err(ReadError::Io { .. })));
    }
}
