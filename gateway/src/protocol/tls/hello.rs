//! What a ClientHello says, read from bytes that stay where they are (RFC 8446 section 4.1.2).
//!
//! Takes the first bytes of a connection, in any number of TLS records cut anywhere; gives the name that was asked
//! for, the protocols offered and whether there is an encrypted hello. The handshake itself is rustls' business and
//! sees the same bytes again.
//!
//! Architecture invariant: nothing here accepts a connection; the SNI is a claim that must agree with the name that
//! the connection was made for.

use std::{borrow::Cow, net::IpAddr};

use crate::url::{Host, Name, NameError, Names};

#[cfg(any(test, fuzzing))]
pub mod properties;
#[cfg(test)]
mod tests;

/// Most bytes, record headers included, in which a hello must be complete. Post-quantum key shares take
/// about 2 KiB; a hello of 16 KiB fits even with one record for each 7 bytes.
pub const MAX_HELLO: usize = 32 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// Not yet clear; ask again with more bytes.
    NeedMore,
    /// Not TLS.
    NotTls,
    /// TLS, but not an acceptable hello.
    Malformed(Malformed),
    /// A whole hello.
    Hello(Hello),
}

/// What is wrong with a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A record that is empty, too long or not a handshake one.
    #[error("the TLS record is malformed")]
    Record,
    /// The first handshake message isn't a ClientHello.
    #[error("the first TLS message is not a client hello")]
    NotHello,
    /// A length points beyond its field, or bytes are left over.
    #[error("a field of the TLS client hello has a wrong length")]
    Length,
    /// An extension that appears twice.
    #[error("an extension of the TLS client hello appears twice")]
    Duplicate,
    /// Longer than [`MAX_HELLO`].
    #[error("the TLS client hello is too long")]
    TooLong,
}

/// A ClientHello, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Server name asked for in the clear.
    pub sni: Sni,
    /// Protocols offered, in order of preference; empty without the extension.
    pub alpn: Vec<Vec<u8>>,
    /// Whether an `encrypted_client_hello` extension is there. Browsers send a meaningless one as cover, so
    /// this is evidence and not a verdict; Strait terminates by the outer name in any case.
    pub ech: bool,
}

/// The `server_name` extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sni {
    /// No extension.
    None,
    /// A name, canonical.
    Name(Name),
    /// A literal address, which RFC 6066 section 3 forbids.
    Address(IpAddr),
    /// Bytes that aren't a name, or a name that may not leave the host.
    Bad(BadSni),
}

/// Why a server name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSni {
    /// Not one host name, or not ASCII.
    #[error("the server name extension does not hold one host name")]
    Shape,
    /// The name.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// Reads what `bytes`, the connection's first so far, are. `names` are good beyond public ones.
///
/// Costs a walk over the record headers until the hello is complete, so asking again after each segment is
/// cheap.
pub fn read(bytes: &[u8], names: &Names) -> First {
    match bytes {
        [] | [HANDSHAKE] => return First::NeedMore,
        [HANDSHAKE, 3, ..] => {}
        _ => return First::NotTls,
    }
    let message = match message(bytes) {
        Ok(Some(message)) => message,
        Ok(None) if bytes.len() >= MAX_HELLO => return First::Malformed(Malformed::TooLong),
        Ok(None) => return First::NeedMore,
        Err(why) => return First::Malformed(why),
    };
    match hello(&message, names) {
        Ok(hello) => First::Hello(hello),
        Err(why) => First::Malformed(why),
    }
}

/// The body of the first handshake message, joined from its records; `None` if it isn't complete.
fn message(bytes: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Malformed> {
    let mut rest = bytes;
    let mut parts: Vec<&[u8]> = Vec::new();
    let mut have = 0;
    let mut need = None;
    while let Some((header, after)) = rest.split_first_chunk::<5>() {
        let [kind, major, _, high, low] = *header;
        let len = usize::from(u16::from_be_bytes([high, low]));
        // RFC 8446 section 5.1: at most 2^14 bytes, and no empty handshake records.
        if kind != HANDSHAKE || major != 3 || len == 0 || len > 1 << 14 {
            return Err(Malformed::Record);
        }
        let (part, next) = after.split_at_checked(len).unwrap_or((after, &[]));
        parts.push(part);
        have += part.len();
        rest = next;
        if need.is_none() && have >= 4 {
            need = Some(4 + body_len(&parts)?);
        }
        if need.is_some_and(|need| have >= need) || part.len() < len {
            break;
        }
    }
    let Some(need) = need.filter(|need| have >= *need) else { return Ok(None) };
    let whole: Cow<'_, [u8]> = match parts.as_slice() {
        [one] => Cow::Borrowed(one),
        many => Cow::Owned(many.concat()),
    };
    Ok(Some(match whole {
        Cow::Borrowed(whole) => Cow::Borrowed(whole.get(4..need).ok_or(Malformed::Length)?),
        Cow::Owned(whole) => Cow::Owned(whole.get(4..need).ok_or(Malformed::Length)?.to_vec()),
    }))
}

/// Length in the handshake header, which the parts hold whole.
fn body_len(parts: &[&[u8]]) -> Result<usize, Malformed> {
    let mut header = parts.iter().flat_map(|part| part.iter().copied());
    let mut next = || header.next().ok_or(Malformed::Length);
    if next()? != CLIENT_HELLO {
        return Err(Malformed::NotHello);
    }
    let len = usize::from(next()?) << 16 | usize::from(next()?) << 8 | usize::from(next()?);
    if len > MAX_HELLO { Err(Malformed::TooLong) } else { Ok(len) }
}

fn hello(body: &[u8], names: &Names) -> Result<Hello, Malformed> {
    let mut body = Reader(body);
    // Version and random.
    body.take(2 + 32)?;
    let session = body.vector8()?;
    let suites = body.vector16()?;
    let compressions = body.vector8()?;
    if session.len() > 32 || suites.is_empty() || suites.len() % 2 != 0 || compressions.is_empty() {
        return Err(Malformed::Length);
    }
    let mut hello = Hello { sni: Sni::None, alpn: Vec::new(), ech: false };
    if body.0.is_empty() {
        return Ok(hello);
    }
    let mut extensions = Reader(body.vector16()?);
    if !body.0.is_empty() {
        return Err(Malformed::Length);
    }
    let mut seen = Vec::with_capacity(24);
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let value = extensions.vector16()?;
        if seen.contains(&kind) {
            return Err(Malformed::Duplicate);
        }
        seen.push(kind);
        match kind {
            SERVER_NAME => hello.sni = sni(value, names),
            ALPN => hello.alpn = alpn(value)?,
            ENCRYPTED_CLIENT_HELLO => hello.ech = true,
            _ => {}
        }
    }
    Ok(hello)
}

fn sni(value: &[u8], names: &Names) -> Sni {
    let host =
        one_host_name(value).and_then(|name| std::str::from_utf8(name).ok()).filter(|name| name.is_ascii());
    let Some(host) = host else { return Sni::Bad(BadSni::Shape) };
    // An IPv6 literal stands here without brackets.
    if let Ok(addr) = host.parse() {
        return Sni::Address(addr);
    }
    match Host::parse_with(host, names) {
        Ok(Host::Name(name)) => Sni::Name(name),
        Ok(Host::Address(addr)) => Sni::Address(addr),
        Err(error) => Sni::Bad(error.into()),
    }
}

/// The list holds exactly one entry, of type `host_name`.
fn one_host_name(value: &[u8]) -> Option<&[u8]> {
    let mut value = Reader(value);
    let mut list = Reader(value.vector16().ok()?);
    let kind = list.take(1).ok()?;
    let name = list.vector16().ok()?;
    (kind == [0] && list.0.is_empty() && value.0.is_empty()).then_some(name)
}

fn alpn(value: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut value = Reader(value);
    let mut list = Reader(value.vector16()?);
    let mut protocols = Vec::new();
    while !list.0.is_empty() {
        let protocol = list.vector8()?;
        if protocol.is_empty() {
            return Err(Malformed::Length);
        }
        protocols.push(protocol.to_vec());
    }
    if protocols.is_empty() || !value.0.is_empty() { Err(Malformed::Length) } else { Ok(protocols) }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(head)
    }

    fn number16(&mut self) -> Result<u16, Malformed> {
        let (head, rest) = self.0.split_first_chunk::<2>().ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(u16::from_be_bytes(*head))
    }

    fn vector8(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.take(1)?.first().copied().unwrap_or_default();
        self.take(usize::from(len))
    }

    fn vector16(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.number16()?;
        self.take(usize::from(len))
    }
}
