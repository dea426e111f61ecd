//! Streams that aren't HTTP, and those that stop being it.

use std::time::Duration;

use strait_contract::{
    code::Code,
    record::{Decision, Kind},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    client::{get, head, rest},
    origin::{self, Origin},
    world::{ALL_OK, World},
};

fn connect_to(port: u16) -> String {
    format!(
        r#"@id("echo") permit(principal, action == Action::"connect", resource == Endpoint::"ok.test:{port}");"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permitted_stream_is_carried_whole_and_counted() {
    let echo = origin::echo().await;
    let world = World::with(&connect_to(echo.port())).await;
    let size = 16 << 20;
    let stream = world.connect("ok.test", echo.port()).await;
    let (mut read, mut write) = stream.into_split();
    let sent: Vec<u8> = (0..size).map(|at: usize| u8::try_from(at % 251).unwrap()).collect();
    let expected = sent.clone();
    let writer = tokio::spawn(async move {
        write.write_all(b"\x00").await.unwrap();
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut got = Vec::new();
    timeout(Duration::from_secs(20), read.read_to_end(&mut got)).await.unwrap().unwrap();
    writer.await.unwrap();
    assert_eq!(got.len(), size + 1);
    assert!(got[1..] == expected[..], "bytes were changed on the way");
    let done = world.log.done_of(Kind::Stream, 1).await;
    let traffic = done[0].stream.unwrap();
    let size = u64::try_from(size).unwrap() + 1;
    assert_eq!((traffic.bytes_out, traffic.bytes_in), (size, size));
    assert_eq!(
        (done[0].decision, done[0].code, done[0].rules.as_slice()),
        (Decision::Allow, None, &["echo".to_owned()][..])
    );
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_waits_for_the_server_to_speak_gets_its_stream() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"220 ready\r\n").await.unwrap();
    });
    let world = World::with(&connect_to(port)).await;
    let mut stream = world.connect("ok.test", port).await;
    assert_eq!(rest(&mut stream).await, b"220 ready\r\n");
    drop(stream);
    assert_eq!(world.log.done_of(Kind::Stream, 1).await[0].stream.unwrap().bytes_in, 11);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_a_rule_reaches_nobody() {
    let echo = origin::echo().await;
    let world = World::with(&connect_to(echo.port())).await;
    let mut stream = world.connect("no.test", echo.port()).await;
    stream.write_all(b"\x00secret").await.unwrap();
    assert_eq!(rest(&mut stream).await, b"");
    let refused = world.log.only_refusal();
    assert_eq!((refused.kind, refused.code), (Kind::Stream, Some(Code::ToolCallDenied)));
    assert_eq!(refused.dst.name.as_deref(), Some("no.test"));
    // Likewise in a tunnel.
    let mut stream = world.connect_to_proxy().await;
    let host = format!("no.test:{}", echo.port());
    stream.write_all(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
    stream.write_all(b"\x00secret").await.unwrap();
    assert_eq!(rest(&mut stream).await, b"");
    assert_eq!(world.log.done_of(Kind::Stream, 2).await[1].via, "proxy");
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ssh_is_refused_in_its_own_words_case_34() {
    let world = World::with(ALL_OK).await;
    let mut stream = world.connect("ok.test", 22).await;
    stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n").await.unwrap();
    let got = rest(&mut stream).await;
    let text = String::from_utf8_lossy(&got);
    assert!(
        text.starts_with("SSH-2.0-") && text.contains("https://") && text.contains("TOOL_CALL_DENIED"),
        "{text}"
    );
    assert_eq!(world.log.only_refusal().code, Some(Code::ToolCallDenied));
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_is_a_request_and_then_a_stream() {
    let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    let request = format!(
        "GET /websocket HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let got = head(&mut stream).await;
    assert!(got.starts_with("HTTP/1.1 101") && got.to_lowercase().contains("upgrade: websocket"), "{got}");
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0u8; 10];
    timeout(Duration::from_secs(5), stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(&back, b"readyhello");
    drop(stream);
    let streams = world.log.done_of(Kind::Stream, 1).await;
    let traffic = streams[0].stream.unwrap();
    assert_eq!(
        (traffic.bytes_out, traffic.bytes_in, streams[0].rules.as_slice()),
        (5, 10, &["all-ok".to_owned()][..])
    );
    let requests = world.log.done_of(Kind::Request, 1).await;
    assert_eq!(requests[0].request.as_ref().unwrap().status, Some(101));
    assert!(origin.only().headers.contains_key("sec-websocket-key"));
    world.log.settled().await;
}

/// Positive control: the test above, whose handshake opens a stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_to_anything_else_opens_no_tunnel() {
    for protocol in ["h2c", "foo", "websocket"] {
        let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
        let host = format!("ok.test:{}", origin.port());
        let mut stream = world.connect("ok.test", origin.port()).await;
        let request = format!(
            "GET /plain HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade, close\r\nUpgrade: {protocol}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let got = head(&mut stream).await;
        assert!(got.starts_with("HTTP/1.1 ") && !got.starts_with("HTTP/1.1 101"), "{protocol}: {got}");
        assert!(!origin.only().headers.contains_key("upgrade"), "{protocol} went upstream");
        drop(stream);
        world.log.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_run_ends_its_connections() {
    let (world, echo) = (World::with("").await, origin::echo().await);
    drop(world);
    let world = World::with(&connect_to(echo.port())).await;
    let mut stream = world.connect("ok.test", echo.port()).await;
    stream.write_all(b"\x00").await.unwrap();
    let mut byte = [0u8];
    timeout(Duration::from_secs(5), stream.read_exact(&mut byte)).await.unwrap().unwrap();
    world.run_ends();
    assert_eq!(rest(&mut stream).await, b"");
    world.log.settled().await;
    let mut stream = world.connect("ok.test", echo.port()).await;
    assert_eq!(rest(&mut stream).await, b"", "the address is no run's any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_connections_than_the_quota_are_refused() {
    let mut options = crate::world::Options { policy: ALL_OK.to_owned(), ..Default::default() };
    options.limits.connections_per_run = 2;
    let (world, origin) = (World::new(options).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut first = world.connect("ok.test", origin.port()).await;
    assert_eq!(get(&mut first, &host, "/").await.status, 200);
    // A tunnel holds its place as long as it lasts.
    let mut tunnel = world.connect_to_proxy().await;
    tunnel.write_all(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
    assert!(head(&mut tunnel).await.starts_with("HTTP/1.1 200"));
    assert_eq!(get(&mut tunnel, &host, "/").await.status, 200);
    let got = get(&mut world.connect_to_proxy().await, "strait.internal", "/").await;
    assert_eq!((got.status, got.code().as_str()), (429, "LIMIT_EXCEEDED"));
    drop(first);
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if world.gateway.runs.by_addr(crate::world::RUN).unwrap().connections() < 2 {
            break;
        }
    }
    assert_eq!(get(&mut world.connect("ok.test", origin.port()).await, &host, "/").await.status, 200);
    world.log.settled().await;
}
