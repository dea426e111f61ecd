use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};

use super::{
    properties::{at_once, in_pieces, read_like_httparse, same_in_pieces},
    *,
};

fn passes(input: &str) {
    assert_eq!(at_once(input.as_bytes()), (input.len(), None), "{input:?}");
}

fn refused(input: &str, violation: Violation) {
    let (passed, got) = at_once(input.as_bytes());
    assert_eq!(got, Some(violation), "{input:?}");
    assert_eq!(passed, 0, "bytes of a refused head passed: {input:?}");
}

const GET: &str = "GET /a?b=c HTTP/1.1\r\nHost: ok.test\r\n\r\n";

#[test]
fn ordinary_messages_pass_whole() {
    passes(GET);
    passes("GET / HTTP/1.0\r\n\r\n");
    passes("M-SEARCH * HTTP/1.1\r\nHost: a\r\nX:\r\nY: \t v \t\r\nZ: \u{fc}\r\n\r\n");
    passes("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    passes("POST / HTTP/1.1\r\nhost: a\r\ncontent-length:0\r\n\r\n");
    passes(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n5;ext=\"1\"\r\nhello\r\n00A\r\n0123456789\r\n0\r\n\r\n",
    );
    passes("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:chunked\r\n\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n");
    passes(&GET.repeat(3));
    passes(&format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nGET{GET}"));
}

/// Case 25 and its kin: two readers must not find two requests. (A9.)
#[test]
fn case_25_heads_that_two_readers_take_apart_differently_are_refused() {
    let post = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n0\r\n\r\n");
    for (fields, violation) in [
        ("Content-Length: 5\r\nContent-Length: 50\r\n", Violation::ContentLength),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Violation::ContentLength),
        ("Content-Length: 5, 5\r\n", Violation::ContentLength),
        ("Content-Length: +5\r\n", Violation::ContentLength),
        ("Content-Length: -5\r\n", Violation::ContentLength),
        ("Content-Length: 0x5\r\n", Violation::ContentLength),
        ("Content-Length: 5 5\r\n", Violation::ContentLength),
        ("Content-Length:\r\n", Violation::ContentLength),
        ("Content-Length: 18446744073709551616\r\n", Violation::ContentLength),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Violation::TwoFramings),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Violation::TwoFramings),
        ("Transfer-Encoding: xchunked\r\n", Violation::TransferEncoding),
        ("Transfer-Encoding: chunked, chunked\r\n", Violation::TransferEncoding),
        ("Transfer-Encoding: gzip, chunked\r\n", Violation::TransferEncoding),
        ("Transfer-Encoding: \"chunked\"\r\n", Violation::TransferEncoding),
        ("Transfer-Encoding:\r\n", Violation::TransferEncoding),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", Violation::TransferEncoding),
        ("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", Violation::TransferEncoding),
        ("Transfer-Encoding:\r\n chunked\r\n", Violation::TransferEncoding),
        ("Transfer-Encoding : chunked\r\n", Violation::FieldName),
        ("Transfer-Encoding\t: chunked\r\n", Violation::FieldName),
        ("Transfer-Encoding: \u{b}chunked\r\n", Violation::FieldValue),
        ("X: a\r\n b\r\n", Violation::Folded),
        ("X: a\r\n\tb\r\n", Violation::Folded),
        (" X: a\r\n", Violation::Folded),
        ("X: a\nY: b\r\n", Violation::BareLineFeed),
        ("X: a\rY: b\r\n", Violation::BareCarriageReturn),
        ("X: a\r\r\n", Violation::BareCarriageReturn),
        ("X: a\0b\r\n", Violation::FieldValue),
        ("X: a\u{7f}\r\n", Violation::FieldValue),
        ("X: a\u{1}\r\n", Violation::FieldValue),
        ("X\r\n", Violation::FieldName),
        (": a\r\n", Violation::FieldName),
        ("X Y: a\r\n", Violation::FieldName),
        ("X\0: a\r\n", Violation::FieldName),
        ("(X): a\r\n", Violation::FieldName),
        ("X\u{fc}: a\r\n", Violation::FieldName),
    ] {
        refused(&post(fields), violation);
    }
    refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Violation::TransferEncoding);
    refused("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 1\r\n\r\nx", Violation::ConnectBody);
    refused(
        "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nTransfer-Encoding: chunked\r\n\r\n",
        Violation::ConnectBody,
    );
}

/// Case 23: which host is meant must be clear.
#[test]
fn case_23_two_hosts_or_none_are_refused() {
    refused("GET / HTTP/1.1\r\nHost: ok.test\r\nHost: no.test\r\n\r\n", Violation::ManyHosts);
    refused("GET / HTTP/1.1\r\nHost: ok.test\r\nhOST: ok.test\r\n\r\n", Violation::ManyHosts);
    refused("GET http://ok.test/ HTTP/1.1\r\nX: 1\r\n\r\n", Violation::NoHost);
    refused("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", Violation::ManyHosts);
}

#[test]
fn malformed_request_lines_are_refused() {
    for (line, violation) in [
        ("GET / HTTP/1.1 ", Violation::Version),
        ("GET  / HTTP/1.1", Violation::Target),
        ("GET / HTTP/2.0", Violation::Version),
        ("GET / HTTP/0.9", Violation::Version),
        ("GET / http/1.1", Violation::Version),
        ("GET / HTTP/1.10", Violation::Version),
        ("GET /", Violation::RequestLine),
        ("GET", Violation::RequestLine),
        ("", Violation::Method),
        (" GET / HTTP/1.1", Violation::Method),
        ("GET\t/ HTTP/1.1", Violation::Method),
        ("G(T / HTTP/1.1", Violation::Method),
        ("G\0T / HTTP/1.1", Violation::Method),
        ("GET /\0 HTTP/1.1", Violation::Target),
        ("GET /a\tb HTTP/1.1", Violation::Target),
        ("GET http://b\u{fc}cher.test/ HTTP/1.1", Violation::Target),
        ("GET http:/\\ok.test HTTP/1.1", Violation::Target),
        ("GET /\u{7f} HTTP/1.1", Violation::Target),
        ("GET /a\rb HTTP/1.1", Violation::Target),
        ("GET /a b HTTP/1.1", Violation::Version),
    ] {
        refused(&format!("{line}\r\nHost: a\r\n\r\n"), violation);
    }
    refused("GET / HTTP/1.1\nHost: a\n\n", Violation::BareLineFeed);
    refused("\n", Violation::BareLineFeed);
}

/// Case 25: chunks.
#[test]
fn case_25_malformed_chunks_and_trailers_end_the_input() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long = format!("5;{}\r\nhello\r\n", "x".repeat(300));
    for (chunks, after, violation) in [
        ("\r\n", 0, Violation::ChunkSize),
        ("g\r\n", 0, Violation::ChunkSize),
        ("-1\r\n", 0, Violation::ChunkSize),
        ("0x5\r\n", 0, Violation::ChunkSize),
        (" 5\r\n", 0, Violation::ChunkSize),
        ("5 \r\n", 0, Violation::ChunkSize),
        ("10000000000000000\r\n", 0, Violation::ChunkSize),
        ("00000000000000005\r\nhello", 0, Violation::ChunkSize),
        ("5\nhello\r\n", 0, Violation::BareLineFeed),
        ("5;a\rb\r\nhello", 0, Violation::ChunkExtension),
        ("5;a\0\r\nhello", 0, Violation::ChunkExtension),
        (long.as_str(), 0, Violation::ChunkExtension),
        ("5\r\nhelloX\r\n", 8, Violation::ChunkEnd),
        ("5\r\nhello\n", 8, Violation::ChunkEnd),
        ("0\r\nHost: b\r\n\r\n", 3, Violation::Trailer),
        ("0\r\nX: 1\r\nAuthorization: b\r\n\r\n", 3, Violation::Trailer),
        ("0\r\ncontent-length: 5\r\n\r\n", 3, Violation::Trailer),
        ("0\r\nTransfer-Encoding: chunked\r\n\r\n", 3, Violation::Trailer),
        ("0\r\nX: a\r\n b\r\n\r\n", 3, Violation::Folded),
        ("0\r\nX: a\n\r\n", 3, Violation::BareLineFeed),
        ("0\r\nX a\r\n\r\n", 3, Violation::FieldName),
    ] {
        let (passed, got) = at_once(format!("{head}{chunks}").as_bytes());
        assert_eq!(got, Some(violation), "{chunks:?}");
        assert_eq!(passed, head.len() + after, "{chunks:?}");
    }
    let most = format!("{head}FFFFFFFFFFFFFFFF\r\nhello");
    assert_eq!(at_once(most.as_bytes()), (most.len(), None));
}

#[test]
fn sizes_are_bounded_before_the_end_is_seen() {
    let limits = HeadLimits { bytes: 128, fields: 3 };
    let pass = |input: &str| Framing::new(limits).pass(input.as_bytes());
    assert!(pass("GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nY: 1\r\n\r\n").is_ok());
    assert_eq!(
        pass("GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nY: 1\r\nZ: 1\r\n\r\n"),
        Err((0, Violation::TooManyFields))
    );
    assert_eq!(pass(&"G".repeat(129)), Err((0, Violation::TooLarge)));
    assert_eq!(
        pass(&format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(128))),
        Err((0, Violation::TooLarge))
    );
    let chunked = "P / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
    assert!(pass(chunked).is_ok());
    assert!(matches!(pass(&format!("{chunked}X: {}", "a".repeat(128))), Err((_, Violation::TooLarge))));
    assert!(matches!(
        pass(&format!("{chunked}A:\r\nB:\r\nC:\r\nD:\r\n\r\n")),
        Err((_, Violation::TooManyFields))
    ));
}

const SAMPLES: &[&str] = &[
    GET,
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;e\r\nhello\r\n0\r\nX: 1\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nHost: 1\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n\x16\x03\x01 not HTTP",
];

#[test]
fn a_cut_anywhere_changes_nothing() {
    for sample in SAMPLES {
        let sample = sample.as_bytes();
        let want = at_once(sample);
        assert_eq!(in_pieces(sample, std::iter::repeat_n(1, sample.len())), want);
        for cut in 0..sample.len() {
            assert_eq!(in_pieces(sample, [cut, sample.len()]), want, "cut at {cut}");
        }
    }
}

fn headish() -> impl Strategy<Value = Vec<u8>> {
    let end = prop_oneof![8 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r"), 1 => Just("\r\n ")];
    let line = prop_oneof![
        Just("Host: a".to_owned()),
        "Content-Length: ?[0-9]{1,3}",
        Just("Transfer-Encoding: chunked".to_owned()),
        "[A-Za-z-]{1,8} ?: ?[ -~]{0,8}",
        "[ -~\t\0\r\u{fc}]{0,12}",
    ];
    let first = prop_oneof![4 => "(GET|POST|CONNECT|X-Y) (/|\\*|http://a/|a:1)[!-~]{0,8} HTTP/1\\.[01]", 1 => "[ -~\t]{0,20}"];
    (first, prop::collection::vec((end.clone(), line), 0..6), end, prop::collection::vec(any::<u8>(), 0..8))
        .prop_map(|(first, lines, end, tail)| {
            let mut head = first.into_bytes();
            for (end, line) in lines {
                head.extend_from_slice(end.as_bytes());
                head.extend_from_slice(line.as_bytes());
            }
            head.extend_from_slice(end.as_bytes());
            head.extend_from_slice(b"\r\n");
            head.extend_from_slice(&tail);
            head
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// hyper's own reader finds the same head in whatever passes, ending at the same byte.
    #[test]
    fn what_passes_is_read_alike_by_httparse(input in headish()) {
        read_like_httparse(&input);
    }

    #[test]
    fn any_cuts_give_the_same(input in headish(), sizes in prop::collection::vec(1_usize..9, 0..64)) {
        same_in_pieces(&input, sizes);
    }

    #[test]
    fn no_bytes_panic(input in prop::collection::vec(any::<u8>(), 0..200)) {
        let (passed, _) = at_once(&input);
        prop_assert!(passed <= input.len());
        read_like_httparse(&input);
    }
}

/// A real hyper server behind the filter: gives what its service saw and what the client got.
async fn serve(input: &[&[u8]]) -> (Vec<String>, Vec<u8>, Option<Violation>) {
    let (client, server) = duplex(64 * 1024);
    let (strict, watch) = Strict::new(server, HeadLimits::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let service = service_fn(|request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let line = format!("{} {}", request.method(), request.uri());
            let body = request.into_body().collect().await;
            let outcome = body.map_or_else(|_| "broken".to_owned(), |body| body.to_bytes().len().to_string());
            seen.lock().unwrap().push(format!("{line} {outcome}"));
            Ok::<_, Infallible>(Response::new(Full::new(bytes::Bytes::from_static(b"fine"))))
        }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    let connection = http.half_close(true).serve_connection(TokioIo::new(strict), service);
    let talk = async {
        let (mut from, mut to) = tokio::io::split(client);
        for piece in input {
            to.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        to.shutdown().await.unwrap();
        let mut answer = Vec::new();
        from.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let run = async {
        let _ = connection.await;
        let violation = watch.violation();
        if violation.is_some() {
            watch.write_raw(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        } else {
            drop(watch);
        }
        violation
    };
    let ((), (answer, violation)) = (
        (),
        tokio::time::timeout(Duration::from_secs(5), async { tokio::join!(talk, run) })
            .await
            .expect("no hang"),
    );
    let seen = seen.lock().unwrap().clone();
    (seen, answer, violation)
}

#[tokio::test]
async fn hyper_sees_good_messages_and_nothing_of_bad_ones() {
    let good = b"POST /a HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 5\r\n\r\nhello";
    let bad = b"POST /b HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhello";

    let (seen, answer, violation) = serve(&[good]).await;
    assert_eq!((seen, violation), (vec!["POST /a 5".to_owned()], None));
    assert!(answer.starts_with(b"HTTP/1.1 200"));

    let (seen, answer, violation) = serve(&[bad]).await;
    assert_eq!((seen, violation), (Vec::new(), Some(Violation::ContentLength)));
    assert_eq!(answer, b"HTTP/1.1 400 Bad Request\r\n\r\n");

    let both = [good.as_slice(), bad.as_slice()].concat();
    let (seen, answer, violation) = serve(&[&both]).await;
    assert_eq!((seen, violation), (vec!["POST /a 5".to_owned()], Some(Violation::ContentLength)));
    let answer = String::from_utf8(answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("HTTP/1.1 400 Bad Request\r\n\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_body_that_breaks_the_rules_never_looks_complete() {
    let head =
        b"POST /c HTTP/1.1\r\nHost: ok.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".as_slice();
    let (seen, _, violation) = serve(&[head, b"0\r\nX: 1\r\n\r\n"]).await;
    assert_eq!((seen, violation), (vec!["POST /c 5".to_owned()], None));
    let (seen, _, violation) = serve(&[head, b"0\r\nHost: no.test\r\n\r\n"]).await;
    assert_eq!((seen, violation), (vec!["POST /c broken".to_owned()], Some(Violation::Trailer)));
    let (seen, _, violation) = serve(&[head, b"zz\r\n"]).await;
    assert_eq!((seen, violation), (vec!["POST /c broken".to_owned()], Some(Violation::ChunkSize)));
}

async fn connect_through(
    input: &[u8],
    settle: impl FnOnce(&Watch<DuplexStream>),
    more: &[u8],
) -> (Vec<u8>, Option<Violation>) {
    let (mut client, server) = duplex(64 * 1024);
    let (mut strict, watch) = Strict::new(server, HeadLimits::default());
    client.write_all(input).await.unwrap();
    let mut got = vec![0; 1024];
    let head = strict.read(&mut got).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(20), strict.read(&mut got[head..])).await;
    assert!(waiting.is_err(), "bytes behind a CONNECT passed before it was answered");
    settle(&watch);
    client.write_all(more).await.unwrap();
    client.shutdown().await.unwrap();
    got.truncate(head);
    strict.read_to_end(&mut got).await.unwrap();
    (got, watch.violation())
}

#[tokio::test]
async fn bytes_behind_a_connect_wait_for_its_answer() {
    let connect = "CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\n\r\n".to_owned();
    let early = connect.clone() + "\x16\x03\x01";
    let (got, violation) = connect_through(early.as_bytes(), Watch::upgraded, b"\n\0more").await;
    assert_eq!((got, violation), ((early.clone() + "\n\0more").into_bytes(), None));

    let (got, violation) = connect_through(connect.as_bytes(), Watch::refused, GET.as_bytes()).await;
    assert_eq!((got, violation), ((connect.clone() + GET).into_bytes(), None));

    let (got, violation) = connect_through(early.as_bytes(), Watch::refused, b"\n\0more").await;
    assert_eq!((got, violation), (connect.into_bytes(), Some(Violation::BareLineFeed)));
}

#[tokio::test]
async fn an_upgrade_makes_the_rest_opaque_and_the_stream_comes_back() {
    let (mut client, server) = duplex(1024);
    let (mut strict, watch) = Strict::new(server, HeadLimits::default());
    let upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
    client.write_all(upgrade).await.unwrap();
    let mut got = [0; 1024];
    assert_eq!(strict.read(&mut got).await.unwrap(), upgrade.len());
    watch.upgraded();
    client.write_all(b"\x81\x05hello\n\n").await.unwrap();
    assert_eq!(strict.read(&mut got).await.unwrap(), 9);
    client.write_all(b"rest").await.unwrap();
    drop(watch);
    let (mut io, held) = strict.into_parts().unwrap();
    assert_eq!(held, b"");
    assert_eq!(io.read(&mut got).await.unwrap(), 4);
}

#[tokio::test]
async fn the_stream_can_be_taken_after_a_violation_only_by_the_watch() {
    let (mut client, server) = duplex(1024);
    let (mut strict, watch) = Strict::new(server, HeadLimits::default());
    client.write_all(b"GET / HTTP/1.1\nHost: a\n\n").await.unwrap();
    let mut got = Vec::new();
    assert_eq!(strict.read_to_end(&mut got).await.unwrap(), 0);
    strict.shutdown().await.unwrap();
    assert_eq!(watch.heads(), 0);
    watch.upgraded();
    assert!(strict.into_parts().is_none());
    watch.write_raw(b"no").await.unwrap();
    client.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, b"no");
}

#[tokio::test]
async fn the_raw_stream_is_not_to_be_had_while_it_speaks_http() {
    let (_client, server) = duplex(1024);
    let (strict, _watch) = Strict::new(server, HeadLimits::default());
    assert!(strict.into_parts().is_none());
}

/// Not a benchmark: a bound that only a quadratic reader would miss.
#[test]
fn a_large_head_that_comes_byte_by_byte_is_read_once() {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(60_000));
    let start = Instant::now();
    let mut framing = Framing::new(HeadLimits::default());
    for come in 1..head.len() {
        assert_eq!(framing.pass(&head.as_bytes()[..come]), Ok(0));
    }
    assert_eq!(framing.pass(head.as_bytes()), Ok(head.len()));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
