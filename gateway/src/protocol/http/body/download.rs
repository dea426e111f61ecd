//! An upstream's answer on its way to the client.

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
use strait_contract::{code::Code, record::Unrecorded};
use tokio::{sync::watch, time::Sleep};

use super::{Broken, Idle, chain, data_len, screen::Source, upload::Wanted};
use crate::{
    decide::Refusal,
    exposure::Caught,
    record::{Guard, Outcome},
};

/// How long what was given may take to leave before a connection is broken off.
const FLUSH: Duration = Duration::from_millis(20);

/// What is known of an answer when its body begins, and who writes its `done` line.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) guard: Guard,
    pub(crate) outcome: Outcome,
    /// Bytes of the request's body so far.
    pub(crate) sent: Arc<AtomicU64>,
    /// Tells a request body that was held back that it isn't wanted any more.
    pub(crate) wanted: Option<watch::Sender<Wanted>>,
    /// Why the request's body was cut, if it is.
    pub(crate) caught: Option<Caught>,
}

impl Ending {
    /// Writes the `done` line and waits for it.
    pub(crate) async fn write(mut self, bytes_in: u64) -> Result<(), Unrecorded> {
        self.outcome.bytes_in = bytes_in;
        self.outcome.bytes_out = self.sent.load(Ordering::Relaxed);
        if let Some(wanted) = self.wanted.take() {
            wanted.send_replace(Wanted::No);
        }
        if let Some(refusal) = self.refusal() {
            (self.outcome.code, self.outcome.reason) = (Some(refusal.code), Some(refusal.reason));
        }
        self.guard.done(&self.outcome).await
    }

    fn refusal(&self) -> Option<Refusal> {
        self.caught.as_ref().and_then(|caught| caught.get()).cloned()
    }

    fn fail(mut self, code: Code, reason: String, bytes_in: u64) {
        let (code, reason) = self.refusal().map_or((code, reason), |refusal| (refusal.code, refusal.reason));
        let bytes_out = self.sent.load(Ordering::Relaxed);
        let outcome = Outcome { code: Some(code), reason: Some(reason), bytes_in, bytes_out, ..self.outcome };
        self.guard.finish(&outcome);
    }
}

/// An upstream's answer on its way to the client. Its last bytes are held back until its `done` line is on
/// record.
pub struct Download {
    from: Source,
    received: u64,
    ending: Option<Ending>,
    state: State,
    idle: Idle,
    /// What came before anybody asked for it.
    ahead: Option<Result<Frame<Bytes>, Broken>>,
    /// It breaks off once its end is on record.
    breaks: bool,
}

enum State {
    Flowing,
    Closing {
        last: Option<Frame<Bytes>>,
        done: Pin<Box<dyn Future<Output = Result<(), Unrecorded>> + Send>>,
    },
    /// What was given is on its way; then the connection breaks off.
    Breaking(Pin<Box<Sleep>>),
    Over,
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").field("received", &self.received).finish_non_exhaustive()
    }
}

impl Download {
    pub(crate) fn new(from: Source, ending: Ending, idle: Duration) -> Self {
        Self {
            from,
            received: 0,
            ending: Some(ending),
            state: State::Flowing,
            idle: Idle::new(idle),
            ahead: None,
            breaks: false,
        }
    }

    /// Whether everything has been given.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Over) && self.ahead.is_none()
    }

    /// What is still to be given.
    pub(super) fn left(&self) -> SizeHint {
        if !matches!(self.state, State::Flowing) {
            return SizeHint::default();
        }
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
        if self.breaks || last.as_ref().is_some_and(Frame::is_trailers) {
            return Ok(None);
        }
        done.as_mut().await?;
        let last = last.take().and_then(|frame| frame.into_data().ok()).unwrap_or_default();
        self.state = State::Over;
        Ok(Some(last))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
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
                    if self.breaks && written.is_ok() {
                        self.state = State::Breaking(Box::pin(tokio::time::sleep(FLUSH)));
                        continue;
                    }
                    return Poll::Ready(match written {
                        Ok(()) => last.map(Ok),
                        Err(why) => Some(Err(Broken::Unrecorded(why))),
                    });
                }
                State::Breaking(flushed) => {
                    ready!(flushed.as_mut().poll(cx));
                    self.state = State::Over;
                    return Poll::Ready(Some(Err(Broken::Cut)));
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
        let frame = match self.from.poll_frame(cx) {
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
            Some(Err(Broken::Cut)) => {
                self.breaks = true;
                self.close(None);
            }
            Some(Err(error)) => {
                let (code, reason) = match &error {
                    Broken::Late => (Code::UpstreamTimeout, error.to_string()),
                    Broken::Source(_) => (
                        Code::UpstreamProtocol,
                        format!("the upstream broke off its answer: {}", chain(&error)),
                    ),
                    other => (Code::UpstreamProtocol, other.to_string()),
                };
                self.fail(code, reason);
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(None))
    }

    fn close(&mut self, last: Option<Frame<Bytes>>) {
        let truncated = self.from.is_cut();
        self.state = match self.ending.take() {
            Some(mut ending) => {
                ending.outcome.truncated = truncated;
                ending.outcome.model = self.from.answered();
                State::Closing { last, done: Box::pin(ending.write(self.received)) }
            }
            None => State::Over,
        };
    }

    fn fail(&mut self, code: Code, reason: String) {
        self.state = State::Over;
        if let Some(mut ending) = self.ending.take() {
            ending.outcome.model = self.from.answered();
            ending.fail(code, reason, self.received);
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if let Some(mut ending) = self.ending.take() {
            ending.outcome.model = self.from.answered();
            let Outcome { code, reason, .. } = Outcome::gone();
            ending.fail(code.unwrap_or(Code::ClientGone), reason.unwrap_or_default(), self.received);
        }
    }
}
