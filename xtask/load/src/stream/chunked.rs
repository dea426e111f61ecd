//! Chunked transfer coding (RFC 9112 section 7.1), as it comes.

use anyhow::{Context, Result};

/// Where in the coding a body is.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    /// Bytes that the chunk still has.
    left: usize,
    /// Whether the line end after a chunk's data is due.
    closes: bool,
    /// Whether the last chunk has come, and the end of the trailers is due.
    last: bool,
}

impl Chunked {
    /// Moves what there is of the body from `coded` to `plain`; true at its end. What is left in `coded` is another
    /// answer's, or not yet whole.
    pub(super) fn take(&mut self, coded: &mut Vec<u8>, plain: &mut Vec<u8>) -> Result<bool> {
        let mut at = 0;
        let over = loop {
            let rest = coded.get(at..).unwrap_or_default();
            if self.left > 0 {
                let here = self.left.min(rest.len());
                plain.extend_from_slice(rest.get(..here).unwrap_or_default());
                self.left -= here;
                at += here;
                self.closes = self.left == 0;
                if here == 0 {
                    break false;
                }
                continue;
            }
            let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else { break false };
            let line = std::str::from_utf8(rest.get(..end).unwrap_or_default())?;
            at += end + 2;
            if std::mem::take(&mut self.closes) {
                continue;
            }
            if self.last {
                if line.is_empty() {
                    break true;
                }
                continue;
            }
            let size = line.split(';').next().unwrap_or_default().trim();
            self.left = usize::from_str_radix(size, 16).with_context(|| format!("`{size}` is no size"))?;
            self.last = self.left == 0;
        };
        coded.drain(..at);
        Ok(over)
    }
}
