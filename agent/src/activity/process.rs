//! Who is behind a process id: executable and its digest, cached.

use std::{
    fs, io,
    num::NonZeroUsize,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use lru::LruCache;
use sha2::{Digest, Sha256};
use strait_contract::{ids::RunId, run::Process};

use crate::instance::Instance;

/// Executables longer than this have no digest, bytes.
const MOST_HASHED: u64 = 512 * 1024 * 1024;
/// Longest path, bytes.
const MOST_PATH: usize = 4096;
const CACHED: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Looks up processes of runs; clones share the caches.
#[derive(Clone, Debug)]
pub struct Processes {
    /// Cgroup path below which the runs are: `/strait`.
    runs: Arc<str>,
    caches: Arc<Mutex<Caches>>,
}

#[derive(Debug)]
struct Caches {
    /// By process id and start time.
    paths: LruCache<(u32, u64), Option<Arc<str>>>,
    digests: LruCache<Identity, Arc<str>>,
}

/// What makes a file the same file: its change time can't be set by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Processes {
    /// Of an instance's runs.
    pub fn new(instance: &Instance) -> Self {
        let caches = Caches { paths: LruCache::new(CACHED), digests: LruCache::new(CACHED) };
        Self { runs: format!("/{}", instance.cgroup).into(), caches: Arc::new(Mutex::new(caches)) }
    }

    /// A run's process with the digest of its executable; `None` if there is none of that id in the run.
    /// Reads files: not for an async thread.
    pub fn whois(&self, run: &RunId, tgid: u32) -> Option<Process> {
        let started = start_time(tgid)?;
        let proc = format!("/proc/{tgid}");
        let cgroup = fs::read_to_string(format!("{proc}/cgroup")).ok()?;
        if !is_in(&cgroup, &self.runs, run.as_str()) {
            return None;
        }
        let exe = self.exe(tgid);
        let digest = self.digest(Path::new(&proc)).ok();
        let process = Process {
            pid: tgid,
            uid: fs::metadata(&proc).ok()?.uid(),
            comm: String::from_utf8_lossy(fs::read(format!("{proc}/comm")).ok()?.trim_ascii_end())
                .into_owned(),
            exe: exe.map(|exe| exe.to_string()),
            digest: digest.map(|digest| digest.to_string()),
        };
        // Another process may have got the id meanwhile.
        (start_time(tgid) == Some(started)).then_some(process)
    }

    /// Whether a process is outside every run; `None` if that can't be told, as of one that has ended. Reads files: not
    /// for an async thread.
    pub fn is_outside(&self, pid: u32) -> Option<bool> {
        let started = start_time(pid)?;
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        (start_time(pid) == Some(started)).then(|| !is_in_any(&cgroup, &self.runs))
    }

    /// Path of a process's executable, if the process is still there.
    pub fn exe(&self, pid: u32) -> Option<Arc<str>> {
        let key = (pid, start_time(pid)?);
        if let Some(known) = self.caches().paths.get(&key) {
            return known.clone();
        }
        let path = fs::read_link(format!("/proc/{pid}/exe")).ok();
        let path =
            path.map(|path| path.to_string_lossy().into_owned()).filter(|path| path.len() <= MOST_PATH);
        if start_time(pid) != Some(key.1) {
            return None;
        }
        let path: Option<Arc<str>> = path.map(Into::into);
        self.caches().paths.put(key, path.clone());
        path
    }

    fn digest(&self, proc: &Path) -> io::Result<Arc<str>> {
        let mut file = fs::File::open(proc.join("exe"))?;
        let found = file.metadata()?;
        let identity = Identity {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            changed: (found.ctime(), found.ctime_nsec()),
        };
        if let Some(known) = self.caches().digests.get(&identity) {
            return Ok(Arc::clone(known));
        }
        if identity.size > MOST_HASHED {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let length = io::Read::read(&mut file, &mut buffer)?;
            if length == 0 {
                break;
            }
            hash.update(buffer.get(..length).unwrap_or_default());
        }
        let digest: Arc<str> =
            hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
        // A file that changes while it is read has no digest worth keeping.
        let after = file.metadata()?;
        if (after.ctime(), after.ctime_nsec()) != identity.changed {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.caches().digests.put(identity, Arc::clone(&digest));
        Ok(digest)
    }

    fn caches(&self) -> std::sync::MutexGuard<'_, Caches> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `/proc/PID/cgroup` puts a process into the cgroup of a run or one below.
fn is_in(cgroup: &str, runs: &str, run: &str) -> bool {
    cgroup.lines().filter_map(|line| line.strip_prefix("0::")).any(|path| {
        path.strip_prefix(runs)
            .and_then(|rest| rest.strip_prefix('/'))
            .and_then(|rest| rest.strip_prefix(run))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Whether `/proc/PID/cgroup` puts a process into the cgroup of any run or one below. Names of runs begin with a letter;
/// the shims' and the gateway's group with a dot.
fn is_in_any(cgroup: &str, runs: &str) -> bool {
    cgroup.lines().filter_map(|line| line.strip_prefix("0::")).any(|path| {
        path.strip_prefix(runs)
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_lowercase()))
    })
}

/// Field 22 of `/proc/PID/stat`: start time in clock ticks since boot. The command name in field 2 may hold
/// anything, so counting starts behind its last parenthesis.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_from_others_by_whole_names() {
        for (cgroup, inside) in [
            ("0::/strait/coder-1/box\n", true),
            ("0::/strait/coder-1\n", true),
            ("12:pids:/other\n0::/strait/coder-1/box/deep\n", true),
            ("0::/strait/coder-12/box\n", false),
            ("0::/strait2/coder-1\n", false),
            ("0::/user.slice/strait/coder-1\n", false),
            ("1:name=systemd:/strait/coder-1\n0::/\n", false),
        ] {
            assert_eq!(is_in(cgroup, "/strait", "coder-1"), inside, "{cgroup}");
        }
    }

    #[test]
    fn a_process_of_any_run_is_inside() {
        for (cgroup, inside) in [
            ("0::/strait/coder-1/box\n", true),
            ("12:pids:/other\n0::/strait/x\n", true),
            ("0::/strait/.shims\n", false),
            ("0::/strait\n", false),
            ("0::/system.slice/strait.service\n", false),
        ] {
            assert_eq!(is_in_any(cgroup, "/strait"), inside, "{cgroup}");
        }
    }

    #[test]
    fn the_executable_and_its_digest_are_those_of_the_file() {
        let mut instance = Instance::standard("t".parse().unwrap());
        instance.cgroup = "t".into();
        let processes = Processes::new(&instance);
        let me = std::process::id();
        let exe = std::env::current_exe().unwrap();
        assert_eq!(processes.exe(me).as_deref(), exe.to_str());
        let digest = processes.digest(Path::new("/proc/self")).unwrap();
        let expect: String =
            Sha256::digest(fs::read(&exe).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(*digest, *expect);
        assert_eq!(processes.digest(Path::new("/proc/self")).unwrap(), digest, "cached");
        assert_eq!(
            processes.whois(&"no-run".parse().unwrap(), me),
            None,
            "a process of the host is no run's"
        );
        assert_eq!(processes.exe(u32::MAX), None);
    }
}
