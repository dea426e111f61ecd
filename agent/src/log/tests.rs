use std::{collections::BTreeSet, fs, io::Write as _, path::Path};

use strait_contract::{
    code::Code,
    record::{Activity, Body, Decision, Destination, Kind, Phase, Request, Source, Step, ToolKind},
    run::Process,
};

use super::{
    verify::{Reason, Verdict, verify, verify_seals},
    *,
};

mod damage;
mod faults;

fn options(state_dir: &Path) -> Options {
    Options {
        state_dir: state_dir.to_owned(),
        group: None,
        segment_bytes: 64 * 1024 * 1024,
        sync_every: Duration::from_millis(20),
        records_per_second: 1_000_000,
        open_files: 256,
        closing: Duration::from_millis(50),
    }
}

fn meta(run: &str) -> RunMeta {
    RunMeta { id: run.parse().unwrap(), agent: "coder".parse().unwrap(), version: "3".into() }
}

fn request(run: &str, url: &str) -> Record {
    Record {
        phase: Some(Phase::Decided),
        ..record(
            Some(run.parse().unwrap()),
            Body::Activity(Box::new(Activity {
                source: Source::Gateway,
                kind: Kind::Request,
                decision: Decision::Deny,
                code: Some(Code::ToolCallDenied),
                reason: Some("no permit matches".into()),
                rules: vec!["web".into()],
                dst: Destination { name: Some("host.test".into()), addr: None, port: Some(443) },
                proto: "tcp".into(),
                via: "egress".into(),
                request: Some(Request {
                    method: "GET".into(),
                    url: url.into(),
                    version: "1.1".into(),
                    ..Request::default()
                }),
                dns: None,
                stream: None,
                process: Some(Process { pid: 7, uid: 1000, comm: "curl".into(), exe: None, digest: None }),
                cookie: Some(99),
                approval: None,
                placeholders: Vec::new(),
                count: 1,
                duration_us: Some(1500),
                step: None,
            })),
        )
    }
}

fn lines(state_dir: &Path, run: &str) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(state_dir.join("runs").join(run).join("log.jsonl")).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A closed chain of `count` records for run `r`.
async fn closed_chain(state_dir: &Path, count: usize) {
    let log = Log::open(options(state_dir)).unwrap();
    log.open_run(meta("r")).await.unwrap();
    for at in 0..count {
        log.append(vec![request("r", &format!("https://host.test/{at}"))]).await.unwrap();
    }
    log.close_run("r".parse().unwrap()).await;
    log.shutdown().await;
}

#[tokio::test]
async fn a_line_has_the_members_of_the_design_in_order_and_absent_ones_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    log.open_run(meta("r")).await.unwrap();
    log.set_policy("abc".into()).await;
    log.append(vec![
        event(Some("r".parse().unwrap()), "run.started", &[("startedBy", "ann".into())]),
        request("r", "https://host.test/"),
    ])
    .await
    .unwrap();
    let text = fs::read_to_string(dir.path().join("runs/r/log.jsonl")).unwrap();
    let keys = |line: &str| -> Vec<String> {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let mut keys: Vec<(usize, String)> = value
            .as_object()
            .unwrap()
            .keys()
            .map(|key| (line.find(&format!("\"{key}\":")).unwrap(), key.clone()))
            .collect();
        keys.sort();
        keys.into_iter().map(|(_, key)| key).collect()
    };
    let mut both = text.lines();
    let head = ["id", "seq", "stream", "ts", "boot", "run", "agent", "version", "policy"];
    assert_eq!(keys(both.next().unwrap()), [&head[..], &["event", "facts", "prev", "hash"]].concat());
    let second = both.next().unwrap();
    for part in [
        "\"decision\":\"deny\"",
        "\"code\":\"TOOL_CALL_DENIED\"",
        "\"phase\":\"decided\"",
        "\"durationMs\":1.5",
        "/r/99\"",
        "\"policy\":\"abc\"",
        "\"dst\":{\"name\":\"host.test\",\"port\":443}",
    ] {
        assert!(second.contains(part), "{part} in {second}");
    }
    for absent in ["dns", "traffic", "count", "null"] {
        assert!(!second.contains(&format!("\"{absent}\"")), "{absent}");
    }
    let ts = lines(dir.path(), "r")[0]["ts"].as_str().unwrap().to_owned();
    assert_eq!(ts.len(), 24, "{ts}");
    assert!(ts.parse::<jiff::Timestamp>().is_ok());
    log.shutdown().await;
}

#[tokio::test]
async fn hash_and_prev_are_as_the_module_says() {
    use sha2::{Digest as _, Sha256};
    let dir = tempfile::tempdir().unwrap();
    closed_chain(dir.path(), 3).await;
    let mut prev = line::hex(&Sha256::digest("strait log 1\nrun r\n"));
    for text in fs::read_to_string(dir.path().join("runs/r/log.jsonl")).unwrap().lines() {
        let (body, hash) = text.split_once(",\"hash\":\"").unwrap();
        assert_eq!(hash, format!("{}\"}}", line::hex(&Sha256::digest(body))));
        assert!(body.ends_with(&format!(",\"prev\":\"{prev}\"")));
        prev = hash.trim_end_matches("\"}").to_owned();
    }
}

/// Case 97's neighbour: text from outside can't end a line, forge one, or turn its direction.
#[tokio::test]
async fn one_record_is_one_line_whatever_its_text() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    log.open_run(meta("r")).await.unwrap();
    let nasty =
        "a\nb\r\u{2028}\u{2029}\u{85}\u{202e}\u{feff}\u{e0041}\u{7f}\0\",\"hash\":\"00\"}\n{\"id\":1}";
    log.append(vec![request("r", nasty)]).await.unwrap();
    log.shutdown().await;
    let text = fs::read_to_string(dir.path().join("runs/r/log.jsonl")).unwrap();
    assert_eq!(text.matches('\n').count(), 1);
    assert!(text.trim_end().bytes().all(|byte| (b' '..0x7f).contains(&byte)), "{text}");
    assert_eq!(lines(dir.path(), "r")[0]["request"]["url"], nasty);
    assert!(matches!(verify(dir.path(), Some("r")).unwrap(), Verdict::Intact { lines: 1, .. }));
}

#[tokio::test]
async fn a_record_of_an_unknown_or_ended_run_is_refused_with_its_whole_batch() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    log.open_run(meta("r")).await.unwrap();
    log.open_run(meta("s")).await.unwrap();
    let both = |other: &str| vec![request("r", "https://a.test/"), request(other, "https://b.test/")];
    assert_eq!(log.append(both("unknown")).await, Err(Unrecorded::Run));
    assert_eq!(log.append(vec![request("r", &"x".repeat(9000))]).await, Err(Unrecorded::Malformed));
    assert_eq!(lines_or_none(dir.path(), "r"), 0);
    assert_eq!(log.append(both("s")).await, Ok(()));
    log.append_synced(vec![request("r", "https://a.test/2")]).await.unwrap();
    // Two requests, and the word that records were refused before.
    assert_eq!(lines(dir.path(), "r").len(), 3);
    let late = Record { phase: Some(Phase::Done), ..request("s", "https://b.test/") };
    let closing = tokio::spawn({
        let log = log.clone();
        async move { log.close_run("s".parse().unwrap()).await }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    // Of a call too: it may have passed on the strength of the gateway's spool.
    assert_eq!(log.append(vec![request("s", "https://b.test/"), late.clone()]).await, Ok(()));
    closing.await.unwrap();
    assert_eq!(log.append(vec![late]).await, Err(Unrecorded::Run));
    assert!(matches!(verify(dir.path(), Some("s")).unwrap(), Verdict::Intact { sealed: true, .. }));
    log.shutdown().await;
}

fn lines_or_none(state_dir: &Path, run: &str) -> usize {
    fs::read_to_string(state_dir.join("runs").join(run).join("log.jsonl"))
        .map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn a_run_that_floods_is_held_to_its_rate_and_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(Options { records_per_second: 10, ..options(dir.path()) }).unwrap();
    log.open_run(meta("r")).await.unwrap();
    log.open_run(meta("s")).await.unwrap();
    let mut refused = 0;
    for _ in 0..40 {
        match log.append(vec![request("r", "https://a.test/")]).await {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, Unrecorded::Quota);
                refused += 1;
            }
        }
    }
    assert!((10..=20).contains(&refused), "{refused}");
    assert_eq!(log.append(vec![request("s", "https://a.test/")]).await, Ok(()));
    log.shutdown().await;
}

#[tokio::test]
async fn segments_continue_the_chain_and_few_files_stay_open() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(Options { segment_bytes: 4096, open_files: 2, ..options(dir.path()) }).unwrap();
    let runs: Vec<String> = (0..6).map(|at| format!("r{at}")).collect();
    for run in &runs {
        log.open_run(meta(run)).await.unwrap();
    }
    for at in 0..40 {
        let batch = runs.iter().map(|run| request(run, &format!("https://a.test/{at}"))).collect();
        log.append(batch).await.unwrap();
    }
    log.append_synced(vec![request("r0", "https://a.test/last")]).await.unwrap();
    for run in &runs {
        let files = segments(&dir.path().join("runs").join(run)).unwrap();
        assert!(files.len() > 3, "{files:?}");
        let verdict = verify(dir.path(), Some(run)).unwrap();
        let Verdict::Intact { lines, .. } = verdict else { panic!("{run}: {verdict:?}") };
        assert_eq!(lines, if run == "r0" { 41 } else { 40 });
    }
    log.shutdown().await;
    // A new agent takes the chains up where they are.
    let log = Log::open(Options { segment_bytes: 4096, ..options(dir.path()) }).unwrap();
    let opened = log.open_run(meta("r0")).await.unwrap();
    assert_eq!((opened.lines, opened.cut), (41, 0));
    log.append_synced(vec![request("r0", "https://a.test/")]).await.unwrap();
    assert!(matches!(verify(dir.path(), Some("r0")).unwrap(), Verdict::Intact { lines: 42, .. }));
    log.shutdown().await;
}

#[tokio::test]
async fn two_agents_cannot_write_one_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    assert!(matches!(Log::open(options(dir.path())), Err(LogError::Locked(_))));
    log.shutdown().await;
    drop(log);
    assert!(Log::open(options(dir.path())).is_ok());
}

#[tokio::test]
async fn reading_gives_the_newest_that_fit_in_order_and_follows() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(Options { segment_bytes: 8192, ..options(dir.path()) }).unwrap();
    for run in ["r", "s"] {
        log.open_run(meta(run)).await.unwrap();
    }
    for at in 0..200 {
        let run = if at % 2 == 0 { "r" } else { "s" };
        let mut record = request(run, &format!("https://a.test/{at}"));
        record.ts_ms = 1_700_000_000_000 + at;
        log.append(vec![record]).await.unwrap();
    }
    let urls = |filter: &read::Filter, most| -> Vec<String> {
        let found = read::newest(dir.path(), filter, most).unwrap();
        found
            .iter()
            .map(|entry| entry.text("request.url").unwrap().rsplit('/').next().unwrap().into())
            .collect()
    };
    let all = read::Filter { kind: Some("request".into()), ..Default::default() };
    assert_eq!(urls(&all, 3), ["197", "198", "199"]);
    assert_eq!(urls(&all, 1000).len(), 200);
    let one = read::Filter { run: Some("r".parse().unwrap()), ..all.clone() };
    assert_eq!(urls(&one, 2), ["196", "198"]);
    assert_eq!(urls(&read::Filter { decision: Some("allow".into()), ..all.clone() }, 9), [""; 0]);
    assert_eq!(urls(&read::Filter { host: Some("test".into()), ..all.clone() }, 9).len(), 9);
    assert_eq!(urls(&read::Filter { host: Some("ost.test".into()), ..all.clone() }, 9), [""; 0]);
    assert_eq!(urls(&read::Filter { since_ms: Some(1_700_000_000_198), ..all.clone() }, 9), ["198", "199"]);

    let mut follow = read::Follow::new(dir.path(), all.clone()).unwrap();
    assert!(follow.poll().unwrap().is_empty());
    let mut seen = BTreeSet::new();
    for at in 200..300 {
        log.append(vec![request("r", &format!("https://a.test/{at}"))]).await.unwrap();
        if at % 7 == 0 {
            seen.extend(follow.poll().unwrap().into_iter().map(|entry| entry.line));
        }
    }
    seen.extend(follow.poll().unwrap().into_iter().map(|entry| entry.line));
    assert_eq!(seen.len(), 100, "across rotations");
    log.shutdown().await;
}

#[tokio::test]
async fn folders_and_files_are_for_root_and_auditors_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    closed_chain(dir.path(), 1).await;
    let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("runs/r"), 0o750);
    assert_eq!(mode("runs/r/log.jsonl"), 0o640);
    assert_eq!(mode("runs/r/head"), 0o640);
    assert_eq!(mode("keys/log.key"), 0o600);
    // Whoever can open it can lock it, and keep the next agent from starting; an older one's may be open to all.
    assert_eq!(mode("log.lock"), 0o600);
    fs::set_permissions(dir.path().join("log.lock"), fs::Permissions::from_mode(0o666)).unwrap();
    closed_chain(dir.path(), 1).await;
    assert_eq!(mode("log.lock"), 0o600);
}

fn again(log: &Log, records: Vec<Record>) {
    let outcomes = log.append_now(vec![Batch { records, may_repeat: true }]);
    assert_eq!(outcomes, [Ok(())]);
}

/// By the agent that comes next, which may have to end what nobody is left to end.
#[tokio::test]
async fn calls_that_have_begun_and_not_ended_are_found_when_a_chain_is_taken_up() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    log.open_run(meta("r")).await.unwrap();
    let [open, ended] = ["https://a.test/1", "https://a.test/2"].map(|url| request("r", url));
    let done = Record { phase: Some(Phase::Done), ..ended.clone() };
    log.append(vec![open.clone(), ended, done]).await.unwrap();
    log.shutdown().await;
    let log = Log::open(options(dir.path())).unwrap();
    assert_eq!(
        log.open_run(meta("r")).await.unwrap().open,
        [(open.id, Begun::Activity(Kind::Request), Decision::Deny)]
    );
    log.append(vec![Record { phase: Some(Phase::Done), ..open }]).await.unwrap();
    log.shutdown().await;
    let log = Log::open(options(dir.path())).unwrap();
    assert_eq!(log.open_run(meta("r")).await.unwrap().open, [], "positive control");
    log.shutdown().await;
}

/// What a gateway sends again after its link broke is written once, by the same agent and by the next one.
#[tokio::test]
async fn a_record_that_is_sent_again_is_not_written_twice() {
    let dir = tempfile::tempdir().unwrap();
    let decided = request("r", "https://a.test/1");
    let done = Record { phase: Some(Phase::Done), ..decided.clone() };
    for (round, expect) in [(1, 3), (2, 4)] {
        let log = Log::open(options(dir.path())).unwrap();
        log.open_run(meta("r")).await.unwrap();
        for _ in 0..2 {
            let batch = vec![decided.clone(), done.clone()];
            again(&log, batch);
        }
        again(&log, vec![request("r", "https://a.test/2")]);
        assert_eq!(lines(dir.path(), "r").len(), expect, "round {round}");
        log.shutdown().await;
    }
}

proptest::proptest! {
    #[test]
    fn any_changed_bit_of_a_line_breaks_its_hash(line in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        properties::a_hash_covers_its_line(&line);
    }
}

/// A27: a step's lines stand in the stream `trace`, and one that has begun and not ended is found again.
#[tokio::test]
async fn steps_are_a_stream_of_their_own_a27() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    log.open_run(meta("r")).await.unwrap();
    let step = Step {
        target: "GET https://api.test/x".into(),
        args: Some("a=b".into()),
        rules: vec!["api".into()],
        status: Some(200),
        truncated: true,
        duration_us: Some(1500),
        ..Step::new("a\"b/c".into(), ToolKind::Http, Decision::Allow)
    };
    let line = record(Some("r".parse().unwrap()), Body::Trace(Box::new(step)));
    let decided = Record { phase: Some(Phase::Decided), ..line.clone() };
    log.append(vec![decided]).await.unwrap();
    let written = lines(dir.path(), "r").pop().unwrap();
    let id = line.id.to_string();
    for (key, value) in [
        ("stream", serde_json::json!("trace")),
        ("step", id.clone().into()),
        ("id", id.into()),
        ("type", "tool".into()),
        ("tool", "a\"b/c".into()),
        ("kind", "http".into()),
        ("target", "GET https://api.test/x".into()),
        ("args", "a=b".into()),
        ("decision", "allow".into()),
        ("rules", serde_json::json!(["api"])),
        ("status", 200.into()),
        ("truncated", true.into()),
        ("durationMs", 1.5.into()),
    ] {
        assert_eq!(written[key], value, "{key}: {written}");
    }
    log.shutdown().await;
    let log = Log::open(options(dir.path())).unwrap();
    let begun = Begun::Step { tool: "a\"b/c".into(), kind: ToolKind::Http };
    assert_eq!(log.open_run(meta("r")).await.unwrap().open, [(line.id, begun, Decision::Allow)]);
    log.shutdown().await;
}
