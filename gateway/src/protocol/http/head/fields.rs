//! Request lines, fields and trailers under the strict reading.

/// What was wrong with the input. Always the client's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Violation {
    /// Not `METHOD target HTTP/1.x`.
    #[error("the request line is malformed")]
    RequestLine,
    /// The method isn't a token.
    #[error("the method is malformed")]
    Method,
    /// The request target is empty, holds control characters, or is no path, authority or URL.
    #[error("the request target is malformed")]
    Target,
    /// Neither HTTP/1.1 nor HTTP/1.0.
    #[error("the HTTP version is not 1.0 or 1.1")]
    Version,
    /// A line that ends without CR.
    #[error("a line ends in a bare line feed")]
    BareLineFeed,
    /// CR within a line.
    #[error("a line holds a bare carriage return")]
    BareCarriageReturn,
    /// A line that continues the one before.
    #[error("a field is folded over two lines")]
    Folded,
    /// No colon, or a name that isn't a token; a space before the colon too.
    #[error("a field name is malformed")]
    FieldName,
    /// A control character in a value.
    #[error("a field value holds a control character")]
    FieldValue,
    /// Larger than the limit.
    #[error("the head or trailer section is too large")]
    TooLarge,
    /// More fields than the limit.
    #[error("there are too many fields")]
    TooManyFields,
    /// HTTP/1.1 without `Host`.
    #[error("the `Host` field is missing")]
    NoHost,
    /// Two `Host` lines.
    #[error("there is more than one `Host` field")]
    ManyHosts,
    /// Repeated, a list, or not a number.
    #[error("`Content-Length` is repeated or not a number")]
    ContentLength,
    /// Repeated, or anything but `chunked` in HTTP/1.1.
    #[error("`Transfer-Encoding` is repeated or not exactly `chunked`")]
    TransferEncoding,
    /// Both ways of framing at once.
    #[error("there are both `Content-Length` and `Transfer-Encoding`")]
    TwoFramings,
    /// A CONNECT with a body.
    #[error("a CONNECT request has a body")]
    ConnectBody,
    /// Not a hexadecimal number, or one of more than 64 bits.
    #[error("a chunk size is malformed")]
    ChunkSize,
    /// A control character in a chunk extension, or a chunk line longer than 256 bytes.
    #[error("a chunk extension is malformed or too long")]
    ChunkExtension,
    /// A chunk that isn't followed by CRLF.
    #[error("a chunk does not end where it says")]
    ChunkEnd,
    /// A trailer field that belongs in the head.
    #[error("a trailer field is one that only a head may hold")]
    Trailer,
}

/// What a head says about what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) body: Body,
    pub(super) connect: bool,
}

/// How the body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// `Content-Length`, or none.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// Judges a whole head, empty line included.
pub(super) fn head(bytes: &[u8], max_fields: usize) -> Result<Head, Violation> {
    let mut lines = Lines(bytes);
    let line = RequestLine::read(lines.next().unwrap_or_default())?;
    let mut fields = 0;
    let (mut hosts, mut length, mut chunked) = (0_u32, None, false);
    for text in lines.take_while(|line| !line.is_empty()) {
        fields += 1;
        if fields > max_fields {
            return Err(Violation::TooManyFields);
        }
        let (name, value) = field(text)?;
        if name.eq_ignore_ascii_case(b"host") {
            hosts += 1;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            if length.replace(number(value).ok_or(Violation::ContentLength)?).is_some() {
                return Err(Violation::ContentLength);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunked || line.old || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Violation::TransferEncoding);
            }
            chunked = true;
        }
    }
    match hosts {
        0 if !line.old => return Err(Violation::NoHost),
        0 | 1 => {}
        _ => return Err(Violation::ManyHosts),
    }
    let body = match (chunked, length) {
        (true, Some(_)) => return Err(Violation::TwoFramings),
        (true, None) => Body::Chunked,
        (false, length) => Body::Length(length.unwrap_or(0)),
    };
    if line.connect && body != Body::Length(0) {
        return Err(Violation::ConnectBody);
    }
    Ok(Head { body, connect: line.connect })
}

/// Judges a whole trailer section, empty line included.
pub(super) fn trailers(bytes: &[u8], max_fields: usize) -> Result<(), Violation> {
    for (at, text) in Lines(bytes).take_while(|line| !line.is_empty()).enumerate() {
        if at >= max_fields {
            return Err(Violation::TooManyFields);
        }
        let (name, _) = field(text)?;
        if HEAD_ONLY.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes())) {
            return Err(Violation::Trailer);
        }
    }
    Ok(())
}

/// Fields for framing, routing, authentication, request control or content processing, which RFC 9110 section
/// 6.5.1 keeps out of trailers.
const HEAD_ONLY: &[&str] = &[
    "accept-encoding",
    "age",
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

/// Size in a chunk line, its CRLF included.
pub(super) fn chunk_size(line: &[u8]) -> Result<u64, Violation> {
    let line = line.strip_suffix(b"\r\n").ok_or(Violation::BareLineFeed)?;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (size, extension) = line.split_at_checked(digits).ok_or(Violation::ChunkSize)?;
    match extension {
        [] => {}
        [b';', rest @ ..] if rest.iter().all(|byte| is_value(*byte)) => {}
        [b';', ..] => return Err(Violation::ChunkExtension),
        _ => return Err(Violation::ChunkSize),
    }
    // 16 digits fill 64 bits; more would overflow in some readers.
    if digits == 0 || digits > 16 {
        return Err(Violation::ChunkSize);
    }
    let size = std::str::from_utf8(size).map_err(|_| Violation::ChunkSize)?;
    u64::from_str_radix(size, 16).map_err(|_| Violation::ChunkSize)
}

struct RequestLine {
    connect: bool,
    /// HTTP/1.0.
    old: bool,
}

impl RequestLine {
    fn read(line: &[u8]) -> Result<Self, Violation> {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        let method = method.unwrap_or_default();
        if method.is_empty() || !method.iter().all(|byte| is_token(*byte)) {
            return Err(Violation::Method);
        }
        let target = target.ok_or(Violation::RequestLine)?;
        let visible = target.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        // hyper reads it so too, and would answer a bare 400 that is on no record.
        if target.is_empty() || !visible || http::Uri::try_from(target).is_err() {
            return Err(Violation::Target);
        }
        let old = match version.ok_or(Violation::RequestLine)? {
            b"HTTP/1.1" => false,
            b"HTTP/1.0" => true,
            _ => return Err(Violation::Version),
        };
        Ok(Self { connect: method == b"CONNECT", old })
    }
}

fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    if matches!(line, [b' ' | b'\t', ..]) {
        return Err(Violation::Folded);
    }
    let colon = line.iter().position(|byte| !is_token(*byte)).unwrap_or(line.len());
    let (name, rest) = line.split_at_checked(colon).ok_or(Violation::FieldName)?;
    let [b':', value @ ..] = rest else { return Err(Violation::FieldName) };
    if name.is_empty() {
        return Err(Violation::FieldName);
    }
    if let Some(bad) = value.iter().find(|byte| !is_value(**byte)) {
        return Err(if *bad == b'\r' { Violation::BareCarriageReturn } else { Violation::FieldValue });
    }
    Ok((name, value.trim_ascii()))
}

fn number(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| digits)?.parse().ok()
}

/// Lines without their CRLF; a caller has seen to it that each LF follows a CR.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(b'\n', self.0)?;
        let (line, rest) = self.0.split_at_checked(end + 1)?;
        self.0 = rest;
        line.strip_suffix(b"\r\n")
    }
}

/// `tchar` of RFC 9110.
const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    loop {
        let punctuation = matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        );
        #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler; a u8 is within 256")]
        {
            table[byte as usize] = byte.is_ascii_alphanumeric() || punctuation;
        }
        if byte == u8::MAX {
            break table;
        }
        byte += 1;
    }
};

fn is_token(byte: u8) -> bool {
    TOKEN.get(usize::from(byte)).copied().unwrap_or(false)
}

/// `field-vchar`, space, tab and `obs-text`.
fn is_value(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
