//! Calls that wait for a person (A21, A22, cases 85 and 87), as far as the gateway goes.

use std::time::{Duration, Instant};

use strait_contract::{
    approval::{Answer, ApprovalId, Held, Outcome, Settled},
    code::Code,
    message::{Limits, PolicyFile, ToGateway},
    record::{Decision, Kind},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    client::{answer, ask},
    origin::Origin,
    world::{Options, World},
};

const ASK: &str = r#"
@id("ask") @approval("writes to ok.test") @approval_timeout("90s")
permit(principal, action == Action::"http", resource in Host::"ok.test");
"#;
const FORBID: &str = r#"
@id("no") @reason("frozen") forbid(principal, action, resource in Host::"ok.test");
"#;

fn granted() -> Answer {
    Answer::Granted(settled(Some("ana")))
}

fn settled(by: Option<&str>) -> Settled {
    let id: ApprovalId = "k7m2x9qd".parse().unwrap();
    Settled { id, by: by.map(str::to_owned), waited_ms: 1500 }
}

impl World {
    fn say(&self, held: &Held, answer: Answer) {
        self.agent.as_ref().unwrap().tell(ToGateway::Answer { call: held.call, answer }, Vec::new());
    }

    async fn policy(&self, epoch: u64, text: String) {
        let file = PolicyFile { name: "new.cedar".to_owned(), guardrail: false, text };
        self.agent.as_ref().unwrap().policies(epoch, &[file]).await;
    }
}

/// A connection that has sent a request and waits for its answer.
async fn sent(world: &World, port: u16, request: &str) -> TcpStream {
    let mut stream = world.connect("ok.test", port).await;
    let request = request.replace("HOST", &format!("ok.test:{port}"));
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

fn post(body: &str, more: &str) -> String {
    format!(
        "POST /pay HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\n{more}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a22_an_approved_call_is_sent_as_it_was_shown_and_its_record_names_who_approved() {
    let (world, origin) = (World::with(ASK).await, Origin::http().await);
    let mut stream = sent(&world, origin.port(), &post("{\"amount\":82}", "")).await;
    let held = world.log.held(1).await;
    let (asked, content) = &held[0];
    assert_eq!(content, b"{\"amount\":82}");
    assert_eq!(
        (asked.rules.as_slice(), asked.why.as_str()),
        (["ask".to_owned()].as_slice(), "writes to ok.test")
    );
    assert_eq!(asked.timeout_seconds, Some(90));
    assert_eq!(asked.shown.action, "POST");
    assert_eq!(asked.shown.target, format!("http://ok.test:{}/pay", origin.port()));
    assert_eq!(asked.shown.fields, [("content-type".to_owned(), "application/json".to_owned())]);
    assert!(origin.seen().is_empty() && world.log.activities().is_empty(), "nothing is decided yet");
    world.say(asked, granted());
    let got = answer(&mut stream, false).await;
    assert_eq!(got.status, 200, "{got:?}");
    assert_eq!((origin.only().body, origin.only().target.as_str()), (13, "/pay"));
    let done = world.log.done_of(Kind::Request, 1).await;
    let approval = done[0].approval.clone().unwrap();
    assert_eq!((approval.by.as_deref(), approval.outcome), (Some("ana"), Outcome::Granted));
    assert_eq!((approval.waited_ms, done[0].rules.as_slice()), (1500, ["ask".to_owned()].as_slice()));
    world.log.settled().await;
}

/// A22.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_a_timeout_and_no_one_to_ask_are_told_apart() {
    let (world, origin) = (World::with(ASK).await, Origin::http().await);
    let cases = [
        (
            Answer::Denied(settled(Some("ana")), Some("use staging".to_owned())),
            "APPROVAL_DENIED",
            "use staging",
        ),
        (Answer::Expired(settled(None)), "APPROVAL_TIMEOUT", "k7m2x9qd"),
        (
            Answer::Unavailable("nobody is asked here".to_owned()),
            "APPROVAL_UNAVAILABLE",
            "nobody is asked here",
        ),
    ];
    for (number, (said, code, words)) in cases.into_iter().enumerate() {
        let mut stream = sent(&world, origin.port(), &post("{}", "")).await;
        let held = world.log.held(number + 1).await;
        world.say(&held[number].0, said);
        let got = answer(&mut stream, false).await;
        assert_eq!((got.status, got.code().as_str()), (403, code));
        assert!(got.error()["message"].as_str().unwrap().contains(words), "{got:?}");
    }
    assert!(origin.seen().is_empty());
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a22_policy_is_asked_again_when_a_call_is_let_go() {
    let (world, origin) = (World::with(ASK).await, Origin::http().await);
    let mut stream = sent(&world, origin.port(), &post("{}", "")).await;
    let held = world.log.held(1).await;
    world.policy(2, format!("{ASK}{FORBID}")).await;
    world.say(&held[0].0, granted());
    let got = answer(&mut stream, false).await;
    assert_eq!((got.status, got.code().as_str()), (403, "TOOL_CALL_DENIED"));
    assert!(got.text().contains("frozen") && origin.seen().is_empty(), "{got:?}");
    // Held by another rule now: that is asked about anew (case 85).
    world.policy(3, ASK.to_owned()).await;
    let mut stream = sent(&world, origin.port(), &post("{}", "")).await;
    let held = world.log.held(2).await;
    world.policy(4, ASK.replace("writes to ok.test", "anything at all")).await;
    world.say(&held[1].0, granted());
    let held = world.log.held(3).await;
    assert_eq!((held[2].0.why.as_str(), held[2].0.call), ("anything at all", held[1].0.call));
    assert_ne!(held[2].0.digest, held[1].0.digest);
    world.say(&held[2].0, granted());
    assert_eq!(answer(&mut stream, false).await.status, 200);
    assert_eq!(origin.seen().len(), 1);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a21_one_plain_permit_holds_nothing_and_a_forbid_asks_nobody() {
    let plain = r#"@id("plain") permit(principal, action == Action::"http", resource in Host::"ok.test");"#;
    let (world, origin) = (World::with(&format!("{ASK}{plain}")).await, Origin::http().await);
    let mut stream = sent(&world, origin.port(), &post("{}", "")).await;
    assert_eq!(answer(&mut stream, false).await.status, 200);
    for (epoch, text) in [(2, format!("{ASK}{FORBID}")), (3, FORBID.to_owned())] {
        world.policy(epoch, text).await;
        let mut stream = sent(&world, origin.port(), &post("{}", "")).await;
        assert_eq!(answer(&mut stream, false).await.code(), "TOOL_CALL_DENIED");
    }
    assert!(world.log.held.lock().unwrap().is_empty(), "nobody was asked");
    world.policy(4, ASK.to_owned()).await;
    let _control = sent(&world, origin.port(), &post("{}", "")).await;
    world.log.held(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_85_what_changes_the_call_changes_its_digest_and_what_does_not_does_not() {
    let (world, origin) = (World::with(ASK).await, Origin::http().await);
    let same = [
        post("{\"amount\":82}", ""),
        post("{\"amount\":82}", "User-Agent: other\r\nX-Request-Id: 7\r\n"),
        "POST /./pay HTTP/1.1\r\nX-Stainless-Retry-Count: 1\r\nContent-Type: application/json\r\nHost: HOST\r\n\
         Transfer-Encoding: chunked\r\n\r\n7\r\n{\"amoun\r\n6\r\nt\":82}\r\n0\r\n\r\n"
            .to_owned(),
    ];
    let same = [&same[..], &[post("{ \"amount\" : 82 }", "")]].concat();
    let other = [
        post("{\"amount\":820}", ""),
        post("{\"amount\":82,\"amount\":82}", ""),
        post("{\"amount\":82.0}", ""),
        post("{\"amount\":82,\"to\":\"x\"}", ""),
        post("{\"amount\":82}", "X-Amz-Target: Delete\r\n"),
        post("{\"amount\":82}", "Authorization: Bearer abcdefghijklmnop\r\n"),
        post("{\"amount\":82}", "").replace("application/json", "text/plain"),
        post("{\"amount\":82}", "").replace("/pay", "/pay?x"),
        post("{\"amount\":82}", "").replace("POST", "PUT"),
    ];
    let mut streams = Vec::new();
    for (number, request) in same.iter().chain(&other).enumerate() {
        streams.push(sent(&world, origin.port(), request).await);
        world.log.held(number + 1).await;
    }
    let digests: Vec<_> = world.log.held(13).await.iter().map(|(held, _)| held.digest).collect();
    assert!(digests[..4].iter().all(|digest| *digest == digests[0]), "{digests:?}");
    for (at, digest) in digests.iter().enumerate().skip(4) {
        assert!(
            digests.iter().enumerate().all(|(other, known)| other == at || known != digest),
            "number {at}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_is_read_whole_before_anybody_is_asked_and_one_that_is_too_long_is_refused() {
    let (world, origin) = (World::with(ASK).await, Origin::http().await);
    let long = "x".repeat(1024 * 1024);
    let mut stream = sent(&world, origin.port(), &post(&long, "Expect: 100-continue\r\n")).await;
    let held = world.log.held(1).await;
    assert_eq!(held[0].1.len(), long.len());
    world.say(&held[0].0, granted());
    assert_eq!(answer(&mut stream, false).await.status, 200);
    assert_eq!(origin.only().body, long.len());
    let mut stream = sent(&world, origin.port(), &post(&format!("{long}x"), "")).await;
    let got = answer(&mut stream, false).await;
    assert_eq!((got.status, got.code().as_str()), (403, "APPROVAL_UNAVAILABLE"), "{got:?}");
    let chunks = format!("100001\r\n{long}x\r\n0\r\n\r\n");
    let request = format!("POST /pay HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    let mut stream = sent(&world, origin.port(), &request).await;
    assert_eq!(answer(&mut stream, false).await.code(), "APPROVAL_UNAVAILABLE");
    // Eight MiB of a run's bodies at once, and no more.
    let mut streams = Vec::new();
    for number in 0..8 {
        streams
            .push(sent(&world, origin.port(), &post(&long, "").replace("/pay", &format!("/{number}"))).await);
        world.log.held(number + 2).await;
    }
    let mut stream = sent(&world, origin.port(), &post("one more", "")).await;
    let got = answer(&mut stream, false).await;
    assert!(got.text().contains("8 MiB"), "{got:?}");
    drop(streams);
    let mut stream = loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if world.log.withdrawn.lock().unwrap().len() == 8 {
            break sent(&world, origin.port(), &post("one more", "")).await;
        }
    };
    let held = world.log.held(10).await;
    world.say(&held[9].0, granted());
    assert_eq!(answer(&mut stream, false).await.status, 200);
    world.log.settled().await;
}

/// A22.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_is_withdrawn_and_a_late_answer_executes_nothing() {
    let (world, origin) = (World::with(ASK).await, Origin::http().await);
    let stream = sent(&world, origin.port(), &post("{}", "")).await;
    let held = world.log.held(1).await;
    drop(stream);
    let done = world.log.done_of(Kind::Request, 1).await;
    assert_eq!((done[0].code, done[0].decision), (Some(Code::ClientGone), Decision::Deny));
    // Its records are in the spool at once, word of it comes over the link.
    for _ in 0..500 {
        if !world.log.withdrawn.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(*world.log.withdrawn.lock().unwrap(), [held[0].0.call]);
    world.say(&held[0].0, granted());
    // The control: the next call is answered by the same agent, after the late answer.
    let mut stream = sent(&world, origin.port(), &post("{}", "")).await;
    let held = world.log.held(2).await;
    world.say(&held[1].0, granted());
    assert_eq!(answer(&mut stream, false).await.status, 200);
    assert_eq!(origin.seen().len(), 1);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_agent_goes_away_held_calls_are_refused_at_once_and_on_record_when_it_is_back() {
    let (mut world, origin) = (World::with(ASK).await, Origin::http().await);
    let mut stream = sent(&world, origin.port(), &post("{}", "")).await;
    world.log.held(1).await;
    world.agent_dies().await;
    let got = answer(&mut stream, false).await;
    assert_eq!((got.status, got.code().as_str()), (403, "APPROVAL_UNAVAILABLE"), "{got:?}");
    // Nobody to ask and nobody to write it down.
    assert_eq!(
        ask(&mut stream, &post("{}", "").replace("HOST", &format!("ok.test:{}", origin.port()))).await.status,
        403
    );
    world.agent_returns().await;
    world.log.done_of(Kind::Request, 2).await;
    assert!(world.log.codes().iter().all(|code| *code == Some(Code::ApprovalUnavailable)));
    assert!(origin.seen().is_empty());
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_run_ends_what_it_holds() {
    let (world, origin) = (World::with(ASK).await, Origin::http().await);
    let mut stream = sent(&world, origin.port(), &post("{}", "")).await;
    let held = world.log.held(1).await;
    world.run_ends();
    // Its connection is closed, now or once it has been told.
    let rest = String::from_utf8(crate::client::rest(&mut stream).await).unwrap();
    assert!(rest.is_empty() || rest.contains("APPROVAL_UNAVAILABLE"), "{rest}");
    world.log.done_of(Kind::Request, 1).await;
    world.say(&held[0].0, granted());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(origin.seen().is_empty());
    world.log.settled().await;
}

/// Nobody reads it, so what is shown is where it goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_waits_too_and_is_carried_once_approved() {
    let echo = crate::origin::echo().await;
    let rule = format!(r#"Endpoint::"ok.test:{}""#, echo.port());
    let world = World::with(&format!(
        r#"@id("ask") @approval permit(principal, action == Action::"connect", resource == {rule});"#
    ))
    .await;
    let mut stream = world.connect("ok.test", echo.port()).await;
    stream.write_all(b"\x01\x02").await.unwrap();
    let held = world.log.held(1).await;
    let shown = &held[0].0.shown;
    assert_eq!(
        (shown.action.as_str(), shown.target.clone()),
        ("connect", format!("ok.test:{}", echo.port()))
    );
    world.say(&held[0].0, granted());
    let mut got = [0; 2];
    tokio::time::timeout(Duration::from_secs(5), stream.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(got, [1, 2]);
    drop(stream);
    let done = world.log.done_of(Kind::Stream, 1).await;
    assert_eq!(done[0].approval.as_ref().map(|approval| approval.outcome), Some(Outcome::Granted));
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_87_no_idle_time_ends_a_call_that_waits() {
    let limits = Limits { head_seconds: 1, idle_seconds: 1, ..Limits::default() };
    let world = World::new(Options { policy: ASK.to_owned(), limits, ..Options::default() }).await;
    let origin = Origin::http().await;
    let mut stream = sent(&world, origin.port(), &post("{}", "")).await;
    let h2 = world.connect("ok.test", origin.port()).await;
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(h2),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!("http://ok.test:{}/two", origin.port()))
        .body(http_body_util::Full::new(bytes::Bytes::from_static(b"{}")))
        .unwrap();
    let second = tokio::spawn(async move { sender.send_request(request).await });
    let held = world.log.held(2).await;
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(4)).await;
    for (held, _) in &held {
        world.say(held, granted());
    }
    let got = answer(&mut stream, false).await;
    assert_eq!(got.status, 200, "{got:?} after {:?}", begun.elapsed());
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
    assert_eq!(origin.seen().len(), 2);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_wait_at_once_and_each_gets_its_own_answer() {
    let (world, origin) = (World::with(ASK).await, Origin::http().await);
    let mut streams = Vec::new();
    for number in 0..1000 {
        let request = post("{}", "").replace("/pay", &format!("/{number}"));
        streams.push(sent(&world, origin.port(), &request).await);
    }
    let held = world.log.held(1000).await;
    for (held, _) in &held {
        world.say(held, granted());
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let got = answer(stream, false).await;
        assert_eq!((got.status, got.text()), (200, format!("hello from /{number}")));
    }
    assert_eq!(origin.seen().len(), 1000);
    world.log.settled().await;
}

/// A call of a tool waits like any other: nobody sees the token, the credential is added once it is approved, and the step
/// of the trace says who approved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tools_call_waits_with_neither_token_nor_credential_shown_a21_a27() {
    let policy = r#"@id("ask") @approval("writes") permit(principal, action == Action::"http", resource in Tool::"api");"#;
    let (world, origin) = crate::tools::world(policy, crate::tools::bearer()).await;
    let calling = world.call("/http/api/pay", &["-d", "{\"amount\":82}", "-H", "X-Reason: rent"]);
    let approving = async {
        let held = world.log.held(1).await;
        let (asked, content) = &held[0];
        assert_eq!(content, b"{\"amount\":82}");
        assert_eq!(asked.shown.target, format!("http://ok.test:{}/v1/pay", origin.port()));
        assert_eq!(asked.shown.via, "tool api");
        let names: Vec<&str> = asked.shown.fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content-type", "x-reason", "x-version"], "the caller's and the tool's own");
        assert!(world.log.steps().is_empty() && world.log.handed.lock().unwrap().is_empty());
        world.say(asked, granted());
    };
    let (got, ()) = tokio::join!(calling, approving);
    assert_eq!(got.status, 200, "{got:?}");
    assert_eq!(origin.only().headers["authorization"], format!("Bearer {}", crate::tools::KEY).as_str());
    let step = world.log.steps_done(1).await.remove(0);
    let approval = step.approval.unwrap();
    assert_eq!((approval.by.as_deref(), approval.outcome), (Some("ana"), Outcome::Granted));
    world.log.settled().await;
    world.log.check_steps();
}
