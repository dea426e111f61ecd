//! Streams that the gateway doesn't read: decided by `connect`, then carried by the kernel.

use std::{
    io,
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use strait_contract::code::Code;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::wire::Wire;
use crate::{
    call::{Call, Endpoint, Via, What},
    decide::{Permitted, Refusal, decide},
    exposure::Watch,
    pipeline::{self, Context},
    protocol::http::body::chain,
    record::Outcome,
};

mod splice;

/// Serves a stream to its end.
pub(crate) async fn serve(context: Context, wire: Wire, to: Endpoint, via: Via) {
    let call = Call::new(context.caller.clone(), via, What::Stream(to));
    match decide(&context.gateway, call).await {
        Ok(permitted) => carry(&context, permitted, wire).await,
        // The protocol is unknown, so there are no words for a refusal in it; the record has them.
        Err(_) => pipeline::linger(wire.into_parts().0).await,
    }
}

/// Dials the vetted address of a permitted stream and carries bytes both ways.
pub(crate) async fn carry(context: &Context, permitted: Permitted, mut wire: Wire) {
    let What::Stream(to) = &permitted.call().what else { return };
    let dialer = &context.settings.dialer;
    let dialed = match dialer.dial(&to.host, to.port, dialer.deadline()).await {
        Ok(dialed) => dialed,
        Err(error) => {
            let _ = permitted.done(&Outcome::failed(error.code(), chain(&error))).await;
            return;
        }
    };
    let addr = dialed.route.addr().map(|addr| addr.ip());
    let mut upstream = dialed.stream;
    if let Some(watch) = Watch::of_stream(&context.gateway, &context.caller, to) {
        let carried = copy(&mut wire, &mut upstream, context.idle_time(), Some(watch)).await;
        let _ = permitted.done(&carried.outcome(addr)).await;
        return;
    }
    let (client, ahead) = wire.into_parts();
    let counts = Counts::default();
    let mut result = upstream.write_all(&ahead).await;
    if result.is_ok() {
        counts.out.add(ahead.len());
        drop(ahead);
        result = splice::both(&client, &upstream, &counts, context.idle_time()).await;
    }
    let carried = Carried::new(&counts, result);
    // The ends are released only when the record is written.
    let _ = permitted.done(&carried.outcome(addr)).await;
    drop((client, upstream));
}

/// Bytes so far, by direction.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    out: Count,
    back: Count,
}

#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a stream carried and how it ended.
#[derive(Debug)]
pub(crate) struct Carried {
    bytes_out: u64,
    bytes_in: u64,
    result: io::Result<()>,
    /// Why it was cut, if it was.
    cut: Option<Refusal>,
}

impl Carried {
    fn new(counts: &Counts, result: io::Result<()>) -> Self {
        Self { bytes_out: counts.out.get(), bytes_in: counts.back.get(), result, cut: None }
    }

    /// As the record tells it. A reset is how many clients end a stream, and no fault.
    pub(crate) fn outcome(&self, addr: Option<IpAddr>) -> Outcome {
        let (code, reason) = match &self.result {
            _ if self.cut.is_some() => self.cut.clone().map(|refusal| (refusal.code, refusal.reason)).unzip(),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                (Some(Code::UpstreamTimeout), Some("nothing moved for the idle time".to_owned()))
            }
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => (None, Some(error.to_string())),
            _ => (None, None),
        };
        Outcome {
            code,
            reason,
            addr,
            bytes_out: self.bytes_out,
            bytes_in: self.bytes_in,
            ..Outcome::default()
        }
    }
}

/// Carries bytes both ways through memory, for streams that the kernel can't join, with what the client sends looked
/// through if there is a watch.
pub(crate) async fn copy<A, B>(
    client: &mut A,
    upstream: &mut B,
    idle: Duration,
    mut watch: Option<Watch>,
) -> Carried
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let caught = watch.as_ref().map(Watch::caught);
    let counts = Counts::default();
    let (mut client_read, mut client_write) = tokio::io::split(client);
    let (mut upstream_read, mut upstream_write) = tokio::io::split(upstream);
    let result = {
        let out = one_way(&mut client_read, &mut upstream_write, &counts.out, watch.as_mut());
        let back = one_way(&mut upstream_read, &mut client_write, &counts.back, None);
        watched(&counts, idle, async { tokio::try_join!(out, back).map(|_| ()) }).await
    };
    let cut = caught.and_then(|caught| caught.get().cloned());
    Carried { cut, ..Carried::new(&counts, result) }
}

async fn one_way(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    count: &Count,
    mut watch: Option<&mut Watch>,
) -> io::Result<()> {
    // What is looked through is so in larger pieces.
    let mut buffer = vec![0u8; if watch.is_some() { 64 } else { 16 } * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        let chunk = buffer.get(..read).unwrap_or_default();
        if watch.as_mut().is_some_and(|watch| !watch.passes(chunk)) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        to.write_all(buffer.get(..read).unwrap_or_default()).await?;
        to.flush().await?;
        count.add(read);
    }
}

/// Runs `work` as long as bytes move.
async fn watched(
    counts: &Counts,
    idle: Duration,
    work: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    let mut work = std::pin::pin!(work);
    let mut seen = (0, 0);
    loop {
        tokio::select! {
            done = work.as_mut() => return done,
            () = tokio::time::sleep(idle) => {
                let now = (counts.out.get(), counts.back.get());
                if now == seen {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                seen = now;
            }
        }
    }
}
