//! What holds for any bytes, for property tests and fuzzers.

use rustls::server::Acceptor;

use super::{First, Sni, read};
use crate::url::{Name, Names};

/// What rustls accepts as a hello is read with the same name and protocols; nothing panics.
pub fn read_like_rustls(bytes: &[u8]) {
    let ours = read(bytes, &Names::default());
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() && acceptor.read_tls(&mut rest).is_ok_and(|read| read > 0) {}
    let Ok(Some(theirs)) = acceptor.accept() else { return };
    let theirs = theirs.client_hello();
    assert!(matches!(ours, First::Hello(_)), "rustls reads a hello, we {ours:?}");
    if let First::Hello(ours) = ours {
        if let Sni::Name(name) = &ours.sni {
            assert_eq!(theirs.server_name().map(Name::parse), Some(Ok(name.clone())));
        }
        let alpn: Vec<Vec<u8>> = theirs.alpn().into_iter().flatten().map(<[u8]>::to_vec).collect();
        assert_eq!(alpn, ours.alpn);
    }
}
