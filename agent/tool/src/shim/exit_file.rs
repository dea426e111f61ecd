//! How a run ended, on disk for an agent that comes later.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use rustix::process::WaitStatus;

use crate::init::ended;

/// How the container's init ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Its exit code, or 128 and the signal's number.
    pub(crate) code: u8,
    /// The signal that ended it. Our init reports the command's signal by its code, so this is a kill of the
    /// whole run.
    pub(crate) signal: Option<i32>,
}

impl Exit {
    /// `None` for a process that was only stopped.
    pub(crate) fn of(status: WaitStatus) -> Option<Self> {
        Some(Self { code: ended(status)?, signal: status.terminating_signal() })
    }

    /// Writes `{"exitCode":N,"signal":S}`, whole or not at all, and on disk when it returns.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let signal = self.signal.map_or_else(|| "null".to_owned(), |signal| signal.to_string());
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(".new");
        let new = folder.join(name);
        let mut file = File::create(&new)?;
        writeln!(file, "{{\"exitCode\":{},\"signal\":{signal}}}", self.code)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        File::open(folder)?.sync_all()
    }
}
