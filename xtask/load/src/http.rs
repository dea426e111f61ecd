//! As much of HTTP/1.1 as a load needs: the status, the length, the body. An answer that isn't 200 is an error, so
//! no refusal is ever counted as speed.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::dial::Stream;

/// Head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    length: u64,
    /// Bytes of the body that came with the head.
    begun: u64,
}

/// One request and its answer; gives the bytes of the body.
pub(crate) async fn exchange(stream: &mut Stream, request: &[u8], buffer: &mut Vec<u8>) -> Result<u64> {
    send(stream, request).await?;
    let head = ok(head(stream, buffer).await?)?;
    skip(stream, head).await
}

/// One request whose body is large.
pub(crate) async fn drain(stream: &mut Stream, request: &[u8]) -> Result<u64> {
    exchange(stream, request, &mut Vec::with_capacity(4096)).await
}

pub(crate) async fn send(stream: &mut Stream, bytes: &[u8]) -> Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await.context("the peer is gone")
}

/// Reads a head; `buffer` is scratch space.
pub(crate) async fn head(stream: &mut Stream, buffer: &mut Vec<u8>) -> Result<Head> {
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            bail!("the peer closed before it answered");
        }
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let (text, rest) = buffer.split_at(end);
            return parse(text, u64::try_from(rest.len().saturating_sub(4))?);
        }
    }
}

fn parse(head: &[u8], begun: u64) -> Result<Head> {
    let head = std::str::from_utf8(head)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status line")?.parse()?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.map_or(Ok(0), |(_, value)| value.trim().parse())?;
    Ok(Head { status, length, begun })
}

fn ok(head: Head) -> Result<Head> {
    if head.status == 200 { Ok(head) } else { bail!("the answer is {}", head.status) }
}

async fn skip(stream: &mut Stream, head: Head) -> Result<u64> {
    let rest = head.length.checked_sub(head.begun).context("more body than announced")?;
    if rest > 0 {
        crate::drop_body(stream, rest).await?;
    }
    Ok(head.length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_length_are_read() {
        let head = parse(b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-length: 12\r\nX: y", 4).unwrap();
        assert_eq!(head, Head { status: 200, length: 12, begun: 4 });
        assert!(ok(parse(b"HTTP/1.1 403 Forbidden\r\n", 0).unwrap()).is_err());
    }
}
