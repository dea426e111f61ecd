//! Bodies on their way through: frame by frame, counted, never collected.

mod download;
mod payload;
mod screen;
mod upload;

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use strait_contract::record::Unrecorded;
use tokio::time::Sleep;

use crate::protocol::{mcp::Waiting, model::translated::Translated};

pub use self::{download::Download, payload::Payload, screen::TRUNCATED, upload::Upload};
pub(crate) use self::{
    download::Ending,
    payload::{Collect, model_room, room},
    screen::{Orders, Source, takes_trailers},
    upload::Wanted,
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
    /// A placeholder would have gone on.
    #[error("the body was cut: it must not go on")]
    Placeholder,
    /// It took longer than an answer may.
    #[error("the answer took longer than it may")]
    Late,
    /// What is compressed can't be decoded.
    #[error("the upstream's answer can't be decoded: {0}")]
    Encoding(String),
    /// What an MCP server sent is no message.
    #[error("what the server sent can't be read: {0}")]
    Message(String),
    /// It was cut, and breaking off is how the client learns of it.
    #[error("the answer was cut at its limit")]
    Cut,
}

/// What the gateway answers with.
#[derive(Debug)]
pub enum Body {
    /// The gateway's own words, or nothing.
    Own(Option<Bytes>),
    /// An upstream's answer.
    Upstream(Box<Download>),
    /// A stream in which an MCP server's answer is still to come.
    Waiting(Box<Waiting>),
    /// A model's stream on its way into another API's words.
    Translated(Box<Translated>),
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
            Self::Waiting(waiting) => waiting.poll(cx),
            Self::Translated(translated) => translated.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(download) => download.is_over(),
            Self::Waiting(waiting) => waiting.is_over(),
            Self::Translated(translated) => translated.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(
                bytes.as_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(u64::MAX)),
            ),
            Self::Upstream(download) => download.left(),
            Self::Waiting(_) | Self::Translated(_) => SizeHint::default(),
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
