//! Which protocol a client speaks, from its first bytes, without taking them away.

use std::time::Duration;

use tokio::time::timeout;

use super::wire::Wire;
use crate::{
    limits::SILENCE,
    protocol::tls::hello::{self, First, Hello, Malformed},
    url::Names,
};

/// Start of the HTTP/2 connection preface (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest method that counts as one.
const MAX_METHOD: usize = 24;

/// What a client speaks.
#[derive(Debug)]
pub enum Spoken {
    /// TLS, with its hello.
    Tls(Hello),
    /// Something that begins like TLS and isn't.
    BadTls(Malformed),
    /// HTTP/1.x.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// Something else; the client's first bytes may be known.
    Other,
    /// Nothing: it waits for the server to speak.
    Silent,
    /// It closed before it said anything.
    Closed,
}

/// Reads ahead until the protocol is clear. `patience` bounds a hello or preface that has begun.
pub async fn detect(wire: &mut Wire, names: &Names, patience: Duration) -> Spoken {
    match timeout(SILENCE, first(wire)).await {
        Ok(false) => return Spoken::Closed,
        Err(_) if wire.ahead().is_empty() => return Spoken::Silent,
        Ok(true) | Err(_) => {}
    }
    timeout(patience, decide(wire, names)).await.unwrap_or(Spoken::Other)
}

async fn first(wire: &mut Wire) -> bool {
    !wire.ahead().is_empty() || matches!(wire.read_ahead().await, Ok(read) if read > 0)
}

async fn decide(wire: &mut Wire, names: &Names) -> Spoken {
    loop {
        match look(wire.ahead(), names) {
            Look::Clear(spoken) => return spoken,
            Look::More => {
                if !matches!(wire.read_ahead().await, Ok(read) if read > 0) {
                    return Spoken::Other;
                }
            }
        }
    }
}

enum Look {
    Clear(Spoken),
    More,
}

fn look(bytes: &[u8], names: &Names) -> Look {
    if bytes.first() == Some(&0x16) {
        return match hello::read(bytes, names) {
            First::Hello(hello) => Look::Clear(Spoken::Tls(hello)),
            First::NeedMore => Look::More,
            First::NotTls => Look::Clear(Spoken::Other),
            First::Malformed(why) => Look::Clear(Spoken::BadTls(why)),
        };
    }
    if bytes.starts_with(PREFACE) {
        return Look::Clear(Spoken::Http2);
    }
    if PREFACE.starts_with(bytes) {
        return Look::More;
    }
    // Upper case only: what else hyper would read as a method is a stream like any other, which needs its own
    // permit.
    let method = bytes.iter().take(MAX_METHOD).take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-');
    let len = method.count();
    match bytes.get(len) {
        Some(b' ') if len > 0 => Look::Clear(Spoken::Http1),
        None if len > 0 && len < MAX_METHOD => Look::More,
        _ => Look::Clear(Spoken::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> &'static str {
        match look(bytes, &Names::default()) {
            Look::More => "more",
            Look::Clear(Spoken::Http1) => "http/1",
            Look::Clear(Spoken::Http2) => "http/2",
            Look::Clear(_) => "other",
        }
    }

    #[test]
    fn the_first_bytes_tell_the_protocol_and_never_too_early() {
        for (bytes, expect) in [
            (&b"GET / HTTP/1.1\r\n"[..], "http/1"),
            (b"GET ", "http/1"),
            (b"GET", "more"),
            (b"P", "more"),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n", "more"),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "http/2"),
            (b"PRI * HTTP/1.1\r\n", "http/1"),
            (b"M-SEARCH * HTTP/1.1", "http/1"),
            (b"SSH-2.0-OpenSSH_9.2p1 Debian", "other"),
            (b"get / HTTP/1.1", "other"),
            (b"\r\nGET / HTTP/1.1", "other"),
            (b" GET", "other"),
            (b"*1\r\n$4\r\nPING\r\n", "other"),
            (b"ABCDEFGHIJKLMNOPQRSTUVWXYZ / HTTP/1.1", "other"),
            (b"\x00", "other"),
        ] {
            assert_eq!(name(bytes), expect, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
