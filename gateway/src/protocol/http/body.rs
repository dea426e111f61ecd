//! Bodies on their way through: frame by frame, counted, never collected.

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
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use strait_contract::{code::Code, record::Unrecorded};
use tokio::{sync::watch, time::Sleep};

use crate::{
    limits::CONTINUE,
    record::{Guard, Outcome},
};

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The side it comes from broke off.
    #[error(transparent)]
    Source(#[from] hyper::Error),
    /// Nothing came for the idle time.
    #[error("nothing came for the idle time")]
    Idle,
    /// The end can't be put on record.
    #[error("the end of the answer can't be put on record: {0}")]
    Unrecorded(Unrecorded),
    /// The upstream answered before it asked for the body.
    #[error("the upstream answered without the body")]
    Unwanted,
}

/// What the gateway answers with.
#[derive(Debug)]
pub enum Body {
    /// The gateway's own words, or nothing.
    Own(Option<Bytes>),
    /// An upstream's answer.
    Upstream(Box<Download>),
}

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Self::Own(None)
    }

    /// These bytes.
    pub fn full(bytes: Bytes) -> Self {
        Self::Own((!bytes.is_empty()).then_some(bytes))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut *self {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upstream(download) => download.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(download) => matches!(download.state, State::Over) && download.ahead.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(
                bytes.as_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            ),
            Self::Upstream(download) => match download.state {
                State::Flowing => download.left(),
                _ => SizeHint::default(),
            },
        }
    }
}

/// Watches that something comes within a time, with one timer for as long as the body lasts.
#[derive(Debug)]
struct Idle {
    time: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    progress: bool,
}

impl Idle {
    fn new(time: Duration) -> Self {
        Self { time, timer: None, progress: false }
    }

    fn came(&mut self) {
        self.progress = true;
    }

    /// Ready if nothing came for the whole time.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let time = self.time;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        loop {
            ready!(timer.as_mut().poll(cx));
            if !std::mem::take(&mut self.progress) {
                return Poll::Ready(());
            }
            timer.as_mut().set(tokio::time::sleep(time));
        }
    }
}

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
    from: Incoming,
    sent: Arc<AtomicU64>,
    gate: Option<Gate>,
    idle: Idle,
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
    pub(crate) fn new(from: Incoming, sent: Arc<AtomicU64>, idle: Duration) -> Self {
        Self { from, sent, gate: None, idle: Idle::new(idle) }
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
            Poll::Ready(frame) => {
                this.idle.came();
                if let Some(Ok(frame)) = &frame {
                    this.sent.fetch_add(data_len(frame), Ordering::Relaxed);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Broken::from)))
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

/// What is known of an answer when its body begins, and who writes its `done` line.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) guard: Guard,
    pub(crate) outcome: Outcome,
    /// Bytes of the request's body so far.
    pub(crate) sent: Arc<AtomicU64>,
    /// Tells a request body that was held back that it isn't wanted any more.
    pub(crate) wanted: Option<watch::Sender<Wanted>>,
}

impl Ending {
    /// Writes the `done` line and waits for it.
    pub(crate) async fn write(mut self, bytes_in: u64) -> Result<(), Unrecorded> {
        self.outcome.bytes_in = bytes_in;
        self.outcome.bytes_out = self.sent.load(Ordering::Relaxed);
        if let Some(wanted) = self.wanted.take() {
            wanted.send_replace(Wanted::No);
        }
        self.guard.done(&self.outcome).await
    }

    fn fail(mut self, code: Code, reason: String, bytes_in: u64) {
        let bytes_out = self.sent.load(Ordering::Relaxed);
        let outcome = Outcome { code: Some(code), reason: Some(reason), bytes_in, bytes_out, ..self.outcome };
        self.guard.finish(&outcome);
    }
}

/// An upstream's answer on its way to the client. Its last bytes are held back until its `done` line is on
/// record.
pub struct Download {
    from: Incoming,
    received: u64,
    ending: Option<Ending>,
    state: State,
    idle: Idle,
    /// What came before anybody asked for it.
    ahead: Option<Result<Frame<Bytes>, Broken>>,
}

enum State {
    Flowing,
    Closing { last: Option<Frame<Bytes>>, done: Pin<Box<dyn Future<Output = Result<(), Unrecorded>> + Send>> },
    Over,
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").field("received", &self.received).finish_non_exhaustive()
    }
}

impl Download {
    pub(crate) fn new(from: Incoming, ending: Ending, idle: Duration) -> Self {
        Self {
            from,
            received: 0,
            ending: Some(ending),
            state: State::Flowing,
            idle: Idle::new(idle),
            ahead: None,
        }
    }

    /// What is still to be given.
    fn left(&self) -> SizeHint {
        let mut hint = self.from.size_hint();
        if let Some(Ok(frame)) = &self.ahead {
            let ahead = data_len(frame);
            let lower = hint.lower().saturating_add(ahead);
            // The upper bound first: it may not be below the lower one.
            if let Some(upper) = hint.upper() {
                hint.set_upper(upper.saturating_add(ahead));
            }
            hint.set_lower(lower);
        }
        hint
    }

    /// The whole body, with its end on record, if it is one frame that is here already. Else what has come so far
    /// stays here.
    ///
    /// # Errors
    /// [`Unrecorded`]: the answer must not be released.
    pub(crate) async fn at_once(&mut self) -> Result<Option<Bytes>, Unrecorded> {
        let mut first = std::pin::pin!(std::future::poll_fn(|cx| self.flow(cx)));
        let first = std::future::poll_fn(|cx| Poll::Ready(first.as_mut().poll(cx))).await;
        match first {
            Poll::Ready(Ok(Some(frame))) => {
                self.ahead = Some(Ok(frame));
                Ok(None)
            }
            Poll::Ready(Err(broken)) => {
                self.ahead = Some(Err(broken));
                Ok(None)
            }
            Poll::Ready(Ok(None)) => self.whole().await,
            Poll::Pending => Ok(None),
        }
    }

    /// Waits for the record of a body whose last frame came first.
    async fn whole(&mut self) -> Result<Option<Bytes>, Unrecorded> {
        let State::Closing { last, done } = &mut self.state else { return Ok(None) };
        if last.as_ref().is_some_and(Frame::is_trailers) {
            return Ok(None);
        }
        done.as_mut().await?;
        let last = last.take().and_then(|frame| frame.into_data().ok()).unwrap_or_default();
        self.state = State::Over;
        Ok(Some(last))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(ahead) = self.ahead.take() {
            return Poll::Ready(Some(ahead));
        }
        loop {
            match &mut self.state {
                State::Over => return Poll::Ready(None),
                State::Closing { last, done } => {
                    let written = ready!(done.as_mut().poll(cx));
                    let last = last.take();
                    self.state = State::Over;
                    return Poll::Ready(match written {
                        Ok(()) => last.map(Ok),
                        Err(why) => Some(Err(Broken::Unrecorded(why))),
                    });
                }
                State::Flowing => {
                    if let Some(frame) = ready!(self.flow(cx))? {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
            }
        }
    }

    /// The next frame that can go on; `None` if that was the last, which waits for the record.
    fn flow(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Broken>> {
        let frame = match Pin::new(&mut self.from).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                ready!(self.idle.poll(cx));
                self.fail(Code::UpstreamTimeout, Broken::Idle.to_string());
                return Poll::Ready(Err(Broken::Idle));
            }
        };
        self.idle.came();
        match frame {
            None => self.close(None),
            Some(Ok(frame)) => {
                self.received = self.received.saturating_add(data_len(&frame));
                if !frame.is_trailers() && !self.from.is_end_stream() {
                    return Poll::Ready(Ok(Some(frame)));
                }
                self.close(Some(frame));
            }
            Some(Err(error)) => {
                let reason = format!("the upstream broke off its answer: {}", chain(&error));
                self.fail(Code::UpstreamProtocol, reason);
                return Poll::Ready(Err(Broken::Source(error)));
            }
        }
        Poll::Ready(Ok(None))
    }

    fn close(&mut self, last: Option<Frame<Bytes>>) {
        self.state = match self.ending.take() {
            Some(ending) => State::Closing { last, done: Box::pin(ending.write(self.received)) },
            None => State::Over,
        };
    }

    fn fail(&mut self, code: Code, reason: String) {
        self.state = State::Over;
        if let Some(ending) = self.ending.take() {
            ending.fail(code, reason, self.received);
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if let Some(ending) = self.ending.take() {
            let Outcome { code, reason, .. } = Outcome::gone();
            ending.fail(code.unwrap_or(Code::ClientGone), reason.unwrap_or_default(), self.received);
        }
    }
}

fn data_len(frame: &Frame<Bytes>) -> u64 {
    frame.data_ref().map_or(0, |data| u64::try_from(data.len()).unwrap_or(u64::MAX))
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = inner.source();
    }
    text
}
