//! Credentials that upstreams tell back (A26).

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use strait_contract::code::Code;
use tokio::io::AsyncWriteExt as _;

use crate::{
    origin::Origin,
    tools::{ANY, KEY, bearer, bound, http_tool, tools},
    world::{Options, World},
};

async fn world() -> (World, Origin) {
    let origin = Origin::http().await;
    let mut tool = http_tool("api", &format!("http://ok.test:{}/", origin.port()));
    let bare = http_tool("bare", &format!("http://ok.test:{}/", origin.port()));
    tool.credential = bound("key", bearer());
    let options = Options { policy: ANY.to_owned(), tools: tools(vec![tool, bare]), ..Options::default() };
    let world = World::new(options).await;
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![Ok(KEY.to_owned())]);
    (world, origin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_told_back_does_not_reach_the_agent_a26() {
    let (world, _origin) = world().await;
    let stars = "*".repeat(KEY.len());
    for way in ["raw", "chunks", "gzip"] {
        let got = world.call(&format!("/http/api/tells/{way}"), &[]).await;
        assert_eq!((got.status, got.exit), (200, 0), "{way}: {got:?}");
        assert_eq!(got.text(), format!("your key is {stars} and no other"), "{way}");
        assert!(!got.head.to_ascii_lowercase().contains("content-encoding"), "{way}");
    }
    let got = world.call("/http/api/tells/url", &[]).await;
    assert_eq!(got.text(), format!("key={}", "*".repeat(KEY.len() + 4)));
    let got = world.call("/http/api/tells/json", &[]).await;
    assert_eq!(got.text(), format!("{{\"key\":\"{}\"}}", "*".repeat(KEY.len() + 1)));
    let got = world.call("/http/api/tells/base64", &[]).await;
    let plain = STANDARD.encode(format!("user:{KEY}"));
    assert_eq!(got.body.len(), plain.len());
    let left = plain.bytes().zip(&got.body).skip(7).filter(|(was, is)| was == *is && **is != b'=').count();
    assert!(left <= 2, "{}", got.text());
    let got = world.call("/http/api/tells/head", &[]).await;
    assert!(got.head.contains(&format!("x-echo: {stars}")) && !got.head.contains("set-cookie"), "{got:?}");
    assert!(got.head.contains("x-kind: told") && !got.head.contains("x-strait"), "{got:?}");
    let got = world.call("/http/api/tells/head", &["-I"]).await;
    assert!(got.head.contains(&format!("x-echo: {stars}")), "{got:?}");
    let got = world.call("/http/api/tells/trailer", &["-H", "TE: trailers", "--raw"]).await;
    let raw = got.text();
    assert!(raw.contains("see below") && raw.contains(&stars) && !raw.contains(KEY), "{raw}");
    // What isn't the key is told as it is: a tool without a credential gets the caller's own back.
    let own =
        ["-H", &format!("x-api-key: {}", crate::world::TOKEN), "-H", "Authorization: Bearer abc/def+ghi"];
    assert_eq!(world.curl("/http/bare/tells/raw", &own).await.text(), "your key is abc/def+ghi and no other");
    assert!(world.curl("/http/bare/tells/head", &own).await.head.contains("set-cookie: session=abc"));
    world.log.settled().await;
    world.log.check_steps();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_looked_through_is_not_passed_on() {
    let (world, origin) = world().await;
    let got = world.call("/http/api/tells/br", &[]).await;
    assert_eq!(got.refused(), (502, "UPSTREAM_PROTOCOL".to_owned()));
    assert!(got.error()["reason"].as_str().unwrap().contains("`br`"), "{got:?}");
    assert_eq!(origin.seen().len(), 1);
    // An upgrade would be a stream that isn't looked at: the handshake is sent as an ordinary request.
    let handshake = [
        "-H",
        "Connection: Upgrade",
        "-H",
        "Upgrade: websocket",
        "-H",
        "Sec-WebSocket-Version: 13",
        "-H",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    let got = world.call("/http/api/tells/raw", &handshake).await;
    assert_eq!(got.status, 200);
    assert!(!origin.seen().pop().unwrap().headers.contains_key("upgrade"));
    let step = world.log.steps_done(2).await.remove(0);
    assert_eq!(step.code, Some(Code::UpstreamProtocol));
    assert!(step.error.is_some() && step.reason.is_none());
}

/// Nothing is kept back that can't be the beginning of a key: a stream of events stays one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_32_mib_streams_through_the_mask() {
    let (world, _origin) = world().await;
    let got = tokio::time::timeout(
        Duration::from_secs(60),
        world.call("/http/api/large", &["-o", "/dev/null", "-w", "%{size_download}"]),
    )
    .await;
    assert!(got.unwrap().head.contains("33554432"));
    let done = world.log.steps_done(1).await.remove(0);
    assert_eq!(done.bytes_in, Some(32 * 1024 * 1024));
}

/// hyper undoes `chunked` alone: what else an upstream names there stays in the body, and its name doesn't.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_in_a_transfer_coding_is_not_passed_on_unread() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut tool = http_tool("api", &format!("http://ok.test:{}/", listener.local_addr().unwrap().port()));
    tool.credential = bound("key", bearer());
    let options = Options { policy: ANY.to_owned(), tools: tools(vec![tool]), ..Options::default() };
    let world = World::new(options).await;
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![Ok(KEY.to_owned())]);
    tokio::spawn(async move {
        for coding in ["chunked", "gzip, chunked"] {
            let (mut stream, _) = listener.accept().await.unwrap();
            crate::client::head(&mut stream).await;
            let head = format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
        }
    });
    assert_eq!(world.call("/http/api/x", &[]).await.text(), "abc");
    let got = world.call("/http/api/x", &[]).await;
    assert_eq!(got.refused(), (502, "UPSTREAM_PROTOCOL".to_owned()), "{got:?}");
}
