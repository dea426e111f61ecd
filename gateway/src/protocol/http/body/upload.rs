//! The body of a request on its way to the upstream.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use strait_contract::token::TokenHash;
use tokio::{sync::watch, time::Sleep};

use super::{Broken, Idle, Payload, data_len};
use crate::{exposure::Watch, limits::CONTINUE, protocol::http::overrides, token};

/// Whether the upstream wants the body of a request that expects `100-continue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// It hasn't said.
    Unknown,
    /// It said `100 Continue`.
    Yes,
    /// It has answered; the body stays where it is as long as the answer comes.
    Answered,
    /// The answer has ended.
    No,
}

/// The body of a request on its way to the upstream.
#[derive(Debug)]
pub struct Upload {
    from: Payload,
    /// The run's workload token, which goes out in no trailer either.
    token: TokenHash,
    /// Whether trailers are sent on. To a tool none are: a server that adds them to the head would take a field of the
    /// caller's for one of the tool's.
    trailers: bool,
    sent: Arc<AtomicU64>,
    gate: Option<Gate>,
    idle: Idle,
    watch: Option<Box<Watch>>,
}

#[derive(Debug)]
struct Gate {
    wanted: watch::Receiver<Wanted>,
    patience: Pin<Box<Sleep>>,
    changed: Option<Changed>,
}

struct Changed(Pin<Box<dyn Future<Output = ()> + Send>>);

impl std::fmt::Debug for Changed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Changed")
    }
}

impl Upload {
    /// A body that is sent on as it comes; `sent` counts its bytes.
    pub(crate) fn new(from: Payload, token: TokenHash, sent: Arc<AtomicU64>, idle: Duration) -> Self {
        Self { from, token, trailers: true, sent, gate: None, idle: Idle::new(idle), watch: None }
    }

    /// Has it looked through for placeholders.
    pub(crate) fn watched(self, watch: Option<Watch>) -> Self {
        Self { watch: watch.map(Box::new), ..self }
    }

    /// Ends where trailers would follow.
    pub(crate) fn without_trailers(self) -> Self {
        Self { trailers: false, ..self }
    }

    /// Holds the body back until the upstream wants it.
    pub(crate) fn gated(mut self, wanted: watch::Receiver<Wanted>) -> Self {
        self.gate = Some(Gate { wanted, patience: Box::pin(tokio::time::sleep(CONTINUE)), changed: None });
        self
    }
}

impl Gate {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            let wanted = *self.wanted.borrow_and_update();
            match wanted {
                Wanted::Yes => return Poll::Ready(Ok(())),
                Wanted::No => return Poll::Ready(Err(Broken::Unwanted)),
                Wanted::Unknown if self.patience.as_mut().poll(cx).is_ready() => return Poll::Ready(Ok(())),
                Wanted::Unknown | Wanted::Answered => {}
            }
            let changed = self.changed.get_or_insert_with(|| {
                let mut wanted = self.wanted.clone();
                Changed(Box::pin(async move {
                    // The sender lives as long as the answer; its end counts as a change.
                    let _ = wanted.changed().await;
                }))
            });
            ready!(changed.0.as_mut().poll(cx));
            self.changed = None;
            if self.wanted.has_changed().is_err() && *self.wanted.borrow() != Wanted::Yes {
                return Poll::Ready(Err(Broken::Unwanted));
            }
        }
    }
}

fn passes(watch: &mut Watch, frame: &Frame<Bytes>) -> bool {
    frame.data_ref().is_none_or(|data| watch.passes(data))
        && frame.trailers_ref().is_none_or(|trailers| watch.passes_trailers(trailers))
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = &mut *self;
        if let Some(gate) = &mut this.gate {
            ready!(gate.poll(cx))?;
            this.gate = None;
        }
        match Pin::new(&mut this.from).poll_frame(cx) {
            Poll::Ready(mut frame) => {
                this.idle.came();
                if let Some(Ok(frame)) = &mut frame {
                    if let Some(trailers) = frame.trailers_mut() {
                        if !this.trailers {
                            return Poll::Ready(None);
                        }
                        token::strip(trailers, &this.token);
                        overrides::strip(trailers);
                    }
                    if let Some(watch) = &mut this.watch
                        && !passes(watch, frame)
                    {
                        return Poll::Ready(Some(Err(Broken::Placeholder)));
                    }
                    this.sent.fetch_add(data_len(frame), Ordering::Relaxed);
                }
                Poll::Ready(frame)
            }
            Poll::Pending => {
                ready!(this.idle.poll(cx));
                Poll::Ready(Some(Err(Broken::Idle)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.from.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.from.size_hint()
    }
}
