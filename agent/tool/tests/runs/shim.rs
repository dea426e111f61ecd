//! What the process outside a run does.

use std::{
    fs,
    io::{BufRead, Write},
    process::{Command, Stdio},
};

use super::bundle::{Bundle, TOOL, cgroup2, control_pair, wait_until};

fn alive(pid: u32) -> bool {
    // By its state and not by its command line, which is empty for a moment of `execve` too. A zombie that its parent
    // hasn't collected is not alive.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

#[test]
fn a_kill_of_the_whole_run_shows_the_signal() {
    let bundle = Bundle::under_init(&["sleep", "60"]);
    let mut shim = bundle.shim(&[]);
    shim.start();
    bundle.kill("KILL");
    assert_eq!(shim.finish(), "exited 137 9\n");
    assert_eq!(bundle.exit(), serde_json::json!({"exitCode": 137, "signal": 9}));
}

#[test]
fn the_container_is_gone_when_the_socket_closes_and_no_temporary_file_is_left() {
    let bundle = Bundle::under_init(&["true"]);
    let mut shim = bundle.shim(&[]);
    let (_, pid) = shim.created();
    assert!(bundle.exists(), "the positive control");
    assert!(!bundle.exit_file().exists());
    shim.control.get_mut().write_all(b"start\n").unwrap();
    assert_eq!(shim.line(), "started\n");
    shim.finish();
    assert!(!bundle.exists());
    assert!(bundle.exit_file().exists() && !bundle.path("exit.json.new").exists());
    wait_until("the shim ends", || !alive(pid));
}

#[test]
fn the_exit_file_is_written_though_the_agent_was_killed() {
    let bundle = Bundle::under_init(&["sh", "-c", "sleep 0.5; exit 6"]);
    let (control, theirs) = control_pair();
    // The shell is the agent: it starts the shim and is killed with everything of its session.
    let mut agent = Command::new("setsid")
        .args(["sh", "-c", r#""$0" "$@"; echo up; exec sleep 60"#, TOOL])
        .args(bundle.shim_arguments(&theirs))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(theirs);
    let mut control = std::io::BufReader::new(control);
    let mut line = String::new();
    control.read_line(&mut line).unwrap();
    assert!(line.starts_with("created "), "{line}");
    control.get_mut().write_all(b"start\n").unwrap();
    line.clear();
    control.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    drop(control);
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(bundle.exists(), "the run goes on");
    wait_until("the exit file", || bundle.exit_file().exists());
    assert_eq!(bundle.exit()["exitCode"], 6);
    wait_until("the container is deleted", || !bundle.exists());
}

#[test]
fn an_agent_gone_before_start_leaves_nothing_and_nothing_ran() {
    let bundle = Bundle::under_init(&["echo", "it ran"]);
    let mut shim = bundle.shim(&[]);
    let (init, pid) = shim.created();
    assert!(alive(init) && alive(pid), "the positive control");
    shim.control.get_mut().shutdown(std::net::Shutdown::Both).unwrap();
    wait_until("the shim ends", || !alive(pid));
    assert!(!alive(init) && !bundle.exists() && !bundle.exit_file().exists());
    let output = shim.output();
    assert!(!output.contains("it ran"), "{output}");
}

#[test]
fn a_bundle_that_cannot_be_created_is_reported_in_runcs_words() {
    let bundle = Bundle::under_init(&["true"]);
    fs::write(bundle.path("config.json"), "{\"ociVersion\": \"1.0.2\", \"linux\": 7}").unwrap();
    let line = bundle.shim(&[]).line();
    assert!(line.starts_with("failed runc run failed: ") && line.contains("json"), "{line}");
    assert!(!bundle.exit_file().exists() && !bundle.exists());
}

#[test]
fn a_missing_runtime_is_reported() {
    let bundle = Bundle::under_init(&["true"]);
    let line = bundle.shim(&["--runc", "/no/such/runc"]).line();
    assert!(line.starts_with("failed runc run failed: `/no/such/runc` can't be executed"), "{line}");
}

#[test]
fn the_shim_moves_to_its_cgroup_and_keeps_no_environment_and_no_stdio() {
    let cgroup = cgroup2().join(format!("straittool-shim-{}", std::process::id()));
    fs::create_dir(&cgroup).unwrap();
    let bundle = Bundle::under_init(&["sleep", "60"]);
    let mut shim = bundle.shim(&["--cgroup", cgroup.to_str().unwrap()]);
    let (_, pid) = shim.start();
    let proc = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    assert!(proc("cgroup").contains(&format!("0::/straittool-shim-{}\n", std::process::id())));
    assert_eq!(proc("environ"), "", "NOTIFY_SOCKET was set by the caller");
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut open: Vec<_> = open.map(|fd| fs::read_link(fd.unwrap().path()).unwrap()).collect();
    open.sort();
    let names: Vec<_> = open.iter().map(|path| path.to_str().unwrap().split(':').next().unwrap()).collect();
    assert_eq!(names, ["/dev/null", "/dev/null", "/dev/null", "socket"]);
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));
    bundle.kill("KILL");
    shim.finish();
    wait_until("the shim ends", || fs::remove_dir(&cgroup).is_ok());
}

#[test]
fn a_shim_shrugs_off_signals_that_a_tidy_up_might_send() {
    let bundle = Bundle::under_init(&["sh", "-c", "sleep 0.3; exit 5"]);
    let mut shim = bundle.shim(&[]);
    let (_, pid) = shim.start();
    for signal in ["TERM", "INT", "HUP"] {
        assert!(Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap().success());
    }
    assert_eq!(shim.finish(), "exited 5 -\n");
}

#[test]
fn bad_arguments_are_refused_before_anything_is_started() {
    let output = Command::new(TOOL).args(["shim", "--id", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "strait: shim: `--bundle` must be given\n");
    let output = Command::new(TOOL).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("strait: usage: strait-tool init"));
}
