//! A full disk, a killed writer, a half line, foreign hands on the files (cases 99, 100).

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use super::*;

/// A tmpfs of its own, unmounted at the end. Needs root.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(kib: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        rustix::mount::mount(
            "tmpfs",
            dir.path(),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            Some(std::ffi::CString::new(format!("size={kib}k")).unwrap().as_c_str()),
        )
        .expect("mounting a small tmpfs needs root: run the tests as root");
        Self(dir)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_full_disk_refuses_leaves_no_half_record_and_recovers_by_itself() {
    let disk = SmallDisk::new(256);
    let dir = disk.0.path();
    let log = Log::open(options(dir)).unwrap();
    log.open_run(meta("r")).await.unwrap();
    log.open_run(meta("s")).await.unwrap();
    log.append_synced(vec![request("r", "https://a.test/first"), request("s", "https://a.test/")])
        .await
        .unwrap();
    let mut ballast = fs::File::create(dir.join("ballast")).unwrap();
    while ballast.write_all(&[0; 512]).is_ok() {}
    let mut written = 1;
    let mut refused = 0;
    for at in 0..400 {
        let batch: Vec<Record> = (0..5).map(|_| request("r", &format!("https://a.test/{at}"))).collect();
        match log.append(batch).await {
            Ok(()) => written += 5,
            Err(error) => {
                assert_eq!(error, Unrecorded::Log);
                refused += 5;
            }
        }
    }
    assert!(refused > 1000, "{written} written, {refused} refused");
    assert_eq!(lines(dir, "r").len(), written, "all of a batch or none");
    // Batches of several runs are undone in all of them.
    let s = lines(dir, "s").len();
    assert_eq!(
        log.append(vec![request("s", "x"), request("r", &"x".repeat(8000))]).await,
        Err(Unrecorded::Log)
    );
    assert_eq!(lines(dir, "s").len(), s);

    drop(ballast);
    fs::remove_file(dir.join("ballast")).unwrap();
    log.append_synced(vec![request("r", "https://a.test/last")]).await.unwrap();
    let all = lines(dir, "r");
    let told = all.iter().find(|line| line["event"] == "log.recovered").expect("what was missed is told");
    assert_eq!(told["facts"]["refusedRecords"], (refused + 1).to_string());
    let host = fs::read_to_string(dir.join("host/log.jsonl")).unwrap();
    assert!(host.contains("log.recovered"), "{host}");
    log.shutdown().await;
    assert!(matches!(verify(dir, Some("r")).unwrap(), Verdict::Intact { .. }));
    assert!(matches!(verify(dir, None).unwrap(), Verdict::Intact { .. }));
}

const CHILD: &str = "STRAIT_TEST_LOG_CHILD";

/// Not a claim of its own: the process that the next test kills.
#[test]
fn child_writes_until_killed() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = Log::open(options(Path::new(&dir))).unwrap();
        log.open_run(meta("r")).await.unwrap();
        for at in 0_u64.. {
            let batch =
                (0..7).map(|_| request("r", &format!("https://a.test/{at}/{}", "x".repeat(2000)))).collect();
            log.append(batch).await.unwrap();
            println!("\nacknowledged {}", (at + 1) * 7);
        }
    });
}

#[tokio::test]
async fn kill_9_amid_writing_loses_no_acknowledged_record_and_leaves_no_half_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut known = 0;
    for round in 0..4 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "log::tests::faults::child_writes_until_killed", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let before = known;
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut acknowledged = 0;
        for line in out.lines().map_while(Result::ok) {
            if let Some(count) = line.strip_prefix("acknowledged ") {
                acknowledged = count.parse::<u64>().unwrap();
                if acknowledged > 300 + 50 * round {
                    let _ = child.kill();
                }
            }
        }
        child.wait().unwrap();
        assert!(acknowledged > 300, "the child wrote: {acknowledged}");
        let log = Log::open(options(dir.path())).unwrap();
        let opened = log.open_run(meta("r")).await.unwrap();
        assert!(
            opened.lines >= before + acknowledged,
            "{opened:?}, {acknowledged} acknowledged, {before} before"
        );
        log.append_synced(vec![request("r", "https://a.test/")]).await.unwrap();
        let Verdict::Intact { lines, .. } = verify(dir.path(), Some("r")).unwrap() else { panic!("broken") };
        known = lines;
        log.shutdown().await;
    }
}

#[tokio::test]
async fn a_half_line_of_a_power_cut_is_cut_off_and_told() {
    let dir = tempfile::tempdir().unwrap();
    closed_chain(dir.path(), 3).await;
    let path = dir.path().join("runs/r/log.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"id\":\"0190").unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    let opened = log.open_run(meta("r")).await.unwrap();
    assert_eq!((opened.lines, opened.cut), (3, 11));
    log.close_run("r".parse().unwrap()).await;
    log.shutdown().await;
    let now = fs::read_to_string(&path).unwrap();
    assert!(now.starts_with(&whole));
    let last = lines(dir.path(), "r").pop().unwrap();
    assert_eq!((&last["event"], &last["facts"]["cutBytes"]), (&"log.recovered".into(), &"11".into()));
    assert!(matches!(verify(dir.path(), Some("r")).unwrap(), Verdict::Intact { lines: 4, sealed: true, .. }));
}

/// Case 99: log rotation by someone else is noticed, and calls are refused rather than lost.
#[tokio::test]
async fn a_file_that_is_truncated_or_removed_under_the_writer_refuses_records() {
    for remove in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(options(dir.path())).unwrap();
        log.open_run(meta("r")).await.unwrap();
        log.append_synced(vec![request("r", "https://a.test/1")]).await.unwrap();
        let path = dir.path().join("runs/r/log.jsonl");
        if remove {
            fs::remove_file(&path).unwrap();
        } else {
            fs::write(&path, b"").unwrap();
        }
        let synced = log.append_synced(vec![request("r", "https://a.test/2")]).await;
        assert_eq!(synced, Err(Unrecorded::Log), "noticed at the sync");
        assert_eq!(log.append(vec![request("r", "https://a.test/3")]).await, Err(Unrecorded::Log));
        assert!(matches!(verify(dir.path(), Some("r")).unwrap(), Verdict::Broken(_)));
        log.shutdown().await;
    }
}
