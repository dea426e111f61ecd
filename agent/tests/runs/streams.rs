//! Exit codes, signals, stdio, terminals.

use std::{
    io::{Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::Stdio,
};

use super::rig::{Rig, eventually};

#[test]
fn exit_codes_are_the_commands_own() {
    let rig = Rig::new();
    for code in [0, 1, 7, 255] {
        let (text, got) = rig.shell(&format!("exit {code}"));
        assert_eq!(got, code, "{text}");
    }
    assert_eq!(rig.shell("kill -TERM $$").1, 128 + 15, "a signal that ends the command");
    assert_eq!(rig.shell("kill -KILL $$").1, 128 + 9);
    assert_eq!(rig.output(&["no-such-command"]).status.code(), Some(127));
    assert_eq!(rig.output(&["/etc/passwd"]).status.code(), Some(126));
    let records = rig.records();
    assert_eq!(records.matches("run.started").count(), 8, "{records}");
    assert_eq!(records.matches("run.ended").count(), 8, "{records}");
}

#[test]
fn stdio_passes_both_ways_and_large() {
    let rig = Rig::new();
    let mut child = rig
        .run(&["sh", "-c", "cat; echo err >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = vec![b'x'; 1_000_000];
    let mut stdin = child.stdin.take().unwrap();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&copy));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(output.stdout, sent);
    assert_eq!(output.stderr, b"err\n");
}

/// Design section 10: a socket from outside defeats every layer, so none gets in.
#[test]
fn a_socket_on_stdio_never_enters_a_run() {
    let rig = Rig::new();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let clone = || Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()));
    let script = "for fd in 0 1 2; do readlink /proc/self/fd/$fd; done; ls /proc/self/fd | tr '\\n' ' '; cat";
    let mut child =
        rig.run(&["sh", "-c", script]).stdin(clone()).stdout(clone()).stderr(clone()).spawn().unwrap();
    drop(theirs);
    ours.write_all(b"by a copy").unwrap();
    ours.shutdown(std::net::Shutdown::Write).unwrap();
    let mut text = String::new();
    ours.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    assert!(!text.contains("socket:"), "{text}");
    assert_eq!(text.matches("pipe:").count(), 3, "{text}");
    assert!(text.ends_with("by a copy"), "the bytes still pass: {text}");
    assert!(
        text.contains("0 1 2 3 \n") || text.contains("0 1 2 3 "),
        "no descriptor but stdio and ls's own: {text}"
    );
}

#[test]
fn a_folder_on_stdin_is_refused() {
    let rig = Rig::new();
    let root = std::fs::File::open("/").unwrap();
    let output = rig.run(&["true"]).stdin(root).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stdin is a folder"), "{output:?}");
    assert_eq!(rig.output(&["true"]).status.code(), Some(0), "the control: /dev/null passes");
}

#[test]
fn signals_reach_the_command_and_its_code_comes_back() {
    let rig = Rig::new();
    let script = "trap 'echo got TERM; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = rig.run(&["sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = [0; 6];
    stdout.read_exact(&mut text).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "got TERM\n");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// With a terminal the run has one of its own; `script` gives the command line one.
#[test]
fn a_terminal_is_the_runs_own() {
    let rig = Rig::new();
    let strait = rig.run(&["sh", "-c", "test -t 0 && test -t 1 && tty && stty size; exit 5"]);
    let line = std::iter::once(strait.get_program())
        .chain(strait.get_args())
        .map(|part| format!("'{}'", part.to_str().unwrap().replace('\'', "'\\''")))
        .collect::<Vec<_>>()
        .join(" ");
    let output = std::process::Command::new("script")
        .args([
            "--quiet",
            "--return",
            "--command",
            &format!("stty rows 33 cols 101; tty; {line}"),
            "/dev/null",
        ])
        .stdin(Stdio::piped())
        .output()
        .expect("`script` is missing: cargo xtask setup");
    // `script` sends an end-of-file character at some moment, which is echoed.
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "").replace("^@", "");
    assert_eq!(output.status.code(), Some(5), "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.contains(&"33 101"), "the person's window size: {text}");
    let terminals: Vec<_> = lines.iter().filter(|line| line.starts_with("/dev/")).collect();
    assert_eq!(terminals.len(), 2, "{text}");
    assert_eq!(*terminals[1], "/dev/pts/0", "the first terminal of a devpts of its own: {text}");
}

/// A caller that is killed takes its run with it.
#[test]
fn a_run_does_not_outlive_a_caller_that_was_killed() {
    let rig = Rig::new();
    let mut child = rig.run(&["sleep", "1000"]).spawn().unwrap();
    rig.one_run();
    child.kill().unwrap();
    child.wait().unwrap();
    eventually(|| rig.runs.list().is_empty().then_some(()));
}
