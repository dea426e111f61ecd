//! Placeholders (A34): the value at their own origins, and nothing at all anywhere else.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use strait_contract::{
    code::Code,
    exposure::{Exposed, Origin, Shown},
    message::{Misused, Secret},
    record::{Decision, Kind},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    process::Command,
};

use crate::{
    client::{answer, ask},
    tools::ANY,
    world::{Ca, Curl, GATEWAY, Options, World},
};

pub const PLACEHOLDER: &str = "ghp_Zz9Yy8Xx7Ww6Vv5Uu4Tt3Ss2Rr1Qq0Pp9Oo8Nn7Mm";
pub const VALUE: &str = "real/v+lue%\"16C7e42F292c6912E7710c8383";
/// Where clients that can't choose their own address connect to; a run's connection is made for each.
const DOOR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

/// An origin that keeps every byte that reached it.
struct Recorder {
    port: u16,
    got: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    async fn start(tls: Option<(&Ca, &[&str])>) -> Self {
        let tls = tls.map(|(ca, names)| {
            let (leaf, key) = ca.leaf(names);
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = rustls::ServerConfig::builder_with_provider(provider);
            let config = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
            tokio_rustls::TlsAcceptor::from(Arc::new(config.with_single_cert(vec![leaf], key).unwrap()))
        });
        let listener = TcpListener::bind((GATEWAY, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let got = Arc::<Mutex<Vec<u8>>>::default();
        let kept = Arc::clone(&got);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (kept, tls) = (Arc::clone(&kept), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(socket).await {
                                serve(stream, kept).await;
                            }
                        }
                        None => serve(socket, kept).await,
                    }
                });
            }
        });
        Self { port, got }
    }

    fn take(&self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut *self.got.lock().unwrap())).into_owned()
    }
}

/// Answers whole requests: of a repository only to who has the value, else with everything that came.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, kept: Arc<Mutex<Vec<u8>>>) {
    let (mut request, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    while let Ok(read) = stream.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        kept.lock().unwrap().extend_from_slice(&buffer[..read]);
        if request.len() < 1024 * 1024 {
            request.extend_from_slice(&buffer[..read]);
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let whole = match length {
            Some(length) => request.len() - head.len() - 4 >= length,
            None => !lower.contains("transfer-encoding: chunked") || body.ends_with("0\r\n\r\n"),
        };
        if !whole {
            continue;
        }
        let right = format!("Basic {}", STANDARD.encode(format!("x-access-token:{VALUE}")));
        let refs = "0123456789012345678901234567890123456789\trefs/heads/main\n";
        let (status, body) = match (head.contains("/repo.git/"), head.contains(&right)) {
            (true, false) => ("401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"", ""),
            (true, true) if head.contains("/info/refs") => ("200 OK\r\nContent-Type: text/plain", refs),
            (true, true) => ("404 Not Found", ""),
            (false, _) => ("200 OK\r\nSet-Cookie: session=1", text.as_str()),
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        request.clear();
    }
}

pub fn placeholder(origins: &[(bool, &str, u16)]) -> Exposed {
    let origin = |(https, host, port): &(bool, &str, u16)| Origin {
        https: *https,
        host: (*host).to_owned(),
        port: *port,
    };
    let origins = origins.iter().map(origin).collect();
    let shown = Shown::Placeholder { text: Secret::new(PLACEHOLDER.to_owned()), origins, ttl_seconds: 60 };
    Exposed { variable: "GITHUB_TOKEN".to_owned(), credential: "gh".parse().unwrap(), shown }
}

/// A run with a placeholder for `ok.test` at `ports`: (https, port).
async fn world(policy: &str, ports: &[(bool, u16)]) -> World {
    let origins: Vec<_> = ports.iter().map(|(https, port)| (*https, "ok.test", *port)).collect();
    let exposed = vec![placeholder(&origins)];
    let world = World::new(Options { policy: policy.to_owned(), exposed, ..Options::default() }).await;
    world.log.credentials.lock().unwrap().insert("gh".to_owned(), vec![Ok(VALUE.to_owned())]);
    world
}

/// Where a process of the run connects to for a name: the kernel would redirect it.
async fn door(world: &Arc<World>, name: &'static str, port: u16) -> SocketAddr {
    let listener = TcpListener::bind((DOOR, port)).await.unwrap();
    let (addr, world) = (listener.local_addr().unwrap(), Arc::clone(world));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut inside = world.connect(name, port).await;
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut inside).await });
        }
    });
    addr
}

async fn run(program: &str, arguments: &[&str], stdin: &[u8]) -> std::process::Output {
    let mut command = Command::new(program);
    // Variables of whoever runs the tests name other trust stores.
    command.args(arguments).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command.env("GIT_TERMINAL_PROMPT", "0").env("HOME", "/nonexistent").env("GIT_CONFIG_NOSYSTEM", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|_| panic!("`{program}` is missing: cargo xtask setup"));
    let mut input = child.stdin.take().unwrap();
    let stdin = stdin.to_vec();
    tokio::spawn(async move {
        let _ = input.write_all(&stdin).await;
    });
    tokio::time::timeout(Duration::from_secs(30), child.wait_with_output()).await.unwrap().unwrap()
}

/// Real curl, as a process of the run.
async fn curl(url: &str, more: &[&str], stdin: &[u8]) -> Curl {
    let (place, _) =
        url.split_once("://").map(|(_, rest)| rest.split_once('/').unwrap_or((rest, ""))).unwrap();
    let resolve = format!("{place}:{DOOR}");
    let fixed =
        ["-sS", "-i", "-m", "20", "--noproxy", "*", "--http1.1", "-H", "Expect:", "--resolve", &resolve];
    Curl::read(&run("curl", &[&fixed[..], more, &[url]].concat(), stdin).await)
}

fn told(world: &World) -> Vec<Misused> {
    std::mem::take(&mut *world.log.misused.lock().unwrap())
}

async fn told_one(world: &World) -> Misused {
    for _ in 0..500 {
        if let [one] = told(world).as_slice() {
            return one.clone();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no event came");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_and_curl_work_with_a_placeholder_and_never_see_the_value_a34_case_97() {
    let ca = Arc::new(Ca::new());
    let origin = Recorder::start(Some((&ca, &["ok.test"]))).await;
    let exposed = vec![placeholder(&[(true, "ok.test", origin.port)])];
    let options = Options { policy: ANY.to_owned(), exposed, ..Options::default() };
    let world = Arc::new(World::trusting(options, ca).await);
    world.log.credentials.lock().unwrap().insert("gh".to_owned(), vec![Ok(VALUE.to_owned())]);
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("ca.pem");
    std::fs::write(&pem, &world.run_ca).unwrap();
    let pem = pem.to_str().unwrap();
    door(&world, "ok.test", origin.port).await;
    let (host, resolve) = (format!("ok.test:{}", origin.port), format!("ok.test:{}:{DOOR}", origin.port));

    let url = |password: &str| format!("https://x-access-token:{password}@{host}/repo.git");
    let git = async |password: &str| {
        let (trust, resolve) = (format!("http.sslCAInfo={pem}"), format!("http.curloptResolve={resolve}"));
        run("git", &["-c", &trust, "-c", &resolve, "ls-remote", &url(password)], b"").await
    };
    let listed = git(PLACEHOLDER).await;
    assert!(
        String::from_utf8_lossy(&listed.stdout).contains("refs/heads/main"),
        "{listed:?} {}",
        origin.take()
    );
    let seen = origin.take();
    assert!(seen.contains(&STANDARD.encode(format!("x-access-token:{VALUE}"))), "{seen}");
    assert!(!git("ghp_other").await.status.success(), "negative control");
    origin.take();

    let bearer = format!("Authorization: Bearer {PLACEHOLDER}");
    let encoded: String = VALUE
        .bytes()
        .map(|byte| match byte {
            b'/' | b'+' | b'%' | b'"' => format!("%{byte:02X}"),
            byte => char::from(byte).to_string(),
        })
        .collect();
    let json = format!("{{\"token\":\"{PLACEHOLDER}\"}}");
    let form = format!("a=b&token={PLACEHOLDER}");
    for (more, query, sent) in [
        (&["-H", bearer.as_str()][..], "", format!("Bearer {VALUE}")),
        (&["-u", &format!("me:{PLACEHOLDER}")], "", STANDARD.encode(format!("me:{VALUE}"))),
        (&["-H", &format!("X-Api-Key: {PLACEHOLDER}")], "", VALUE.to_owned()),
        (&[], &format!("?a=b&key={PLACEHOLDER}"), format!("key={encoded}")),
        (&["--json", &json], "", serde_json::json!({ "token": VALUE }).to_string()),
        (&["-d", &form], "", format!("a=b&token={encoded}")),
    ] {
        let got = curl(&format!("https://{host}/x{query}"), &[&["--cacert", pem], more].concat(), b"").await;
        assert_eq!(got.status, 200, "{more:?} {got:?}");
        let seen = origin.take();
        assert!(seen.contains(&sent) && !seen.contains(PLACEHOLDER), "{sent}: {seen}");
        let shown = got.text() + &got.head;
        assert!(shown.contains("****") && !shown.contains(&sent) && !shown.contains(VALUE), "{got:?}");
        assert!(!shown.to_ascii_lowercase().contains("set-cookie"), "{got:?}");
    }
    world.log.settled().await;
    let records = world.log.done();
    let named = records.iter().filter(|line| line.placeholders.iter().any(|name| name.as_str() == "gh"));
    // git asks more than once.
    assert!(named.count() >= 7, "{records:#?}");
    let text = world.log.text();
    assert!(!text.contains(PLACEHOLDER) && !text.contains(VALUE) && !text.contains(&encoded), "{text}");
    assert_eq!(told(&world), []);
}

/// Cases 89 and 97: sent where it isn't for, in any spelling, a placeholder doesn't get there and rings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_placeholder_sent_elsewhere_is_refused_and_rings_a34_case_89() {
    let (origin, other) = (Recorder::start(None).await, Recorder::start(None).await);
    // Bound to the same name, by https and by another port.
    let world = Arc::new(world(ANY, &[(true, other.port), (false, origin.port)]).await);
    door(&world, "ok.test", other.port).await;
    let url = format!("http://ok.test:{}", other.port);
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    for control in [false, true] {
        // The same shapes with another text pass.
        let secret = if control { PLACEHOLDER.replace("Zz9", "Zz8") } else { PLACEHOLDER.to_owned() };
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        let percent: String = secret.bytes().map(|byte| format!("%25{byte:02x}")).collect();
        let body = format!("{}{secret}{}", "x".repeat(200_000), "y".repeat(1000));
        let cases: Vec<(String, Vec<String>, Vec<u8>)> = vec![
            (String::new(), vec!["-H".into(), format!("Authorization: Bearer {secret}")], vec![]),
            (String::new(), vec!["-u".into(), format!("user:{secret}")], vec![]),
            (
                String::new(),
                vec!["-H".into(), format!("X-A: {}", STANDARD.encode(format!("a{secret}")))],
                vec![],
            ),
            (
                String::new(),
                vec!["-H".into(), format!("X-A: {}", STANDARD.encode(format!("ab{secret}")))],
                vec![],
            ),
            (String::new(), vec!["-H".into(), format!("Cookie: a={hex}")], vec![]),
            (format!("/?q={secret}"), vec![], vec![]),
            (format!("/?q={percent}"), vec![], vec![]),
            (format!("/a/{secret}/b"), vec![], vec![]),
            (String::new(), vec!["-d".into(), format!("t={secret}")], vec![]),
            (String::new(), vec!["--data-binary".into(), "@-".into()], body.clone().into_bytes()),
            (
                String::new(),
                vec!["-H".into(), "Transfer-Encoding: chunked".into(), "--data-binary".into(), "@-".into()],
                STANDARD.encode(&body).into_bytes(),
            ),
            (
                String::new(),
                vec!["-H".into(), "Content-Encoding: gzip".into(), "--data-binary".into(), "@-".into()],
                gzip(&body),
            ),
        ];
        for (path, more, stdin) in cases {
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            let got = curl(&format!("{url}{path}"), &more, &stdin).await;
            let seen = other.take();
            if control {
                assert_eq!((got.status, told(&world).len()), (200, 0), "{path} {more:?}: {got:?}");
                assert!(!seen.is_empty());
                continue;
            }
            assert_eq!(got.refused(), (403, "PLACEHOLDER_MISUSED".to_owned()), "{path} {more:?}: {got:?}");
            assert!(!seen.contains(&secret) && !seen.contains(&hex), "{path} {more:?}");
            let misused = told_one(&world).await;
            assert_eq!(
                (misused.host.as_str(), misused.port, misused.bound),
                ("ok.test", Some(other.port), false)
            );
            assert_eq!((misused.credential.as_str(), misused.run.as_str()), ("gh", "coder-1"));
            assert_eq!(misused.process, Some((4242, "curl".to_owned())));
        }
    }
    assert_eq!(origin.take(), "");
    world.log.settled().await;
    let refused = world.log.done().into_iter().filter(|line| line.code == Some(Code::PlaceholderMisused));
    assert!(refused.filter(|line| line.decision == Decision::Deny).count() == 12);
    assert!(!world.log.text().contains(PLACEHOLDER));
    assert!(world.log.handed.lock().unwrap().is_empty(), "no value was asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_it_cant_be_replaced_it_doesnt_go_even_to_its_own_origin_a34() {
    let origin = Recorder::start(None).await;
    let world = Arc::new(world(ANY, &[(false, origin.port)]).await);
    door(&world, "ok.test", origin.port).await;
    let url = format!("http://ok.test:{}", origin.port);
    let large = format!("{{\"a\":\"{}\",\"t\":\"{PLACEHOLDER}\"}}", "x".repeat(300 * 1024));
    let encoded = format!("X-Auth: {}", STANDARD.encode(format!("me:{PLACEHOLDER}")));
    for (path, more, stdin) in [
        (format!("/bot{PLACEHOLDER}/send"), vec![], ""),
        ("/".to_owned(), vec!["-H", &encoded], ""),
        ("/".to_owned(), vec!["-F", "t=<-"], PLACEHOLDER),
        ("/".to_owned(), vec!["--json", "@-"], large.as_str()),
    ] {
        let got = curl(&format!("{url}{path}"), &more, stdin.as_bytes()).await;
        assert_eq!(got.refused(), (403, "PLACEHOLDER_MISUSED".to_owned()), "{more:?}: {got:?}");
        assert!(!origin.take().contains(PLACEHOLDER), "{more:?}");
        assert!(told_one(&world).await.bound);
    }
}

/// Case 90: with no value there is no call; what policy refuses rings too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_no_call_and_a_refused_call_rings_too_a34_case_90() {
    let origin = Recorder::start(None).await;
    let policy = r#"@id("read") permit(principal, action == Action::"http", resource) when { context.method == "GET" };"#;
    let world = world(policy, &[(false, origin.port)]).await;
    world.log.credentials.lock().unwrap().insert("gh".to_owned(), vec![Err("the store is down".to_owned())]);
    let request = |method: &str, host: &str| {
        format!(
            "{method} / HTTP/1.1\r\nHost: {host}:{}\r\nAuthorization: token {PLACEHOLDER}\r\n\r\n",
            origin.port
        )
    };
    let got = ask(&mut world.connect("ok.test", origin.port).await, &request("GET", "ok.test")).await;
    assert_eq!((got.status, got.code().as_str()), (503, "CREDENTIAL_UNAVAILABLE"));
    assert!(got.text().contains("the store is down"), "{}", got.text());
    // It comes back without a restart.
    world.log.credentials.lock().unwrap().insert("gh".to_owned(), vec![Ok(VALUE.to_owned())]);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let got = ask(&mut world.connect("ok.test", origin.port).await, &request("GET", "ok.test")).await;
    assert_eq!(got.status, 200);
    assert!(origin.take().contains(&format!("token {VALUE}")));
    let got = ask(&mut world.connect("no.test", origin.port).await, &request("DELETE", "no.test")).await;
    assert_eq!(got.code(), "PLACEHOLDER_MISUSED");
    assert_eq!(told_one(&world).await.host, "no.test");
    assert_eq!(origin.take(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_cut_before_the_byte_that_completes_it_a34() {
    let echo = crate::origin::echo().await;
    let policy = r#"@id("tcp") permit(principal, action == Action::"connect", resource);"#;
    let world = world(policy, &[(true, 443)]).await;
    let mut stream = world.connect("ok.test", echo.port()).await;
    stream.write_all(b"\x01hello").await.unwrap();
    let mut back = [0; 6];
    stream.read_exact(&mut back).await.unwrap();
    let (first, last) = PLACEHOLDER.split_at(20);
    stream.write_all(first.as_bytes()).await.unwrap();
    let mut part = [0; 20];
    stream.read_exact(&mut part).await.unwrap();
    stream.write_all(last.as_bytes()).await.unwrap();
    assert_eq!(crate::client::rest(&mut stream).await, b"", "nothing more was echoed");
    let done = world.log.done_of(Kind::Stream, 1).await;
    assert_eq!((done[0].code, done[0].decision), (Some(Code::PlaceholderMisused), Decision::Deny));
    assert_eq!(told_one(&world).await.port, Some(echo.port()));
}

/// Case 89: in a masked WebSocket frame, split over two of them, to its own origin too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_message_with_it_is_cut_a34_case_89() {
    let origin = crate::origin::Origin::http().await;
    for own in [false, true] {
        let world = world(ANY, &[(!own, origin.port())]).await;
        let mut stream = world.connect("ok.test", origin.port()).await;
        let head = format!(
            "GET /websocket HTTP/1.1\r\nHost: ok.test:{}\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
            origin.port()
        );
        assert_eq!(ask(&mut stream, &head).await.status, 101);
        assert!(!origin.seen().last().unwrap().headers.contains_key("sec-websocket-extensions"));
        let mut ready = [0; 5];
        stream.read_exact(&mut ready).await.unwrap();
        let frame = |text: &str| {
            let key = [9_u8, 8, 7, 6];
            let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap(), 9, 8, 7, 6];
            frame.extend(text.bytes().enumerate().map(|(at, byte)| byte ^ key[at % 4]));
            frame
        };
        let (first, last) = PLACEHOLDER.split_at(20);
        let first = frame(&format!("auth {first}"));
        stream.write_all(&first).await.unwrap();
        let mut back = vec![0; first.len()];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, first, "what holds none passes as it is");
        stream.write_all(&frame(last)).await.unwrap();
        assert_eq!(crate::client::rest(&mut stream).await, b"");
        let done = world.log.done_of(Kind::Stream, 1).await;
        assert_eq!(done[0].code, Some(Code::PlaceholderMisused));
        assert_eq!(told_one(&world).await.bound, own);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_was_shown_is_hidden_in_records_and_passes_a34() {
    let origin = Recorder::start(None).await;
    let value = "plain-words-of-no-known-kind";
    let shown = Shown::Value(Secret::new(value.to_owned()));
    let exposed = vec![Exposed { variable: "X".to_owned(), credential: "x".parse().unwrap(), shown }];
    let world = World::new(Options { policy: ANY.to_owned(), exposed, ..Options::default() }).await;
    let mut stream = world.connect("ok.test", origin.port).await;
    let request = format!("GET /a/{value}?b={value} HTTP/1.1\r\nHost: ok.test:{}\r\n\r\n", origin.port);
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream, false).await.status, 200);
    assert_eq!(origin.take().matches(value).count(), 2);
    world.log.settled().await;
    let text = world.log.text();
    assert!(!text.contains(value) && text.contains("[hidden:"), "{text}");
}

/// Bytes of the large body.
const LARGE: usize = 64 * 1024 * 1024;

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().unwrap() * 1024
}

/// Uploads [`LARGE`] bytes of text and gives seconds and memory growth while they passed.
async fn upload(world: &World, port: u16, last: &[u8]) -> (f64, usize, crate::client::Answer) {
    let mut piece: Vec<u8> = Vec::new();
    let mut state = 88_172_645_463_325_252_u64;
    while piece.len() < 1024 * 1024 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        piece.extend_from_slice(STANDARD.encode(state.to_le_bytes()).as_bytes());
    }
    piece.truncate(1024 * 1024);
    let mut stream = world.connect("ok.test", port).await;
    let length = LARGE + last.len();
    let head = format!("POST / HTTP/1.1\r\nHost: ok.test:{port}\r\nContent-Length: {length}\r\n\r\n");
    let begun = std::time::Instant::now();
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut least, mut most) = (usize::MAX, 0);
    for at in 0..LARGE / piece.len() {
        stream.write_all(&piece).await.unwrap();
        if at % 16 == 8 {
            (least, most) = (least.min(resident()), most.max(resident()));
        }
    }
    stream.write_all(last).await.unwrap();
    let answer = answer(&mut stream, false).await;
    (begun.elapsed().as_secs_f64(), most - least, answer)
}

/// A body that is looked through streams: memory stays flat, and what completes a placeholder at its very end is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_body_is_looked_through_as_it_streams_a34() {
    let origin = crate::origin::Origin::http().await;
    let bare = World::with(ANY).await;
    let (plain, _, got) = upload(&bare, origin.port(), b"the end").await;
    assert_eq!(got.status, 200);
    let world = world(ANY, &[(true, 443)]).await;
    let (looked, growth, got) = upload(&world, origin.port(), b"the end").await;
    assert_eq!((got.status, origin.seen().last().unwrap().body), (200, LARGE + 7));
    assert!(growth < 64 * 1024 * 1024, "memory grew by {growth} bytes");
    let (.., got) = upload(&world, origin.port(), PLACEHOLDER.as_bytes()).await;
    assert_eq!(got.code(), "PLACEHOLDER_MISUSED");
    assert_eq!(origin.seen().len(), 2, "what was cut never became a request");
    println!("{LARGE} bytes: {plain:.3} s, looked through {looked:.3} s, growth {growth} bytes");
}
