//! What a run sees and may do. Every refusal has its control: the same thing outside, or its harmless twin inside.

use std::{
    net::TcpListener,
    process::{Command, Stdio},
};

use super::rig::Rig;

/// Python makes any system call by number.
const SYSCALLS: &str = r#"
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(name, number, *args):
    ctypes.set_errno(0)
    result = libc.syscall(number, *args)
    print(name, ctypes.get_errno() if result < 0 else 0)
def family(name, number, kind=socket.SOCK_DGRAM):
    fd = libc.socket(number, kind, 0)
    print("family", name, ctypes.get_errno() if fd < 0 else 0)
    if fd >= 0: os.close(fd)
for name, number, kind in [("unix", 1, 2), ("inet", 2, 2), ("inet6", 10, 2), ("netlink", 16, 3), ("packet", 17, 3),
                           ("alg", 38, 5), ("vsock", 40, 1), ("xdp", 44, 3)]:
    family(name, number, kind)
call("unshare", 272, 0x10000000)
call("setns", 308, -1, 0)
call("bpf", 321, 0, 0, 0)
call("io_uring_setup", 425, 1, 0)
call("clone3", 435, 0, 0)
call("userfaultfd", 323, 0)
call("ptrace", 101, 0, 0, 0, 0)
call("keyctl", 250, 0, 0, 0)
call("mount", 165, 0, 0, 0, 0, 0)
"#;

#[test]
fn containment_15_the_filter_refuses_what_goes_round_the_gate_and_nothing_else() {
    let rig = Rig::new();
    let outside =
        Command::new("/usr/bin/python3").args(["-c", SYSCALLS]).output().expect("python3: cargo xtask setup");
    let outside = String::from_utf8_lossy(&outside.stdout).into_owned();
    let inside = rig.output(&["/usr/bin/python3", "-c", SYSCALLS]);
    let inside = String::from_utf8_lossy(&inside.stdout).into_owned();
    for open in ["unix", "inet", "inet6", "netlink"] {
        assert!(inside.contains(&format!("family {open} 0\n")), "{open} must work: {inside}");
    }
    for closed in ["family packet", "family alg", "family vsock", "family xdp"] {
        assert!(inside.contains(&format!("{closed} 1\n")), "{closed} must be EPERM: {inside}");
    }
    for closed in ["unshare", "setns", "bpf", "io_uring_setup", "userfaultfd", "ptrace", "keyctl", "mount"] {
        assert!(inside.contains(&format!("{closed} 1\n")), "{closed} must be EPERM: {inside}");
    }
    assert!(inside.contains("clone3 38\n"), "ENOSYS makes libc fall back: {inside}");
    // The control: outside, the same script gets other answers, so it is the filter that speaks.
    for name in ["family packet", "clone3", "setns", "bpf", "keyctl"] {
        let inside = inside.lines().find(|line| line.starts_with(name));
        assert_ne!(outside.lines().find(|line| line.starts_with(name)), inside, "{name}: {outside}");
    }
}

#[test]
fn containment_18_a_socket_that_the_caller_holds_open_does_not_reach_the_run() {
    let rig = Rig::new();
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    let holding = |command: &Command| {
        let script = format!("exec 7<>/dev/tcp/127.0.0.1/{port}; exec \"$@\"");
        let mut bash = Command::new("bash");
        bash.args(["-c", &script, "bash"]).arg(command.get_program()).args(command.get_args());
        let output = bash.stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let list = ["ls", "-l", "/proc/self/fd"];
    let open = holding(Command::new(list[0]).args(&list[1..]));
    assert!(open.contains(" 7 -> socket:"), "control: {open}");
    let inside = holding(&rig.run(&list));
    assert!(inside.contains(" 1 -> ") && inside.contains(" 2 -> "), "{inside}");
    assert!(!inside.contains("socket:") && !inside.contains(" 7 -> "), "{inside}");
}

#[test]
fn a_run_has_no_capability_and_one_way_out() {
    let rig = Rig::new();
    let (text, code) = rig.shell(
        "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; ls /sys/class/net; cat /proc/net/route | wc -l; \
         cat /etc/resolv.conf; getent hosts strait.internal",
    );
    assert_eq!(code, 0, "{text}");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(text.contains(&format!("{set}:\t0000000000000000")), "{text}");
    }
    assert!(text.contains("NoNewPrivs:\t1") && text.contains("Seccomp:\t2"), "{text}");
    assert!(text.contains("eth0\nlo\n"), "{text}");
    let gateway = rig.instance.gateway().to_string();
    assert!(text.contains(&format!("nameserver {gateway}")), "{text}");
    assert!(text.contains(&format!("{gateway}  ")) && text.contains("strait.internal"), "{text}");
}

#[test]
fn nothing_leaves_at_once_with_eperm() {
    let rig = Rig::new();
    let script = "import socket,time\nt=time.time()\ntry: socket.create_connection(('192.0.2.7', 443), 3); print('open')\n\
                  except OSError as e: print('errno', e.errno, time.time()-t < 1)\n\
                  s=socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); \
                  socket.create_connection(s.getsockname(), 3); print('loopback open')";
    let output = rig.output(&["/usr/bin/python3", "-c", script]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("errno 1 True"), "{text}");
    assert!(text.contains("loopback open"), "case 33, and the control: {text}");
}

#[test]
fn the_host_is_read_only_and_the_persons_files_are_not_there() {
    let rig = Rig::new();
    let secret = rig.workspace("secret").join("key");
    std::fs::write(&secret, "s3cret").unwrap();
    let (text, code) = rig.shell(&format!(
        "cat {secret} 2>&1; ls -A ~; touch /usr/x 2>&1; touch /etc/x 2>&1; touch /x 2>&1; touch /run/strait/x 2>&1; \
         echo mine > file && cat file; mount | wc -l; cat /proc/1/root/etc/shadow 2>&1",
        secret = secret.display()
    ));
    assert_eq!(text.matches("Read-only file system").count(), 4, "{text}");
    assert!(text.contains("No such file") && !text.contains("s3cret"), "{text}");
    assert!(text.contains("mine\n"), "the workspace is writable: {text}");
    assert_ne!(code, 0, "the last command, on a file that is not there, failed");
    let written = rig.workspace("w").join("file");
    assert_eq!(std::fs::read_to_string(written).unwrap(), "mine\n", "and it is the host's folder");
}

#[test]
fn the_home_is_private_and_kept_for_the_agent() {
    let rig = Rig::new();
    assert_eq!(rig.shell("echo kept > ~/note").1, 0);
    assert_eq!(rig.shell("cat ~/note").0, "kept\n", "the same agent finds it again");
    let mut other = rig.strait();
    other.args(["run", "--agent", "coder", "--workspace"]).arg(rig.workspace("w"));
    let output = other.args(["--", "sh", "-c", "cat ~/note; echo $MODE"]).output().unwrap();
    assert_eq!(output.stdout, b"fast\n", "another agent doesn't, and has its configured environment");
}

#[test]
fn mounts_are_as_asked_and_the_callers_environment_stays_out() {
    let rig = Rig::new();
    let (ro, rw) = (rig.workspace("ro"), rig.workspace("rw"));
    let mut command = rig.strait();
    command.env("PICKED", "yes").env("AWS_SECRET_ACCESS_KEY", "no").env("NAMED", "too");
    command
        .args(["run", "--agent", "coder", "--env", "NAMED", "--env", "SET=1", "--workspace"])
        .arg(rig.workspace("w"));
    command.arg("--ro").arg(&ro).arg("--rw").arg(&rw).arg("--");
    let script = format!("touch {}/x; touch {}/x; pwd; env", ro.display(), rw.display());
    let output = command.args(["sh", "-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!ro.join("x").exists() && rw.join("x").exists(), "{output:?}");
    assert!(
        text.contains(&format!("{}\n", rig.workspace("w").display())),
        "it starts in the workspace: {text}"
    );
    for there in ["PICKED=yes", "NAMED=too", "SET=1", "IS_SANDBOX=1", "STRAIT_AGENT=coder", "SSL_CERT_FILE="]
    {
        assert!(text.contains(there), "{there}: {text}");
    }
    assert!(!text.contains("AWS_SECRET"), "{text}");
}

#[test]
fn a_home_a_system_folder_and_keys_are_no_workspace() {
    let rig = Rig::new();
    for folder in ["/", "/root", "/etc", "/usr", "/proc/self"] {
        let output = rig.strait().args(["run", "--workspace", folder, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{folder}: {output:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("--workspace DIR"), "{folder}: it says what to do: {text}");
    }
    assert!(rig.runs.list().is_empty());
    assert!(!rig.records().contains("run.started"), "nothing was started");
}

/// Coding agents are Node and Python programs that call git: all of it starts under the profile.
#[test]
fn languages_and_tools_start() {
    let rig = Rig::new();
    let table: [(&[&str], &str); 6] = [
        (
            &[
                "/usr/bin/python3",
                "-c",
                "import ssl, sqlite3, json; print('py', len(ssl.create_default_context().get_ca_certs()) > 0)",
            ],
            "py True",
        ),
        (
            &[
                "node",
                "-e",
                "console.log('node', require('os').cpus().length > 0, process.env.NODE_EXTRA_CA_CERTS)",
            ],
            "node true /etc",
        ),
        (&["git", "-c", "init.defaultBranch=main", "init", "x"], "Initialized"),
        (&["npm", "--version"], "."),
        (&["curl", "--version"], "curl"),
        (&["sh", "-c", "cat /proc/1/comm; ps | wc -l; echo ok"], "ok"),
    ];
    for (argv, expected) in table {
        let output = rig.output(argv);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(expected), "{argv:?}: {output:?}");
    }
}

/// Coding agents are installed by npm, globally or in a folder; `strait run -- NAME` finds them, and what they import.
#[test]
fn an_npm_program_finds_the_packages_beside_it() {
    let rig = Rig::new();
    let project = rig.workspace("installed");
    let packages = project.join("node_modules");
    let write = |path: &str, text: &str| {
        let path = packages.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    write("needed/index.js", "module.exports = 'found what it needs'\n");
    let script =
        "#!/usr/bin/env node\nconsole.log(require('needed'), require('fs').existsSync(process.argv[2]))\n";
    write("@x/strait-agent-to-find/bin/cli.js", script);
    std::fs::write(project.join("secret"), "").unwrap();
    std::fs::create_dir(packages.join(".bin")).unwrap();
    std::os::unix::fs::symlink(
        "../@x/strait-agent-to-find/bin/cli.js",
        packages.join(".bin/strait-agent-to-find"),
    )
    .unwrap();
    let path = format!("{}:{}", packages.join(".bin").display(), std::env::var("PATH").unwrap());
    let run = |extra: &[&std::ffi::OsStr]| {
        let mut command = rig.strait();
        command.env("PATH", &path).arg("run").arg("--workspace").arg(rig.workspace("w")).args(extra);
        command.args(["--", "strait-agent-to-find"]).arg(project.join("secret")).output().unwrap()
    };
    let output = run(&[]);
    assert_eq!(output.stdout, b"found what it needs false\n", "node: cargo xtask setup: {output:?}");
    let shown = run(&["--ro".as_ref(), project.as_os_str()]);
    assert_eq!(shown.stdout, b"found what it needs true\n", "the control: {shown:?}");
}

/// A program that lies in the workspace doesn't make the workspace read-only.
#[test]
fn a_script_of_the_workspace_may_change_the_workspace() {
    let rig = Rig::new();
    let workspace = rig.workspace("w");
    let script = workspace.join("script.sh");
    std::fs::write(&script, "#!/bin/sh\necho made > made && cat made\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = rig.strait();
    let output = command.current_dir(&workspace).args(["run", "--", "./script.sh"]).output().unwrap();
    assert_eq!(output.stdout, b"made\n", "{output:?}");
}

/// Makes a set-id file in each way that there is; prints the mode that came of it.
const SET_ID: &str = r#"
import os, stat
def way(name, make):
    path = "set-id-" + name
    try:
        make(path)
    except OSError as error:
        print(name, "errno", error.errno)
        return
    print(name, oct(stat.S_IMODE(os.stat(path).st_mode)))
def touched(path):
    open(path, "w").close()
    return path
way("chmod", lambda path: os.chmod(touched(path), 0o4755))
way("fchmod", lambda path: os.fchmod(os.open(touched(path), os.O_RDWR), 0o2755))
way("open", lambda path: os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755))
way("mknod", lambda path: os.mknod(path, stat.S_IFREG | 0o4755))
way("plain", lambda path: os.chmod(touched(path), 0o755))
"#;

#[test]
fn a_run_leaves_no_set_id_file_in_a_folder_of_the_host() {
    let rig = Rig::new();
    let control = tempfile::tempdir().unwrap();
    let outside = Command::new("/usr/bin/python3").args(["-c", SET_ID]).current_dir(control.path()).output();
    let outside = String::from_utf8_lossy(&outside.expect("python3: cargo xtask setup").stdout).into_owned();
    for way in ["chmod 0o4755", "fchmod 0o2755", "open 0o4755", "mknod 0o4755"] {
        assert!(outside.contains(way), "the control itself must work: {outside}");
    }
    let inside = rig.output(&["/usr/bin/python3", "-c", SET_ID]);
    let inside = String::from_utf8_lossy(&inside.stdout).into_owned();
    for way in ["chmod", "fchmod", "open", "mknod"] {
        assert!(inside.contains(&format!("{way} errno 1\n")), "{way} must be EPERM: {inside}");
    }
    assert!(inside.contains("plain 0o755"), "{inside}");
}

#[test]
fn a_file_given_to_read_can_not_be_written_by_opening_it_again() {
    let rig = Rig::new();
    let file = rig.workspace("elsewhere").join("given.txt");
    std::fs::write(&file, "as it was\n").unwrap();
    let script =
        "cat; python3 -c 'open(\"/proc/self/fd/0\",\"w\").write(\"changed\")' ; echo >/proc/self/fd/0; true";
    let output = rig.run(&["sh", "-c", script]).stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("as it was"), "{output:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "as it was\n");
}
