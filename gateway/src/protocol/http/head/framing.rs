//! Where one message ends and the next begins.

use super::{
    HeadLimits,
    fields::{self, Body, Violation},
};

/// Longest chunk line, extension included, bytes.
const CHUNK_LINE: usize = 256;

/// Follows the messages of one connection.
#[derive(Debug)]
pub(super) struct Framing {
    limits: HeadLimits,
    state: State,
    /// The message under way is a CONNECT.
    connect: bool,
    heads: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Head(Search),
    Length(u64),
    ChunkSize(Search),
    Chunk(u64),
    ChunkEnd,
    Trailers(Search),
    /// A CONNECT has passed and its answer isn't known.
    Awaiting,
    /// No HTTP/1 any more.
    Opaque,
}

/// How far lines have been looked for, from the first byte that hasn't passed, so that a head that comes byte by
/// byte is still read once.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    line: usize,
    seen: usize,
}

impl Framing {
    pub(super) fn new(limits: HeadLimits) -> Self {
        Self { limits, state: State::Head(Search::default()), connect: false, heads: 0 }
    }

    pub(super) fn heads(&self) -> u64 {
        self.heads
    }

    pub(super) fn awaits(&self) -> bool {
        matches!(self.state, State::Awaiting)
    }

    pub(super) fn is_opaque(&self) -> bool {
        matches!(self.state, State::Opaque)
    }

    /// The answer to a CONNECT or an upgrade is known.
    pub(super) fn settle(&mut self, opaque: bool) {
        if opaque {
            self.state = State::Opaque;
        } else if self.awaits() {
            self.state = State::Head(Search::default());
        }
    }

    /// How many bytes of `input` may pass. `input` begins with the first byte that hasn't passed, so bytes that
    /// were held back come again with more behind them.
    ///
    /// # Errors
    /// What may still pass, and what is wrong behind it.
    pub(super) fn pass(&mut self, input: &[u8]) -> Result<usize, (usize, Violation)> {
        let mut passed = 0;
        loop {
            let rest = input.get(passed..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(passed);
            }
            match self.step(rest) {
                Ok(0) => return Ok(passed),
                Ok(more) => passed += more,
                Err(violation) => return Err((passed, violation)),
            }
        }
    }

    /// One step through a non-empty input: the bytes that pass, 0 if more are needed.
    fn step(&mut self, rest: &[u8]) -> Result<usize, Violation> {
        match &mut self.state {
            State::Head(search) => {
                let Some(end) = search.section(rest, self.limits.bytes)? else { return Ok(0) };
                let head = fields::head(rest.get(..end).unwrap_or_default(), self.limits.fields)?;
                self.heads += 1;
                self.connect = head.connect;
                match head.body {
                    Body::Chunked => self.state = State::ChunkSize(Search::default()),
                    Body::Length(0) => self.end(),
                    Body::Length(length) => self.state = State::Length(length),
                }
                Ok(end)
            }
            State::Length(left) => {
                let len = advance(left, rest);
                if *left == 0 {
                    self.end();
                }
                Ok(len)
            }
            State::ChunkSize(search) => {
                let Some(end) = search.line(rest)? else {
                    let long = rest.len() > CHUNK_LINE;
                    return if long { Err(Violation::ChunkExtension) } else { Ok(0) };
                };
                if end > CHUNK_LINE {
                    return Err(Violation::ChunkExtension);
                }
                self.state = match fields::chunk_size(rest.get(..end).unwrap_or_default())? {
                    0 => State::Trailers(Search::default()),
                    size => State::Chunk(size),
                };
                Ok(end)
            }
            State::Chunk(left) => {
                let len = advance(left, rest);
                if *left == 0 {
                    self.state = State::ChunkEnd;
                }
                Ok(len)
            }
            State::ChunkEnd => match rest {
                [b'\r', b'\n', ..] => {
                    self.state = State::ChunkSize(Search::default());
                    Ok(2)
                }
                [b'\r'] => Ok(0),
                _ => Err(Violation::ChunkEnd),
            },
            State::Trailers(search) => {
                let Some(end) = search.section(rest, self.limits.bytes)? else { return Ok(0) };
                fields::trailers(rest.get(..end).unwrap_or_default(), self.limits.fields)?;
                self.end();
                Ok(end)
            }
            State::Awaiting => Ok(0),
            State::Opaque => Ok(rest.len()),
        }
    }

    fn end(&mut self) {
        self.state = if self.connect { State::Awaiting } else { State::Head(Search::default()) };
    }
}

/// Takes what there is of a body.
fn advance(left: &mut u64, rest: &[u8]) -> usize {
    let len = usize::try_from(*left).map_or(rest.len(), |left| left.min(rest.len()));
    *left = left.saturating_sub(len as u64);
    len
}

impl Search {
    /// End of the next line, its LF included.
    fn line(&mut self, bytes: &[u8]) -> Result<Option<usize>, Violation> {
        let fresh = bytes.get(self.seen..).unwrap_or_default();
        let Some(at) = memchr::memchr(b'\n', fresh) else {
            self.seen = bytes.len();
            return Ok(None);
        };
        let end = self.seen + at + 1;
        self.seen = end;
        match bytes.get(self.line..end) {
            Some([.., b'\r', b'\n']) => Ok(Some(end)),
            _ => Err(Violation::BareLineFeed),
        }
    }

    /// End of the empty line that ends a head or trailer section.
    fn section(&mut self, bytes: &[u8], limit: usize) -> Result<Option<usize>, Violation> {
        while let Some(end) = self.line(bytes)? {
            if end > limit {
                return Err(Violation::TooLarge);
            }
            let empty = end == self.line + 2;
            self.line = end;
            if empty {
                return Ok(Some(end));
            }
        }
        if bytes.len() > limit { Err(Violation::TooLarge) } else { Ok(None) }
    }
}
