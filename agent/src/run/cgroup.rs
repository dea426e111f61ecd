//! Control groups of runs: `<root>/<instance>/<run>`, in the unified hierarchy and, where the host still has them, in
//! every version 1 hierarchy (runc makes its `box` in all of them and removes only that).
//!
//! Roots come from mountinfo, never from a template: on hybrid hosts version 2 is at `/sys/fs/cgroup/unified`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::instance::Instance;

/// Folder of the shims, outside every service's.
const SHIMS: &str = ".shims";
/// How long a killed group may take to empty.
const EMPTY_WITHIN: Duration = Duration::from_secs(5);

/// A step with the folder or file that failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The host has no unified hierarchy.
    #[error(
        "no cgroup v2 is mounted: boot with systemd.unified_cgroup_hierarchy=1 or mount one \
             (mount -t cgroup2 none /sys/fs/cgroup/unified)"
    )]
    NoUnified,
    /// A file or folder.
    #[error("can't {action} `{path}`", path = path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::File { action, path, source }
}

/// Mount points of the hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchies {
    unified: PathBuf,
    legacy: Vec<PathBuf>,
}

impl Hierarchies {
    /// Reads `/proc/self/mountinfo`.
    ///
    /// # Errors
    /// [`CgroupError::NoUnified`] with how to get one.
    pub fn find() -> Result<Self, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(failed("read", path))?;
        Self::parse(&text).ok_or(CgroupError::NoUnified)
    }

    /// proc(5): fields 5 (mount point), and after ` - ` the file system's type.
    fn parse(mountinfo: &str) -> Option<Self> {
        let mut unified = None;
        let mut legacy = Vec::new();
        for line in mountinfo.lines() {
            let Some((mount, super_block)) = line.split_once(" - ") else { continue };
            let Some(point) = mount.split(' ').nth(4).map(PathBuf::from) else { continue };
            match super_block.split(' ').next() {
                Some("cgroup2") if unified.is_none() => unified = Some(point),
                Some("cgroup") => legacy.push(point),
                _ => {}
            }
        }
        Some(Self { unified: unified?, legacy })
    }

    /// Makes the group of a run in the unified hierarchy; runc makes the rest.
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn create(&self, instance: &Instance, run: &str) -> Result<RunCgroup, CgroupError> {
        let group = self.of(instance, run);
        fs::create_dir_all(&group.path).map_err(failed("make", &group.path))?;
        Ok(group)
    }

    /// The group of a run, whether or not it exists.
    pub fn of(&self, instance: &Instance, run: &str) -> RunCgroup {
        let below = |root: &PathBuf| root.join(&instance.cgroup).join(run);
        RunCgroup { path: below(&self.unified), legacy: self.legacy.iter().map(below).collect() }
    }

    /// Makes the group that shims move to.
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn shims(&self, instance: &Instance) -> Result<PathBuf, CgroupError> {
        let path = self.unified.join(&instance.cgroup).join(SHIMS);
        fs::create_dir_all(&path).map_err(failed("make", &path))?;
        Ok(path)
    }
}

/// The group of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCgroup {
    path: PathBuf,
    legacy: Vec<PathBuf>,
}

impl RunCgroup {
    /// Its folder in the unified hierarchy: what kernel programs are attached to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path below every hierarchy's root, as OCI's `cgroupsPath` wants it: the runtime's own group is in it.
    pub fn oci_path(instance: &Instance, run: &str) -> PathBuf {
        Path::new("/").join(&instance.cgroup).join(run).join("box")
    }

    /// Stops every process where it is; returns when the kernel has taken the order.
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn freeze(&self) -> Result<(), CgroupError> {
        self.order("cgroup.freeze", "freeze")
    }

    /// SIGKILL to every process, frozen or not, those being forked included (kernel 5.14).
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn kill(&self) -> Result<(), CgroupError> {
        self.order("cgroup.kill", "kill")
    }

    fn order(&self, file: &str, action: &'static str) -> Result<(), CgroupError> {
        let file = self.path.join(file);
        fs::write(&file, "1").map_err(failed(action, &file))
    }

    /// Whether no process is left; a group that is gone has none.
    pub fn is_empty(&self) -> bool {
        fs::read_to_string(self.path.join("cgroup.events"))
            .map_or(true, |events| events.lines().any(|line| line == "populated 0"))
    }

    /// Kills what is left and removes the group from every hierarchy.
    ///
    /// # Errors
    /// [`CgroupError::File`] if something stays; a group that is gone is no error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        if !self.is_empty() {
            self.kill()?;
            let until = Instant::now() + EMPTY_WITHIN;
            while !self.is_empty() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        for path in self.legacy.iter().chain([&self.path]) {
            remove_nested(path).map_err(failed("remove", path))?;
        }
        Ok(())
    }
}

/// Groups are removed from the leaves up; their files go with them.
fn remove_nested(path: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_nested(&entry.path())?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_come_from_mountinfo() {
        let hybrid = "30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
                      31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw\n\
                      32 30 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let found = Hierarchies::parse(hybrid).unwrap();
        assert_eq!(found.unified, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(found.legacy, [Path::new("/sys/fs/cgroup/pids")]);
        let pure = "31 30 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(Hierarchies::parse(pure).unwrap().legacy, [] as [&Path; 0]);
        assert_eq!(Hierarchies::parse("1 2 3 / / rw - ext4 /dev/vda rw\n"), None);
    }

    #[test]
    fn a_group_freezes_kills_and_leaves_nothing() {
        let mut instance = Instance::standard("strait".parse().unwrap());
        instance.cgroup = format!("strait-cgroup-test-{}", std::process::id());
        let hierarchies = Hierarchies::find().expect("needs root and cgroup v2: cargo xtask setup");
        let group = hierarchies.create(&instance, "a-aaaaaa").unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(group.is_empty());
        fs::write(group.path().join("cgroup.procs"), sleeper.id().to_string()).unwrap();
        assert!(!group.is_empty());
        group.freeze().unwrap();
        group.remove().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&sleeper.wait().unwrap()), Some(9));
        assert!(!group.path().exists());
        group.remove().unwrap();
        fs::remove_dir(group.path().parent().unwrap()).unwrap();
    }
}
