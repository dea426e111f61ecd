//! Server-sent events (WHATWG HTML, section 9.2), cut into events as they come, however the bytes are cut.
//!
//! What goes on is written anew from what was read, so that no client can read it otherwise.

use bytes::Bytes;
use memchr::memchr2;

/// Longest line kept, and most data of one event, bytes.
const LONGEST: usize = super::message::ANSWER_LIMITS.bytes;

/// A comment that keeps a connection from looking dead.
pub(crate) const COMMENT: &[u8] = b": still here\n\n";

/// One event, or a comment without data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) retry: Option<u64>,
    /// Lines joined by line feeds; `None` if there was no `data` field.
    pub(crate) data: Option<String>,
}

/// Why a stream can't be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SseError {
    #[error("an event is longer than {LONGEST} bytes")]
    TooLong,
    #[error("an event isn't UTF-8 text")]
    NotText,
}

/// Cuts a stream into events.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    /// A line that isn't over.
    line: Vec<u8>,
    event: Event,
    /// Bytes of the event so far.
    bytes: usize,
    begun: bool,
    /// The last byte was a carriage return: a line feed that follows belongs to it.
    returned: bool,
}

impl Splitter {
    /// Takes the next bytes, and gives the events that they complete.
    ///
    /// # Errors
    /// See [`SseError`].
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<Vec<Event>, SseError> {
        let mut events = Vec::new();
        if !bytes.is_empty() && std::mem::take(&mut self.returned) {
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            let (line, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
            self.keep(line)?;
            let line = std::mem::take(&mut self.line);
            events.extend(self.line(&line)?);
            bytes = match rest {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.returned = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
        }
        self.keep(bytes)?;
        Ok(events)
    }

    /// Bytes of an event that isn't over.
    pub(crate) fn held(&self) -> usize {
        self.bytes
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), SseError> {
        self.bytes = self.bytes.saturating_add(part.len());
        if self.bytes > LONGEST {
            return Err(SseError::TooLong);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Event>, SseError> {
        let line = std::str::from_utf8(line).map_err(|_| SseError::NotText)?;
        let line = if std::mem::replace(&mut self.begun, true) {
            line
        } else {
            line.strip_prefix('\u{feff}').unwrap_or(line)
        };
        if line.is_empty() {
            self.bytes = 0;
            let event = std::mem::take(&mut self.event);
            return Ok((event != Event::default()).then_some(event));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event.name = Some(value.to_owned()),
            "data" => match &mut self.event.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                data => *data = Some(value.to_owned()),
            },
            "id" if !value.contains('\0') => self.event.id = Some(value.to_owned()),
            "retry" => {
                self.event.retry = value.parse().ok().filter(|_| value.bytes().all(|b| b.is_ascii_digit()))
            }
            // A comment, or a field that nobody knows.
            _ if self.event == Event::default() => self.bytes = 0,
            _ => {}
        }
        Ok(None)
    }
}

impl Event {
    /// An event of this data, named as MCP names them.
    pub(crate) fn message(data: String) -> Self {
        Self { name: Some("message".to_owned()), data: Some(data), ..Self::default() }
    }

    /// As it goes over the wire.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut text = String::with_capacity(self.data.as_ref().map_or(0, String::len).saturating_add(64));
        let mut field = |name: &str, value: &str| {
            text.push_str(name);
            text.push_str(": ");
            text.push_str(value);
            text.push('\n');
        };
        if let Some(name) = &self.name {
            field("event", name);
        }
        if let Some(id) = &self.id {
            field("id", id);
        }
        if let Some(retry) = self.retry {
            field("retry", &retry.to_string());
        }
        for line in self.data.iter().flat_map(|data| data.split('\n')) {
            field("data", line);
        }
        text.push('\n');
        Bytes::from(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8], size: usize) -> Vec<Event> {
        let mut splitter = Splitter::default();
        text.chunks(size.max(1)).flat_map(|chunk| splitter.push(chunk).unwrap()).collect()
    }

    #[test]
    fn events_are_cut_at_each_kind_of_line_end() {
        let text = "\u{feff}: hello\n\nevent: message\r\nid: 1\r\ndata: {\"a\":\rdata:1}\n\nretry: 10\ndata\n\nid: x\0\nodd: 1\n\ndata: left over";
        let expect = [
            Event {
                name: Some("message".to_owned()),
                id: Some("1".to_owned()),
                retry: None,
                data: Some("{\"a\":\n1}".to_owned()),
            },
            Event { retry: Some(10), data: Some(String::new()), ..Event::default() },
        ];
        for size in 1..text.len() {
            assert_eq!(read(text.as_bytes(), size), expect, "{size}");
        }
    }

    #[test]
    fn what_is_no_text_or_without_end_is_refused() {
        assert_eq!(Splitter::default().push(b"data: \xff\n"), Err(SseError::NotText));
        let mut splitter = Splitter::default();
        let piece = vec![b'x'; 1 << 20];
        let failed = (0..17).find_map(|_| splitter.push(&piece).err());
        assert_eq!(failed, Some(SseError::TooLong));
    }

    proptest! {
        /// Whatever a server sends, what goes on is read as the same events, and the cuts make no difference.
        #[test]
        fn what_goes_on_reads_the_same(text in "[a-z:\\n\\r {}]{0,120}|(data|id|event|retry)?:? ?[a-z0-9]{0,4}(\\n|\\r|\\r\\n){0,3}", size in 1_usize..20) {
            super::super::properties::events_as_read(text.as_bytes(), size);
        }
    }
}
