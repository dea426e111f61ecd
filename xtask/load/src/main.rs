//! Loads that wrk can't make: TLS through CONNECT, new connections by the hundred, bulk transfers, streams of models.
//! The same client measures the direct path, the peers and Strait. One thread, so that it costs each of them the same.
//!
//! Prints one JSON object: `{"count", "seconds", "p50Us", "p99Us", "bytes"}`.
#![forbid(unsafe_code)]

mod dial;
mod http;
mod model;
mod serve;
mod stream;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use rustix::{
    net::{RecvFlags, recv},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use tokio::{io::AsyncReadExt, task::JoinSet};

use self::dial::{Stream, Target};

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    load: Load,
}

#[derive(Debug, Subcommand)]
enum Load {
    /// Requests on kept connections.
    KeepAlive(To),
    /// A new connection for each request.
    New(To),
    /// One GET whose body is read and dropped.
    Get(To),
    /// A stream that isn't HTTP: asks the bulk server for bytes and drops them.
    Bulk {
        #[command(flatten)]
        to: To,
        /// How many bytes.
        #[arg(long)]
        bytes: u64,
    },
    /// The origin of bulk transfers: `bulk:n` or `GET /n` is answered with n bytes.
    Serve {
        /// `ADDRESS:PORT`.
        listen: String,
    },
    /// The origin of model calls: chat completions, whole or as streams.
    Model {
        /// `ADDRESS:PORT`.
        listen: String,
    },
    /// Streams of chat completions, all at once.
    Streams(stream::Args),
    /// Streams of chat completions one after another, for their first chunks.
    Firsts(stream::Args),
}

#[derive(Clone, Debug, clap::Args)]
struct To {
    /// Name of the server, or its address.
    #[arg(long)]
    host: String,
    #[arg(long)]
    port: u16,
    /// Address to dial instead of looking the name up.
    #[arg(long)]
    at: Option<String>,
    /// `HOST:PORT` of a proxy that is asked to CONNECT.
    #[arg(long)]
    proxy: Option<String>,
    /// Speak TLS and trust this PEM file.
    #[arg(long)]
    ca: Option<PathBuf>,
    #[arg(long, default_value = "/s")]
    path: String,
    #[arg(long, default_value_t = 16)]
    connections: usize,
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

/// What one worker measured.
#[derive(Debug, Default)]
struct Sample {
    latencies_us: Vec<u64>,
    bytes: u64,
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match Cli::parse().load {
        Load::Serve { listen } => serve::run(&listen),
        Load::Model { listen } => runtime.block_on(model::serve(&listen)),
        Load::Streams(args) => runtime.block_on(stream::together(args)),
        Load::Firsts(args) => runtime.block_on(stream::firsts(args)),
        Load::KeepAlive(to) => runtime.block_on(many(to, keep_alive)),
        Load::New(to) => runtime.block_on(many(to, renew)),
        Load::Get(to) => runtime.block_on(get(to)),
        Load::Bulk { to, bytes } => runtime.block_on(bulk(to, bytes)),
    }
}

/// Runs a worker for each connection and prints what they measured together.
async fn many<W, F>(to: To, worker: W) -> Result<()>
where
    W: Fn(Target, Instant) -> F,
    F: Future<Output = Result<Sample>> + 'static,
{
    let target = Target::new(&to)?;
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(to.seconds);
    let local = tokio::task::LocalSet::new();
    let mut workers = JoinSet::new();
    for _ in 0..to.connections {
        workers.spawn_local_on(worker(target.clone(), until), &local);
    }
    let mut total = Sample::default();
    local
        .run_until(async {
            while let Some(sample) = workers.join_next().await {
                let sample = sample??;
                total.latencies_us.extend(sample.latencies_us);
                total.bytes += sample.bytes;
            }
            anyhow::Ok(())
        })
        .await?;
    print(total, started.elapsed())
}

async fn keep_alive(target: Target, until: Instant) -> Result<Sample> {
    let mut sample = Sample::default();
    let mut stream = target.dial().await?;
    let mut buffer = Vec::with_capacity(4096);
    while Instant::now() < until {
        let sent = Instant::now();
        sample.bytes += http::exchange(&mut stream, target.request(), &mut buffer).await?;
        sample.latencies_us.push(micros(sent));
    }
    Ok(sample)
}

async fn renew(target: Target, until: Instant) -> Result<Sample> {
    let mut sample = Sample::default();
    let mut buffer = Vec::with_capacity(4096);
    while Instant::now() < until {
        let begun = Instant::now();
        let mut stream = target.dial().await?;
        sample.bytes += http::exchange(&mut stream, target.request(), &mut buffer).await?;
        sample.latencies_us.push(micros(begun));
    }
    Ok(sample)
}

async fn get(to: To) -> Result<()> {
    let target = Target::new(&to)?;
    let started = Instant::now();
    let mut stream = target.dial().await?;
    let bytes = http::drain(&mut stream, target.request()).await?;
    print(Sample { latencies_us: vec![micros(started)], bytes }, started.elapsed())
}

async fn bulk(to: To, wanted: u64) -> Result<()> {
    let target = Target::new(&to)?;
    let mut stream = target.dial().await?;
    let started = Instant::now();
    http::send(&mut stream, format!("bulk:{wanted}\n").as_bytes()).await?;
    let Stream::Plain(tcp) = stream else { bail!("a bulk stream has no TLS") };
    let got = drop_bytes(&tcp.into_std()?, wanted)?;
    print(Sample { latencies_us: vec![micros(started)], bytes: got }, started.elapsed())
}

/// Takes exactly that many bytes. The kernel drops them (`MSG_TRUNC`, tcp(7)): copying them here would measure the
/// client.
fn drop_bytes(stream: &std::net::TcpStream, wanted: u64) -> Result<u64> {
    stream.set_nonblocking(false)?;
    let mut buffer = vec![0; usize::try_from(wanted.min(1 << 20))?];
    let mut got = 0;
    while got < wanted {
        let (_, read) = recv(stream, buffer.as_mut_slice(), RecvFlags::TRUNC)?;
        if read == 0 {
            bail!("the stream ended after {got} of {wanted} bytes");
        }
        got += u64::try_from(read)?;
    }
    Ok(got)
}

/// Reads and drops exactly that many bytes of a body.
async fn drop_body(stream: &mut Stream, length: u64) -> Result<()> {
    let read = tokio::io::copy(&mut stream.take(length), &mut tokio::io::sink()).await?;
    if read < length {
        bail!("the body ended after {read} of {length} bytes");
    }
    Ok(())
}

fn print(mut sample: Sample, took: Duration) -> Result<()> {
    sample.latencies_us.sort_unstable();
    let at = |share: f64| {
        let rank = sample.latencies_us.len().saturating_sub(1) as f64 * share;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank within the list")]
        sample.latencies_us.get(rank as usize).copied()
    };
    let p50 = at(0.5).context("nothing was measured")?;
    println!(
        "{}",
        serde_json::json!({
            "count": sample.latencies_us.len(), "seconds": took.as_secs_f64(), "bytes": sample.bytes,
            "p50Us": p50, "p99Us": at(0.99),
        })
    );
    Ok(())
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Lets this process have as many open files as it may: a thousand streams need more than a shell gives.
fn raise_file_limit() {
    let limits = getrlimit(Resource::Nofile);
    // Where that fails, dialing says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
}
