//! HTTP/1.1 in the clear: transparent, and through the explicit proxy.

use std::time::{Duration, Instant};

use strait_contract::{
    code::Code,
    record::{Decision, Kind, Phase},
};
use tokio::io::AsyncWriteExt;

use crate::{
    client::{answer, ask, get, head, rest},
    origin::Origin,
    world::{ALL_OK, Options, READ_OK, World, flow},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permitted_request_is_on_record_before_it_is_forwarded_and_its_end_before_it_is_released() {
    let (world, origin) = (World::with(READ_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    let got = get(&mut stream, &host, "/a?b=c").await;
    assert_eq!((got.status, got.text().as_str()), (200, "hello from /a"));
    assert!(got.head.contains("x-end"), "{}", got.head);
    assert!(!got.head.contains("x-hop"), "a hop-by-hop field came through: {}", got.head);
    // Both lines are there the moment the client has its answer.
    let lines = world.log.activities();
    assert_eq!(
        lines.iter().map(|line| line.1).collect::<Vec<_>>(),
        [Some(Phase::Decided), Some(Phase::Done)]
    );
    let (decided, done) = (&lines[0].2, &lines[1].2);
    assert_eq!(decided.decision, Decision::Allow);
    assert_eq!(decided.rules, ["read-ok"]);
    assert_eq!(decided.request.as_ref().unwrap().status, None);
    let request = done.request.clone().unwrap();
    assert_eq!(request.url, format!("http://{host}/a?b=c"));
    assert_eq!((request.status, request.bytes_out, request.bytes_in), (Some(200), Some(0), Some(13)));
    assert_eq!(done.dst.addr, Some("127.0.0.1".parse().unwrap()));
    assert_eq!(done.dst.name.as_deref(), Some("ok.test"));
    assert_eq!(done.process.as_ref().unwrap().comm, "curl");
    assert_eq!(done.cookie, Some(77));
    assert_eq!(origin.only().headers["host"], host.as_str());
    world.log.check_pairs();
}

/// A23.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_what_and_why_and_how_to_allow_it_case_37() {
    let (world, origin) = (World::with("").await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    let got = get(&mut stream, &host, "/x").await;
    assert_eq!((got.status, got.code().as_str()), (403, "TOOL_CALL_DENIED"));
    let error = got.error();
    let (id, message) = (error["record"].as_str().unwrap(), error["message"].as_str().unwrap());
    assert!(
        message.contains("TOOL_CALL_DENIED") && message.contains(id) && message.contains("policy"),
        "{message}"
    );
    assert!(error["hint"].as_str().unwrap().contains("permit"), "{error}");
    assert!(got.head.contains(&format!("x-strait-record: {id}")), "{}", got.head);
    let refused = world.log.only_refusal();
    assert_eq!(refused.code, Some(Code::ToolCallDenied));
    assert_eq!(refused.request.unwrap().status, Some(403));
    assert_eq!(world.log.activities()[0].0.to_string(), id);
    assert_eq!(origin.seen().len(), 0);
    // What the hint says is what would have permitted it.
    let hint = error["hint"].as_str().unwrap();
    let rule = &hint[hint.find("@id").unwrap()..];
    let (world, mut stream) = {
        let world = World::with(rule).await;
        let stream = world.connect("ok.test", origin.port()).await;
        (world, stream)
    };
    assert_eq!(get(&mut stream, &host, "/x").await.status, 200);
    assert_eq!(get(&mut stream, &host, "/y").await.status, 403);
    world.log.check_pairs();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_of_a_connection_is_decided_anew_case_14() {
    let (world, origin) = (World::with(READ_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    let post = format!("POST /a HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\nhi");
    for (request, status) in [(None, 200), (Some(&post), 403), (None, 200)] {
        let got = match request {
            Some(request) => ask(&mut stream, request).await,
            None => get(&mut stream, &host, "/a").await,
        };
        assert_eq!(got.status, status);
    }
    assert_eq!(origin.seen().len(), 2);
    assert_eq!(*origin.connections.lock().unwrap(), 1, "upstream connections are reused within a run");
    world.log.check_pairs();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorities_that_disagree_reach_nobody_case_23() {
    let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let port = origin.port();
    let transparent = [
        (format!("GET / HTTP/1.1\r\nHost: no.test:{port}\r\n\r\n"), 421),
        (format!("GET / HTTP/1.1\r\nHost: ok.test:{}\r\n\r\n", port.wrapping_add(1)), 421),
        ("GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n".to_owned(), 421),
        (format!("GET http://no.test:{port}/ HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n"), 421),
        (format!("GET https://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n"), 421),
        (format!("GET / HTTP/1.1\r\nHost: ok.test:{port}\r\nHost: ok.test:{port}\r\n\r\n"), 400),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        (format!("CONNECT ok.test:{port} HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n"), 400),
        (format!("GET http://user@ok.test:{port}/ HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n"), 400),
    ];
    let mut refusals = 0;
    for (request, status) in &transparent {
        let got = ask(&mut world.connect("ok.test", port).await, request).await;
        assert_eq!(got.status, *status, "{request:?} {got:?}");
        refusals += 1;
        assert_eq!(world.log.done_of(Kind::Request, refusals).await.len(), refusals, "{request:?}");
    }
    let proxy = [
        (format!("GET http://ok.test:{port}/ HTTP/1.1\r\nHost: no.test:{port}\r\n\r\n"), 421),
        (format!("GET http://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test\r\n\r\n"), 421),
        (format!("GET / HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n"), 421),
        (format!("CONNECT ok.test:{port} HTTP/1.1\r\nHost: no.test:{port}\r\n\r\n"), 421),
        (format!("GET ftp://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n"), 400),
    ];
    for (request, status) in &proxy {
        let got = ask(&mut world.connect_to_proxy().await, request).await;
        assert_eq!(got.status, *status, "{request:?} {got:?}");
    }
    assert_eq!(origin.seen().len(), 0);
    // The same connection with agreeing names works, in every spelling (case 28).
    for host in [format!("ok.test:{port}"), format!("OK.Test:{port}"), format!("ok.test.:{port}")] {
        assert_eq!(get(&mut world.connect("ok.test", port).await, &host, "/").await.status, 200, "{host}");
        let absolute = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(ask(&mut world.connect_to_proxy().await, &absolute).await.status, 200, "{host}");
    }
    assert!(origin.seen().iter().all(|seen| seen.headers["host"] == format!("ok.test:{port}").as_str()));
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_path_that_is_judged_is_the_path_that_is_sent_case_26() {
    let policy = r#"
        @id("public")
        permit(principal in Agent::"coder", action == Action::"http", resource in Host::"ok.test")
        when { context.path like "/public/*" };
    "#;
    let (world, origin) = (World::with(policy).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    for (path, status) in [
        ("/public/a", 200),
        ("/public/%61/../b", 200),
        ("/public/@scope%2fname", 200),
        ("/public/%252e%252e/c", 200),
        ("/public/../secret", 403),
        ("/public/%2e%2e/secret", 403),
        ("/public/..%2fsecret", 400),
        ("/../secret", 400),
        ("/public//x", 400),
        ("/public/..;/secret", 400),
        ("/public/\\..\\secret", 400),
        ("/public/%00", 400),
    ] {
        let got = get(&mut world.connect("ok.test", origin.port()).await, &host, path).await;
        assert_eq!(got.status, status, "{path} {}", got.text());
    }
    let sent: Vec<_> = origin.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(sent.len(), 4, "{sent:?}");
    assert_eq!((sent[0].as_str(), sent[1].as_str()), ("/public/a", "/public/b"));
    assert!(sent.iter().all(|path| path.starts_with("/public/") && !path.contains("..")), "{sent:?}");
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_field_would_make_of_a_request_is_refused_unless_it_is_that_already() {
    let (world, origin) = (World::with(READ_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut refusals = 0;
    for (field, status) in [
        ("X-HTTP-Method-Override: DELETE".to_owned(), 400),
        ("X-Method-Override: post".to_owned(), 400),
        ("x-http-method: PATCH".to_owned(), 400),
        ("X_HTTP_Method_Override: DELETE".to_owned(), 400),
        ("X-HTTP-Method-Override: GET\r\nX-HTTP-Method-Override: PUT".to_owned(), 400),
        ("X-HTTP-Method-Override: GET, PUT".to_owned(), 400),
        ("X-HTTP-Method-Override: get".to_owned(), 200),
        ("X-Original-URL: /admin".to_owned(), 400),
        ("X-Rewrite-URL: /a?b=d".to_owned(), 400),
        ("X-Rewrite-URL: //evil.test/a?b=c".to_owned(), 400),
        ("X-Original-URL: http://evil.test/a?b=c".to_owned(), 400),
        ("X-Original-URL: ../admin".to_owned(), 400),
        ("X-Original-URL: ".to_owned(), 400),
        ("X-Original-URL: /x/../%61?b=c".to_owned(), 200),
        (format!("X-Original-URL: http://OK.test:{}/a?b=c", origin.port()), 200),
        ("X-Original-Purpose: /admin".to_owned(), 200),
    ] {
        let request = format!("GET /a?b=c HTTP/1.1\r\nHost: {host}\r\n{field}\r\n\r\n");
        let got = ask(&mut world.connect("ok.test", origin.port()).await, &request).await;
        assert_eq!(got.status, status, "{field} {got:?}");
        if status == 400 {
            refusals += 1;
            assert_eq!(got.code(), "MALFORMED_REQUEST", "{field}");
            assert!(!got.error()["hint"].as_str().unwrap().is_empty(), "{field}");
        }
    }
    assert_eq!(origin.seen().len(), 16 - refusals, "a refused request reached the origin");
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forbid_on_the_query_sees_what_stands_behind_a_semicolon() {
    let policy = r#"
@id("all") permit(principal, action == Action::"http", resource in Host::"ok.test");
@id("no-admin") forbid(principal, action == Action::"http", resource) when { context.query.hasTag("admin") };"#;
    let (world, origin) = (World::with(policy).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    for (path, status) in
        [("/?q=1;admin=1", 403), ("/?q=1&admin=1", 403), ("/?q=1;other=1", 200), ("/?q=1%3Badmin=1", 200)]
    {
        assert_eq!(get(&mut stream, &host, path).await.status, status, "{path}");
    }
    world.log.check_pairs();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_needs_a_good_port_and_a_rule_for_that_port_case_30() {
    let (origin, other) = (Origin::http().await, Origin::http().await);
    let policy = format!(
        r#"@id("one-port") permit(principal, action == Action::"http", resource in Endpoint::"ok.test:{}");"#,
        origin.port()
    );
    let world = World::with(&policy).await;
    for bad in
        ["ok.test:0", "ok.test:65536", "ok.test:443x", "ok.test", "ok.test:", "ok.test:00443", "@ok.test:443"]
    {
        let got = ask(
            &mut world.connect_to_proxy().await,
            &format!("CONNECT {bad} HTTP/1.1\r\nHost: x.test\r\n\r\n"),
        )
        .await;
        assert_eq!(got.status, 400, "{bad} {got:?}");
    }
    for (port, status) in [(origin.port(), 200), (other.port(), 403)] {
        let mut stream = world.connect_to_proxy().await;
        let host = format!("ok.test:{port}");
        stream
            .write_all(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
            .await
            .unwrap();
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
        assert_eq!(get(&mut stream, &host, "/").await.status, status);
    }
    assert_eq!((origin.seen().len(), other.seen().len()), (1, 0));
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_is_asked_for_only_when_it_may_go_on_case_32() {
    let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let put = |host: &str, path: &str, length: usize| {
        format!(
            "PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\nExpect: 100-continue\r\n\r\n"
        )
    };
    let length = 8 << 20;
    let host = format!("ok.test:{}", origin.port());
    // Permitted: 100, then the whole body arrives.
    let mut stream = world.connect("ok.test", origin.port()).await;
    stream.write_all(put(&host, "/up", length).as_bytes()).await.unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 100"));
    stream.write_all(&vec![7; length]).await.unwrap();
    assert_eq!(answer(&mut stream, false).await.status, 200);
    assert_eq!(origin.only().body, length);
    // Permitted, but the origin won't have it: its answer comes and no 100 before it.
    let began = Instant::now();
    let mut stream = world.connect("ok.test", origin.port()).await;
    stream.write_all(put(&host, "/refuses-expect", length).as_bytes()).await.unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 417"));
    // Refused by policy: the refusal comes and no 100 before it.
    let mut stream = world.connect("no.test", origin.port()).await;
    stream.write_all(put(&format!("no.test:{}", origin.port()), "/up", length).as_bytes()).await.unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 403"));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    drop(stream);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dns_over_https_is_refused_unless_the_host_is_named_for_it_case_21() {
    let policy = r#"@id("web") permit(principal, action == Action::"http", resource);"#;
    let options =
        Options { policy: policy.to_owned(), doh: vec!["other.test".to_owned()], ..Options::default() };
    let (world, origin) = (World::new(options).await, Origin::http().await);
    let port = origin.port();
    let post = "POST /dns-query HTTP/1.1\r\nContent-Type: application/dns-message\r\nContent-Length: 2\r\n";
    let wants = "GET /dns-query?dns=AAAB HTTP/1.1\r\nAccept: text/html, application/dns-message;q=1\r\n";
    let json = "GET /resolve?name=x HTTP/1.1\r\nAccept: application/dns-json\r\n";
    for (name, request, body, status) in [
        ("ok.test", post, "hi", 403),
        ("ok.test", wants, "", 403),
        ("ok.test", json, "", 403),
        ("dns.google", "GET /resolve?name=x HTTP/1.1\r\n", "", 403),
        ("other.test", post, "hi", 200),
        ("ok.test", "GET / HTTP/1.1\r\n", "", 200),
    ] {
        let request = format!("{request}Host: {name}:{port}\r\n\r\n{body}");
        let got = ask(&mut world.connect(name, port).await, &request).await;
        assert_eq!(got.status, status, "{name} {request:?}");
        if status == 403 {
            assert_eq!(got.code(), "DOH_REFUSED");
        }
    }
    assert_eq!(origin.seen().len(), 2);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_the_kernel_does_not_know_is_refused_and_on_record() {
    let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let synthetic = "198.18.0.1".parse().unwrap();
    let mut other_run = flow(synthetic, origin.port());
    other_run.run = 6;
    for (wrong, code) in [
        (None, Code::FlowUnknown),
        (Some(other_run), Code::FlowUnknown),
        (Some(flow("198.18.3.3".parse().unwrap(), 80)), Code::NameRefused),
        (Some(flow("192.0.2.1".parse().unwrap(), 80)), Code::AddressRefused),
    ] {
        let before = world.log.done().len();
        let mut stream = world.dial(world.transparent, wrong).await;
        let _ = stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await;
        assert_eq!(rest(&mut stream).await, b"");
        assert_eq!(world.log.codes()[before..], [Some(code)]);
    }
    let got = get(&mut world.dial(world.proxy, None).await, "strait.internal", "/").await;
    assert_eq!((got.status, got.code().as_str()), (403, "FLOW_UNKNOWN"));
    assert_eq!(origin.seen().len(), 0);
    assert_eq!(get(&mut world.connect("ok.test", origin.port()).await, &host, "/").await.status, 200);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gateway_says_what_it_is_and_serves_no_foreign_host() {
    let world = World::with(ALL_OK).await;
    for host in ["strait.internal", "STRAIT.internal:80", "127.0.0.1"] {
        let got = get(&mut world.connect_to_proxy().await, host, "/").await;
        assert_eq!(got.status, 200, "{host}");
        assert!(got.text().contains("Strait"), "{}", got.text());
    }
    let got = get(&mut world.connect_to_proxy().await, "strait.internal", "/admin/policies").await;
    assert_eq!((got.status, got.code().as_str()), (404, "NOT_FOUND"));
    assert_eq!(world.log.only_refusal().code, Some(Code::NotFound));
    let got = get(&mut world.connect_to_proxy().await, "evil.test", "/").await;
    assert_eq!((got.status, got.code().as_str()), (421, "NAME_MISMATCH"));
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_unknown_length_goes_on_whatever_the_method() {
    let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    for method in ["GET", "DELETE", "POST"] {
        let request = format!(
            "{method} /b HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
        );
        assert_eq!(ask(&mut stream, &request).await.status, 200, "{method}");
    }
    let bodies: Vec<_> = origin.seen().iter().map(|seen| seen.body).collect();
    assert_eq!(bodies, [5, 5, 5]);
    world.log.check_pairs();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_every_shape_come_back_as_they_were() {
    let (world, origin) = (World::with(ALL_OK).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    let moved = get(&mut stream, &host, "/moved").await;
    assert_eq!(moved.status, 302, "redirects are returned, never followed (case 48, A12)");
    assert!(moved.head.contains("location: http://no.test/elsewhere"));
    assert_eq!(get(&mut stream, &host, "/nothing").await.status, 204);
    let got = ask(&mut stream, &format!("HEAD /a HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
    assert!(got.status == 200 && got.head.contains("content-length: 13"), "{got:?}");
    let chunked = format!(
        "POST /c HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    );
    assert_eq!(ask(&mut stream, &chunked).await.status, 200);
    let tricks = format!(
        "GET /t HTTP/1.1\r\nHost: {host}\r\nConnection: keep-alive, host, x-secret\r\nX-Secret: 1\r\n\
         Proxy-Authorization: Basic eDp5\r\n\r\n"
    );
    assert_eq!(ask(&mut stream, &tricks).await.status, 200);
    let large = get(&mut stream, &host, "/large").await;
    assert_eq!(large.body.len(), 32 << 20);
    let seen = origin.seen();
    assert_eq!(seen.len(), 6);
    assert_eq!(seen[3].body, 5);
    let headers = &seen[4].headers;
    assert_eq!(headers["host"], host.as_str());
    assert!(!headers.contains_key("x-secret") && !headers.contains_key("proxy-authorization"), "{headers:?}");
    let done = world.log.done();
    assert_eq!(done[3].request.as_ref().unwrap().bytes_out, Some(5));
    assert_eq!(done[5].request.as_ref().unwrap().bytes_in, Some(32 << 20));
    world.log.check_pairs();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_fails_is_told_apart_from_policy() {
    let world = World::with(r#"@id("web") permit(principal, action == Action::"http", resource);"#).await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let got = get(&mut world.connect("ok.test", free).await, &format!("ok.test:{free}"), "/").await;
    assert_eq!((got.status, got.code().as_str()), (502, "UPSTREAM_UNREACHABLE"), "{got:?}");
    let done = world.log.done();
    assert_eq!((done[0].decision, done[0].code), (Decision::Allow, Some(Code::UpstreamUnreachable)));
    // A literal private address is permitted by policy and refused by vetting.
    let request = format!("GET http://127.0.0.1:{free}/ HTTP/1.1\r\nHost: 127.0.0.1:{free}\r\n\r\n");
    let got = ask(&mut world.connect_to_proxy().await, &request).await;
    assert_eq!((got.status, got.code().as_str()), (403, "ADDRESS_REFUSED"), "{got:?}");
    assert!(got.error()["hint"].as_str().unwrap().contains("where it leads is refused"), "{got:?}");
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_reads_the_process_is_told_its_executable() {
    let policy = r#"
        @id("git-only")
        permit(principal, action == Action::"http", resource in Host::"ok.test")
        when { context has process && context.process has exe && context.process.exe == "/usr/bin/git" };
    "#;
    let (world, origin) = (World::with(policy).await, Origin::http().await);
    let host = format!("ok.test:{}", origin.port());
    let process = |exe: &str| strait_contract::run::Process {
        pid: 4242,
        uid: 1000,
        comm: "git".to_owned(),
        exe: Some(exe.to_owned()),
        digest: None,
    };
    for (exe, status) in [("/usr/bin/git", 200), ("/usr/bin/python3", 403)] {
        *world.log.process.lock().unwrap() = Some(process(exe));
        assert_eq!(
            get(&mut world.connect("ok.test", origin.port()).await, &host, "/").await.status,
            status,
            "{exe}"
        );
        let done = world.log.done();
        assert_eq!(done.last().unwrap().process.as_ref().unwrap().exe.as_deref(), Some(exe));
    }
    world.log.settled().await;
}
