//! An answer in the words of the client's API, where a route led to a provider that speaks another.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use strait_model::translate::{self, Direction, Stream};
use tokio::sync::Semaphore;

use crate::{
    decide::Refused,
    protocol::http::body::{Body, Broken},
    record::now_ms,
};

/// Largest answer that isn't a stream, bytes: it is read whole.
const MOST: usize = 16 * 1024 * 1024;

/// How an answer is brought back into the client's words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Back {
    direction: Direction,
    usage: bool,
    stream: bool,
}

/// A stream on its way into another API's words.
#[derive(Debug)]
pub struct Translated {
    from: Body,
    stream: Stream,
    over: bool,
}

impl Back {
    /// `usage`: whether the client wants a stream's; `stream`: whether it asked for one.
    pub(super) fn new(direction: Direction, usage: bool, stream: bool) -> Self {
        Self { direction, usage, stream }
    }

    /// The provider's answer for the client. An answer of the gateway's own stays as it is.
    pub(super) async fn take(self, response: Response<Body>, room: &Arc<Semaphore>) -> Response<Body> {
        if response.extensions().get::<Refused>().is_some() {
            return response;
        }
        let (mut head, body) = response.into_parts();
        head.headers.remove(header::CONTENT_LENGTH);
        let now = now_ms() / 1000;
        let encoded = head.headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity");
        let events = head
            .headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
        if self.stream && events && head.status.is_success() && !encoded {
            let stream = Stream::new(self.direction, self.usage, now);
            let body = Body::Translated(Box::new(Translated { from: body, stream, over: false }));
            return Response::from_parts(head, body);
        }
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        head.headers.remove(header::CONTENT_ENCODING);
        let whole = if encoded { None } else { collected(body, room).await };
        let told = whole.as_deref().unwrap_or_default();
        let read = translate::answer(self.direction, told, now);
        let (status, text) = match read {
            Ok(answer) if head.status.is_success() => (head.status, answer.body),
            Err(why) if head.status.is_success() => {
                let said = error(&why.to_string());
                (StatusCode::BAD_GATEWAY, translate::error(self.direction, 502, &said).body)
            }
            _ => {
                let error = translate::error(self.direction, head.status.as_u16(), told);
                (StatusCode::from_u16(error.status).unwrap_or(StatusCode::BAD_GATEWAY), error.body)
            }
        };
        head.status = status;
        Response::from_parts(head, Body::full(text.into()))
    }
}

/// What either API has for an error.
fn error(message: &str) -> Vec<u8> {
    serde_json::json!({"error": {"type": "api_error", "message": message}}).to_string().into_bytes()
}

/// The body, unless it is too large, breaks off, or the run's room for model calls is taken.
async fn collected(mut body: Body, room: &Arc<Semaphore>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut taken = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            if bytes.len().saturating_add(data.len()) > MOST {
                return None;
            }
            let units = u32::try_from(data.len().div_ceil(1024)).ok()?;
            taken.push(room.try_acquire_many(units).ok()?);
            bytes.extend_from_slice(&data);
        }
    }
    Some(bytes)
}

impl Translated {
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        while !self.over {
            let mut out = Vec::new();
            match ready!(Pin::new(&mut self.from).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.stream.feed(&data, &mut out);
                    }
                    // The client has been told, so nothing more is waited for.
                    self.over = self.stream.fault().is_some();
                }
                // The client hears of it as of a cut: by an event, and by the end.
                Some(Err(_)) | None => {
                    self.over = true;
                    self.stream.finish(&mut out);
                }
            }
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out.into()))));
            }
        }
        Poll::Ready(None)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }
}
