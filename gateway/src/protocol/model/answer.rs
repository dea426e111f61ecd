//! A model's answer on its way: every byte passes on as it came, and is counted behind.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use strait_contract::model::{Tokens, Usd};

use super::ModelCall;
use crate::protocol::http::body::{Broken, Source};

/// What a model call came to, for its `done` line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// What was counted.
    pub(crate) tokens: Option<Tokens>,
    /// What it cost.
    pub(crate) cost: Option<Usd>,
    /// The model as the answer names it.
    pub(crate) used: Option<String>,
    /// Whether the answer came to its end.
    pub(crate) complete: bool,
    /// From the sending to the first byte of the body, microseconds.
    pub(crate) first_token_us: Option<u64>,
    /// How often it was sent.
    pub(crate) attempts: u32,
}

/// An answer's body, counted.
pub(crate) struct Counting {
    from: Source,
    call: Arc<ModelCall>,
    first: Option<Instant>,
    over: bool,
}

impl Counting {
    /// The body of a model's answer.
    pub(crate) fn new(call: Arc<ModelCall>, from: Source) -> Self {
        Self { from, call, first: None, over: false }
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let frame = ready!(self.from.poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.first = self.first.or_else(|| Some(Instant::now())),
            Some(Err(_)) => {}
            None => self.over = true,
        }
        Poll::Ready(frame)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.from.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.from.size_hint()
    }

    /// What it came to so far.
    pub(crate) fn answered(&mut self) -> Answered {
        let sent = self.call.sent.get();
        let took = self.first.zip(sent).map(|(first, sent)| first.saturating_duration_since(*sent));
        Answered {
            complete: self.over || self.from.is_end_stream(),
            first_token_us: took.map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
            attempts: self.call.attempts.load(Ordering::Relaxed),
            ..Answered::default()
        }
    }
}
