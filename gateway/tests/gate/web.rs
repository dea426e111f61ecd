//! The web tool, against a small internet with invented public addresses (A10–A13).

use std::{
    io::Write as _,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use strait_contract::{
    code::Code,
    message::{Limits, Resolver},
    record::{Decision, ToolKind},
    tool::{Kind, Tool},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    internet::{Answer, Internet, OTHER, WEB, listen},
    tools::{ANY, tools},
    world::{Options, TOKEN, World},
};

const MIB: usize = 1024 * 1024;

fn web() -> Tool {
    Tool { name: "web".parse().unwrap(), kind: Kind::Web, credential: None, headers: Vec::new() }
}

fn options(policy: &str) -> Options {
    Options {
        policy: policy.to_owned(),
        tools: tools(vec![web()]),
        resolver: Resolver::Servers(vec!["9.9.9.9:53".parse().unwrap()]),
        limits: Limits { web_seconds: 2, ..Options::default().limits },
        ..Options::default()
    }
}

/// Answers by path; keeps the heads that it saw.
async fn page(mut stream: TcpStream, seen: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if !matches!(stream.read(&mut byte).await, Ok(1)) {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    seen.lock().unwrap().push(head.clone());
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let plain = |body: &str| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nSet-Cookie: a=b\r\n\r\n{body}", body.len())
    };
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n";
    let text = match path.split('?').next().unwrap_or_default() {
        "/moved" => {
            "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n"
                .to_owned()
        }
        "/long" => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", 6 * MIB, "x".repeat(6 * MIB)),
        "/exact" => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", 5 * MIB, "x".repeat(5 * MIB)),
        "/chunks" => {
            let chunk = format!("{MIB:x}\r\n{}\r\n", "x".repeat(MIB));
            format!("{chunked}\r\n{}0\r\n\r\n", chunk.repeat(6))
        }
        "/bomb" | "/bomb-in-bomb" => return bomb(stream, &path).await,
        "/slow" => {
            let _ = stream.write_all(format!("{chunked}\r\n").as_bytes()).await;
            while stream.write_all(b"1\r\nx\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            return;
        }
        "/br" => "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nxx".to_owned(),
        "/half" => "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x0b\x08\x00"
            .to_owned(),
        _ => plain("a public page"),
    };
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// 256 MiB of zeros.
fn zeros() -> &'static [u8] {
    static GZIP: OnceLock<Vec<u8>> = OnceLock::new();
    GZIP.get_or_init(|| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        for _ in 0..256 {
            encoder.write_all(&[0u8; MIB]).unwrap();
        }
        encoder.finish().unwrap()
    })
}

/// A thousand times smaller than what it becomes.
async fn bomb(mut stream: TcpStream, path: &str) {
    let body = zeros();
    let encoding = if path == "/bomb" { "gzip" } else { "gzip, gzip" };
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(body).await;
}

/// A test with a world on the dialling side, an internet, and what its pages saw.
fn in_the_internet<T: Send>(
    options: Options,
    test: impl AsyncFnOnce(&World, &Internet, &Mutex<Vec<String>>) -> T + Send,
) -> T {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&seen);
    let internet = Internet::new(move || async move {
        for addr in [WEB, OTHER] {
            let kept = Arc::clone(&kept);
            listen(addr, 80, move |stream| page(stream, Arc::clone(&kept))).await;
        }
        // What must never be reached.
        let kept = Arc::clone(&kept);
        listen("10.77.0.1", 80, move |stream| page(stream, Arc::clone(&kept))).await;
    });
    internet.knows("example.com", &[Answer::A(&[WEB])]);
    internet.knows("inside.example.com", &[Answer::A(&["10.77.0.1"])]);
    internet.knows("mixed.example.com", &[Answer::A(&[WEB, "10.77.0.1"])]);
    internet.knows("turns.example.com", &[Answer::A(&[WEB]), Answer::A(&["127.0.0.1"])]);
    std::thread::scope(|scope| {
        scope
            .spawn(|| internet.enter(async { test(&World::new(options).await, &internet, &seen).await }))
            .join()
    })
    .unwrap()
}

/// A29.
#[test]
fn any_public_page_is_read_by_both_addresses_and_its_url_is_on_record_a10() {
    in_the_internet(options(ANY), async |world, _, seen| {
        let own = ["-H", "Cookie: session=mine", "-H", "x-goog-api-key: mine", "-H", "User-Agent: test"];
        let got = world.call("/web/http://example.com/a/../b?c=d&token=abcdefgh12345678", &own).await;
        assert_eq!((got.status, got.text().as_str()), (200, "a public page"), "{got:?}");
        let got = world.call("/web?url=http%3A%2F%2FEXAMPLE.com%2Fx%3Fy%3Dz", &[]).await;
        assert_eq!(got.status, 200);
        let heads = seen.lock().unwrap().clone();
        assert!(heads[0].starts_with("GET /b?c=d&token=abcdefgh12345678 HTTP/1.1\r\n"), "{heads:?}");
        assert!(heads[1].starts_with("GET /x?y=z HTTP/1.1\r\n"));
        let sent = heads.concat().to_ascii_lowercase();
        assert!(sent.contains("user-agent: test") && sent.contains("host: example.com"));
        for gone in ["cookie", "authorization", "api-key", &TOKEN[..12].to_ascii_lowercase()] {
            assert!(!sent.contains(gone), "{gone}: {sent}");
        }
        let activity = &world.log.activities()[1].2;
        let url = &activity.request.as_ref().unwrap().url;
        assert!(url.starts_with("http://example.com/b?c=d&token=[hidden:"), "{url}");
        assert_eq!((activity.via.as_str(), activity.dst.addr), ("web", Some(WEB.parse().unwrap())));
        let step = world.log.steps_done(2).await.remove(0);
        assert_eq!((step.kind, step.target.as_str()), (ToolKind::Web, "GET http://example.com/b"));
        world.log.settled().await;
        world.log.check_steps();
    });
}

/// Cases 43, 45, 46, 49, 51: whatever policy permits, nothing but public addresses is dialled. (A10.)
#[test]
fn nothing_but_public_addresses_is_reached_a11() {
    in_the_internet(options(ANY), async |world, internet, seen| {
        for page in [
            "127.0.0.1",
            "10.77.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.168.0.1",
            "172.16.0.1",
            "0.0.0.0",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "1.2.3.4",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:a9fe:a9fe]",
            "[64:ff9b::a9fe:a9fe]",
            "[64:ff9b:1::1]",
            "[2002:a9fe:a9fe::1]",
            "[::127.0.0.1]",
            "[2001::1]",
            "[fc00::1]",
            "[fec0::1]",
            "[fe80::1]",
            "[ff02::1]",
            "[2001:db8:0:0:0:5efe:a9fe:a9fe]",
            "2852039166",
            "0xA9FEA9FE",
            "0251.0376.0251.0376",
            "169.254.43518",
            "017700000001",
            "127.1",
            "0x7f.1",
            "inside.example.com",
            "mixed.example.com",
        ] {
            // curl would read brackets itself.
            let got = world.call(&format!("/web/http://{page}/"), &["-g"]).await;
            assert_eq!(got.status, 403, "{page}: {got:?}");
            assert_eq!(got.refused().1, "ADDRESS_REFUSED", "{page}");
        }
        // `hosts` has `ok.test` at 127.0.0.1: no exception here, so it's a name that nobody knows.
        assert_eq!(
            world.call("/web/http://ok.test/", &[]).await.refused(),
            (502, "UPSTREAM_NAME".to_owned())
        );
        for name in [
            "localhost",
            "a.local",
            "x.internal",
            "web.default.svc",
            "x.cluster.local",
            "host.docker.internal",
            "metadata.google.internal",
            "single",
        ] {
            let got = world.call(&format!("/web/http://{name}/"), &[]).await;
            assert_eq!(got.refused(), (403, "NAME_REFUSED".to_owned()), "{name}");
        }
        for odd in [
            "http://127.0.0.1:6666\\@93.184.216.34/",
            "http://example.com@10.77.0.1/",
            "ftp://example.com/",
            "file:///etc/passwd",
            "gopher://example.com/",
        ] {
            assert_eq!(world.call(&format!("/web/{odd}"), &[]).await.status, 400, "{odd}");
        }
        // A name that turns: the vetted address is the dialled one, and the next lookup is vetted again (case 49).
        let got = world.call("/web/http://turns.example.com/", &["-H", "Connection: close"]).await;
        assert_eq!(got.status, 200, "{got:?}");
        assert_eq!(internet.asked("turns.example.com", hickory_proto::rr::RecordType::A), 1);
        assert_eq!(seen.lock().unwrap().len(), 1, "nothing else was reached");
        assert_eq!(world.call("/web/http://example.com/", &[]).await.status, 200, "positive control");
        world.log.settled().await;
    });
}

#[test]
fn a_post_is_for_policy_and_a_redirect_for_the_agent_a12_cases_48_51() {
    let reads = r#"@id("reads") permit(principal, action == Action::"http", resource in Tool::"web")
        when { ["GET", "HEAD"].contains(context.method) && context.queryBytes <= 1000 };"#;
    in_the_internet(options(reads), async |world, _, seen| {
        assert_eq!(
            world.call("/web/http://example.com/x", &["-d", "{\"a\":1}"]).await.refused().1,
            "TOOL_CALL_DENIED"
        );
        let long = format!("/web/http://example.com/x?q={}", "Zm9vYmFy".repeat(512));
        assert_eq!(world.call(&long, &[]).await.refused().1, "TOOL_CALL_DENIED");
        assert!(!world.log.text().contains("{\\\"a\\\""));
        assert_eq!(seen.lock().unwrap().len(), 0);
        let got = world.call("/web/http://example.com/moved", &[]).await;
        assert_eq!(got.status, 302);
        assert!(got.head.contains("http://169.254.169.254/latest"), "{got:?}");
        assert_eq!(seen.lock().unwrap().len(), 1);
        assert_eq!(world.call("/web/http://example.com/x", &["-I"]).await.status, 200);
    });
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn answers_are_cut_at_their_limit_and_marked_a13() {
    in_the_internet(options(ANY), async |world, _, _| {
        let fetch = async |path: &str, more: &[&str]| {
            let url = format!("/web/http://example.com{path}");
            let got = world.call(&url, more).await;
            (got.exit, got.body.len(), got)
        };
        let (exit, length, got) = fetch("/exact", &[]).await;
        assert_eq!((exit, length), (0, 5 * MIB));
        assert!(!got.head.contains("x-strait-truncated"));
        // The length is known: the head says it.
        let (exit, length, got) = fetch("/long", &[]).await;
        assert_eq!((exit, length), (0, 5 * MIB));
        assert!(
            got.head.contains("x-strait-truncated: 5242880") && got.head.contains("content-length: 5242880"),
            "{}",
            got.head
        );
        // It isn't: the trailer does, for a client that takes one; else the transfer breaks off.
        let (exit, length, got) = fetch("/chunks", &["-H", "TE: trailers", "--raw"]).await;
        let end = String::from_utf8_lossy(&got.body[length - 60..]).into_owned();
        assert!(exit == 0 && end.contains("x-strait-truncated: 5242880"), "{exit} {end}");
        let (exit, length, got) = fetch("/chunks", &[]).await;
        assert_eq!((exit, length), (18, 5 * MIB), "curl reports a partial file: {}", got.said);
        let done = world.log.steps_done(4).await;
        assert_eq!(done.iter().map(|step| step.truncated).collect::<Vec<_>>(), [false, true, true, true]);
        assert!(
            done.iter()
                .all(|step| step.bytes_in == Some(5 * 1024 * 1024) && step.decision == Decision::Allow)
        );
        world.log.settled().await;
    });
}

/// Case 50. (A13.)
#[test]
fn bombs_stay_flat_and_what_never_ends_is_ended_case_50() {
    zeros();
    in_the_internet(options(ANY), async |world, _, _| {
        assert_eq!(world.call("/web/http://example.com/", &[]).await.status, 200);
        let before = resident_kib();
        let got =
            world.call("/web/http://example.com/bomb", &["-o", "/dev/null", "-w", "%{size_download}"]).await;
        assert!(got.exit == 18 && got.head.contains("5242880"), "{got:?}");
        let grown = resident_kib().saturating_sub(before);
        // The page's own encoder and curl's output are in this process too.
        assert!(grown < 24 * 1024, "{grown} KiB");
        let got = world.call("/web/http://example.com/bomb-in-bomb", &[]).await;
        assert_eq!(got.refused(), (502, "UPSTREAM_PROTOCOL".to_owned()));
        assert_eq!(world.call("/web/http://example.com/br", &[]).await.status, 502);
        let got = world.call("/web/http://example.com/half", &[]).await;
        assert_ne!(got.exit, 0, "{got:?}");
        let begun = Instant::now();
        let got = world.call("/web/http://example.com/slow", &[]).await;
        assert!(got.exit != 0 && begun.elapsed() < Duration::from_secs(4), "{got:?}");
        let codes: Vec<_> = world.log.steps_done(6).await.iter().map(|step| step.code).collect();
        let broken = Some(Code::UpstreamProtocol);
        assert_eq!(codes, [None, None, broken, broken, broken, Some(Code::UpstreamTimeout)]);
        world.log.settled().await;
    });
}
