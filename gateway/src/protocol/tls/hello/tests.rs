use std::sync::Arc;

use proptest::prelude::*;
use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring};
use rustls_pki_types::ServerName;

use super::*;

/// A real client's first flight for `host`.
fn real(host: &str, alpn: &[&str]) -> Vec<u8> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let mut bytes = Vec::new();
    ClientConnection::new(Arc::new(config), name).unwrap().write_tls(&mut bytes).unwrap();
    bytes
}

/// A hello with exactly these extensions, in one record.
fn made(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut list = Vec::new();
    for (kind, value) in extensions {
        list.extend_from_slice(&kind.to_be_bytes());
        list.extend_from_slice(&sized(value));
    }
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
    body.extend_from_slice(&sized(&list));
    let mut message = vec![1, 0];
    message.extend_from_slice(&sized(&body));
    records(&message, message.len())
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [u16::try_from(bytes.len()).unwrap().to_be_bytes().as_slice(), bytes].concat()
}

fn server_name(name: &[u8]) -> Vec<u8> {
    sized(&[&[0], sized(name).as_slice()].concat())
}

/// The handshake message in records of `size` bytes.
fn records(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(|part| [[22, 3, 1].as_slice(), &sized(part)].concat()).collect()
}

fn hello(bytes: &[u8]) -> Hello {
    match read(bytes, &Names::default()) {
        First::Hello(hello) => hello,
        other => panic!("{other:?}"),
    }
}

fn sni_of(name: &[u8]) -> Sni {
    hello(&made(&[(0, server_name(name))])).sni
}

#[test]
fn a_real_hello_tells_its_name_and_protocols() {
    let it = hello(&real("API.ok.test", &["h2", "http/1.1"]));
    assert_eq!(it.sni, Sni::Name(Name::parse("api.ok.test").unwrap()));
    assert_eq!(it.alpn, [b"h2".to_vec(), b"http/1.1".to_vec()]);
    assert!(!it.ech);
    let it = hello(&real("192.0.2.1", &[]));
    assert_eq!((it.sni, it.alpn.len()), (Sni::None, 0));
}

/// Case 38: cut into single bytes and over records, it's the same hello.
#[test]
fn case_38_a_hello_cut_anywhere_is_the_same_hello() {
    let bytes = real("ok.test", &["h2"]);
    let want = read(&bytes, &Names::default());
    for come in 0..bytes.len() {
        assert_eq!(read(&bytes[..come], &Names::default()), First::NeedMore, "{come}");
    }
    let message = &bytes[5..];
    for size in [1, 2, 3, 5, 7, 100, message.len() - 1] {
        let cut = records(message, size);
        assert_eq!(read(&cut, &Names::default()), want, "records of {size}");
        for come in 0..cut.len() {
            assert_eq!(
                read(&cut[..come], &Names::default()),
                First::NeedMore,
                "records of {size}, {come} bytes"
            );
        }
    }
}

/// Case 38: no name, an address, garbage and other protocols are told apart.
#[test]
fn case_38_other_names_and_none_are_told_apart() {
    assert_eq!(hello(&made(&[])).sni, Sni::None);
    assert_eq!(sni_of(b"No.Test."), Sni::Name(Name::parse("no.test").unwrap()));
    for text in ["192.0.2.1", "::1", "2001:db8::1", "127.1", "[::1]"] {
        assert!(matches!(sni_of(text.as_bytes()), Sni::Address(_)), "{text}: {:?}", sni_of(text.as_bytes()));
    }
    for bad in [
        b"".as_slice(),
        b"a b.test",
        b"ok.test\0",
        b"\xff.test",
        "\u{fc}.test".as_bytes(),
        b"a..b",
        b"ok.test:443",
    ] {
        assert!(matches!(sni_of(bad), Sni::Bad(_)), "{bad:?}: {:?}", sni_of(bad));
    }
    assert!(matches!(sni_of(b"localhost"), Sni::Bad(BadSni::Name(NameError::Reserved(..)))));
    let two = [server_name(b"ok.test"), server_name(b"no.test")];
    let list = sized(&[&two[0][2..], &two[1][2..]].concat());
    assert_eq!(hello(&made(&[(0, list)])).sni, Sni::Bad(BadSni::Shape));
    for other in [
        b"SSH-2.0-x\r\n".as_slice(),
        b"GET / HTTP/1.1\r\n",
        b"\x80\x2e\x01",
        b"\x16\x02\x00",
        b"\x00",
        b"PRI * ",
    ] {
        assert_eq!(read(other, &Names::default()), First::NotTls);
    }
}

#[test]
fn operator_names_are_good_in_a_hello() {
    let names = Names::new(["db.internal"]).unwrap();
    let bytes = made(&[(0, server_name(b"db.internal"))]);
    let First::Hello(it) = read(&bytes, &names) else { panic!() };
    assert!(matches!(it.sni, Sni::Name(_)));
    assert!(matches!(hello(&bytes).sni, Sni::Bad(_)));
}

#[test]
fn malformed_hellos_are_refused() {
    let first = |bytes: &[u8]| read(bytes, &Names::default());
    let bad = |why| First::Malformed(why);
    assert_eq!(
        first(&made(&[(0, server_name(b"a.test")), (0, server_name(b"b.test"))])),
        bad(Malformed::Duplicate)
    );
    assert_eq!(first(&made(&[(16, vec![0, 0])])), bad(Malformed::Length));
    assert_eq!(first(&made(&[(16, vec![0, 1, 0])])), bad(Malformed::Length));
    assert_eq!(first(&[22, 3, 1, 0, 0]), bad(Malformed::Record));
    assert_eq!(first(&[22, 3, 1, 0x40, 1]), bad(Malformed::Record));
    assert_eq!(first(&[22, 3, 1, 0, 4, 2, 0, 0, 0]), bad(Malformed::NotHello));
    assert_eq!(first(&[22, 3, 1, 0, 4, 1, 0xff, 0, 0]), bad(Malformed::TooLong));
    assert_eq!(first(&[22, 3, 1, 0, 1, 1, 23, 3, 3, 0, 1, 0]), bad(Malformed::Record));
    assert!(hello(&made(&[(0xfe0d, vec![1, 2, 3])])).ech);
    let mut short = made(&[]);
    short[8] = 1;
    assert_eq!(first(&short), bad(Malformed::Length));
    let mut long = made(&[]);
    long[7] = 1;
    assert_eq!(first(&long), First::NeedMore);
    let drip = records(&[[1, 0, 0x7f, 0xff].as_slice(), &vec![0; MAX_HELLO]].concat(), 1);
    assert_eq!(first(&drip[..MAX_HELLO]), bad(Malformed::TooLong));
}

proptest! {
    /// What rustls accepts as a hello, ours reads with the same name; nothing panics.
    #[test]
    fn mutated_hellos_read_like_rustls(at in prop::collection::vec((0_usize..400, any::<u8>()), 0..4), keep in 0_usize..600) {
        let mut bytes = real("ok.test", &["h2", "http/1.1"]);
        for (at, byte) in at {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.truncate(keep.max(1));
        properties::read_like_rustls(&bytes);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        properties::read_like_rustls(&bytes);
        properties::read_like_rustls(&[[22, 3, 1].as_slice(), &sized(&[[1, 0].as_slice(), &sized(&bytes)].concat())].concat());
    }
}
