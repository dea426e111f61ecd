//! Stop, kill, and what is left: nothing.

use std::{
    fs,
    io::Read,
    net::Ipv4Addr,
    process::Stdio,
    time::{Duration, Instant},
};

use strait_agent::run::{
    live::{self, Live},
    process::ProcessName,
};

use super::rig::{Rig, eventually};

#[test]
fn nothing_is_left_of_a_run_that_ended() {
    let rig = Rig::new();
    assert_eq!(rig.shell("true").1, 0);
    let names = |folder: std::path::PathBuf| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    // Over and on record when the command line returns; the folder is what goes last.
    assert_eq!(names(rig.instance.state_dir.join("live")), [] as [&str; 0]);
    assert!(rig.records().contains("run.ended"));
    eventually(|| names(rig.instance.run_dir.join("runs")).is_empty().then_some(()));
    assert_eq!(names(rig.instance.run_dir.join("netns")), ["strait"]);
    assert_eq!(names(rig.instance.run_dir.join("runc")), [] as [&str; 0]);
    assert_eq!(names(rig.instance.bpffs.join("run")), [] as [&str; 0]);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&format!("{}/runs/", rig.instance.run_dir.display())), "{mounts}");
    for root in ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"] {
        let left: Vec<_> = names(std::path::Path::new(root).join(&rig.instance.cgroup));
        assert!(!left.iter().any(|name| name.starts_with("default-")), "{root}: {left:?}");
    }
}

#[test]
fn stop_is_polite_and_then_is_not() {
    let rig = Rig::new();
    let mut polite =
        rig.run(&["sh", "-c", "trap 'exit 4' TERM; while :; do sleep 0.05; done"]).spawn().unwrap();
    let run = rig.one_run();
    std::thread::sleep(Duration::from_millis(300));
    assert!(rig.strait().args(["stop", &run]).status().unwrap().success());
    assert_eq!(polite.wait().unwrap().code(), Some(4));

    let mut deaf = rig.run(&["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"]).spawn().unwrap();
    let run = eventually(|| rig.runs.list().first().map(|run| run.id().to_string()));
    std::thread::sleep(Duration::from_millis(300));
    assert!(rig.strait().args(["stop", "--grace", "1", &run]).status().unwrap().success());
    assert_eq!(deaf.wait().unwrap().code(), Some(137));
    assert_eq!(rig.records().matches("\"reason\":\"stopped\"").count(), 2, "{}", rig.records());
}

/// The last byte is out within 50 ms of the order; the record stays.
#[test]
fn kill_is_at_once_and_on_record() {
    let rig = Rig::new();
    let script = "import time\nwhile True: print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)";
    let mut child = rig.run(&["/usr/bin/python3", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let run = rig.one_run();
    std::thread::sleep(Duration::from_millis(300));
    let run = rig.runs.get(&run.parse().unwrap()).unwrap();
    let clock = Instant::now();
    rig.block_on(rig.runs.kill(&run, "ann")).unwrap();
    let took = clock.elapsed();
    let returned = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    assert_eq!(child.wait().unwrap().code(), Some(137));
    let text = reader.join().unwrap().unwrap();
    let last: f64 = text.lines().rev().nth(1).unwrap().parse().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "seconds since boot fit a double with room to spare")]
    let returned = returned.tv_sec as f64 + returned.tv_nsec as f64 / 1e9;
    assert!(
        last - returned < 0.05,
        "it still wrote {} s after the order, which took {took:?}",
        last - returned
    );
    let ended = rig.records();
    assert!(ended.contains("\"reason\":\"killed\"") && ended.contains("\"by\":\"ann\""), "{ended}");
}

/// A misspelt name would be an agent that nobody has configured; the control is the one beside it.
#[test]
fn an_agent_that_is_not_configured_is_refused_with_those_that_are() {
    let rig = Rig::new();
    let run = |agent: &str| {
        let mut strait = rig.strait();
        strait.args(["run", "--agent", agent, "--workspace"]).arg(rig.workspace("w")).args(["--", "true"]);
        strait.output().unwrap()
    };
    let refused = run("codre");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("[agents.codre]") && said.contains("`coder`, `default`"), "{said}");
    for known in ["coder", "default"] {
        assert_eq!(run(known).status.code(), Some(0), "{known}");
    }
}

#[test]
fn kill_all_and_by_agent_and_without_an_agent() {
    let rig = Rig::new();
    let mut child = rig.run(&["sleep", "1000"]).spawn().unwrap();
    rig.one_run();
    let none = rig.strait().args(["kill", "--agent", "coder"]).output().unwrap();
    assert!(none.status.success() && none.stdout.is_empty(), "it is another agent's: {none:?}");
    assert!(rig.strait().args(["kill", "--all"]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(137));

    let mut child = rig.run(&["sleep", "1000"]).spawn().unwrap();
    let run = eventually(|| rig.runs.list().first().map(|run| run.id().to_string()));
    // As if the agent were dead: nobody answers.
    fs::remove_file(rig.instance.control_socket()).unwrap();
    let output = rig.strait().args(["kill", &run]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), run);
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn a_start_that_fails_leaves_nothing_and_says_why() {
    let rig = Rig::new();
    // No room for the records: no record, no passage.
    fs::remove_dir_all(rig.instance.state_dir.join("runs")).ok();
    fs::write(rig.instance.state_dir.join("runs"), "not a folder").unwrap();
    let (text, code) = rig.shell("echo it ran");
    assert_eq!(code, 125, "{text}");
    assert!(!text.contains("it ran"), "{text}");
    assert!(fs::read_dir(rig.instance.run_dir.join("runs")).unwrap().next().is_none());
    assert!(fs::read_dir(rig.instance.state_dir.join("live")).map_or(true, |mut live| live.next().is_none()));
    fs::remove_file(rig.instance.state_dir.join("runs")).unwrap();
    assert_eq!(rig.shell("echo it ran").0, "it ran\n", "the control: with room it does");
}

/// A run as the agent before this one has left it, its processes gone.
fn left(rig: &Rig, id: &str, boot: String, last: u8) -> Live {
    Live {
        boot,
        id: id.parse().unwrap(),
        number: u64::from(last),
        addr: Ipv4Addr::new(10, 211, 250, last),
        agent: "default".into(),
        version: "0".into(),
        labels: Vec::new(),
        addresses: Vec::new(),
        user: "ann".into(),
        uid: 0,
        gid: 0,
        command: "sleep".into(),
        workspace: Some(rig.workspace("w")),
        started_ms: 0,
        netns_cookie: u64::MAX - u64::from(last),
        veth_index: 60_000 + u32::from(last),
        veth_ifindex: 60_000 + u32::from(last),
        init: None,
        shim: Some(ProcessName { pid: i32::MAX - 1, started: 1 }),
        token: strait_contract::token::TokenHash::of(id),
        killed_by: None,
    }
}

/// After a reboot the record says so, whatever process has the shim's number now.
#[test]
fn what_a_reboot_or_a_crash_ended_is_on_record_as_such() {
    let rig = Rig::new();
    let boot = live::boot_id().unwrap();
    left(&rig, "default-reboot", "another".into(), 3).write(&rig.instance).unwrap();
    left(&rig, "default-crashed", boot.clone(), 4).write(&rig.instance).unwrap();
    let killed = Live { killed_by: Some("ann".into()), ..left(&rig, "default-killed", boot, 5) };
    killed.write(&rig.instance).unwrap();
    let found = rig.block_on(rig.runs.adopt()).unwrap();
    assert_eq!((found.adopted, found.ended), (0, 3));
    let reason = |run: &str| {
        let log = rig.instance.run_records(run).join("log.jsonl");
        let ended = fs::read_to_string(log)
            .unwrap()
            .lines()
            .find(|line| line.contains("run.ended"))
            .map(str::to_owned);
        let ended: serde_json::Value = serde_json::from_str(&ended.expect(run)).unwrap();
        ended.to_string()
    };
    for (run, why) in
        [("default-reboot", "reboot"), ("default-crashed", "crash"), ("default-killed", "killed")]
    {
        let ended = reason(run);
        assert!(ended.contains(&format!("\"reason\":\"{why}\"")), "{run}: {ended}");
    }
    assert!(fs::read_dir(rig.instance.state_dir.join("live")).unwrap().next().is_none());
}
