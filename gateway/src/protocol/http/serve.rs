//! Requests of one connection, each read, decided and forwarded anew (case 14).

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use strait_contract::{
    code::Code,
    record::{Destination, Kind},
};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    Front, Origin,
    body::{Body, Payload, chain},
    endpoint,
    head::{HeadLimits, Strict, Watch},
    proxy,
    read::{self, Asked},
};
use crate::{
    call::{Call, Via},
    decide::{Refusal, Refused, decide_with, refuse_line},
    forward,
    hold::Carried,
    limits::H2_STREAMS,
    pipeline::Context,
    protocol::model,
    record::facts::{self, Line},
    refuse as words,
};

/// Serves HTTP/1.x until the connection ends.
pub(crate) async fn http1<IO>(front: Front, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (strict, watch) = Strict::new(io, limits(&front));
    let (front, watch) = (Arc::new(front), Arc::new(watch));
    let service = {
        let (front, watch) = (Arc::clone(&front), Arc::clone(&watch));
        service_fn(move |request| watched(Arc::clone(&front), Arc::clone(&watch), request))
    };
    let connection = builder(&front).serve_connection(TokioIo::new(strict), service).with_upgrades();
    let (served, silent) = {
        let mut connection = std::pin::pin!(connection);
        let patience = first_head(&front, &watch);
        tokio::select! {
            served = connection.as_mut() => (served, false),
            () = patience => (Ok(()), true),
            () = front.context.stopped() => {
                connection.as_mut().graceful_shutdown();
                (connection.as_mut().await, false)
            }
        }
    };
    if silent {
        let seconds = front.context.settings.limits.head_seconds;
        let reason = format!("no whole request head came within {seconds} s");
        let refusal = Refusal::new(Code::MalformedRequest, reason);
        if let Some(watch) = Arc::into_inner(watch) {
            malformed(&front, refusal, Some(watch)).await;
        }
        return;
    }
    // A violation while an answer is under way cancels that, and nothing may be written over it.
    let clean = served.is_ok();
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of a run broke");
        if error.is_parse() && watch.violation().is_none() {
            // hyper has answered with a bare 400.
            let refusal =
                Refusal::new(Code::MalformedRequest, format!("the head can't be read: {}", chain(&error)));
            malformed::<IO>(&front, refusal, None).await;
        }
    }
    if let Some((violation, watch)) = watch.violation().zip(Arc::into_inner(watch)) {
        let watch = clean.then_some(watch);
        malformed(&front, Refusal::new(Code::MalformedRequest, violation.to_string()), watch).await;
    }
}

/// Resolves if a connection has brought no head within its time. Later heads have the idle time: between
/// them a connection may rest.
async fn first_head<IO>(front: &Front, watch: &Watch<IO>) {
    tokio::time::sleep(front.context.head_time()).await;
    if watch.heads() > 0 || watch.violation().is_some() {
        std::future::pending::<()>().await;
    }
}

/// Answers one request and tells the head filter whether the connection stays HTTP.
async fn watched<IO>(
    front: Arc<Front>,
    watch: Arc<Watch<IO>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let tunnel = request.method() == Method::CONNECT;
    let response = answer(front, request).await?;
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if switched || (tunnel && response.status().is_success()) {
        watch.upgraded();
    } else if tunnel {
        watch.refused();
    }
    Ok(response)
}

/// Records a message that is not HTTP as it should be, and says so to the client on the raw stream.
async fn malformed<IO>(front: &Front, refusal: Refusal, watch: Option<Watch<IO>>)
where
    IO: AsyncWrite + Unpin,
{
    let to = match &front.place {
        Origin::Fixed { to, .. } => facts::destination(to),
        Origin::Proxy => Destination::default(),
    };
    let line = Line::connection(Kind::Request, &front.context.caller, front.via, to);
    let status = Some(words::status(refusal.code).as_u16());
    let refused = refuse_line(&front.context.gateway, &front.context.caller, line, status, refusal).await;
    if let Some(watch) = watch {
        let _ = watch.write_raw(&words::raw(&refused)).await;
    }
}

/// Serves HTTP/2 until the connection ends.
pub(crate) async fn http2<IO>(front: Front, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let context = front.context.clone();
    let front = Arc::new(front);
    let refusing = Arc::clone(&front);
    let service = service_fn(move |request| answer(Arc::clone(&front), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS)
        .max_header_list_size(context.settings.limits.head_bytes)
        .adaptive_window(true)
        .keep_alive_interval(Some(context.idle_time() / 2))
        .keep_alive_timeout(Duration::from_secs(20))
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = context.stopped() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    let Err(error) = served else { return };
    tracing::debug!(%error, "a connection of a run broke");
    if breaks_http2(&error) {
        // hyper has told the client with GOAWAY; HTTP/2 has no words for more.
        let reason = format!("what came isn't HTTP/2: {}", chain(&error));
        malformed::<tokio::io::Empty>(&refusing, Refusal::new(Code::MalformedRequest, reason), None).await;
    }
}

/// Whether a connection ended because the client broke the protocol, not because it went away.
fn breaks_http2(error: &hyper::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<h2::Error>() {
            return error.is_library() && !error.is_io();
        }
        cause = inner.source();
    }
    false
}

/// A client that closes its side has gone, and what it asked for is cancelled upstream: a half-closed
/// connection can't be told from a closed one, and an answer nobody reads may cost money.
fn builder(front: &Front) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(front.context.idle_time())
        .max_buf_size(head_bytes(front).max(16 * 1024));
    builder
}

fn limits(front: &Front) -> HeadLimits {
    HeadLimits { bytes: head_bytes(front), ..HeadLimits::default() }
}

fn head_bytes(front: &Front) -> usize {
    usize::try_from(front.context.settings.limits.head_bytes).unwrap_or(64 * 1024)
}

/// Answers one request.
pub(crate) async fn answer(
    front: Arc<Front>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let body_bytes = body.size_hint().exact();
    let asked = match read::read(&front, &head, body_bytes) {
        Ok(asked) => asked,
        Err(refusal) => return Ok(refused(unread(&front, &head, refusal).await)),
    };
    Ok(match asked {
        Asked::Call(call) => match model::at_origin(&front, &call) {
            Some(provider) => Box::pin(model::intercepted(&front, provider, *call, head, body)).await,
            None => send(&front.context, *call, head, body).await,
        },
        Asked::Tunnel(to) => proxy::tunnel(&front.context, to, Request::from_parts(head, body)),
        Asked::Own => endpoint::answer(&front, Request::from_parts(head, body)).await,
    })
}

/// Has a call decided and, if it may pass, sent.
pub(crate) async fn send(
    context: &Context,
    call: Call,
    head: http::request::Parts,
    body: Incoming,
) -> Response<Body> {
    let mut body = Payload::Live(body);
    let carried = Carried::Http { head: &head.headers, body: &mut body };
    match decide_with(&context.gateway, call, carried).await {
        // On the heap, so that a call that waits for a person doesn't take the room of one that is sent.
        Ok(permitted) => Box::pin(forward::send(context, permitted, Request::from_parts(head, body))).await,
        Err(why) => refused(why),
    }
}

/// Records a request that is no call.
pub(crate) async fn unread(front: &Front, head: &http::request::Parts, refusal: Refusal) -> Refused {
    unread_via(front, front.via, head, refusal).await
}

/// [`unread`] where the endpoint that was asked is known.
pub(crate) async fn unread_via(
    front: &Front,
    via: Via,
    head: &http::request::Parts,
    refusal: Refusal,
) -> Refused {
    let (to, request) = read::facts_of(front, head);
    let line = Line::unread(&front.context.caller, via, to, request);
    let status = words::status(refusal.code).as_u16();
    refuse_line(&front.context.gateway, &front.context.caller, line, Some(status), refusal).await
}

/// A refusal in HTTP's words.
pub(crate) fn refused(why: Refused) -> Response<Body> {
    let mut response = words::response(&why).map(Body::full);
    // For those who say it in another protocol's words.
    response.extensions_mut().insert(why);
    response
}
