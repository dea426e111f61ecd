//! The canonical path and query.
//!
//! Equivalent spellings become one (RFC 3986 section 6.2.2): unreserved characters are decoded, the hex of what
//! stays encoded is upper case, characters that no URL holds are encoded, dot segments are resolved. Where
//! servers are known to differ in what they read (`//`, `\`, encoded backslash or NUL, `..;`, `..%2f`) the path is
//! refused instead (case 26). An encoded slash within a segment stays as it is: it is data, as in
//! `/@scope%2Fname`. An encoded percent sign stays too, so `%252e` remains the text `%2e`.

/// Why a path or query was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Doesn't begin with `/`.
    #[error("the path must start with `/`")]
    Relative,
    /// `#` in what is sent to a server.
    #[error("a fragment (`#`) is not part of a request")]
    Fragment,
    /// `%` without two hexadecimal digits.
    #[error("`%` must be followed by two hexadecimal digits")]
    Escape,
    /// A control character or space, raw or (in paths; NUL in queries too) encoded.
    #[error("the URL holds a control character or space")]
    Control,
    /// `\` or `%5C` in the path: some servers read it as `/`.
    #[error("the path holds a backslash, which some servers read as `/`")]
    Backslash,
    /// `//` in the path, or a segment that is only parameters: some servers merge them.
    #[error("the path holds an empty segment (`//`)")]
    EmptySegment,
    /// `..;x` or `..%2f`: a dot segment for some servers and data for others.
    #[error("the path hides a dot segment (`..;` or `..%2f`)")]
    HiddenDots,
    /// More `..` than there are segments.
    #[error("the path leads above its root (`..`)")]
    AboveRoot,
}

/// Appends the canonical path and query to `out` and says where the query begins, if there is one.
pub(super) fn append_canonical(out: &mut String, text: &str) -> Result<Option<usize>, PathError> {
    if text.contains('#') {
        return Err(PathError::Fragment);
    }
    let (path, query) = match text.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (text, None),
    };
    append_path(out, path)?;
    let Some(query) = query else { return Ok(None) };
    out.push('?');
    let start = out.len();
    append_encoded(out, query, in_query, |code| if code == 0 { Err(PathError::Control) } else { Ok(()) })?;
    Ok(Some(start))
}

fn append_path(out: &mut String, path: &str) -> Result<(), PathError> {
    if path.is_empty() {
        out.push('/');
        return Ok(());
    }
    let segments = path.strip_prefix('/').ok_or(PathError::Relative)?;
    let root = out.len();
    let mut segments = segments.split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        let start = out.len();
        out.push('/');
        append_encoded(out, segment, in_segment, refuse_in_path)?;
        let canonical = out.get(start + 1..).unwrap_or_default();
        match canonical {
            "." => out.truncate(start + usize::from(last)),
            ".." => {
                let parent = out.get(root..start).and_then(|above| above.rfind('/'));
                let parent = parent.ok_or(PathError::AboveRoot)?;
                out.truncate(root + parent + usize::from(last));
            }
            "" if !last => return Err(PathError::EmptySegment),
            _ => refuse_hidden_dots(canonical)?,
        }
    }
    Ok(())
}

/// A segment with parameters or encoded slashes must not hold a dot segment in any reading of it.
fn refuse_hidden_dots(segment: &str) -> Result<(), PathError> {
    if !segment.contains(';') && !segment.contains('%') {
        return Ok(());
    }
    if segment.starts_with(';') || segment.starts_with("%3B") {
        return Err(PathError::EmptySegment);
    }
    let parts = segment.split("%2F").flat_map(|part| part.split("%3B")).flat_map(|part| part.split(';'));
    for part in parts {
        if part == "." || part == ".." {
            return Err(PathError::HiddenDots);
        }
    }
    Ok(())
}

fn refuse_in_path(code: u8) -> Result<(), PathError> {
    match code {
        0..=0x1f | 0x7f => Err(PathError::Control),
        b'\\' => Err(PathError::Backslash),
        _ => Ok(()),
    }
}

/// Copies `text` with normalised percent-encoding. `keep` says which raw bytes may stay as they are; `check`
/// judges each decoded byte.
fn append_encoded(
    out: &mut String,
    text: &str,
    keep: fn(u8) -> bool,
    check: fn(u8) -> Result<(), PathError>,
) -> Result<(), PathError> {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let (high, low) = (bytes.next().and_then(hex), bytes.next().and_then(hex));
            let code = 16 * high.ok_or(PathError::Escape)? + low.ok_or(PathError::Escape)?;
            check(code)?;
            if is_unreserved(code) { out.push(char::from(code)) } else { encode(out, code) }
        } else if byte <= b' ' || byte == 0x7f {
            return Err(PathError::Control);
        } else {
            check(byte)?;
            if keep(byte) { out.push(char::from(byte)) } else { encode(out, byte) }
        }
    }
    Ok(())
}

fn encode(out: &mut String, byte: u8) {
    out.push_str(percent_encoding::percent_encode_byte(byte));
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// `pchar` of RFC 3986 without the escapes.
fn in_segment(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=:@".contains(&byte)
}

/// `query` of RFC 3986, and brackets: `filter[name]=x` is everywhere and means the same encoded or not.
fn in_query(byte: u8) -> bool {
    in_segment(byte) || b"/?[]".contains(&byte)
}
