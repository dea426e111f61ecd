//! No record, no passage: the log can't be written, or the agent is gone (B7).

use std::{net::UdpSocket, os::fd::AsFd as _, time::Duration};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait_contract::{
    code::Code,
    message::{MAX_PACKET, ToAgent, ToGateway},
    record::{Body, Kind, Phase, Record, Unrecorded},
    seqpacket,
};
use strait_gateway::{FlowSource, Gateway, link::Link};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    agent::Mood,
    client::get,
    origin::{self, Origin},
    world::{ALL_OK, Ca, Options, World, setup},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_spool_nothing_passes_while_the_log_is_full_and_it_recovers_by_itself() {
    let (world, origin) = (World::without_spool(ALL_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    world.log.set(Mood::Refuses(Unrecorded::Log));
    let mut stream = world.connect("ok.test", origin.port()).await;
    for path in ["/a", "/b"] {
        let got = get(&mut stream, &host, path).await;
        assert_eq!((got.status, got.code().as_str()), (503, "RECORD_UNAVAILABLE"), "{got:?}");
    }
    // A refusal that can't be recorded is an outage too, and not policy.
    let no = format!("no.test:{}", origin.port());
    let got = get(&mut world.connect("no.test", origin.port()).await, &no, "/").await;
    assert_eq!((got.status, got.code().as_str()), (503, "RECORD_UNAVAILABLE"));
    assert_eq!(origin.seen().len(), 0);
    world.log.set(Mood::Writes);
    assert_eq!(get(&mut stream, &host, "/c").await.status, 200);
    assert_eq!(origin.seen().len(), 1);
    world.log.settled().await;
}

/// What the spool took before the refusal was known passes and stays there until the log takes it; then nothing does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_full_log_what_passed_is_spooled_and_nothing_more_passes() {
    let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    assert_eq!(get(&mut stream, &host, "/before").await.status, 200);
    world.log.logged().await;
    world.log.set(Mood::Refuses(Unrecorded::Log));
    assert_eq!(get(&mut stream, &host, "/a").await.status, 200);
    // The agent has had it, and has refused it.
    tokio::time::sleep(Duration::from_millis(50)).await;
    for path in ["/b", "/c"] {
        let got = get(&mut stream, &host, path).await;
        assert_eq!((got.status, got.code().as_str()), (503, "RECORD_UNAVAILABLE"), "{got:?}");
    }
    assert_eq!(origin.seen().len(), 2);
    let spooled: Vec<_> = world.log.spooled().iter().map(|record| (record.id, record.phase)).collect();
    assert_eq!(spooled.len(), 2, "decided and done of the one that passed: {spooled:?}");
    world.log.set(Mood::Writes);
    for _ in 0..100 {
        if get(&mut stream, &host, "/d").await.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.log.settled().await;
    world.log.logged().await;
    let records = world.log.records.lock().unwrap();
    let logged: Vec<_> = records.iter().map(|record| (record.id, record.phase)).collect();
    assert!(spooled.iter().all(|record| logged.contains(record)), "{logged:?}");
}

/// A call waits for its spool and not for the agent, which is as good: both may be killed then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_was_answered_is_in_the_spool_or_in_the_log() {
    let (mut world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    for count in 1..=20 {
        assert_eq!(get(&mut stream, &host, "/a").await.status, 200);
        assert_eq!(world.log.done().len(), count);
    }
    world.log.settled().await;
    // The agent dies; a call under way then is on record for the next one.
    world.agent_dies().await;
    assert_eq!(get(&mut stream, &host, "/b").await.status, 503);
    world.agent_returns().await;
    assert_eq!(get(&mut stream, &host, "/c").await.status, 200);
    world.log.settled().await;
    assert_eq!(world.log.done_of(Kind::Request, 21).await.len(), 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_passes_without_an_agent_and_what_is_under_way_goes_on() {
    let (origin, echo) = (Origin::http().await, origin::echo().await);
    let policy = format!(
        r#"{ALL_OK} @id("echo") permit(principal, action == Action::"connect", resource == Endpoint::"ok.test:{}");"#,
        echo.port()
    );
    let mut world = World::with(&policy).await;
    let host = format!("ok.test:{}", origin.port());
    let mut under_way = world.connect("ok.test", echo.port()).await;
    let mut byte = [0u8];
    under_way.write_all(b"\x01").await.unwrap();
    under_way.read_exact(&mut byte).await.unwrap();
    world.agent_dies().await;
    let mut stream = world.connect("ok.test", origin.port()).await;
    let got = get(&mut stream, &host, "/a").await;
    assert_eq!((got.status, got.code().as_str()), (503, "RECORD_UNAVAILABLE"));
    assert_eq!(origin.seen().len(), 0);
    under_way.write_all(b"\x02").await.unwrap();
    under_way.read_exact(&mut byte).await.unwrap();
    assert_eq!(byte, [2]);
    // It ends while there is nobody to write the log: its line waits in the spool.
    drop(under_way);
    assert_eq!(world.log.done_of(Kind::Stream, 1).await.len(), 1);
    let in_the_log = |record: &Record| record.phase == Some(Phase::Done);
    assert!(!world.log.records.lock().unwrap().iter().any(in_the_log));
    world.agent_returns().await;
    assert_eq!(get(&mut stream, &host, "/b").await.status, 200);
    assert_eq!(world.log.done_of(Kind::Stream, 1).await[0].stream.unwrap().bytes_in, 2);
    // The refusal could not have lines of its own; that there was one is on record.
    let missed: Vec<u64> = {
        let records = world.log.records.lock().unwrap();
        let activities = records.iter().filter_map(|record| match &record.body {
            Body::Activity(activity) if activity.kind == Kind::Lost => Some(activity.count),
            _ => None,
        });
        activities.collect()
    };
    assert_eq!(missed, [1]);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_run_that_has_ended_does_not_take_the_records_of_others_with_it() {
    let (world, origin) = (World::without_spool(ALL_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    world.log.set(Mood::Refuses(Unrecorded::Run));
    let got = get(&mut world.connect("ok.test", origin.port()).await, &host, "/a").await;
    assert_eq!((got.status, got.code().as_str()), (503, "RECORD_UNAVAILABLE"));
    world.log.set(Mood::Writes);
    let got =
        get(&mut world.connect("no.test", origin.port()).await, &format!("no.test:{}", origin.port()), "/")
            .await;
    assert_eq!(got.code(), Code::ToolCallDenied.as_str());
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_lets_answers_end() {
    let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    stream.write_all(format!("GET /large HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
    let mut first = vec![0u8; 1024];
    stream.read_exact(&mut first).await.unwrap();
    world.stop();
    let mut all = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut all)).await.unwrap().unwrap();
    assert!(all.len() > 32 << 20, "{}", all.len());
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_finishes_its_head_is_told_and_on_record() {
    let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let mut stream = world.connect("ok.test", origin.port()).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: ok").await.unwrap();
    let got = crate::client::answer(&mut stream, false).await;
    assert_eq!((got.status, got.code().as_str()), (400, "MALFORMED_REQUEST"));
    assert_eq!(world.log.only_refusal().code, Some(Code::MalformedRequest));
    // One that has had an answer may rest longer than that.
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    assert_eq!(get(&mut stream, &host, "/a").await.status, 200);
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(get(&mut stream, &host, "/b").await.status, 200);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_is_on_record_and_its_request_is_cancelled() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let world = World::with(ALL_OK).await;
    let mut stream = world.connect("ok.test", port).await;
    stream.write_all(format!("GET /slow HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n").as_bytes()).await.unwrap();
    let (mut upstream, _) = listener.accept().await.unwrap();
    let mut byte = [0u8];
    upstream.read_exact(&mut byte).await.unwrap();
    drop(stream);
    assert!(
        !crate::client::rest(&mut upstream).await.is_empty(),
        "the upstream sees the end of the connection"
    );
    assert_eq!(world.log.done_of(Kind::Request, 1).await[0].code, Some(Code::ClientGone));
    world.log.settled().await;
}

/// An agent may die between its setup and its last announcement. The listeners that came with it are open in the
/// gateway, so no later agent could open others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_that_came_and_were_not_served_yet_are_told_of_and_served_later() {
    let (gateway, queue, questions) = Gateway::new(FlowSource::new(|_, _| None));
    let (mut link, mut handover) = Link::new("/nowhere".as_ref(), gateway, queue, questions);
    let mut told = Vec::new();
    for dies in [true, false] {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (agent, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let setup = setup(&Options::default(), &Ca::new(), &Ca::new());
        let sockets: Vec<_> = (0..4).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let fds: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
        let message = seqpacket::encode(&ToGateway::Setup(Box::new(setup))).unwrap();
        seqpacket::send(&agent, &message, if dies { &fds } else { &[] }).unwrap();
        if !dies {
            seqpacket::send(&agent, &seqpacket::encode(&ToGateway::Announced).unwrap(), &[]).unwrap();
        }
        // What was sent before is read yet; then the link is over.
        rustix::net::shutdown(&agent, rustix::net::Shutdown::Write).unwrap();
        let _ = link.serve(theirs).await;
        let (hello, _): (ToAgent, _) = seqpacket::receive(&agent, &mut vec![0; MAX_PACKET]).unwrap();
        let ToAgent::Hello { has_listeners, .. } = hello else { panic!("{hello:?}") };
        told.push((has_listeners, handover.try_recv().is_ok()));
    }
    assert_eq!(told, [(false, false), (true, true)], "(has listeners, serves them)");
}
