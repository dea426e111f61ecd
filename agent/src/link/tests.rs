use std::{
    fs,
    os::fd::AsFd as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use strait_contract::{
    CONTRACT,
    message::{Drifted, Intermediate, Limits, MAX_PACKET, Resolver, Secret, ToAgent},
    record::{Activity, Body, Decision, Event, Kind, Phase, Record, Source, Unrecorded},
};

use super::*;
use crate::{
    child::Program,
    log::{self, Options, RunMeta},
};

mod budget;
mod held;
mod left;

/// A user that is neither root nor anyone else's in these tests.
const GATEWAY: u32 = 64_777;

struct Rig {
    dir: tempfile::TempDir,
    instance: Instance,
    log: Log,
    link: Link,
}

impl Rig {
    /// A served link whose gateway user is `uid`.
    fn new(uid: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut instance = Instance::standard("t".parse().unwrap());
        instance.run_dir = dir.path().to_owned();
        instance.state_dir = dir.path().join("state");
        instance.gateway_uid = uid;
        instance.gateway_gid = uid;
        let log = Log::open(Options {
            group: None,
            closing: Duration::from_millis(20),
            ..Options::for_instance(&instance)
        })
        .unwrap();
        let parts = Parts {
            log: log.clone(),
            processes: Processes::new(&instance),
            approvals: approvals(&log),
            listeners: Listeners::new(
                &instance,
                Path::new("/nonexistent"),
                Program::at(Path::new("/nonexistent")),
            ),
            setup: Box::new(|| Ok(setup())),
            tools: Box::new(Tools::default),
            providers: Box::new(Providers::default),
            budgets: Box::new(BTreeMap::new),
            credential: Box::new(|name| match name.as_str() {
                "good" => Ok(Secret::new("hunter2".into())),
                _ => Err("there is none".into()),
            }),
            names_per_run: 16,
        };
        let link = Link::serve(&instance, parts).unwrap();
        link.open();
        Self { dir, instance, log, link }
    }

    async fn start_run(&self, name: &str) {
        let meta =
            RunMeta { id: name.parse().unwrap(), agent: "coder".parse().unwrap(), version: "1".into() };
        self.log.open_run(meta).await.unwrap();
        self.link.run_started(info(name), &self.instance.run_dir.join(format!("{name}.names"))).unwrap();
    }

    fn gateway(&self) -> FakeGateway {
        FakeGateway::dial(&self.instance.link_socket()).unwrap()
    }

    async fn greeted(&self) -> FakeGateway {
        let mut gateway = self.gateway();
        gateway.hello(CONTRACT);
        assert!(matches!(gateway.next().await, Some((ToGateway::Setup(_), fds)) if fds.is_empty()));
        assert!(matches!(gateway.next().await, Some((ToGateway::Tools(tools), _)) if tools.tools.is_empty()));
        let providers = gateway.next().await;
        assert!(matches!(providers, Some((ToGateway::Providers(all), _)) if all.providers.is_empty()));
        assert!(matches!(gateway.next().await, Some((ToGateway::Budgets(_), _))));
        gateway
    }

    fn host_log(&self) -> String {
        fs::read_to_string(self.dir.path().join("state/host/log.jsonl")).unwrap_or_default()
    }
}

fn approvals(log: &Log) -> Approvals {
    let config = crate::config::Config::parse("", Path::new("/nonexistent/strait.toml")).unwrap();
    let (_, config) = watch::channel(Arc::new(config));
    Approvals::start(log.clone(), config)
}

fn info(name: &str) -> RunInfo {
    RunInfo {
        id: name.parse().unwrap(),
        number: 1,
        addr: [10, 203, 0, 2].into(),
        agent: "coder".parse().unwrap(),
        version: "1".into(),
        started_by: "ann".into(),
        labels: Vec::new(),
        addresses: Vec::new(),
        token: strait_contract::token::TokenHash::of("test"),
        exposed: Vec::new(),
    }
}

fn setup() -> Setup {
    Setup {
        gateway: [10, 203, 0, 1].into(),
        resolver: Resolver::System,
        proxy: None,
        hosts: Vec::new(),
        passthrough: Vec::new(),
        doh: Vec::new(),
        anchors: String::new(),
        system_anchors: true,
        ca: Intermediate { chain: String::new(), key: Secret::new(String::new()) },
        limits: Limits::default(),
    }
}

fn activity(run: Option<&str>, source: Source) -> Record {
    Record {
        phase: Some(Phase::Decided),
        ..log::record(
            run.map(|run| run.parse().unwrap()),
            Body::Activity(Box::new(Activity {
                proto: "tcp".into(),
                ..Activity::new(source, Kind::Connect, Decision::Deny)
            })),
        )
    }
}

/// So many, each with an id of its own: a repeated one is written once.
fn activities(run: Option<&str>, source: Source, count: usize) -> Vec<Record> {
    (0..count).map(|_| activity(run, source)).collect()
}

/// The gateway's end, spoken by hand.
struct FakeGateway(OwnedFd);

impl FakeGateway {
    fn dial(path: &Path) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    fn send(&self, message: &ToAgent) {
        seqpacket::send(self.0.as_fd(), &seqpacket::encode(message).unwrap(), &[]).unwrap();
    }

    fn hello(&self, contract: &str) {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.send(&ToAgent::Hello { version, contract: contract.to_owned(), has_listeners: true });
    }

    /// The next message; `None` if the agent closed the link.
    async fn next(&mut self) -> Option<(ToGateway, Vec<OwnedFd>)> {
        let mut buffer = vec![0; MAX_PACKET];
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match seqpacket::receive(self.0.as_fd(), &mut buffer) {
                Ok((ToGateway::Announced | ToGateway::Spool, _)) => {}
                Ok(received) => return Some(received),
                Err(error) if error.would_block() => {
                    assert!(Instant::now() < deadline, "the agent says nothing");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(LinkError::Closed) => return None,
                Err(LinkError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn recorded(&mut self, batch: u64, records: Vec<Record>) -> Option<Unrecorded> {
        self.send(&ToAgent::Records { batch, records });
        match self.next().await {
            Some((ToGateway::Recorded { batch: answered, refused }, _)) if answered == batch => refused,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_gateway_is_given_setup_policy_and_runs_on_every_connection() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let files = vec![PolicyFile { name: "a.cedar".into(), guardrail: false, text: "permit(…)".into() }];
    assert_eq!(rig.link.set_policy(&files, "d1".into()).await.unwrap(), Applied::AtNextStart { epoch: 1 });
    for _ in 0..2 {
        let mut gateway = rig.greeted().await;
        let Some((ToGateway::Policy { epoch: 1, digest }, fds)) = gateway.next().await else { panic!() };
        assert_eq!(digest, "d1");
        let mut text = Vec::new();
        let mut file = fs::File::from(fds.into_iter().next().unwrap());
        io::Read::read_to_end(&mut file, &mut text).unwrap();
        assert_eq!(postcard::from_bytes::<Vec<PolicyFile>>(&text).unwrap(), files);
        assert!(io::Write::write_all(&mut file, b"x").is_err(), "sealed");
        let Some((ToGateway::RunStarted(run), fds)) = gateway.next().await else { panic!() };
        assert_eq!(run, info("r1"));
        let names = fs::File::from(fds.into_iter().next().unwrap());
        assert_eq!(names.metadata().unwrap().len(), 16 * 256);
        assert!(rig.link.gateway_alive());
        assert_eq!(*rig.link.gateway().borrow(), Some(std::process::id()));
        drop(gateway);
        rig.link.gateway().wait_for(Option::is_none).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_written_to_the_names_of_a_run_is_there_for_the_next_gateway() {
    use std::os::unix::fs::FileExt as _;
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let mut gateway = rig.greeted().await;
        let Some((ToGateway::RunStarted(_), fds)) = gateway.next().await else { panic!() };
        let names = fs::File::from(fds.into_iter().next().unwrap());
        let mut byte = [0];
        names.read_at(&mut byte, 300).unwrap();
        seen.push(byte[0]);
        names.write_at(&[7], 300).unwrap();
    }
    assert_eq!(seen, [0, 7]);
}

#[tokio::test]
async fn records_are_acknowledged_when_they_are_in_the_file() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    assert_eq!(gateway.recorded(7, activities(Some("r1"), Source::Gateway, 3)).await, None);
    let text = fs::read_to_string(rig.dir.path().join("state/runs/r1/log.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 3);
    assert_eq!(
        gateway.recorded(8, vec![activity(Some("unknown"), Source::Gateway)]).await,
        Some(Unrecorded::Run)
    );
    assert_eq!(gateway.recorded(9, vec![activity(None, Source::Gateway)]).await, None);
    assert!(rig.host_log().contains("\"source\":\"gateway\""));
    let closed = rig.link.run_ended(&"r1".parse().unwrap());
    assert!(matches!(gateway.next().await, Some((ToGateway::RunEnded(_), _))));
    gateway.send(&ToAgent::RunClosed("r1".parse().unwrap()));
    let begun = Instant::now();
    closed.await;
    assert!(begun.elapsed() < CLOSED_WITHIN, "the answer counts, not the time");
    rig.log.close_run("r1".parse().unwrap()).await;
    assert_eq!(
        gateway.recorded(10, vec![activity(Some("r1"), Source::Gateway)]).await,
        Some(Unrecorded::Run)
    );
}

/// What a gateway that was taken over may not do: speak as the kernel, write events, send descriptors.
#[tokio::test]
async fn a_gateway_that_writes_what_it_must_not_is_cut_off_and_nothing_is_written() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let event = log::record(
        Some("r1".parse().unwrap()),
        Body::Event(Event { name: "run.ended".into(), facts: Vec::new() }),
    );
    let cases = [
        vec![activity(Some("r1"), Source::Kernel)],
        vec![activity(Some("r1"), Source::Gateway), event],
        activities(Some("r1"), Source::Gateway, 65),
    ];
    for records in cases {
        let mut gateway = rig.greeted().await;
        gateway.next().await.unwrap();
        gateway.send(&ToAgent::Records { batch: 1, records });
        assert!(gateway.next().await.is_none(), "cut off");
    }
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    let message = ToAgent::WhoIs { ticket: 1, run: "r1".parse().unwrap(), tgid: 1 };
    let null = fs::File::open("/dev/null").unwrap();
    seqpacket::send(gateway.0.as_fd(), &seqpacket::encode(&message).unwrap(), &[null.as_fd()]).unwrap();
    assert!(gateway.next().await.is_none(), "cut off");
    assert!(!rig.dir.path().join("state/runs/r1/log.jsonl").exists());
    while rig.host_log().matches("link.violation").count() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The same words from a gateway that behaves: positive control.
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    assert_eq!(gateway.recorded(1, activities(Some("r1"), Source::Gateway, 64)).await, None);
}

#[tokio::test]
async fn lookups_from_nowhere_cannot_flood_the_hosts_log() {
    let rig = Rig::new(0);
    let mut gateway = rig.greeted().await;
    assert_eq!(gateway.recorded(1, activities(None, Source::Gateway, 50)).await, None);
    assert_eq!(gateway.recorded(2, vec![activity(None, Source::Gateway)]).await, Some(Unrecorded::Quota));
}

#[tokio::test]
async fn another_release_and_another_user_are_refused() {
    let rig = Rig::new(0);
    let mut other = rig.gateway();
    other.hello("0000000000000000");
    assert!(other.next().await.is_none());
    let mut garbage = rig.gateway();
    seqpacket::send(garbage.0.as_fd(), b"\xff\xff\xff", &[]).unwrap();
    assert!(garbage.next().await.is_none());
    rig.greeted().await;

    let rig = Rig::new(GATEWAY);
    let path = rig.instance.link_socket();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let dial_as = |uid: u32, path: PathBuf| {
        // Ids of a single thread: the kernel looks at the thread that connects.
        std::thread::spawn(move || {
            let uid = rustix::fs::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            FakeGateway::dial(&path)
        })
        .join()
        .unwrap()
    };
    let mut own = dial_as(GATEWAY, path.clone()).unwrap();
    own.hello(CONTRACT);
    assert!(own.next().await.is_some(), "positive control");
    let stranger = dial_as(65_533, path.clone()).err().map(|error| error.kind());
    assert_eq!(stranger, Some(io::ErrorKind::PermissionDenied));
    let mut root = FakeGateway::dial(&path).unwrap();
    assert!(root.next().await.is_none(), "whoever gets past the mode is refused by its user id");
    while !rig.host_log().contains("link.refused") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn policies_are_live_once_compiled_and_the_last_good_ones_stay() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    for (digest, refused, live) in [("good", None, true), ("bad", Some("no".to_owned()), false)] {
        let setting = tokio::spawn({
            let link = rig.link.clone();
            async move { link.set_policy(&[], digest.into()).await }
        });
        let Some((ToGateway::Policy { epoch, .. }, _)) = gateway.next().await else { panic!() };
        gateway.send(&ToAgent::PolicyCompiled { epoch, refused });
        let outcome = setting.await.unwrap();
        assert_eq!(matches!(outcome, Ok(Applied::Live { .. })), live, "{outcome:?}");
    }
    assert_eq!(gateway.recorded(1, vec![activity(Some("r1"), Source::Gateway)]).await, None);
    let text = fs::read_to_string(rig.dir.path().join("state/runs/r1/log.jsonl")).unwrap();
    assert!(text.contains("\"policy\":\"good\""), "{text}");
    let mut next = rig.greeted().await;
    let Some((ToGateway::Policy { digest, .. }, _)) = next.next().await else { panic!() };
    assert_eq!(digest, "good", "what a new gateway is given");
}

#[tokio::test]
async fn nothing_is_told_of_processes_outside_the_run() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    gateway.send(&ToAgent::WhoIs { ticket: 5, run: "r1".parse().unwrap(), tgid: std::process::id() });
    let answer = gateway.next().await;
    assert!(matches!(answer, Some((ToGateway::Process { ticket: 5, process: None }, _))), "{answer:?}");
}

/// Connections that say nothing hold threads, and records, starts and kills need those too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_dials_without_a_word_keeps_nobody_else_waiting() {
    let rig = Rig::new(0);
    let path = rig.instance.link_socket();
    let mut silent = Vec::new();
    for _ in 0..2000 {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        match connect(&socket, &SocketAddrUnix::new(&path).unwrap()) {
            Ok(()) => silent.push(socket),
            // The backlog is full: let the agent take some.
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        if silent.len() == 540 {
            break;
        }
    }
    assert!(silent.len() > 16, "more than the backlog were taken");
    let event = log::event(None, "test.event", &[]);
    let written = tokio::time::timeout(Duration::from_secs(5), rig.log.append(vec![event])).await;
    assert_eq!(written.expect("the log has a thread"), Ok(()));
    // Once they are gone a gateway is taken on.
    drop(silent);
    rig.greeted().await;
}

/// Who asks and doesn't take the answers is not asked for more, so nothing piles up here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_takes_hold_up_the_questions() {
    let rig = Rig::new(0);
    let gateway = rig.greeted().await;
    let question = ToAgent::WhoIs { ticket: 1, run: "r1".parse().unwrap(), tgid: 1 };
    let question = seqpacket::encode(&question).unwrap();
    let (mut taken, mut refused) = (0, 0);
    while taken < 20_000 && refused < 200 {
        match seqpacket::send(gateway.0.as_fd(), &question, &[]) {
            Ok(()) => (taken, refused) = (taken + 1, 0),
            Err(error) if error.would_block() => {
                refused += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!((64..5000).contains(&taken), "{taken} questions were taken without their answers");
}

#[tokio::test]
async fn policies_that_were_compiled_too_late_are_taken_back() {
    let rig = Rig::new(0);
    let mut gateway = rig.greeted().await;
    let good = tokio::spawn({
        let link = rig.link.clone();
        async move { link.set_policy(&[], "good".into()).await }
    });
    let Some((ToGateway::Policy { epoch, .. }, _)) = gateway.next().await else { panic!() };
    gateway.send(&ToAgent::PolicyCompiled { epoch, refused: None });
    good.await.unwrap().unwrap();
    let late = rig.link.set_policy_within(&[], "late".into(), Duration::from_millis(50)).await;
    assert!(matches!(late, Err(NotApplied::Late)), "{late:?}");
    let mut sent = Vec::new();
    for _ in 0..2 {
        let Some((ToGateway::Policy { epoch, digest }, _)) = gateway.next().await else { panic!() };
        gateway.send(&ToAgent::PolicyCompiled { epoch, refused: None });
        sent.push((epoch, digest));
    }
    assert!(sent[0].1 == "late" && sent[1].1 == "good" && sent[0].0 < sent[1].0, "{sent:?}");
    // Later policies are taken as ever.
    let next = tokio::spawn({
        let link = rig.link.clone();
        async move { link.set_policy(&[], "next".into()).await }
    });
    let Some((ToGateway::Policy { epoch, digest }, _)) = gateway.next().await else { panic!() };
    assert!(digest == "next" && epoch > sent[1].0);
    gateway.send(&ToAgent::PolicyCompiled { epoch, refused: None });
    assert!(matches!(next.await.unwrap(), Ok(Applied::Live { .. })));
}

/// A gateway that loses the link and dials again ends its calls over the new one, while they are still noted as those
/// of the old one.
#[tokio::test]
async fn a_call_that_was_ended_over_another_connection_has_no_second_end() {
    use super::calls::{Begun, Calls};
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    gateway.next().await.unwrap();
    let decided = [activity(Some("r1"), Source::Gateway), activity(Some("r1"), Source::Gateway)];
    assert_eq!(gateway.recorded(1, decided.to_vec()).await, None);
    let done = Record { phase: Some(Phase::Done), ..decided[0].clone() };
    assert_eq!(gateway.recorded(2, vec![done]).await, None);
    let begun = Begun {
        run: "r1".parse().unwrap(),
        what: log::Begun::Activity(Kind::Connect),
        decision: Decision::Allow,
    };
    let calls: Calls = decided.iter().map(|record| (record.id, begun.clone())).collect();
    rig.link.end_calls(calls).await;
    let text = fs::read_to_string(rig.dir.path().join("state/runs/r1/log.jsonl")).unwrap();
    for Record { id, .. } in &decided {
        let ends = text.lines().filter(|line| line.contains(&id.to_string()) && line.contains("\"done\""));
        assert_eq!(ends.count(), 1, "{text}");
    }
    assert_eq!(text.matches("GATEWAY_GONE").count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_handed_over_with_an_event_that_shows_nothing_of_them() {
    let rig = Rig::new(0);
    let mut gateway = rig.greeted().await;
    for (ticket, name) in [(1, "good"), (2, "bad")] {
        gateway.send(&ToAgent::Credential { ticket, name: name.parse().unwrap() });
    }
    let mut values = BTreeMap::new();
    while values.len() < 2 {
        if let Some((ToGateway::Credential { ticket, value }, _)) = gateway.next().await {
            values.insert(ticket, value);
        }
    }
    assert_eq!(values[&1].as_ref().unwrap().expose(), "hunter2");
    assert_eq!(values[&2].as_ref().unwrap_err(), "there is none");
    let log = rig.host_log();
    assert!(log.contains("\"event\":\"credential.handed\"") && log.contains("\"name\":\"good\""), "{log}");
    assert!(log.contains("\"event\":\"credential.unavailable\"") && log.contains("there is none"), "{log}");
    assert!(!log.contains("hunter2"), "{log}");
    // One that was taken over can't ask without end.
    for ticket in 3..103 {
        gateway.send(&ToAgent::Credential { ticket, name: "good".parse().unwrap() });
    }
    let mut refused = 0;
    for _ in 3..103 {
        let Some((ToGateway::Credential { value, .. }, _)) = gateway.next().await else { panic!() };
        refused += usize::from(value.is_err_and(|why| why.contains("too often")));
    }
    assert!(refused >= 40, "{refused}");
}

/// A4: a token from the wrong run is an event in the logs of both, and a flood of them one a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misused_token_is_an_event_of_both_runs_a4() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    rig.start_run("r2").await;
    let mut gateway = rig.greeted().await;
    for (from, owner) in [("r1", "r2"), ("r1", "r2"), ("r1", "r1"), ("r1", "gone"), ("gone", "r2")] {
        gateway.send(&ToAgent::TokenMismatch { from: from.parse().unwrap(), owner: owner.parse().unwrap() });
    }
    gateway.send(&ToAgent::Credential { ticket: 1, name: "bad".parse().unwrap() });
    while !matches!(gateway.next().await, Some((ToGateway::Credential { .. }, _))) {}
    for run in ["r1", "r2"] {
        let path = rig.instance.state_dir.join("runs").join(run).join("log.jsonl");
        let log = fs::read_to_string(path).unwrap();
        assert_eq!(log.matches("token.address_mismatch").count(), 1, "{log}");
        assert!(log.contains("\"from\":\"r1\"") && log.contains("\"owner\":\"r2\""), "{log}");
    }
}

/// Case 59: news of changed tools is on record, and a gateway that was taken over can't fill a log with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_changed_tools_is_bounded_and_its_words_too() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    for count in 0..300 {
        let drifted = drifted(&format!("t{count}"), &"x".repeat(5_000));
        gateway.send(&ToAgent::ToolDrifted { run: Some("r1".parse().unwrap()), drifted });
        // Room in the socket.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    gateway.send(&ToAgent::Credential { ticket: 1, name: "bad".parse().unwrap() });
    while !matches!(gateway.next().await, Some((ToGateway::Credential { .. }, _))) {}
    let log = fs::read_to_string(rig.instance.state_dir.join("runs/r1/log.jsonl")).unwrap();
    let told = log.matches("tool.drifted").count();
    assert!((50..=150).contains(&told), "{told} events");
    assert!(log.lines().all(|line| line.len() < 1_000), "{log}");
}

fn drifted(tool: &str, differs: &str) -> Drifted {
    Drifted {
        server: "srv".parse().unwrap(),
        tool: tool.to_owned(),
        differs: differs.to_owned(),
        pinned: [7; 32],
    }
}

/// Case 59: what has drifted is told to the gateway that comes next, until it is what was pinned again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_gateway_is_told_what_has_drifted_case_59() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let mut gateway = rig.greeted().await;
    for tool in ["one", "two", "three"] {
        let run = (tool != "three").then(|| "r1".parse().unwrap());
        gateway.send(&ToAgent::ToolDrifted { run, drifted: drifted(tool, "description") });
    }
    gateway.send(&ToAgent::ToolDrifted { run: None, drifted: drifted(&"n".repeat(200), "description") });
    gateway.send(&ToAgent::ToolAgrees { server: "srv".parse().unwrap(), tool: "one".to_owned() });
    gateway.send(&ToAgent::Credential { ticket: 1, name: "bad".parse().unwrap() });
    while !matches!(gateway.next().await, Some((ToGateway::Credential { .. }, _))) {}
    drop(gateway);
    let mut next = rig.greeted().await;
    assert!(matches!(next.next().await, Some((ToGateway::RunStarted(_), _))));
    for tool in ["three", "two"] {
        let (message, _) = next.next().await.unwrap();
        assert!(
            matches!(&message, ToGateway::ToolDrifted(told) if *told == drifted(tool, "description")),
            "{message:?}"
        );
    }
    next.send(&ToAgent::Credential { ticket: 2, name: "bad".parse().unwrap() });
    let (message, _) = next.next().await.unwrap();
    assert!(matches!(message, ToGateway::Credential { .. }), "nothing else: {message:?}");
    let log = fs::read_to_string(rig.instance.state_dir.join("runs/r1/log.jsonl")).unwrap();
    assert_eq!(log.matches("tool.drifted").count(), 2, "without a run it was told of before: {log}");
}
