use std::{fs, path::Path, time::Instant};

use super::*;
use crate::{
    instance::Instance,
    log::{Options, RunMeta},
};

fn event(run: u64, pid: u32) -> KernelEvent {
    KernelEvent {
        boot_ns: log::boot_ns(),
        run,
        cookie: Some(42),
        netns: None,
        cgroup: None,
        caller: Some(Caller { tgid: pid, tid: pid, uid: 1000, comm: "nc".into() }),
        dst: Some("203.0.113.7:443".parse().unwrap()),
        src: None,
        family: 2,
        kind: 1,
        proto: 6,
        hook: Some(Hook::Connect4),
        verdict: Verdict::Deny,
        code: Some(Code::KernelDestination),
        count: 3,
    }
}

async fn rig(dir: &Path) -> (Log, mpsc::Sender<Notice>) {
    let mut instance = Instance::standard("t".parse().unwrap());
    instance.state_dir = dir.to_owned();
    let log = Log::open(Options { group: None, closing: Duration::ZERO, ..Options::for_instance(&instance) }).unwrap();
    let meta = RunMeta { id: "r".parse().unwrap(), agent: "coder".parse().unwrap(), version: "1".into() };
    log.open_run(meta).await.unwrap();
    let runs: RunOfNumber = Arc::new(|number| (number == 7).then(|| "r".parse().unwrap()));
    let (notices, taken) = mpsc::channel(16);
    tokio::spawn(Recorder::new(log.clone(), Processes::new(&instance), runs).run(taken));
    (log, notices)
}

/// The lines of a chain once there are as many as wanted.
async fn lines(dir: &Path, chain: &str, least: usize) -> Vec<serde_json::Value> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let text = fs::read_to_string(dir.join(chain).join("log.jsonl")).unwrap_or_default();
        let found: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .filter(|line: &serde_json::Value| line["stream"] == "activity")
            .collect();
        if found.len() >= least {
            return found;
        }
        assert!(Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_kernel_event_becomes_a_record_of_its_run_with_the_executable() {
    let dir = tempfile::tempdir().unwrap();
    let (_log, notices) = rig(dir.path()).await;
    notices.send(Notice::Event(event(7, std::process::id()))).await.unwrap();
    let line = &lines(dir.path(), "runs/r", 1).await[0];
    for (key, expect) in [("source", "kernel"), ("kind", "connect"), ("decision", "deny"), ("code", "KERNEL_DESTINATION")] {
        assert_eq!(line[key], expect, "{key}");
    }
    assert_eq!((&line["dst"]["addr"], &line["dst"]["port"]), (&"203.0.113.7".into(), &443.into()));
    assert_eq!((&line["count"], &line["proto"]), (&3.into(), &"tcp".into()));
    assert_eq!(line["process"]["exe"], std::env::current_exe().unwrap().to_str().unwrap());
    assert!(line["flow"].as_str().unwrap().ends_with("/r/42"));
    // A process that is gone has no executable, and none is made up.
    notices.send(Notice::Event(event(7, u32::MAX))).await.unwrap();
    let line = &lines(dir.path(), "runs/r", 2).await[1];
    assert_eq!((line["process"].get("exe"), &line["process"]["comm"]), (None, &"nc".into()));
}

#[tokio::test]
async fn losses_are_records_and_events_of_ended_or_no_runs_go_to_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (log, notices) = rig(dir.path()).await;
    notices.send(Notice::Lost { run: 7, count: 5 }).await.unwrap();
    let line = &lines(dir.path(), "runs/r", 1).await[0];
    assert_eq!((&line["kind"], &line["count"]), (&"lost".into(), &5.into()));
    notices.send(Notice::Event(event(0, u32::MAX))).await.unwrap();
    let line = &lines(dir.path(), "host", 1).await[0];
    assert_eq!(line["reason"], "not of a live run");
    log.close_run("r".parse().unwrap()).await;
    notices.send(Notice::Event(event(7, u32::MAX))).await.unwrap();
    let line = &lines(dir.path(), "host", 2).await[1];
    assert_eq!(line["reason"], "of the ended run `r`");
}

/// Exact accounting across an outage of the log: what wasn't written is counted, and the count is written.
#[tokio::test]
async fn events_during_an_outage_are_counted_in_the_log_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let size = std::ffi::CString::new("size=64k").unwrap();
    rustix::mount::mount("tmpfs", dir.path(), "tmpfs", rustix::mount::MountFlags::empty(), Some(size.as_c_str()))
        .expect("mounting a small tmpfs needs root: run the tests as root");
    let (log, notices) = rig(dir.path()).await;
    notices.send(Notice::Event(event(7, u32::MAX))).await.unwrap();
    lines(dir.path(), "runs/r", 1).await;
    let mut ballast = fs::File::create(dir.path().join("ballast")).unwrap();
    while std::io::Write::write_all(&mut ballast, &[0; 512]).is_ok() {}
    for _ in 0..200 {
        notices.send(Notice::Event(event(7, u32::MAX))).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(ballast);
    fs::remove_file(dir.path().join("ballast")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let found = lines(dir.path(), "runs/r", 1).await;
        let counted: u64 = found.iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
        if counted == 201 * 3 {
            assert!(found.iter().any(|line| line["code"] == "RECORD_UNAVAILABLE"), "there was an outage");
            break;
        }
        assert!(Instant::now() < deadline, "{counted} of {} events accounted for", 201 * 3);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    log.shutdown().await;
    let _ = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH);
}
