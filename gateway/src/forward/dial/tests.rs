mod internet;

use std::{
    net::Ipv4Addr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use hickory_proto::{op::ResponseCode, rr::RecordType};
use internet::{Answer, DNS, Internet, OTHER, OWN, PRIVATE, WEB, listen};
use rustls::ServerConfig;
use strait_contract::message::{Intermediate, Limits, Resolver as How, Secret, UpstreamProxy};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

fn setup() -> Setup {
    Setup {
        gateway: Ipv4Addr::new(10, 203, 0, 1),
        resolver: How::Servers(vec![SocketAddr::new(DNS.parse().unwrap(), 53)]),
        proxy: None,
        hosts: Vec::new(),
        passthrough: Vec::new(),
        doh: Vec::new(),
        anchors: String::new(),
        system_anchors: false,
        ca: Intermediate { chain: String::new(), key: Secret::new(String::new()) },
        limits: Limits { connect_seconds: 5, ..Limits::default() },
    }
}

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

/// Dials and gives the greeting that the server there sends.
async fn greeting(dialer: &Dialer, to: &Host, port: u16) -> Result<(String, Route), DialError> {
    let Dialed { mut stream, route } = dialer.dial(to, port, dialer.deadline()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    Ok((text, route))
}

async fn greet(addr: &'static str, port: u16) {
    listen(addr, port, move |mut stream| async move {
        let _ = stream.write_all(addr.as_bytes()).await;
    })
    .await;
}

fn class(result: Result<(String, Route), DialError>) -> vet::Class {
    match result {
        Err(error @ DialError::Address { .. }) => {
            assert_eq!(error.code(), Code::AddressRefused);
            let DialError::Address { refused, .. } = error else { panic!() };
            refused.class
        }
        other => panic!("{other:?}"),
    }
}

/// Case 49, A11: rebinding. The socket goes to the address that was vetted, and a later private answer is
/// refused; the listener on loopback, which is there, is never connected to.
#[test]
fn case_49_the_vetted_address_is_dialled_and_a_rebound_name_refused() {
    let net = Internet::new(|| async { greet(WEB, 80).await });
    net.knows("rebind.test", &[Answer::A(&[WEB]), Answer::A(&["127.0.0.1"])]);
    net.knows("mixed.test", &[Answer::A(&[WEB, "10.77.0.1"])]);
    net.knows("mapped.test", &[Answer::A(&[WEB, "::ffff:127.0.0.1"])]);
    net.dial(async {
        let trap = TcpListener::bind(("127.0.0.1", 80)).await.unwrap();
        let dialer = Dialer::new(&setup()).unwrap();
        let name = host("rebind.test");
        let first = greeting(&dialer, &name, 80).await.unwrap();
        assert_eq!(first, (WEB.to_owned(), Route::Direct(SocketAddr::new(WEB.parse().unwrap(), 80))));
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert_eq!(class(greeting(&dialer, &name, 80).await), vet::Class::Loopback);
        assert_eq!(class(greeting(&dialer, &host("mixed.test"), 80).await), vet::Class::Private);
        assert_eq!(class(greeting(&dialer, &host("mapped.test"), 80).await), vet::Class::V4Mapped);
        let touched = tokio::time::timeout(Duration::from_millis(50), trap.accept()).await;
        assert!(touched.is_err(), "something connected to loopback");
    });
    assert!(net.asked("rebind.test", RecordType::A) >= 2);
}

/// A11: literals and the host's own addresses, public ones too; `hosts` is the only exception.
#[test]
fn only_hosts_entries_reach_what_vetting_refuses() {
    let net = Internet::new(|| async { greet(PRIVATE, 80).await });
    net.knows("own.test", &[Answer::A(&[OWN])]);
    net.knows("db.test", &[Answer::A(&[WEB])]);
    net.dial(async {
        let dialer = Dialer::new(&setup()).unwrap();
        assert_eq!(class(greeting(&dialer, &host(PRIVATE), 80).await), vet::Class::Private);
        assert_eq!(class(greeting(&dialer, &host("169.254.169.254"), 80).await), vet::Class::LinkLocal);
        assert_eq!(class(greeting(&dialer, &host("[::ffff:10.77.0.1]"), 80).await), vet::Class::V4Mapped);
        assert_eq!(class(greeting(&dialer, &host("own.test"), 80).await), vet::Class::Own);
        assert_eq!(class(greeting(&dialer, &host(OWN), 80).await), vet::Class::Own);

        let mut named = setup();
        named.hosts = vec![
            ("DB.test.".to_owned(), PRIVATE.parse().unwrap()),
            ("cache".to_owned(), PRIVATE.parse().unwrap()),
        ];
        let dialer = Dialer::new(&named).unwrap();
        let names = Names::new(["cache"]).unwrap();
        for name in [host("db.test"), Host::parse_with("cache", &names).unwrap()] {
            assert_eq!(greeting(&dialer, &name, 80).await.unwrap().0, PRIVATE);
        }
        assert_eq!(class(greeting(&dialer, &host(PRIVATE), 80).await), vet::Class::Private);
    });
    assert_eq!(net.asked("db.test", RecordType::A), 0);
}

/// Cases 19, 20: chains, loops, truncation, absence; one lookup for many who ask at once.
#[test]
fn names_are_resolved_as_clients_expect() {
    let net = Internet::new(|| async { greet(WEB, 80).await });
    net.knows("web.test", &[Answer::A(&[WEB])]);
    net.knows("alias.test", &[Answer::Cname("other.test.")]);
    net.knows("other.test", &[Answer::Cname("web.test.")]);
    net.knows("inside.test", &[Answer::Cname("lan.test.")]);
    net.knows("lan.test", &[Answer::A(&["192.168.1.1"])]);
    net.knows("loop-a.test", &[Answer::Cname("loop-b.test.")]);
    net.knows("loop-b.test", &[Answer::Cname("loop-a.test.")]);
    net.knows("self.test", &[Answer::Cname("self.test.")]);
    net.knows("long.test", &[Answer::Long(60)]);
    net.knows("empty.test", &[Answer::A(&[])]);
    net.knows("broken.test", &[Answer::Code(ResponseCode::ServFail)]);
    net.dial(async {
        let dialer = Dialer::new(&setup()).unwrap();
        for name in ["web.test", "alias.test", "long.test"] {
            assert_eq!(greeting(&dialer, &host(name), 80).await.unwrap().0, WEB, "{name}");
        }
        assert_eq!(class(greeting(&dialer, &host("inside.test"), 80).await), vet::Class::Private);
        for name in ["loop-a.test", "self.test", "absent.test", "empty.test", "broken.test"] {
            let start = Instant::now();
            let error = greeting(&dialer, &host(name), 80).await.unwrap_err();
            assert_eq!(error.code(), Code::UpstreamName, "{name}: {error}");
            assert!(error.to_string().contains(name), "{error}");
            assert!(start.elapsed() < Duration::from_secs(1), "{name} took {:?}", start.elapsed());
        }
        let dialer = Arc::new(Dialer::new(&setup()).unwrap());
        let many: Vec<_> = (0..32)
            .map(|_| {
                let dialer = dialer.clone();
                tokio::spawn(async move { greeting(&dialer, &host("web.test"), 80).await.unwrap().0 })
            })
            .collect();
        for one in many {
            assert_eq!(one.await.unwrap(), WEB);
        }
    });
    // One by the first dialer (three by way of the aliases), one by the second for all 32.
    let asked = net.asked("web.test", RecordType::A);
    assert!((2..=4).contains(&asked), "asked {asked} times");
}

#[test]
fn the_next_address_is_tried_and_time_is_bounded() {
    let net = Internet::new(|| async { greet(OTHER, 81).await });
    net.knows("two.test", &[Answer::A(&[WEB, OTHER])]);
    net.knows("silent.test", &[Answer::Silence]);
    net.dial(async {
        let dialer = Dialer::new(&setup()).unwrap();
        assert_eq!(greeting(&dialer, &host("two.test"), 81).await.unwrap().0, OTHER);
        let error = greeting(&dialer, &host("two.test"), 82).await.unwrap_err();
        assert_eq!(error.code(), Code::UpstreamUnreachable, "{error}");
        for name in ["silent.test", "silent.test"] {
            let start = Instant::now();
            let error = dialer.dial(&host(name), 80, start + Duration::from_millis(300)).await.unwrap_err();
            assert_eq!(error.code(), Code::UpstreamTimeout, "{error}");
            assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
        }
    });
}

/// A TLS server's settings and the PEM of its own certificate.
fn server_tls(name: &str) -> (Arc<ServerConfig>, String) {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (Arc::new(config), made.cert.pem())
}

/// An anchor that signed nothing here.
fn stranger() -> String {
    let mut params = rcgen::CertificateParams::new(vec!["ca.test".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "stranger");
    params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn upstream_certificates_are_verified_for_the_name() {
    let (config, pem) = server_tls("tls.test");
    let net = Internet::new(|| async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        listen(WEB, 443, move |stream| {
            let acceptor = acceptor.clone();
            async move {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = stream.write_all(b"secret").await;
                    let _ = stream.shutdown().await;
                }
            }
        })
        .await;
        greet(WEB, 80).await;
        listen(WEB, 444, |stream| async move {
            tokio::time::sleep(Duration::from_secs(9)).await;
            drop(stream);
        })
        .await;
    });
    net.knows("tls.test", &[Answer::A(&[WEB])]);
    net.knows("wrong.test", &[Answer::A(&[WEB])]);
    net.dial(async {
        let try_tls = async |setup: &Setup, name: &str, port: u16, wait: u64| {
            let dialer = Dialer::new(setup).unwrap();
            let deadline = Instant::now() + Duration::from_millis(wait);
            let dialed = dialer.dial(&host(name), port, deadline).await.unwrap();
            let (mut stream, route) = dialer.tls(dialed, &host(name), &[b"h2"], deadline).await?;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
            assert_eq!(route.addr().map(|addr| addr.port()), Some(port));
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            Ok::<_, DialError>(text)
        };
        let trusting = Setup { anchors: pem.clone(), ..setup() };
        assert_eq!(try_tls(&trusting, "tls.test", 443, 4000).await.unwrap(), "secret");
        let renewed = Setup { anchors: server_tls("tls.test").1, ..setup() };
        let stranger = Setup { anchors: stranger(), ..setup() };
        for (setup, name, port, says) in [
            (&setup(), "tls.test", 443, "ca-certificates"),
            (&stranger, "tls.test", 443, "add the CA to `network.trust`"),
            (&renewed, "tls.test", 443, "renew it in `network.trust`"),
            (&trusting, "wrong.test", 443, "not acceptable"),
            (&trusting, "tls.test", 80, "handshake"),
        ] {
            let error = try_tls(setup, name, port, 4000).await.unwrap_err();
            assert_eq!(error.code(), Code::UpstreamTls, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
        let error = try_tls(&trusting, "tls.test", 444, 300).await.unwrap_err();
        assert_eq!(error.code(), Code::UpstreamTimeout, "{error}");
    });
    assert!(matches!(
        Dialer::new(&Setup { anchors: "nonsense".to_owned(), ..setup() }),
        Err(SetupError::Trust(TrustError::Pem(_)))
    ));
}

/// What the corporate proxy was asked, and how it answers.
async fn corporate(heads: Arc<Mutex<Vec<String>>>, answer: &'static str) {
    listen(PRIVATE, 3128, move |mut stream| {
        let heads = heads.clone();
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            heads.lock().unwrap().push(String::from_utf8(head).unwrap());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
}

fn through_proxy(resolver: How, credential: Option<&str>) -> Setup {
    let credential = credential.map(|it| Secret::new(it.to_owned()));
    Setup {
        resolver,
        proxy: Some(UpstreamProxy { host: PRIVATE.to_owned(), port: 3128, credential }),
        hosts: vec![("db.test".to_owned(), PRIVATE.parse().unwrap())],
        ..setup()
    }
}

/// Case 36: chained through a corporate proxy, with our own checks kept.
#[test]
fn case_36_the_corporate_proxy_is_asked_for_what_was_vetted() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let seen = heads.clone();
    let net = Internet::new(|| async move {
        corporate(seen, "HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nSSH-2.0-banner").await;
        greet(PRIVATE, 80).await;
    });
    net.knows("web.test", &[Answer::A(&[WEB])]);
    net.knows("lan.test", &[Answer::A(&["192.168.1.1"])]);
    net.dial(async {
        let proxy = SocketAddr::new(PRIVATE.parse().unwrap(), 3128);
        let web = SocketAddr::new(WEB.parse().unwrap(), 22);
        let dialer = Dialer::new(&through_proxy(setup().resolver, Some("user:pass"))).unwrap();
        let got = greeting(&dialer, &host("web.test"), 22).await.unwrap();
        // Not a byte of what the far end says first is lost.
        assert_eq!(got, ("SSH-2.0-banner".to_owned(), Route::Proxy { proxy, vetted: Some(web) }));
        assert_eq!(class(greeting(&dialer, &host("lan.test"), 22).await), vet::Class::Private);
        assert_eq!(greeting(&dialer, &host("db.test"), 80).await.unwrap().0, PRIVATE);

        let dialer = Dialer::new(&through_proxy(How::Proxy, None)).unwrap();
        let (_, route) = greeting(&dialer, &host("lan.test"), 22).await.unwrap();
        assert_eq!(route, Route::Proxy { proxy, vetted: None });
        assert_eq!(class(greeting(&dialer, &host("192.168.1.1"), 22).await), vet::Class::Private);
        let (_, route) = greeting(&dialer, &host(WEB), 22).await.unwrap();
        assert_eq!(route.addr(), Some(web));
    });
    let heads = heads.lock().unwrap();
    assert_eq!(
        heads[0],
        format!(
            "CONNECT {WEB}:22 HTTP/1.1\r\nHost: {WEB}:22\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n\r\n"
        )
    );
    assert_eq!(heads[1], "CONNECT lan.test:22 HTTP/1.1\r\nHost: lan.test:22\r\n\r\n");
    assert_eq!(heads.len(), 3);
    assert!(matches!(
        Dialer::new(&Setup { proxy: None, ..through_proxy(How::Proxy, None) }),
        Err(SetupError::NoProxy)
    ));
}

#[test]
fn case_36_the_proxys_refusal_is_shown_and_its_credential_is_not() {
    const DENIED: &str = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Negotiate\r\n\
                          Proxy-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\n\r\n";
    for (answer, code, says) in [
        (DENIED, Code::UpstreamUnreachable, "407 Proxy Authentication Required; it offers: Negotiate, Basic"),
        ("HTTP/1.0 403 Not for you\r\n\r\n", Code::UpstreamUnreachable, "(403 Not for you)"),
        ("HTTP/1.1 504 Late\r\n\r\n", Code::UpstreamTimeout, "(504 Late)"),
        ("SSH-2.0-x\r\n\r\n", Code::UpstreamProtocol, "does not speak HTTP"),
        ("HTTP/1.1 200 OK\r\n", Code::UpstreamUnreachable, "broke off"),
    ] {
        let net = Internet::new(move || corporate(Arc::default(), answer));
        let error = net.dial(async {
            let dialer = Dialer::new(&through_proxy(How::Proxy, Some("user:hunter2"))).unwrap();
            let error = greeting(&dialer, &host("web.test"), 443).await.unwrap_err();
            assert!(!format!("{dialer:?}").contains("hunter2"));
            error
        });
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("dXNlcjpodW50ZXIy"), "{shown}");
    }
}

/// The answer's time is the servers' time: a resolver that works is the control for one that doesn't.
#[test]
fn a_resolver_that_is_not_there_fails_the_lookup_and_says_where_it_is_set() {
    let tried = AtomicUsize::new(0);
    let net = Internet::new(|| async { greet(WEB, 80).await });
    net.knows("web.test", &[Answer::A(&[WEB])]);
    net.dial(async {
        for (server, works) in [(DNS, true), (OTHER, false)] {
            let how = How::Servers(vec![SocketAddr::new(server.parse().unwrap(), 53)]);
            let dialer = Dialer::new(&Setup { resolver: how, ..setup() }).unwrap();
            let got = greeting(&dialer, &host("web.test"), 80).await;
            assert_eq!(got.is_ok(), works, "{got:?}");
            if let Err(error) = got {
                assert!(error.to_string().contains("network.resolver"), "{error}");
            }
            tried.fetch_add(1, Ordering::Relaxed);
        }
        let none = Dialer::new(&Setup { resolver: How::Servers(Vec::new()), ..setup() }).unwrap();
        let error = greeting(&none, &host("web.test"), 80).await.unwrap_err();
        assert_eq!(error.code(), Code::UpstreamName, "{error}");
    });
    assert_eq!(tried.into_inner(), 2);
}
