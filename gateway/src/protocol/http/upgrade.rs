//! A request that turns its connection into a stream, as WebSocket does.

use http::{HeaderValue, Response, StatusCode, header};
use hyper::{
    body::Incoming,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use strait_contract::{code::Code, ids::RecordId};

use super::{
    body::{Body, chain},
    headers, serve,
};
use crate::{
    call::{Call, Endpoint, What},
    decide,
    exposure::Watch,
    forward::{self, Failure, pool::UpstreamAddr},
    pipeline::Context,
    protocol::stream,
    record::{Guard, Outcome, facts::Line},
};

/// Answers `101` and carries bytes both ways until one side ends; the stream has records of its own, whose
/// permission is the request's.
pub(crate) async fn switch(
    context: &Context,
    call: Call,
    guard: Guard,
    answer: Response<Incoming>,
    client: OnUpgrade,
    upstream: OnUpgrade,
) -> Response<Body> {
    let (mut head, _) = answer.into_parts();
    let addr = head.extensions.get::<UpstreamAddr>().and_then(|addr| addr.0);
    let Some(protocol) = head.headers.get(header::UPGRADE).filter(|it| headers::is_websocket(it)).cloned()
    else {
        let reason = "the upstream switched to a protocol that nobody asked for".to_owned();
        return forward::failed(call.id, guard, Failure { code: Code::UpstreamProtocol, reason }).await;
    };
    let rules = guard.rules();
    let status = Some(StatusCode::SWITCHING_PROTOCOLS.as_u16());
    if let Err(why) = guard.done(&Outcome { status, addr, ..Outcome::default() }).await {
        return serve::refused(decide::unrecorded(call.id, why));
    }
    let mut stream = Guard::open(
        &context.gateway.recorder,
        RecordId::now(),
        call.caller.run.info.id.clone(),
        Line::of(&stream_of(&call)),
    );
    if let Err(why) = stream.allow(rules).await {
        return serve::refused(decide::unrecorded(stream.id(), why));
    }
    let watch = match &call.what {
        What::Http(http) => Watch::of_frames(&context.gateway, &call.caller, http),
        _ => None,
    };
    let (idle, run) = (context.idle_time(), call.caller.run.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = run.ended() => {}
            () = carry(stream, (addr, watch), idle, client, upstream) => {}
        }
    });
    head.extensions.clear();
    headers::strip_hop_by_hop(&mut head.headers);
    head.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    head.headers.insert(header::UPGRADE, protocol);
    Response::from_parts(head, Body::empty())
}

fn stream_of(call: &Call) -> Call {
    let what = match &call.what {
        What::Http(http) => {
            What::Stream(Endpoint { host: http.target.host().clone(), port: http.target.port() })
        }
        other => other.clone(),
    };
    Call { what, ..call.clone() }
}

async fn carry(
    stream: Guard,
    (addr, watch): (Option<std::net::IpAddr>, Option<Watch>),
    idle: std::time::Duration,
    client: OnUpgrade,
    upstream: OnUpgrade,
) {
    let (client, upstream): (Upgraded, Upgraded) = match tokio::try_join!(client, upstream) {
        Ok(both) => both,
        Err(error) => {
            let _ = stream.done(&Outcome::failed(Code::ClientGone, chain(&error))).await;
            return;
        }
    };
    let carried = stream::copy(&mut TokioIo::new(client), &mut TokioIo::new(upstream), idle, watch).await;
    let _ = stream.done(&carried.outcome(addr)).await;
}
