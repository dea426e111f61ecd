//! Requests of one connection, each read, decided and forwarded anew (case 14).

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use strait_contract::code::Code;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::{
    Front,
    body::Body,
    endpoint,
    head::{self, HeadLimits, Strict},
    proxy, read::{self, Asked},
};
use crate::{
    decide::{Refusal, Refused, decide, refuse, refuse_line},
    forward,
    limits::H2_STREAMS,
    record::facts::Line,
    refuse as words,
};

/// Serves HTTP/1.x until the connection ends.
pub(crate) async fn http1<IO>(front: Front, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let context = front.context.clone();
    let (strict, watch) = Strict::new(io, limits(&front));
    let front = Arc::new(front);
    let service = {
        let front = Arc::clone(&front);
        service_fn(move |request| answer(Arc::clone(&front), request))
    };
    let connection = http1_builder(&front).serve_connection(TokioIo::new(strict), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let mut stop = context.stop.clone();
    let served = tokio::select! {
        served = connection.as_mut() => served,
        _ = stop.wait_for(|stop| *stop) => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of a run broke");
    }
    if let Some(violation) = watch.violation() {
        malformed(&front, &violation.to_string(), &watch).await;
    }
}

/// Serves HTTP/2 until the connection ends.
pub(crate) async fn http2<IO>(front: Front, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stop = front.context.stop.clone();
    let idle = front.context.idle_time();
    let head_bytes = front.context.settings.limits.head_bytes;
    let front = Arc::new(front);
    let service = service_fn(move |request| answer(Arc::clone(&front), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS)
        .max_header_list_size(head_bytes)
        .adaptive_window(true)
        .keep_alive_interval(Some(idle / 2))
        .keep_alive_timeout(Duration::from_secs(20))
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        _ = stop.wait_for(|stop| *stop) => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of a run broke");
    }
}

pub(crate) fn http1_builder(front: &Front) -> http1::Builder {
    let mut builder = http1::Builder::new();
    let head_bytes = usize::try_from(front.context.settings.limits.head_bytes).unwrap_or(65_536);
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(front.context.idle_time())
        .max_buf_size(head_bytes.max(16 * 1024))
        .half_close(true);
    builder
}

pub(crate) fn limits(front: &Front) -> HeadLimits {
    let limits = &front.context.settings.limits;
    HeadLimits { head_bytes: usize::try_from(limits.head_bytes).unwrap_or(65_536), head_time: front.context.head_time() }
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
    let request = Request::from_parts(head, body);
    Ok(match asked {
        Asked::Call(call) => match decide(&front.context.gateway, *call).await {
            Ok(permitted) => forward::send(&front.context, permitted, request).await,
            Err(why) => refused(why),
        },
        Asked::Tunnel(to) => proxy::tunnel(&front.context, to, request),
        Asked::Own => endpoint::answer(&front, &request).await,
    })
}

/// Records a request that is no call.
pub(crate) async fn unread(front: &Front, head: &http::request::Parts, refusal: Refusal) -> Refused {
    let (to, request) = read::facts_of(front, head);
    let line = Line::unread(&front.context.caller, front.via, to, request);
    let status = words::status(refusal.code).as_u16();
    refuse_line(&front.context.gateway, &front.context.caller, line, Some(status), refusal).await
}

/// A refusal in HTTP's words.
pub(crate) fn refused(why: Refused) -> Response<Body> {
    words::response(&why).map(Body::full)
}
