//! Spools of gateways: the files in which their records are safe until they are in the log ([`strait_contract::spool`]).
//!
//! One for each gateway process, named for it. While the process lives it sends its records itself, this agent or the
//! next; once it has ended, what is left in its spool is written from here.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use strait_contract::{
    ids::RunId,
    record::Record,
    spool::{self, BYTES},
};

use super::reader::may_write;
use crate::run::process::ProcessName;

/// The spool of one gateway process.
#[derive(Clone, Debug)]
pub(super) struct Spool {
    owner: ProcessName,
    path: PathBuf,
    file: Arc<OwnedFd>,
}

/// Records that a spool held, by run; `None` is the host.
pub(super) type Found = HashMap<Option<RunId>, Vec<Vec<Record>>>;

impl Spool {
    /// The spool of a process, in `folder`, made if it isn't there.
    ///
    /// # Errors
    /// I/O errors; also if there is no memory for all of it, so that a full tmpfs shows now and not in a call.
    pub(super) fn of(folder: &Path, owner: ProcessName) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        let path = folder.join(format!("{}-{}", owner.pid, owner.started));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        fallocate(&file, FallocateFlags::empty(), 0, BYTES)?;
        Ok(Self { owner, path, file: Arc::new(file) })
    }

    /// Every spool in `folder`.
    pub(super) fn all(folder: &Path) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut spools = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let owner = name.to_str().and_then(|name| name.split_once('-')).and_then(|(pid, started)| {
                Some(ProcessName { pid: pid.parse().ok()?, started: started.parse().ok()? })
            });
            match owner.map(|owner| Self::of(folder, owner)) {
                Some(Ok(spool)) => spools.push(spool),
                Some(Err(error)) => tracing::error!(?name, %error, "a gateway's spool can't be read"),
                None => {}
            }
        }
        Ok(spools)
    }

    /// Whose it is.
    pub(super) fn owner(&self) -> ProcessName {
        self.owner
    }

    /// The file, to be handed over.
    pub(super) fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }

    /// What its gateway had not been told is in the log, but for what no gateway may write.
    pub(super) fn read(&self) -> io::Result<Vec<Vec<Record>>> {
        let left = spool::left(&File::from(self.file.try_clone()?))?;
        let sent = left.batches.len();
        let batches: Vec<_> = left.batches.into_iter().filter(|records| may_write(records)).collect();
        let refused = left.unreadable + (sent - batches.len()) as u64;
        if refused > 0 {
            tracing::error!(refused, pid = self.owner.pid, "a gateway's spool held what no gateway writes");
        }
        Ok(batches)
    }

    /// Removes it: everything in it is in the log.
    pub(super) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "the spool of a gateway that is gone stays");
        }
    }
}

/// Sorts batches by their run. One of several runs' records, which no gateway writes, goes with its first.
pub(super) fn by_run(batches: Vec<Vec<Record>>, found: &mut Found) {
    for records in batches {
        if let Some(first) = records.first() {
            found.entry(first.run.clone()).or_default().push(records);
        }
    }
}
