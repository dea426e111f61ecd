//! The data of server-sent events, each kept whole, from bytes cut anywhere.

use super::Refused;
use crate::meter::events::{Events, Step};

/// The longest event that's kept, bytes: a whole image or file as a tool's argument, and no more.
pub(super) const MAX_EVENT: usize = 4 << 20;

/// Reads the `data` of events. Keeps at most one event of [`MAX_EVENT`] bytes.
#[derive(Debug)]
pub(super) struct Sse {
    events: Events,
    /// Lines of data so far, a line feed behind each.
    data: Vec<u8>,
}

impl Sse {
    pub(super) fn new() -> Self {
        Self { events: Events::new(), data: Vec::new() }
    }

    /// Takes bytes off the front up to the end of the next event that has data, and gives that.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        while let Some((step, rest)) = self.events.step(bytes) {
            *bytes = rest;
            match step {
                Step::Data(piece) => self.keep(piece)?,
                Step::DataEnds => self.keep(b"\n")?,
                Step::Ends => {
                    if let Some(data) = self.rest() {
                        return Ok(Some(data));
                    }
                }
                Step::Comment | Step::Other | Step::Tail => {}
            }
        }
        Ok(None)
    }

    /// The data of the event so far; at a stream's end without a blank line that's one that may or may not be whole.
    pub(super) fn rest(&mut self) -> Option<Vec<u8>> {
        let mut data = std::mem::take(&mut self.data);
        if data.is_empty() {
            return None;
        }
        if data.last() == Some(&b'\n') {
            data.pop();
        }
        Some(data)
    }

    fn keep(&mut self, piece: &[u8]) -> Result<(), Refused> {
        if self.data.len() + piece.len() > MAX_EVENT {
            return Err(Refused::TooLong(MAX_EVENT));
        }
        self.data.extend_from_slice(piece);
        Ok(())
    }
}
