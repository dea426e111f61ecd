//! An answer that is looked at on its way: decoded, a secret hidden, cut at a size, ended at a time.
//!
//! Memory stays flat: of what is compressed only a little is taken at once, since it may grow a thousandfold (case 50).

use std::{
    io::Write as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, TE, TRAILER},
};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::Broken;
use crate::{
    mask::{Masker, Patterns},
    protocol::{
        mcp::Filter,
        model::answer::{Answered, Counting},
    },
};

/// Says that an answer was cut, and where: in its head if its length was known, else in its trailer.
pub const TRUNCATED: HeaderName = HeaderName::from_static(NAME);
const NAME: &str = "x-strait-truncated";

/// Compressed bytes taken at once: they become half a MiB at most.
const SIP: usize = 512;

/// What is done to an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders {
    /// What to hide.
    pub(crate) hide: Option<Arc<Patterns>>,
    /// Decoded bytes after which it is cut.
    pub(crate) most: Option<u64>,
    /// How long it may take.
    pub(crate) within: Option<Duration>,
    /// Whether the client takes trailers.
    pub(crate) trailers: bool,
}

/// How the client learns that an answer was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// The head said so.
    Told,
    /// A trailer will.
    Trailer,
    /// The transfer breaks off, which every client reports.
    Break,
}

enum Decoder {
    Plain,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Deflate(Box<ZlibDecoder<Vec<u8>>>),
}

/// An answer's body under these orders.
pub(crate) struct Screen {
    from: Option<Incoming>,
    decoder: Decoder,
    masker: Option<Masker>,
    input: Bytes,
    trailers: Option<HeaderMap>,
    left: u64,
    most: u64,
    mark: Mark,
    cut: bool,
    deadline: Option<Pin<Box<Sleep>>>,
    hide: Option<Arc<Patterns>>,
}

impl Orders {
    /// Prepares the head of an answer and takes its body.
    ///
    /// # Errors
    /// Why the body can't be looked at.
    pub(crate) fn take(self, head: &mut HeaderMap, body: Incoming) -> Result<Screen, String> {
        let decoder = decoder(head)?;
        let most = self.most.unwrap_or(u64::MAX);
        let length = head.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let mark = match length {
            Some(length) if length > most => {
                head.insert(CONTENT_LENGTH, HeaderValue::from(most));
                head.insert(TRUNCATED, HeaderValue::from(most));
                Mark::Told
            }
            None if self.most.is_some() && self.trailers => {
                head.append(TRAILER, HeaderValue::from_static(NAME));
                Mark::Trailer
            }
            _ => Mark::Break,
        };
        if let Some(hide) = &self.hide {
            hide.hide_in(head);
        }
        Ok(Screen {
            from: Some(body),
            decoder,
            masker: self.hide.clone().map(Masker::new),
            input: Bytes::new(),
            trailers: None,
            left: most,
            most,
            mark,
            cut: false,
            deadline: self.within.map(|within| Box::pin(tokio::time::sleep(within))),
            hide: self.hide,
        })
    }
}

/// Whether a request's client takes trailers.
pub(crate) fn takes_trailers(headers: &HeaderMap) -> bool {
    let listed = headers.get_all(TE).iter().filter_map(|value| value.to_str().ok());
    listed.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("trailers"))
}

/// What undoes the encoding that a head names, which is gone from it then.
fn decoder(head: &mut HeaderMap) -> Result<Decoder, String> {
    let named: Vec<String> = head
        .get_all(CONTENT_ENCODING)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(|word| String::from_utf8_lossy(word).trim().to_ascii_lowercase())
        .filter(|word| !word.is_empty() && word != "identity")
        .collect();
    let decoder = match named.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => return Ok(Decoder::Plain),
        ["gzip" | "x-gzip"] => Decoder::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
        ["deflate"] => Decoder::Deflate(Box::new(ZlibDecoder::new(Vec::new()))),
        other => {
            return Err(format!(
                "the upstream encoded its answer as `{}`, which it was not asked for and which can't be looked through",
                other.join(", ")
            ));
        }
    };
    for name in [CONTENT_ENCODING, CONTENT_LENGTH] {
        head.remove(name);
    }
    Ok(decoder)
}

impl Decoder {
    fn push(&mut self, input: &[u8]) -> std::io::Result<Bytes> {
        Ok(Bytes::from(match self {
            Self::Plain => return Ok(Bytes::copy_from_slice(input)),
            Self::Gzip(decoder) => {
                decoder.write_all(input)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
            Self::Deflate(decoder) => {
                decoder.write_all(input)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
        }))
    }

    fn finish(&mut self) -> std::io::Result<Bytes> {
        Ok(Bytes::from(match self {
            Self::Plain => return Ok(Bytes::new()),
            Self::Gzip(decoder) => {
                decoder.try_finish()?;
                std::mem::take(decoder.get_mut())
            }
            Self::Deflate(decoder) => {
                decoder.try_finish()?;
                std::mem::take(decoder.get_mut())
            }
        }))
    }
}

impl Screen {
    /// Whether it was cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.from.is_none() && self.trailers.is_none()
    }

    /// Of a body that is decoded and hidden in pieces nothing is known beforehand: its head says what can be said.
    pub(crate) fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            self.from = None;
            self.deadline = None;
            return Poll::Ready(Some(Err(Broken::Late)));
        }
        loop {
            if !self.input.is_empty() {
                match self.sip() {
                    Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                    Ok(None) => continue,
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
            }
            let Some(from) = &mut self.from else {
                return Poll::Ready(match (self.trailers.take(), self.cut, self.mark) {
                    (Some(trailers), ..) => Some(Ok(Frame::trailers(trailers))),
                    (None, true, Mark::Break) => Some(Err(Broken::Cut)),
                    _ => None,
                });
            };
            match ready!(Pin::new(from).poll_frame(cx)) {
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.input = data,
                    Err(frame) => self.keep_trailers(frame),
                },
                None => match self.last() {
                    Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                    Ok(None) => {}
                    Err(error) => return Poll::Ready(Some(Err(error))),
                },
            }
        }
    }

    fn keep_trailers(&mut self, frame: Frame<Bytes>) {
        if let Ok(mut trailers) = frame.into_trailers() {
            if let Some(hide) = &self.hide {
                hide.hide_in(&mut trailers);
            }
            self.trailers = Some(trailers);
        }
    }

    /// Works on some of what has come. With the last of it the end is taken along, so that it is one frame.
    fn sip(&mut self) -> Result<Option<Frame<Bytes>>, Broken> {
        let size = if matches!(self.decoder, Decoder::Plain) { self.input.len() } else { SIP };
        let some = self.input.split_to(size.min(self.input.len()));
        let decoded = match &mut self.decoder {
            Decoder::Plain => some,
            decoder => decoder.push(&some).map_err(|error| Broken::Encoding(error.to_string()))?,
        };
        let mut out = self.hidden(decoded);
        let over = self.input.is_empty() && self.from.as_ref().is_some_and(http_body::Body::is_end_stream);
        if over {
            let tail = self.tail()?;
            if !tail.is_empty() {
                out = [out, tail].concat().into();
            }
            self.from = None;
        }
        Ok(self.bounded(out))
    }

    fn last(&mut self) -> Result<Option<Frame<Bytes>>, Broken> {
        let tail = self.tail()?;
        self.from = None;
        Ok(self.bounded(tail))
    }

    fn tail(&mut self) -> Result<Bytes, Broken> {
        let rest = self.decoder.finish().map_err(|error| Broken::Encoding(error.to_string()))?;
        let rest = self.hidden(rest);
        let held = self.masker.as_mut().map(Masker::finish).unwrap_or_default();
        Ok(if held.is_empty() { rest } else { [rest, held].concat().into() })
    }

    fn hidden(&mut self, bytes: Bytes) -> Bytes {
        match &mut self.masker {
            Some(masker) if !bytes.is_empty() => masker.push(bytes),
            _ => bytes,
        }
    }

    /// Cuts at the most; what comes behind it isn't asked for any more.
    fn bounded(&mut self, mut out: Bytes) -> Option<Frame<Bytes>> {
        let length = u64::try_from(out.len()).unwrap_or(u64::MAX);
        if length > self.left {
            out.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.cut = true;
            self.input = Bytes::new();
            self.from = None;
            self.trailers = (self.mark == Mark::Trailer)
                .then(|| HeaderMap::from_iter([(TRUNCATED, HeaderValue::from(self.most))]));
        }
        self.left = self.left.saturating_sub(length);
        (!out.is_empty()).then(|| Frame::data(out))
    }
}

/// What an answer's body comes from.
pub(crate) enum Source {
    /// The upstream itself.
    Upstream(Incoming),
    /// A body that is looked at.
    Screened(Box<Screen>),
    /// An MCP server's answer, each message of it looked at.
    Mcp(Box<Filter>),
    /// A model's answer, counted.
    Model(Box<Counting>),
}

impl Source {
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self {
            Self::Upstream(body) => {
                let frame = ready!(Pin::new(body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(Broken::from)))
            }
            Self::Screened(screen) => screen.poll_frame(cx),
            Self::Mcp(filter) => filter.poll_frame(cx),
            Self::Model(counting) => counting.poll_frame(cx),
        }
    }

    /// One that was cut isn't over before it has said so.
    pub(crate) fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream(body) => body.is_end_stream(),
            Self::Screened(screen) => screen.is_end_stream() && !(screen.cut && screen.mark == Mark::Break),
            Self::Mcp(filter) => filter.is_end_stream(),
            Self::Model(counting) => counting.is_end_stream(),
        }
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream(body) => body.size_hint(),
            Self::Screened(screen) => screen.size_hint(),
            Self::Mcp(filter) => filter.size_hint(),
            Self::Model(counting) => counting.size_hint(),
        }
    }

    /// What a model's answer came to so far.
    pub(crate) fn answered(&mut self) -> Option<Box<Answered>> {
        match self {
            Self::Model(counting) => Some(Box::new(counting.answered())),
            _ => None,
        }
    }

    pub(crate) fn is_cut(&self) -> bool {
        matches!(self, Self::Screened(screen) if screen.is_cut())
    }
}
