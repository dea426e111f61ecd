//! The private home of a person for an agent: made at the first run, kept for the next, theirs to the last folder.

use std::{
    io,
    os::unix::fs::{DirBuilderExt, chown},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, Gid, Mode, OFlags, Uid},
    io::Errno,
};
use strait_contract::ids::AgentName;

use super::{account::Account, mounts::Admitted, order::StartError};
use crate::instance::Instance;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Where it is on the host, with a folder for each of `mounts` that goes below it.
///
/// # Errors
/// [`StartError::Home`] if it can't be made.
pub(super) fn prepare(
    instance: &Instance,
    account: &Account,
    agent: &AgentName,
    mounts: &[Admitted],
) -> Result<PathBuf, StartError> {
    let path = instance.state_dir.join("homes").join(account.uid.to_string()).join(agent.as_str());
    let failed = |source| StartError::Home { path: path.clone(), source };
    make(&path, account).map_err(failed)?;
    for mount in mounts {
        let Ok(below) = mount.path.strip_prefix(&account.home) else { continue };
        let folders = if mount.folder { Some(below) } else { below.parent() };
        if let Some(folders) = folders {
            make_below(&path, folders, account).map_err(|errno| failed(errno.into()))?;
        }
    }
    Ok(path)
}

fn make(path: &Path, account: &Account) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    chown(path, Some(account.uid), Some(account.gid))
}

/// Makes the folders `below` a home as the person's own. runc would make those that a mount needs as root's, for good:
/// after one run of an agent that is installed in `~/.local/share` no run could write to `~/.local`.
///
/// Runs may have left anything in their home, and another may be changing it now: no link is followed, only a folder
/// made here changes hands, and by its descriptor. What is in the way is left to runc, which looks inside the run's root.
fn make_below(home: &Path, below: &Path, account: &Account) -> Result<(), Errno> {
    let mut folder = rustix::fs::openat(CWD, home, FOLDER, Mode::empty())?;
    for component in below.components() {
        let Component::Normal(name) = component else { return Ok(()) };
        let made = match rustix::fs::mkdirat(&folder, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno),
        };
        folder = match rustix::fs::openat(&folder, name, FOLDER, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        if made {
            let owner = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
            rustix::fs::fchown(&folder, Some(owner.0), Some(owner.1))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;
    use crate::run::mounts::{Access, Purpose};

    fn mount(path: &str, folder: bool) -> Admitted {
        let source = std::fs::File::open("/").unwrap().into();
        Admitted { source, path: path.into(), access: Access::ReadOnly, purpose: Purpose::Program, folder }
    }

    /// Needs root: the folders become another's.
    #[test]
    fn folders_for_mounts_below_a_home_are_the_persons_and_no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let instance = Instance {
            state_dir: place.path().to_owned(),
            ..Instance::standard("strait".parse::<AgentName>().unwrap())
        };
        let account = Account {
            uid: 4_000_123,
            gid: 4_000_124,
            name: "ann".into(),
            home: "/home/ann".into(),
            admin: false,
        };
        let agent = "coder".parse().unwrap();
        let home = prepare(&instance, &account, &agent, &[]).unwrap();
        let elsewhere = place.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, home.join("link")).unwrap();
        std::fs::write(home.join("file"), "").unwrap();
        std::fs::create_dir(home.join("roots")).unwrap();
        let mounts = [
            mount("/home/ann/.local/share/claude/versions", true),
            mount("/home/ann/.local/bin/claude", false),
            mount("/home/ann/link/x", true),
            mount("/home/ann/file/x", true),
            mount("/home/ann/roots/new", true),
            mount("/srv/app", true),
        ];
        assert_eq!(prepare(&instance, &account, &agent, &mounts).unwrap(), home);
        let owner = |path: &str| {
            let meta = std::fs::symlink_metadata(home.join(path)).unwrap();
            (meta.uid(), meta.gid(), meta.is_dir())
        };
        for path in ["", ".local", ".local/share", ".local/share/claude/versions", ".local/bin", "roots/new"]
        {
            assert_eq!(owner(path), (4_000_123, 4_000_124, true), "{path}");
        }
        assert!(!home.join(".local/bin/claude").exists(), "a file's own place is runc's to make");
        assert_eq!(owner("roots"), (0, 0, true), "what was there keeps its owner");
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0, "the link was not followed");
        assert!(home.join("file").is_file() && !home.join("srv").exists());
    }
}
