//! The folder of one run, `<run_dir>/runs/<run>`: a small tmpfs of its own that holds the bundle, so that tokens
//! never reach a disk and one unmount removes everything.
//!
//! Invariant: nothing in it belongs to anyone but root, so no run and no other user steers what is mounted.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::CWD,
    mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags},
};

use super::mounts::Admitted;
use crate::instance::Instance;

/// Places inside a run that hold nothing until something is mounted there.
const SKELETON: &[&str] =
    &["usr", "etc", "proc", "dev", "tmp", "run", "sys", "tools/bin", "var/tmp", "opt", "mnt", "srv"];
/// Those that everybody may write to. runc 1.1 gives a tmpfs the mode of the folder it covers, whatever its `mode=`
/// says, so a user other than root would have no `/tmp` if these were like the others.
const SHARED: &[&str] = &["tmp", "run", "var/tmp"];
/// Merged-`/usr` links of the host, copied as links; on a host without them the folders are mounted.
pub const MERGED: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// A step with the folder that failed.
#[derive(Debug, thiserror::Error)]
#[error("can't {action} `{path}`", path = path.display())]
pub struct FolderError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> FolderError {
    let path = path.to_owned();
    move |error| FolderError { action, path, source: error.into() }
}

/// A run's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Where the folder of `run` is, whether or not it exists.
    pub fn of(instance: &Instance, run: &str) -> Self {
        Self { root: instance.run_dir.join("runs").join(run) }
    }

    /// The bundle: what `runc create --bundle` is given.
    pub fn bundle(&self) -> &Path {
        &self.root
    }

    /// The root file system.
    pub fn rootfs(&self) -> PathBuf {
        self.root.join("rootfs")
    }

    /// Mounted at `/run/strait`: the run's sockets.
    pub fn sockets(&self) -> PathBuf {
        self.root.join("sockets")
    }

    /// Where the shim says how the run ended.
    pub fn exit_file(&self) -> PathBuf {
        self.root.join("exit.json")
    }

    /// Process id of the run's init, in the host's pid namespace.
    pub fn pid_file(&self) -> PathBuf {
        self.root.join("init.pid")
    }

    /// Where runc hands over the terminal.
    pub fn console_socket(&self) -> PathBuf {
        self.root.join("console.sock")
    }

    /// Synthetic names of the run: survives the agent and the gateway, not the run.
    pub fn names(&self) -> PathBuf {
        self.root.join("names")
    }

    /// What the run is shown of credentials, for a later agent. Not in the root file system: no run sees it.
    pub fn exposed(&self) -> PathBuf {
        self.root.join("exposed.json")
    }

    /// Makes and mounts it.
    ///
    /// # Errors
    /// [`FolderError`] names the step.
    pub fn create(&self) -> Result<(), FolderError> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        if let Some(runs) = self.root.parent() {
            builder.create(runs).map_err(failed("make", runs))?;
        }
        // Not recursive: a folder of that name belongs to another run.
        fs::DirBuilder::new().mode(0o700).create(&self.root).map_err(failed("make", &self.root))?;
        rustix::mount::mount(
            "tmpfs",
            &self.root,
            "tmpfs",
            MountFlags::NOSUID | MountFlags::NODEV,
            Some(c"size=64m,mode=0700"),
        )
        .map_err(failed("mount a tmpfs on", &self.root))?;
        // A private mount: what is mounted in it doesn't show up in other mount namespaces and hold it there.
        rustix::mount::mount_change(&self.root, MountPropagationFlags::PRIVATE)
            .map_err(failed("make private", &self.root))?;
        self.skeleton()
    }

    fn skeleton(&self) -> Result<(), FolderError> {
        let rootfs = self.rootfs();
        // The root itself must be readable by the run's user, whatever our umask.
        for path in SKELETON.iter().map(|name| rootfs.join(name)).chain([rootfs.clone(), self.sockets()]) {
            fs::create_dir_all(&path).map_err(failed("make", &path))?;
            open_to_all(&path)?;
        }
        for path in SHARED.iter().map(|name| rootfs.join(name)) {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).map_err(failed("open", &path))?;
        }
        let tools = rootfs.join("tools");
        open_to_all(&tools)?;
        for name in MERGED {
            let link = rootfs.join(name);
            match fs::read_link(Path::new("/").join(name)) {
                Ok(target) => symlink(target, &link).map_err(failed("make", &link))?,
                Err(_) if Path::new("/").join(name).is_dir() => {
                    fs::create_dir(&link).map_err(failed("make", &link))?;
                }
                Err(_) => {}
            }
        }
        let beige = rootfs.join("beige");
        symlink("/run/strait", &beige).map_err(failed("make", &beige))?;
        // Links, as the distributions have them; /var/tmp is a place of its own, since a workspace may lie in it.
        for (target, name) in [("/run", "var/run"), ("/run/lock", "var/lock")] {
            let link = rootfs.join(name);
            symlink(target, &link).map_err(failed("make", &link))?;
        }
        Ok(())
    }

    /// Writes a file of the root file system; its folder is made.
    ///
    /// # Errors
    /// [`FolderError`] names the file.
    pub fn write(&self, inside: &str, content: &[u8]) -> Result<(), FolderError> {
        let path = self.rootfs().join(inside.trim_start_matches('/'));
        if let Some(parent) = path.parent().filter(|parent| !parent.exists()) {
            fs::create_dir_all(parent).map_err(failed("make", parent))?;
            open_to_all(parent)?;
        }
        fs::write(&path, content).map_err(failed("write", &path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).map_err(failed("write", &path))
    }

    /// Clones the mount tree behind an admitted descriptor into the folder and gives the place. Cloning from the
    /// descriptor, not the path, is what keeps a path that changed meanwhile from mattering.
    ///
    /// # Errors
    /// [`FolderError`], among others for a descriptor of another mount namespace (`EINVAL`).
    pub fn stage(&self, index: usize, mount: &Admitted) -> Result<PathBuf, FolderError> {
        let place = self.root.join("mounts").join(index.to_string());
        if mount.folder {
            fs::create_dir_all(&place).map_err(failed("make", &place))?;
        } else {
            fs::create_dir_all(self.root.join("mounts")).map_err(failed("make", &place))?;
            fs::File::create(&place).map_err(failed("make", &place))?;
        }
        let tree = clone_tree(&mount.source).map_err(failed("clone the mount of", &mount.path))?;
        rustix::mount::move_mount(tree.as_fd(), "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(failed("mount on", &place))?;
        Ok(place)
    }

    /// Unmounts and removes it. A folder that is gone is no error.
    ///
    /// # Errors
    /// [`FolderError`] if something of it stays.
    pub fn remove(&self) -> Result<(), FolderError> {
        use rustix::io::Errno;
        match rustix::mount::unmount(&self.root, UnmountFlags::DETACH) {
            // EINVAL: not a mount point, so `create` got no further than the folder.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => return Err(failed("unmount", &self.root)(errno)),
        }
        match fs::remove_dir(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &self.root)(error)),
            _ => Ok(()),
        }
    }
}

fn clone_tree(source: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    rustix::mount::open_tree(source, "", flags)
}

fn open_to_all(path: &Path) -> Result<(), FolderError> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(failed("open", path))
}
