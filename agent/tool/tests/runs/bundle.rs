//! A container of its own for each test: the host's `/usr` read-only, `strait-tool` as PID 1, `runc` with a
//! state folder of its own.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::symlink, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::{Value, json};

pub(crate) const TOOL: &str = env!("CARGO_BIN_EXE_strait-tool");

pub(crate) fn runc() -> PathBuf {
    ["/usr/sbin/runc", "/usr/bin/runc"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .expect("`runc` is not installed: run `cargo xtask setup`")
}

/// Reads until `done` or panics after 20 s.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) struct Bundle {
    folder: tempfile::TempDir,
    pub(crate) id: String,
}

impl Bundle {
    /// `strait-tool init --wait -- command`.
    pub(crate) fn under_init(command: &[&str]) -> Self {
        Self::new(&[&["/strait-tool", "init", "--wait", "--"], command].concat(), false)
    }

    pub(crate) fn new(args: &[&str], terminal: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        assert!(rustix::process::geteuid().is_root(), "these tests run containers: run them as root");
        let folder = tempfile::tempdir().unwrap();
        let id = format!("straittool-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let rootfs = folder.path().join("rootfs");
        for empty in ["usr", "proc", "dev", "tmp"] {
            fs::create_dir_all(rootfs.join(empty)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), rootfs.join(name)).unwrap();
        }
        fs::copy(TOOL, rootfs.join("strait-tool")).unwrap();
        let config = config(&id, args, terminal);
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        Self { folder, id }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.path("runc")
    }

    pub(crate) fn exit_file(&self) -> PathBuf {
        self.path("exit.json")
    }

    pub(crate) fn exit(&self) -> Value {
        let text = fs::read_to_string(self.exit_file()).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn runc(&self, args: &[&str]) -> std::process::Output {
        Command::new(runc()).arg("--root").arg(self.root()).args(args).arg(&self.id).output().unwrap()
    }

    /// Whether `runc` knows the container.
    pub(crate) fn exists(&self) -> bool {
        self.runc(&["state"]).status.success()
    }

    pub(crate) fn kill(&self, signal: &str) {
        let sent = Command::new(runc())
            .arg("--root")
            .arg(self.root())
            .args(["kill", &self.id, signal])
            .output()
            .unwrap();
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    }

    pub(crate) fn shim_arguments(&self, fd: &OwnedFd) -> Vec<String> {
        let mut arguments = vec!["shim".to_owned()];
        for (name, value) in [
            ("--bundle", self.folder.path().to_owned()),
            ("--id", PathBuf::from(&self.id)),
            ("--runc", runc()),
            ("--root", self.root()),
            ("--exit-file", self.exit_file()),
            ("--control-fd", PathBuf::from(fd.as_raw_fd().to_string())),
        ] {
            arguments.extend([name.to_owned(), value.into_os_string().into_string().unwrap()]);
        }
        arguments
    }

    /// Starts a shim with `more` arguments and piped output.
    pub(crate) fn shim(&self, more: &[&str]) -> Shim {
        let (control, theirs) = control_pair();
        let (reader, stdout) = std::io::pipe().unwrap();
        let status = Command::new(TOOL)
            .args(self.shim_arguments(&theirs))
            .args(more)
            .env("NOTIFY_SOCKET", "/run/nobody")
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().unwrap())
            .stderr(stdout)
            .status()
            .unwrap();
        assert!(status.success(), "the first half of a shim ends at once");
        Shim { control: BufReader::new(control), output: reader }
    }

    /// Runs to the end; the output, and what the exit file says.
    pub(crate) fn run(&self) -> (String, Value) {
        let mut shim = self.shim(&[]);
        shim.start();
        shim.finish();
        (shim.output(), self.exit())
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        // A test that failed half way leaves nothing behind.
        let _ = self.runc(&["delete", "--force"]);
    }
}

/// A socket pair whose second end survives exec.
pub(crate) fn control_pair() -> (UnixStream, OwnedFd) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    fcntl_setfd(&theirs, FdFlags::empty()).unwrap();
    (ours, theirs.into())
}

/// The agent's end of a shim.
pub(crate) struct Shim {
    pub(crate) control: BufReader<UnixStream>,
    output: std::io::PipeReader,
}

impl Shim {
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.control.read_line(&mut line).expect("the shim says something within 20 s");
        line
    }

    /// Gives the process ids of the container's init and of the shim.
    pub(crate) fn created(&mut self) -> (u32, u32) {
        let line = self.line();
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("created"), "{line}");
        let mut pid = || words.next().unwrap().parse().unwrap();
        (pid(), pid())
    }

    pub(crate) fn start(&mut self) -> (u32, u32) {
        let pids = self.created();
        self.control.get_mut().write_all(b"start\n").unwrap();
        assert_eq!(self.line(), "started\n");
        pids
    }

    /// The `exited` line, then the end.
    pub(crate) fn finish(&mut self) -> String {
        let line = self.line();
        assert!(line.starts_with("exited "), "{line}");
        assert_eq!(self.line(), "", "the socket closes when the container is deleted");
        line
    }

    pub(crate) fn output(&mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        text
    }

    /// Reads output until it contains `needle`.
    pub(crate) fn wait_for(&mut self, needle: &str) {
        let mut seen = String::new();
        let mut byte = [0];
        while !seen.contains(needle) {
            assert_eq!(self.output.read(&mut byte).unwrap(), 1, "ended after `{seen}`");
            seen.push(char::from(byte[0]));
        }
    }
}

/// Where cgroup v2 is mounted, also beside v1.
pub(crate) fn cgroup2() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).expect("cgroup v2 is mounted");
    Path::new(line.split(' ').nth(4).unwrap()).to_owned()
}

fn config(id: &str, args: &[&str], terminal: bool) -> Value {
    let mount = |at: &str, kind: &str, options: &[&str]| json!({"destination": at, "type": kind, "source": kind, "options": options});
    let namespaces = ["pid", "ipc", "uts", "mount", "network"].map(|kind| json!({"type": kind}));
    json!({
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": true},
        "process": {
            "terminal": terminal, "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": args,
            "env": ["PATH=/usr/bin:/usr/sbin"], "noNewPrivileges": true, "capabilities": {},
        },
        "mounts": [
            mount("/proc", "proc", &[]),
            mount("/dev", "tmpfs", &["nosuid", "mode=755"]),
            mount("/dev/pts", "devpts", &["newinstance", "ptmxmode=0666", "mode=0620"]),
            mount("/tmp", "tmpfs", &[]),
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
        ],
        "linux": {"namespaces": namespaces, "cgroupsPath": format!("/{id}")},
    })
}
