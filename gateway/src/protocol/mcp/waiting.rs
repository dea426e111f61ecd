//! An answer that is long in coming: a person is asked, or the server is silent. A client that takes events is given a
//! stream meanwhile, with comments that keep the connection from looking dead (A22, case 58).

use std::{
    future::Future,
    pin::Pin,
    task::{Context as Task, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, header};
use http_body::{Body as _, Frame};
use strait_contract::{code::Code, ids::RecordId};
use strait_policies::json::Json;
use tokio::time::{Instant, Sleep};

use super::{
    headers::is_media,
    message::{ANSWER_LIMITS, rpc},
    sse::{COMMENT, Event},
    words,
};
use crate::{
    decide::Refused,
    pipeline::Context,
    protocol::http::body::{Body, Broken},
};

/// How long a client waits for the head of its answer before it is given a stream.
const PATIENCE: Duration = Duration::from_secs(10);

type Work = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// A stream in which an answer is still to come.
pub struct Waiting {
    id: Json,
    state: State,
    quiet: Pin<Box<Sleep>>,
    patience: Duration,
}

enum State {
    Working(Work),
    /// It came as a stream.
    Events(Box<Body>),
    /// It came as one message.
    Message(Box<Body>, BytesMut),
    Over,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The answer, or a stream in which it will come.
pub(super) async fn answer(context: &Context, id: Json, mut work: Work) -> Response<Body> {
    let patience = PATIENCE.min(context.idle_time() / 5);
    tokio::select! {
        answer = &mut work => return answer,
        () = tokio::time::sleep(patience) => {}
    }
    let quiet = Box::pin(tokio::time::sleep(Duration::ZERO));
    let waiting = Waiting { id, state: State::Working(work), quiet, patience };
    let mut response = Response::new(Body::Waiting(Box::new(waiting)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

impl Waiting {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    pub(crate) fn poll(&mut self, task: &mut Task<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.step(task) {
            Poll::Pending => {
                if matches!(self.state, State::Events(_)) {
                    // It has comments of its own.
                    return Poll::Pending;
                }
                ready!(self.quiet.as_mut().poll(task));
                self.quiet.as_mut().reset(Instant::now() + self.patience);
                // Registers the timer anew.
                let _ = self.quiet.as_mut().poll(task);
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT)))))
            }
            ready => ready,
        }
    }

    fn step(&mut self, task: &mut Task<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            match &mut self.state {
                State::Working(work) => {
                    let (head, body) = ready!(work.as_mut().poll(task)).into_parts();
                    let media = head.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
                    let events = media.is_some_and(|media| is_media(media, b"text/event-stream"));
                    self.state = if events && head.status.is_success() {
                        State::Events(Box::new(body))
                    } else {
                        State::Message(Box::new(body), BytesMut::new())
                    };
                }
                State::Events(body) => {
                    let frame = ready!(Pin::new(body.as_mut()).poll_frame(task));
                    if frame.is_none() {
                        self.state = State::Over;
                    }
                    return Poll::Ready(frame);
                }
                State::Message(body, whole) => match ready!(Pin::new(body.as_mut()).poll_frame(task)) {
                    Some(Ok(frame)) => {
                        let data = frame.into_data().unwrap_or_default();
                        if whole.len().saturating_add(data.len()) <= ANSWER_LIMITS.bytes {
                            whole.extend_from_slice(&data);
                        }
                    }
                    Some(Err(error)) => {
                        self.state = State::Over;
                        return Poll::Ready(Some(Err(error)));
                    }
                    None => {
                        let data = self.message();
                        self.state = State::Over;
                        return Poll::Ready(Some(Ok(Frame::data(Event::message(data).to_bytes()))));
                    }
                },
                State::Over => return Poll::Ready(None),
            }
        }
    }

    /// The answer as one message, whatever it was.
    fn message(&self) -> String {
        let whole = match &self.state {
            State::Message(_, whole) => whole,
            _ => &BytesMut::new(),
        };
        match Json::parse(whole, &ANSWER_LIMITS) {
            Ok(json) if json.get("jsonrpc").is_some() => json.to_string(),
            _ => {
                let why = Refused {
                    id: RecordId::now(),
                    code: Code::UpstreamProtocol,
                    rules: Vec::new(),
                    reason: "the server's answer is no message".to_owned(),
                    hint: None,
                };
                words::error(Some(&self.id), rpc::REFUSED, &why)
            }
        }
    }
}
