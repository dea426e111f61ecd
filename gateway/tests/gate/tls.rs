//! TLS: intercepted, passed through, and refused when names disagree.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use strait_contract::{
    code::Code,
    record::{Decision, Kind},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::client::TlsStream;

use crate::{
    client::{get, handshake, head, rest},
    origin::Origin,
    world::{ALL_OK, GATEWAY, READ_OK, World},
};

const H2: &[&[u8]] = &[b"h2", b"http/1.1"];

async fn tunnel(world: &World, host: &str) -> TcpStream {
    let mut stream = world.connect_to_proxy().await;
    stream.write_all(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
    stream
}

type Client = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

async fn http2(stream: TlsStream<TcpStream>) -> Client {
    let (client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    client
}

fn request(method: Method, url: &str) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(url).version(Version::HTTP_2).body(Full::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_holds_on_every_way_in_case_24() {
    let world = World::with(READ_OK).await;
    let (plain, secure) = (Origin::http().await, Origin::https(&world.origin_ca, &["ok.test"]).await);
    let (host, safe) = (format!("ok.test:{}", plain.port()), format!("ok.test:{}", secure.port()));
    for (method, status) in [("GET", 200), ("POST", 403)] {
        let request = |target: &str, host: &str| {
            format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n")
        };
        // Absolute form, and transparent in the clear.
        let absolute = request(&format!("http://{host}/"), &host);
        assert_eq!(crate::client::ask(&mut world.connect_to_proxy().await, &absolute).await.status, status);
        let mut stream = world.connect("ok.test", plain.port()).await;
        assert_eq!(crate::client::ask(&mut stream, &request("/", &host)).await.status, status);
        // CONNECT, and transparent TLS without ALPN.
        for stream in [tunnel(&world, &safe).await, world.connect("ok.test", secure.port()).await] {
            let mut stream = handshake(stream, &world.run_ca, "ok.test", &[]).await.unwrap();
            assert_eq!(crate::client::ask(&mut stream, &request("/", &safe)).await.status, status);
        }
        // HTTP/2.
        let stream = world.connect("ok.test", secure.port()).await;
        let stream = handshake(stream, &world.run_ca, "ok.test", H2).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut client = http2(stream).await;
        let url = format!("https://{safe}/");
        let got = client.send_request(self::request(method.parse().unwrap(), &url)).await.unwrap();
        assert_eq!(got.status(), status);
    }
    assert!(plain.seen().iter().chain(&secure.seen()).all(|seen| seen.method == Method::GET));
    assert_eq!((plain.seen().len(), secure.seen().len()), (2, 3));
    assert_eq!(secure.seen()[2].version, Version::HTTP_2, "what came by HTTP/2 goes on by HTTP/2");
    world.log.settled().await;
    assert_eq!(world.log.done().len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_for_another_name_reaches_nobody_case_38() {
    let world = World::with(r#"@id("all") permit(principal, action == Action::"http", resource);"#).await;
    let secure = Origin::https(&world.origin_ca, &["ok.test", "no.test"]).await;
    let host = format!("ok.test:{}", secure.port());
    let mut refusals = 0;
    // Another name; none, because the name is an address (RFC 6066).
    for name in ["no.test", "127.0.0.1"] {
        for stream in [tunnel(&world, &host).await, world.connect("ok.test", secure.port()).await] {
            assert!(handshake(stream, &world.run_ca, name, &[]).await.is_err(), "{name}");
            refusals += 1;
            let done = world.log.done_of(Kind::Stream, refusals).await;
            let last = done.last().unwrap();
            assert_eq!((last.decision, last.code), (Decision::Deny, Some(Code::NameMismatch)), "{name}");
        }
    }
    // Something else instead of TLS needs a permit of its own.
    let mut stream = tunnel(&world, &host).await;
    stream.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    assert!(String::from_utf8_lossy(&rest(&mut stream).await).contains("TOOL_CALL_DENIED"));
    // A garbled hello.
    let mut stream = tunnel(&world, &host).await;
    stream.write_all(b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00").await.unwrap();
    assert_eq!(rest(&mut stream).await, b"");
    assert_eq!(world.log.codes().last().unwrap(), &Some(Code::MalformedRequest));
    assert_eq!(secure.seen().len(), 0);
    // Inside, Host must agree too.
    let stream = tunnel(&world, &host).await;
    let mut stream = handshake(stream, &world.run_ca, "ok.test", &[]).await.unwrap();
    let got = get(&mut stream, &format!("no.test:{}", secure.port()), "/").await;
    assert_eq!((got.status, got.code().as_str()), (421, "NAME_MISMATCH"));
    assert_eq!(secure.seen().len(), 0);
    assert_eq!(get(&mut stream, &host, "/").await.status, 200);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_in_pieces_of_one_byte_works_case_38() {
    let world = World::with(ALL_OK).await;
    let secure = Origin::https(&world.origin_ca, &["ok.test"]).await;
    let outside = world.connect("ok.test", secure.port()).await;
    outside.set_nodelay(true).unwrap();
    // A relay that hands the first bytes on one by one.
    let listener = TcpListener::bind((GATEWAY, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (inside, _) = listener.accept().await.unwrap();
        let ((mut from, mut back), (mut read, mut write)) = (inside.into_split(), outside.into_split());
        tokio::spawn(async move { tokio::io::copy(&mut read, &mut back).await });
        let mut byte = [0u8];
        let mut sent = 0;
        while from.read_exact(&mut byte).await.is_ok() {
            write.write_all(&byte).await.unwrap();
            sent += 1;
            if sent < 64 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let stream = TcpStream::connect(addr).await.unwrap();
    let mut stream = handshake(stream, &world.run_ca, "ok.test", &[]).await.unwrap();
    let got = get(&mut stream, &format!("ok.test:{}", secure.port()), "/").await;
    assert_eq!(got.status, 200);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_trailers_come_through_http2() {
    let world = World::with(ALL_OK).await;
    let secure = Origin::https(&world.origin_ca, &["ok.test"]).await;
    let stream = world.connect("ok.test", secure.port()).await;
    let mut client = http2(handshake(stream, &world.run_ca, "ok.test", H2).await.unwrap()).await;
    let url = format!("https://ok.test:{}/trailers", secure.port());
    let mut ask = request(Method::POST, &url);
    ask.headers_mut().insert("te", "trailers".parse().unwrap());
    let got = client.send_request(ask).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(got.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(got.to_bytes(), "message");
    assert_eq!(secure.only().headers["te"], "trailers");
    // Another authority on the same connection is refused for itself alone.
    let url = format!("https://no.test:{}/", secure.port());
    assert_eq!(client.send_request(request(Method::GET, &url)).await.unwrap().status(), 421);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_without_tls_is_read_and_forwarded_as_such() {
    let (world, origin) = (World::with(READ_OK).await, Origin::http().await);
    let stream = world.connect("ok.test", origin.port()).await;
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let url = format!("http://ok.test:{}/x", origin.port());
    assert_eq!(client.send_request(request(Method::GET, &url)).await.unwrap().status(), 200);
    assert_eq!(client.send_request(request(Method::POST, &url)).await.unwrap().status(), 403);
    assert_eq!(origin.only().version, Version::HTTP_2);
    world.log.settled().await;
}

/// RFC 9113 section 6.5.1: SETTINGS belong to stream 0. A client that goes away breaks nothing, and leaves no record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_http2_is_on_record() {
    let world = World::with(READ_OK).await;
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut gone = world.connect("ok.test", 80).await;
    gone.write_all(PREFACE).await.unwrap();
    let _ = gone.read(&mut [0; 64]).await.unwrap();
    drop(gone);
    let mut broken = world.connect("ok.test", 80).await;
    broken.write_all(PREFACE).await.unwrap();
    broken.write_all(b"\0\0\0\x04\0\0\0\0\x01").await.unwrap();
    let _ = broken.read_to_end(&mut Vec::new()).await;
    // Its last words come before its record: they are hyper's.
    for _ in 0..200 {
        if !world.log.codes().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.log.only_refusal().code, Some(Code::MalformedRequest));
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_passed_through_host_is_judged_by_connect_and_shows_its_own_certificate() {
    let world = World::with(ALL_OK).await;
    let secure = Origin::https(&world.origin_ca, &["pass.test"]).await;
    let stream = world.connect("pass.test", secure.port()).await;
    assert!(handshake(stream, &world.origin_ca.pem, "pass.test", &[]).await.is_err());
    assert_eq!(world.log.only_refusal().kind, Kind::Stream);
    let policy = format!(
        r#"@id("pass") permit(principal, action == Action::"connect", resource == Endpoint::"pass.test:{}");"#,
        secure.port()
    );
    let world = {
        let origin_ca = std::sync::Arc::clone(&world.origin_ca);
        let mut world = World::with(&policy).await;
        world.origin_ca = origin_ca;
        world
    };
    let stream = world.connect("pass.test", secure.port()).await;
    let mut stream = handshake(stream, &world.origin_ca.pem, "pass.test", &[]).await.unwrap();
    assert_eq!(get(&mut stream, &format!("pass.test:{}", secure.port()), "/").await.status, 200);
    // Another name in its hello is refused all the same (case 42).
    let other = world.connect("pass.test", secure.port()).await;
    assert!(handshake(other, &world.origin_ca.pem, "ok.test", &[]).await.is_err());
    assert_eq!(world.log.codes().last().unwrap(), &Some(Code::NameMismatch));
    drop(stream);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_do_not_hold_are_told_by_side() {
    let world = World::with(ALL_OK).await;
    let wrong = Origin::https(&world.origin_ca, &["other.test"]).await;
    let stream = world.connect("ok.test", wrong.port()).await;
    let mut stream = handshake(stream, &world.run_ca, "ok.test", &[]).await.unwrap();
    let got = get(&mut stream, &format!("ok.test:{}", wrong.port()), "/").await;
    assert_eq!((got.status, got.code().as_str()), (502, "UPSTREAM_TLS"), "{got:?}");
    // A client that doesn't trust the run's CA.
    let stream = world.connect("ok.test", wrong.port()).await;
    assert!(handshake(stream, &world.origin_ca.pem, "ok.test", &[]).await.is_err());
    let done = world.log.done_of(Kind::Stream, 1).await;
    assert_eq!(done[0].code, Some(Code::ClientTls));
    assert_eq!(wrong.seen().len(), 0);
    world.log.settled().await;
}
