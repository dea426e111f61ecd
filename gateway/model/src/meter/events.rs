//! Server-sent events (WHATWG HTML, section 9.2) cut into steps, without keeping any of them.

/// What the bytes just read are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// A piece of the data of an event.
    Data(&'a [u8]),
    /// A line of data ended.
    DataEnds,
    /// Bytes of a comment, the end of its line among them.
    Comment,
    /// Bytes of fields that aren't data.
    Other,
    /// The line feed of a CRLF whose carriage return was the step before.
    Tail,
    /// An event ended.
    Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// At the stream's start: how much of a byte order mark was read.
    Start(u8),
    Line,
    /// In a field's name, of which this much is like `data`.
    Name(u8),
    /// Behind `data:`.
    Colon,
    Data,
    Comment,
    Other,
}

/// The reader.
#[derive(Debug)]
pub(crate) struct Events {
    at: At,
    /// Whether the last byte was a carriage return that ended a line.
    returned: bool,
}

const MARK: &[u8] = b"\xEF\xBB\xBF";
const NAME: &[u8] = b"data";

impl Events {
    pub(crate) fn new() -> Events {
        Events { at: At::Start(0), returned: false }
    }

    /// The next step and what is behind it; `None` at the end of `bytes`.
    pub(crate) fn step<'a>(&mut self, bytes: &'a [u8]) -> Option<(Step<'a>, &'a [u8])> {
        let (&byte, rest) = bytes.split_first()?;
        let after_return = std::mem::take(&mut self.returned);
        if byte == b'\n' && after_return {
            return Some((Step::Tail, rest));
        }
        let ends_line = matches!(byte, b'\n' | b'\r');
        if ends_line {
            self.returned = byte == b'\r';
            return Some((self.line_ends(), rest));
        }
        Some(match self.at {
            At::Start(read) => {
                if MARK.get(usize::from(read)) == Some(&byte) {
                    self.at = if read == 2 { At::Line } else { At::Start(read + 1) };
                    return Some((Step::Other, rest));
                }
                self.at = At::Line;
                return self.step(bytes);
            }
            At::Line if byte == b':' => {
                self.at = At::Comment;
                (Step::Comment, rest)
            }
            At::Line => {
                self.at = At::Name(0);
                return self.step(bytes);
            }
            At::Name(read) => {
                self.at = match NAME.get(usize::from(read)) {
                    Some(letter) if *letter == byte => At::Name(read + 1),
                    None if byte == b':' => At::Colon,
                    _ => At::Other,
                };
                (Step::Other, rest)
            }
            At::Colon => {
                self.at = At::Data;
                if byte == b' ' {
                    return Some((Step::Other, rest));
                }
                return self.step(bytes);
            }
            At::Data => {
                let (line, rest) = to_line_end(bytes);
                (Step::Data(line), rest)
            }
            At::Comment => (Step::Comment, to_line_end(bytes).1),
            At::Other => (Step::Other, to_line_end(bytes).1),
        })
    }

    fn line_ends(&mut self) -> Step<'static> {
        match std::mem::replace(&mut self.at, At::Line) {
            At::Line | At::Start(_) => Step::Ends,
            At::Data | At::Colon => Step::DataEnds,
            At::Comment => Step::Comment,
            At::Name(_) | At::Other => Step::Other,
        }
    }
}

fn to_line_end(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = memchr::memchr2(b'\r', b'\n', bytes).unwrap_or(bytes.len());
    bytes.split_at_checked(end).unwrap_or((bytes, &[]))
}
