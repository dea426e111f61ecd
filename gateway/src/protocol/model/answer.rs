//! A model's answer on its way: every byte passes on as it came, and is counted behind.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Instant,
};

use bytes::Bytes;
use http::{
    header::{CONTENT_ENCODING, CONTENT_LENGTH},
    response::Parts,
};
use http_body::{Frame, SizeHint};
use sha2::{Digest as _, Sha256};
use strait_contract::{
    model::{Tokens, Usd},
    provider::Content,
    redact::redact_text,
};
use strait_model::meter::{Asked, Coding, Counted, Meter};

use super::ModelCall;
use crate::protocol::http::body::{Broken, Source};

/// Most bytes of a prompt or answer in a record.
pub(super) const MAX_CONTENT: usize = 3 * 1024;
/// Bytes of which they are the beginning: what is hidden makes a text shorter.
const LOOKED_AT: usize = 16 * 1024;

/// What a model call came to, for its `done` line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// What was counted; `None` of an answer that says that there is none.
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
    /// What is kept of the answer's text.
    pub(crate) content: Option<String>,
}

/// An answer's body, counted.
pub(crate) struct Counting {
    from: Source,
    call: Arc<ModelCall>,
    meter: Option<Meter>,
    keeper: Keeper,
    /// What has passed and is to be counted yet.
    behind: Option<Bytes>,
    hides: bool,
    first: Option<Instant>,
    over: bool,
}

/// Keeps of an answer what its provider's `content` says.
enum Keeper {
    Nothing,
    Digest(Box<Sha256>),
    Beginning(Vec<u8>),
}

impl Counting {
    /// The body of a model's answer with this head.
    pub(crate) fn new(call: Arc<ModelCall>, head: &mut Parts, from: Source) -> Self {
        let coding = head
            .headers
            .get(CONTENT_ENCODING)
            .map_or(Coding::Identity, |value| value.to_str().map_or(Coding::Unknown, Coding::of));
        let operation = call.operation.filter(|operation| head.status.is_success() && operation.is_charged());
        let meter = operation.map(|operation| Meter::new(operation, Asked { input: call.input }, coding));
        let hides = call.hides_usage && meter.is_some() && coding == Coding::Identity;
        if hides {
            // What is left out isn't in it.
            head.headers.remove(CONTENT_LENGTH);
        }
        let keeper = match call.content {
            Content::None => Keeper::Nothing,
            Content::Hash => Keeper::Digest(Box::default()),
            Content::Full => Keeper::Beginning(Vec::new()),
        };
        Self { from, call, meter, keeper, behind: None, hides, first: None, over: false }
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            let frame = self.from.poll_frame(cx);
            // Whatever has passed before has left by now, or is about to.
            self.count();
            return Poll::Ready(match ready!(frame) {
                None => {
                    self.over = true;
                    match self.rest() {
                        rest if rest.is_empty() => None,
                        rest => Some(Ok(Frame::data(rest.into()))),
                    }
                }
                Some(Err(error)) => Some(Err(error)),
                Some(Ok(frame)) => {
                    self.first.get_or_insert_with(Instant::now);
                    match frame.into_data() {
                        Err(trailers) => Some(Ok(trailers)),
                        Ok(data) if self.hides => match self.shown(&data) {
                            shown if shown.is_empty() => continue,
                            shown => Some(Ok(Frame::data(shown))),
                        },
                        Ok(data) => {
                            self.behind = Some(data.clone());
                            Some(Ok(Frame::data(data)))
                        }
                    }
                }
            });
        }
    }

    /// Counts what has passed.
    fn count(&mut self) {
        let Some(data) = self.behind.take() else { return };
        self.keeper.take(&data);
        if let Some(meter) = &mut self.meter {
            meter.feed(&data);
        }
    }

    /// A piece of a chat stream without what its client hasn't asked for.
    fn shown(&mut self, data: &[u8]) -> Bytes {
        let mut shown = Vec::with_capacity(data.len());
        if let Some(meter) = &mut self.meter {
            meter.feed_hiding(data, &mut shown);
            if self.from.is_end_stream() {
                meter.shown_at_end(&mut shown);
            }
        }
        self.keeper.take(&shown);
        shown.into()
    }

    /// What was held back at the end.
    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        if let (true, Some(meter)) = (self.hides, &mut self.meter) {
            meter.shown_at_end(&mut rest);
            self.keeper.take(&rest);
        }
        rest
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.from.is_end_stream()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        if self.hides { SizeHint::default() } else { self.from.size_hint() }
    }

    /// What it came to so far, which settles what was held for it. Once.
    pub(crate) fn answered(&mut self) -> Answered {
        self.count();
        let ended = self.over || self.from.is_end_stream();
        let sent = self.call.sent.get();
        let took = self.first.zip(sent).map(|(first, sent)| first.saturating_duration_since(*sent));
        let counted = self.meter.take().map(Meter::finish);
        let cost = match &counted {
            Some(counted) => self.call.price.as_ref().and_then(|price| price.cost(&counted.tokens)),
            None => Some(Usd::default()),
        };
        if let Some(reservation) = &self.call.reservation {
            let tokens = counted
                .as_ref()
                .map_or(0, |counted| counted.tokens.input.saturating_add(counted.tokens.output));
            reservation.settle(tokens, cost);
        }
        let complete = counted.as_ref().map_or(ended, |counted| counted.complete && ended);
        let Counted { tokens, model, .. } = counted.clone().unwrap_or_default();
        Answered {
            tokens: counted.is_some().then_some(tokens),
            cost: cost.filter(|_| counted.is_some()),
            used: model,
            complete,
            first_token_us: took.map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
            attempts: self.call.attempts.load(Ordering::Relaxed),
            content: std::mem::replace(&mut self.keeper, Keeper::Nothing).end(),
        }
    }
}

impl Keeper {
    fn take(&mut self, data: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Digest(digest) => digest.update(data),
            Self::Beginning(text) => {
                let room = LOOKED_AT.saturating_sub(text.len()).min(data.len());
                text.extend_from_slice(data.get(..room).unwrap_or_default());
            }
        }
    }

    fn end(self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Digest(digest) => Some(hex(&digest.finalize())),
            Self::Beginning(text) => Some(redact_text(&String::from_utf8_lossy(&text), MAX_CONTENT)),
        }
    }
}

/// Hexadecimal SHA-256.
pub(super) fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The beginning of a text, as much of it as can be in a record.
pub(super) fn beginning(text: &str) -> &str {
    let mut end = LOOKED_AT.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}
