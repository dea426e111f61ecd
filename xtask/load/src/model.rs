//! A provider of models that answers at once: chat completions of 2 KB, or streams at a pace that the request names.
//!
//! Every chunk of a stream holds the moment at which it was sent, so a client on the same host knows how long it was on
//! its way.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, MissedTickBehavior, interval_at},
};

/// Stands before the moment of sending, nanoseconds of the monotonic clock.
pub(crate) const SENT: &str = "sent-at-";
/// Bytes of the answer's text, so that the whole of it has 2 KB.
const TEXT: usize = 1800;
const USAGE: &str = r#"{"prompt_tokens":120,"completion_tokens":450,"total_tokens":570}"#;
/// What most providers give: `usage` in every chunk would be an answer to `include_usage`.
const EVENT: &str =
    r#""id":"chatcmpl-1","object":"chat.completion.chunk","created":1764547200,"model":"gpt-5-mini""#;

/// What of a request matters here.
#[derive(Debug, Deserialize)]
struct Asked {
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    stream_options: Options,
    /// Chunks of a stream.
    #[serde(default)]
    max_completion_tokens: u32,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
struct Options {
    #[serde(default)]
    include_usage: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    /// Between chunks, microseconds. The API takes text only.
    #[serde(default)]
    pace: String,
}

/// Nanoseconds of the monotonic clock, which is one for all processes of the host.
pub(crate) fn now_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::Monotonic);
    Ok(u64::try_from(now.tv_sec)? * 1_000_000_000 + u64::try_from(now.tv_nsec)?)
}

pub(crate) async fn serve(listen: &str) -> Result<()> {
    crate::raise_file_limit();
    let listener = TcpListener::bind(listen).await.with_context(|| format!("`{listen}` can't be bound"))?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A client that goes away in the middle is its own business.
        tokio::spawn(async move { converse(stream).await.ok() });
    }
}

async fn converse(mut stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let whole = answer();
    let mut buffer = Vec::with_capacity(8192);
    while let Some(asked) = request(&mut stream, &mut buffer).await? {
        if asked.stream {
            events(&mut stream, &asked).await?;
        } else {
            stream.write_all(whole.as_bytes()).await?;
        }
    }
    Ok(())
}

/// The next request; `None` if the client has closed.
async fn request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Option<Asked>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let length = length(buffer.get(..end).unwrap_or_default())?;
            let body = end + 4;
            while buffer.len() < body + length {
                if stream.read_buf(buffer).await? == 0 {
                    bail!("the body was cut");
                }
            }
            let asked = buffer.get(body..body + length).filter(|body| !body.is_empty()).unwrap_or(b"{}");
            let asked = serde_json::from_slice(asked)?;
            buffer.drain(..body + length);
            return Ok(Some(asked));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn length(head: &[u8]) -> Result<usize> {
    let head = std::str::from_utf8(head)?.to_ascii_lowercase();
    if head.contains("transfer-encoding") {
        bail!("a body without a length isn't read here");
    }
    let field = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    field.map_or(Ok(0), |value| Ok(value.trim().parse()?))
}

fn answer() -> String {
    let text = "x".repeat(TEXT);
    let body = format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1764547200,"model":"gpt-5-mini","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"logprobs":null,"finish_reason":"stop"}}],"usage":{USAGE}}}"#
    );
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
}

async fn events(stream: &mut TcpStream, asked: &Asked) -> Result<()> {
    let pace = Duration::from_micros(asked.metadata.pace.parse().unwrap_or(1000));
    stream
        .write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        )
        .await?;
    let mut ticks = interval_at(Instant::now() + pace, pace);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0..asked.max_completion_tokens {
        // The first comes at once.
        if number > 0 {
            ticks.tick().await;
        }
        let sent = now_ns()?;
        let choice = format!(r#"{{"index":0,"delta":{{"content":"{SENT}{sent} "}},"finish_reason":null}}"#);
        event(stream, &format!(r#"{{{EVENT},"choices":[{choice}]}}"#)).await?;
    }
    let end = r#"{"index":0,"delta":{},"finish_reason":"stop"}"#;
    event(stream, &format!(r#"{{{EVENT},"choices":[{end}]}}"#)).await?;
    if asked.stream_options.include_usage {
        event(stream, &format!(r#"{{{EVENT},"choices":[],"usage":{USAGE}}}"#)).await?;
    }
    event(stream, "[DONE]").await?;
    stream.write_all(b"0\r\n\r\n").await.context("the client is gone")
}

async fn event(stream: &mut TcpStream, data: &str) -> Result<()> {
    let length = data.len() + "data: \n\n".len();
    let chunk = format!("{length:x}\r\ndata: {data}\n\n\r\n");
    stream.write_all(chunk.as_bytes()).await.context("the client is gone")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_2_kb() {
        let answer = answer();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!((2000..2100).contains(&body.len()), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }

    #[test]
    fn a_request_names_its_length() {
        assert_eq!(length(b"POST / HTTP/1.1\r\nContent-Length: 12\r\nX: y").unwrap(), 12);
        assert!(length(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked").is_err());
    }
}
