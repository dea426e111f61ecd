//! Streams of a model's answer, many at a time: how long each chunk was on its way, and how long the first took.
//!
//! Prints `flowing` once every stream has its first chunk and `over` when the time measured ends, so that whoever
//! started this can look at what a process used meanwhile. Chunks outside of that time aren't counted.

mod chunked;
#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    io::Write as _,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    task::{JoinSet, LocalSet},
    time::sleep,
};

use self::chunked::Chunked;
use crate::model::{SENT, now_ns};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// `HOST:PORT` of the server.
    #[arg(long)]
    to: String,
    /// Path of chat completions there.
    #[arg(long)]
    path: String,
    #[arg(long, default_value_t = 1)]
    streams: u32,
    /// Between chunks, microseconds.
    #[arg(long, default_value_t = 5000)]
    pace: u64,
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

/// What was measured, nanoseconds.
#[derive(Debug, Default)]
struct Measured {
    /// From the sending of each chunk to its arrival.
    delays: Vec<u64>,
    /// From the request to the first chunk.
    firsts: Vec<u64>,
    measuring: bool,
}

type Shared = Rc<RefCell<Measured>>;

/// All streams at once.
pub(crate) async fn together(args: Args) -> Result<()> {
    crate::raise_file_limit();
    let measured = Shared::default();
    let flowing = Rc::new(Semaphore::new(0));
    let (pace, window) = (Duration::from_micros(args.pace), Duration::from_secs_f64(args.seconds));
    // Spread, so that chunks don't come in bursts, and connections neither.
    let spread = pace.max(Duration::from_millis(1) * args.streams);
    let chunks = chunks(spread + window + MARGIN, pace)?;
    let request: Rc<[u8]> = request(&args, chunks).into_bytes().into();
    let (local, mut streams) = (LocalSet::new(), JoinSet::new());
    for number in 0..args.streams {
        let (measured, flowing, request) = (Rc::clone(&measured), Rc::clone(&flowing), Rc::clone(&request));
        let (to, wait) = (args.to.clone(), spread * number / args.streams);
        let stream = async move {
            sleep(wait).await;
            let mut stream = Stream::dial(&to).await?;
            stream.one(&request, chunks, &measured, Some(&flowing)).await
        };
        streams.spawn_local_on(stream, &local);
    }
    let clock = async {
        let _all = flowing.acquire_many(args.streams).await?;
        measured.borrow_mut().measuring = true;
        say("flowing")?;
        sleep(window).await;
        measured.borrow_mut().measuring = false;
        say("over")
    };
    let all = async {
        while let Some(stream) = streams.join_next().await {
            stream??;
        }
        anyhow::Ok(())
    };
    local.run_until(async { tokio::try_join!(clock, all) }).await?;
    print(&measured.borrow(), args.seconds)
}

/// Short streams, one after another on one connection: how long until the first chunk.
pub(crate) async fn firsts(args: Args) -> Result<()> {
    const SHORT: u32 = 2;
    let request = request(&args, SHORT);
    let measured = Shared::default();
    let mut stream = Stream::dial(&args.to).await?;
    // Whatever is done once for a connection isn't a part of this.
    stream.one(request.as_bytes(), SHORT, &Shared::default(), None).await?;
    measured.borrow_mut().measuring = true;
    say("flowing")?;
    let started = Instant::now();
    while started.elapsed().as_secs_f64() < args.seconds {
        stream.one(request.as_bytes(), SHORT, &measured, None).await?;
    }
    say("over")?;
    print(&measured.borrow(), started.elapsed().as_secs_f64())
}

/// Longer than streams may take to get going.
const MARGIN: Duration = Duration::from_secs(1);

fn chunks(time: Duration, pace: Duration) -> Result<u32> {
    Ok(u32::try_from(time.as_micros() / pace.as_micros().max(1))? + 2)
}

fn request(args: &Args, chunks: u32) -> String {
    let (path, pace) = (&args.path, args.pace);
    let host = args.to.strip_suffix(":80").unwrap_or(&args.to);
    let question = "x".repeat(900);
    let body = format!(
        r#"{{"model":"gpt-5-mini","stream":true,"max_completion_tokens":{chunks},"metadata":{{"pace":"{pace}"}},"messages":[{{"role":"user","content":"{question}"}}]}}"#
    );
    let token = std::env::var("STRAIT_TOKEN").unwrap_or_else(|_| "none".to_owned());
    format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A connection on which streams come.
struct Stream {
    tcp: TcpStream,
    bytes: Vec<u8>,
}

impl Stream {
    async fn dial(to: &str) -> Result<Self> {
        let tcp = TcpStream::connect(to).await.with_context(|| format!("no way to `{to}`"))?;
        tcp.set_nodelay(true)?;
        Ok(Self { tcp, bytes: Vec::with_capacity(16 * 1024) })
    }

    /// Asks for a stream and reads it to its end: every chunk must be there.
    async fn one(
        &mut self,
        request: &[u8],
        chunks: u32,
        measured: &Shared,
        flowing: Option<&Semaphore>,
    ) -> Result<()> {
        let asked = now_ns()?;
        self.tcp.write_all(request).await?;
        self.head().await?;
        let (mut body, mut lines) = (Chunked::default(), Lines::default());
        let mut got = 0;
        loop {
            let over = body.take(&mut self.bytes, &mut lines.text)?;
            let now = now_ns()?;
            while let Some(sent) = lines.next()? {
                let delay = now.checked_sub(sent).context("a chunk arrived before it was sent")?;
                got += 1;
                let first = got == 1;
                {
                    let mut measured = measured.borrow_mut();
                    if measured.measuring {
                        measured.delays.push(delay);
                    }
                    if first {
                        measured.firsts.push(now - asked);
                    }
                }
                if let (true, Some(flowing)) = (first, flowing) {
                    flowing.add_permits(1);
                }
            }
            if over {
                break;
            }
            if self.tcp.read_buf(&mut self.bytes).await? == 0 {
                bail!("the stream was cut after {got} of {chunks} chunks");
            }
        }
        if got != chunks || !lines.done {
            bail!(
                "{got} of {chunks} chunks arrived, and the end {}",
                if lines.done { "did" } else { "didn't" }
            );
        }
        Ok(())
    }

    async fn head(&mut self) -> Result<()> {
        loop {
            if let Some(end) = self.bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.bytes.drain(..end + 4).collect();
                let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
                if !head.starts_with("http/1.1 200") || !head.contains("transfer-encoding: chunked") {
                    bail!("the answer is no stream: {}", head.trim());
                }
                return Ok(());
            }
            if self.tcp.read_buf(&mut self.bytes).await? == 0 {
                bail!("the peer closed before it answered");
            }
        }
    }
}

/// Finds the moments of sending in the events.
#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    done: bool,
}

impl Lines {
    /// The moment of the next whole event that has one.
    fn next(&mut self) -> Result<Option<u64>> {
        while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            let line = std::str::from_utf8(&line)?.trim_end();
            self.done |= line == "data: [DONE]";
            if let Some((_, moment)) = line.split_once(SENT) {
                let digits = moment.split(' ').next().unwrap_or_default();
                return Ok(Some(digits.parse()?));
            }
        }
        Ok(None)
    }
}

fn say(word: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}")?;
    Ok(out.flush()?)
}

fn print(measured: &Measured, seconds: f64) -> Result<()> {
    let delays = ranked(&measured.delays).context("no chunk came in the time measured")?;
    let firsts = ranked(&measured.firsts).context("no stream began")?;
    println!(
        "{}",
        serde_json::json!({
            "count": measured.delays.len(), "seconds": seconds, "streams": measured.firsts.len(),
            "p50Us": delays.0, "p99Us": delays.1, "firstP50Us": firsts.0, "firstP99Us": firsts.1,
        })
    );
    Ok(())
}

/// The 50th and the 99th percentile, microseconds.
fn ranked(nanoseconds: &[u64]) -> Option<(f64, f64)> {
    let mut sorted = nanoseconds.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().checked_sub(1)?;
    let at = |percent: usize| sorted.get(last * percent / 100).map(|ns| *ns as f64 / 1e3);
    Some((at(50)?, at(99)?))
}
