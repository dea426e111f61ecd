//! The data of server-sent events, from bytes cut anywhere (WHATWG HTML, "Server-sent events", event stream parsing).

use super::Refused;

/// The longest event that's kept, bytes: a whole image or file as a tool's argument, and no more.
pub(super) const MAX_EVENT: usize = 4 << 20;

/// Reads the `data` of events. Keeps at most one event of [`MAX_EVENT`] bytes.
#[derive(Debug, Default)]
pub(super) struct Sse {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    skip_line_feed: bool,
    begun: bool,
}

impl Sse {
    /// Takes bytes off the front up to the end of the next event that has data, and gives that.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        while let Some(first) = bytes.first() {
            if std::mem::take(&mut self.skip_line_feed) && *first == b'\n' {
                *bytes = bytes.get(1..).unwrap_or_default();
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else {
                self.extend(bytes)?;
                *bytes = &[];
                return Ok(None);
            };
            let (line, rest) = bytes.split_at(end);
            self.extend(line)?;
            self.skip_line_feed = rest.first() == Some(&b'\r');
            *bytes = rest.get(1..).unwrap_or_default();
            if let Some(data) = self.end_line() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// What an end without a blank line leaves: an event that may or may not be whole.
    pub(super) fn rest(&mut self) -> Option<Vec<u8>> {
        if !self.line.is_empty() {
            self.end_line();
        }
        self.end_line()
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        if self.line.len() + self.data.len() + bytes.len() > MAX_EVENT {
            return Err(Refused::TooLong(MAX_EVENT));
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Option<Vec<u8>> {
        let mut line = self.line.as_slice();
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            self.line.clear();
            let data = std::mem::take(&mut self.data);
            return std::mem::take(&mut self.has_data).then_some(data);
        }
        if let Some(value) = line.strip_prefix(b"data")
            && let Some(value) = value.strip_prefix(b":").or_else(|| value.is_empty().then_some(value))
        {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
        self.line.clear();
        None
    }
}
