//! A second person: what they see, start and stop.

use std::{
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Output},
};

use super::rig::Rig;

/// A number that no account of the host has.
const SECOND: u32 = 4_000_321;

/// Runs a command line as the second person.
fn as_second(rig: &Rig, command: Command) -> Output {
    as_person(rig, SECOND, command)
}

/// Runs a command line as another. Without a group `strait` the sockets are root's, so the test opens them.
fn as_person(rig: &Rig, uid: u32, mut command: Command) -> Output {
    for socket in [rig.instance.launch_socket(), rig.instance.control_socket()] {
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    }
    let bin = rig.workspace("bin").join("strait");
    if !bin.exists() {
        // By a process of its own: a child that another test forks meanwhile would hold our descriptor, which is open
        // for writing, and the file would be busy.
        assert!(Command::new("cp").arg(command.get_program()).arg(&bin).status().unwrap().success());
    }
    let mut as_them = Command::new(bin);
    as_them.args(command.get_args()).uid(uid).gid(uid).current_dir("/");
    command.stdin(std::process::Stdio::null());
    as_them.stdin(std::process::Stdio::null()).output().unwrap()
}

#[test]
fn a_run_is_its_callers_in_every_way() {
    let rig = Rig::new();
    let script = "id -u; id -g; id -G; touch made; cat /etc/shadow 2>&1 | head -1; whoami";
    let output = as_second(&rig, rig.run(&["sh", "-c", script]));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with(&format!("{SECOND}\n{SECOND}\n{SECOND}\n")), "no group but theirs: {output:?}");
    let made = std::fs::metadata(rig.workspace("w").join("made")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), SECOND);
    let records = rig.records();
    assert!(records.contains(&format!("\"uid\":\"{SECOND}\"")), "{records}");
}

/// Coding agents keep sockets, locks and scratch files there, and don't start without.
#[test]
fn everybody_can_write_to_the_temporary_folders_of_their_run() {
    let rig = Rig::new();
    let mark = format!("mark-{}", rig.instance.name);
    let script = format!(
        "for folder in /tmp /var/tmp /dev/shm /run ~ .; do touch $folder/{mark} && stat -c '%n %a' $folder; done; \
         mkdir $(mktemp -d)/inner && echo made; touch /usr/{mark} /etc/{mark} /{mark} 2>&1"
    );
    let output = as_second(&rig, rig.run(&["sh", "-c", &script]));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for folder in
        ["/tmp 1777", "/var/tmp 1777", "/dev/shm 1777", "/run 1777", "/home/agent 700", ". 777", "made"]
    {
        assert!(text.contains(&format!("{folder}\n")), "{folder}: {output:?}");
    }
    assert_eq!(text.matches("cannot touch").count(), 3, "the control: {output:?}");
    for folder in ["/tmp", "/var/tmp", "/dev/shm", "/run"] {
        assert!(!std::path::Path::new(folder).join(&mark).exists(), "{folder} is the run's own");
    }
}

#[test]
fn what_a_person_cannot_reach_they_cannot_mount() {
    let rig = Rig::new();
    let closed = rig.workspace("closed");
    std::fs::create_dir(closed.join("inner")).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = rig.strait();
    command.arg("run").arg("--workspace").arg(closed.join("inner")).args(["--", "true"]);
    let output = as_second(&rig, command);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Permission denied"), "{output:?}");
    let mut command = rig.strait();
    command.arg("run").arg("--workspace").arg(closed.join("inner")).args(["--", "true"]);
    assert!(command.output().unwrap().status.success(), "the control: root can");
}

#[test]
fn a_person_sees_and_ends_their_own_runs_alone() {
    let rig = Rig::new();
    let mut roots = rig.run(&["sleep", "1000"]).spawn().unwrap();
    let run = rig.one_run();
    let ask = |args: &[&str]| {
        let mut command = rig.strait();
        command.args(args);
        as_second(&rig, command)
    };
    let listed = ask(&["ps", "--json"]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), "[]", "{listed:?}");
    for verb in ["stop", "kill"] {
        let refused = ask(&[verb, &run]);
        assert_eq!(refused.status.code(), Some(1), "{verb}: {refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("NO_RUN"), "{refused:?}");
    }
    let reload = ask(&["reload"]);
    assert!(String::from_utf8_lossy(&reload.stderr).contains("NOT_ADMIN"), "{reload:?}");
    assert_eq!(rig.runs.list().len(), 1, "it lives");
    let listed = rig.strait().args(["ps", "--json"]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains(&run), "the control: root sees it");
    let table = rig.strait().arg("ps").output().unwrap();
    assert!(String::from_utf8_lossy(&table.stdout).contains("sleep 1000"), "{table:?}");
    assert!(rig.strait().args(["kill", &run]).status().unwrap().success(), "and ends it");
    assert_eq!(roots.wait().unwrap().code(), Some(137));
}

#[test]
fn status_tells_of_a_missing_gateway_and_reload_of_what_is_in_force() {
    let rig = Rig::new();
    let status = rig.strait().arg("status").output().unwrap();
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    assert!(String::from_utf8_lossy(&status.stdout).contains("not connected"), "{status:?}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let reply = rig.reloads.lock().unwrap().blocking_recv().unwrap();
            reply.send(Err("strait.toml:3: unknown key".to_owned())).unwrap();
        });
        let refused = rig.strait().arg("reload").output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("strait.toml:3"), "{refused:?}");
    });
}

#[test]
fn without_an_agent_it_says_how_to_start_one() {
    let rig = Rig::new();
    for socket in [rig.instance.launch_socket(), rig.instance.control_socket()] {
        std::fs::remove_file(socket).unwrap();
    }
    for (args, code) in [(vec!["ps"], 1), (vec!["run", "--", "true"], 125)] {
        let output = rig.strait().args(&args).current_dir(rig.workspace("w")).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("systemctl start strait"), "{output:?}");
    }
}

/// Opens 400 connections to each socket, says what the first and the last of each hear, and holds them.
const CROWD: &str = r#"
import socket, sys, time
def crowd(path, kind, count):
    sockets = []
    while len(sockets) < count:
        s = socket.socket(socket.AF_UNIX, kind)
        s.settimeout(2)
        s.connect(path)
        sockets.append(s)
    return sockets
def heard(s):
    try: return s.recv(4096) or b'closed'
    except socket.timeout: return b'open'
launch = crowd(sys.argv[1], socket.SOCK_SEQPACKET, 400)
control = crowd(sys.argv[2], socket.SOCK_STREAM, 400)
print(heard(launch[0]), heard(launch[399]), heard(control[0]), heard(control[399]), flush=True)
time.sleep(60)
"#;

#[test]
fn a_user_with_hundreds_of_connections_keeps_nobody_else_out() {
    let rig = Rig::new();
    let (launch, control) = (rig.instance.launch_socket(), rig.instance.control_socket());
    // Opens the sockets to everybody; also the control for the refusal below.
    assert!(as_second(&rig, rig.run(&["true"])).status.success());
    let mut crowd = Command::new("python3")
        .args(["-c", CROWD])
        .args([&launch, &control])
        .uid(SECOND)
        .gid(SECOND)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3 is missing: cargo xtask setup");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(crowd.stdout.as_mut().unwrap()), &mut line)
        .unwrap();
    let refused = "as many as one user may";
    assert!(
        line.starts_with("b'open'") && line.contains(refused) && line.ends_with("b'open' b'closed'\n"),
        "{line}"
    );
    let output = as_second(&rig, rig.run(&["true"]));
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains(refused), "{output:?}");
    let others = as_person(&rig, SECOND + 1, rig.run(&["echo", "fine"]));
    assert_eq!(String::from_utf8_lossy(&others.stdout), "fine\n", "{others:?}");
    let mut list = rig.strait();
    list.arg("ps");
    assert!(as_person(&rig, SECOND + 1, list).status.success());
    crowd.kill().unwrap();
    crowd.wait().unwrap();
    super::rig::eventually(|| as_second(&rig, rig.run(&["true"])).status.success().then_some(()));
}

#[test]
fn a_caller_that_does_not_come_to_the_point_is_sent_away() {
    use std::io::{Read, Write};
    let rig = Rig::new();
    let begun = std::time::Instant::now();
    let mut control = std::os::unix::net::UnixStream::connect(rig.instance.control_socket()).unwrap();
    control.write_all(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n").unwrap();
    control.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let mut answer = Vec::new();
    control.read_to_end(&mut answer).expect("it is closed within 20 s");
    let took = begun.elapsed();
    assert!((4..10).contains(&took.as_secs()), "{took:?}");
    let mut whole = std::os::unix::net::UnixStream::connect(rig.instance.control_socket()).unwrap();
    whole.write_all(b"GET /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    whole.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "the control: {answer}");
}
