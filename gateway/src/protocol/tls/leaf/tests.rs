use rcgen::{BasicConstraints, CertifiedIssuer, IsCa};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, ProtocolVersion, RootCertStore, ServerConnection,
};
use rustls_pki_types::ServerName;
use strait_contract::message::Secret;

use super::*;

/// A root and an intermediate under it that ends after `life`.
fn authority(life: Duration) -> (RootCertStore, Intermediate) {
    let ca = |name: &str, from: SystemTime, to: SystemTime| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (params.not_before, params.not_after) = (from.into(), to.into());
        params
    };
    let now = SystemTime::now();
    let root = ca("root", now - LIFE, now + 9 * LIFE);
    let root = CertifiedIssuer::self_signed(root, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let intermediate = ca("intermediate", now - LIFE, now + life).signed_by(&key, &root).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(root.der().clone()).unwrap();
    (roots, Intermediate { chain: intermediate.pem(), key: Secret::new(key.serialize_pem()) })
}

fn client(roots: RootCertStore, alpn: &[&str]) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A handshake in memory.
fn handshake(
    client: &Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: &str,
) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client.clone(), name)?;
    let mut server = ServerConnection::new(server)?;
    for _ in 0..4 {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        while !wire.is_empty() {
            let read = server.read_tls(&mut wire.as_slice()).unwrap();
            wire.drain(..read);
            server.process_new_packets()?;
        }
        server.write_tls(&mut wire).unwrap();
        while !wire.is_empty() {
            let read = client.read_tls(&mut wire.as_slice()).unwrap();
            wire.drain(..read);
            client.process_new_packets()?;
        }
    }
    Ok((client, server))
}

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

#[test]
fn a_client_that_trusts_the_root_believes_the_leaf() {
    let (roots, ca) = authority(LIFE * 2);
    let minter = Minter::new(&ca).unwrap();
    let long = format!("{}.{}.test", "a".repeat(60), "b".repeat(60));
    for (name, at) in [
        ("ok.test", "ok.test"),
        ("93.184.216.34", "93.184.216.34"),
        ("[2606:4700::1]", "2606:4700::1"),
        (&long, &long),
    ] {
        let config = minter.config(&host(name)).unwrap();
        let (client, _) = handshake(&client(roots.clone(), &["h2", "http/1.1"]), config, at).unwrap();
        assert_eq!(client.alpn_protocol(), Some(b"h2".as_slice()), "{name}");
        assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
        assert_eq!(client.peer_certificates().unwrap().len(), 2);
    }
    // Positive control for the above: another name, another root.
    let config = minter.config(&host("ok.test")).unwrap();
    assert!(handshake(&client(roots.clone(), &[]), config.clone(), "no.test").is_err());
    assert!(handshake(&client(authority(LIFE).0, &[]), config.clone(), "ok.test").is_err());
    let (old, _) = handshake(&client(roots, &["http/1.1"]), config, "ok.test").unwrap();
    assert_eq!(old.alpn_protocol(), Some(b"http/1.1".as_slice()));
}

#[test]
fn clients_resume_and_leaves_are_kept() {
    let (roots, ca) = authority(LIFE * 2);
    let minter = Minter::new(&ca).unwrap();
    let one = minter.config(&host("ok.test")).unwrap();
    assert!(Arc::ptr_eq(&one, &minter.config(&host("OK.test.")).unwrap()));
    assert!(!Arc::ptr_eq(&one, &minter.config(&host("b.ok.test")).unwrap()));
    let client = client(roots, &[]);
    let (first, _) = handshake(&client, one.clone(), "ok.test").unwrap();
    assert_eq!(first.handshake_kind(), Some(HandshakeKind::Full));
    let (second, _) = handshake(&client, one, "ok.test").unwrap();
    assert_eq!(second.handshake_kind(), Some(HandshakeKind::Resumed));
}

#[test]
fn a_leaf_ends_with_its_issuer_and_has_its_own_serial() {
    let parse = |leaf: &Arc<ServerConfig>, roots: &RootCertStore, name: &str| {
        let (client, _) = handshake(&client(roots.clone(), &[]), leaf.clone(), name).unwrap();
        client.peer_certificates().unwrap()[0].clone().into_owned()
    };
    let (roots, ca) = authority(RENEW * 2);
    let minter = Minter::new(&ca).unwrap();
    let a = parse(&minter.config(&host("a.test")).unwrap(), &roots, "a.test");
    let b = parse(&minter.config(&host("b.test")).unwrap(), &roots, "b.test");
    let (_, a) = X509Certificate::from_der(&a).unwrap();
    let (_, b) = X509Certificate::from_der(&b).unwrap();
    assert_ne!(a.raw_serial(), b.raw_serial());
    assert_eq!(a.public_key(), b.public_key());
    let end = |it: &X509Certificate<'_>| u64::try_from(it.validity().not_after.timestamp()).unwrap();
    let issuer_end = minter.valid.end.duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(end(&a), issuer_end);
    assert!(!a.is_ca());

    let (_, expired) = authority(Duration::ZERO);
    let refused = Minter::new(&expired).unwrap().config(&host("ok.test"));
    assert!(matches!(refused, Err(LeafError::Expired)));
}

#[test]
fn a_broken_intermediate_is_refused_with_what_is_wrong() {
    let (_, good) = authority(LIFE);
    let with = |chain: &str, key: &str| {
        Minter::new(&Intermediate { chain: chain.to_owned(), key: Secret::new(key.to_owned()) })
    };
    assert!(with(&good.chain, good.key.expose()).is_ok());
    assert!(matches!(with("", good.key.expose()), Err(LeafError::Chain(_))));
    assert!(matches!(with("nonsense", good.key.expose()), Err(LeafError::Chain(_))));
    assert!(matches!(with(&good.chain, "nonsense"), Err(LeafError::Key(_))));
}

/// CPU time of this thread, so that a busy machine changes nothing.
fn cpu() -> Duration {
    let at = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(at.tv_sec.unsigned_abs(), u32::try_from(at.tv_nsec).unwrap())
}

/// Not a benchmark: above what a mint takes even without optimisation, so that a key per leaf or a second signature
/// would show.
#[test]
fn minting_is_cheap() {
    let (_, ca) = authority(LIFE);
    let minter = Minter::new(&ca).unwrap();
    let start = cpu();
    for at in 0..500 {
        minter.config(&host(&format!("h{at}.test"))).unwrap();
    }
    let each = (cpu() - start) / 500;
    println!("{each:?} a mint");
    assert!(each < Duration::from_millis(1), "{each:?}");
}
