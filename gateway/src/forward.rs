//! The way out: resolve, vet every address, dial the vetted one.
//!
//! Architecture invariant: everything that reaches an upstream takes a [`Permitted`] first.

use std::sync::{Arc, atomic::AtomicU64};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::Body as _;
use hyper::body::Incoming;
use strait_contract::code::Code;
use tokio::sync::watch;

use crate::{
    call::{Call, HttpCall},
    credential::Ready,
    decide::{Permitted, Refusal, Refused},
    exposure::{Caught, Watch},
    pipeline::Context,
    protocol::http::{
        body::{Body, Download, Ending, Orders, Payload, Upload, Wanted},
        headers, serve, upgrade,
    },
    record::{Guard, Outcome},
    refuse,
    runs::Run,
    token, tools,
};

pub mod dial;
mod errand;
pub mod pool;
pub mod proxy;
pub mod resolve;
pub(crate) mod sigv4;
mod swapped;
pub mod trust;
pub mod vet;

use pool::{Kind, UpstreamAddr};

/// A permitted request on its way, with who will write how it ended.
struct Sending {
    call: Call,
    guard: Guard,
    sent: Arc<AtomicU64>,
    wanted: Option<watch::Sender<Wanted>>,
    /// What is done to the answer, if anything is.
    orders: Option<Orders>,
    /// Why its body was cut, if it is.
    caught: Option<Caught>,
}

/// Why a permitted request got no answer.
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

impl From<Refusal> for Failure {
    fn from(Refusal { code, reason, .. }: Refusal) -> Self {
        Self { code, reason }
    }
}

/// Sends a permitted request to its upstream and streams the answer back. Never follows a redirect, never
/// sends a request twice that may have been read.
pub(crate) async fn send(
    context: &Context,
    permitted: Permitted,
    mut request: Request<Payload>,
) -> Response<Body> {
    let ready = credential(context, &permitted).await;
    let (call, mut guard) = permitted.into_parts();
    let Some(http) = call.http() else {
        // A call that isn't HTTP comes by another way.
        let failure = Failure { code: Code::Internal, reason: "the call is not one of HTTP".to_owned() };
        return failed(call.id, guard, failure).await;
    };
    let ready = match ready {
        Ok(ready) => ready,
        Err(reason) => {
            return failed(call.id, guard, Failure { code: Code::CredentialUnavailable, reason }).await;
        }
    };
    let tool_hides = ready.as_ref().map(|ready| &ready.patterns);
    let swapped = match swapped::swap(context, &call, &mut request, tool_hides).await {
        Ok(swapped) => swapped,
        Err(failure) => return failed(call.id, guard, failure).await,
    };
    if let Some(swapped) = &swapped {
        guard.add_placeholders(&swapped.names);
    }
    let payload = match ready.as_deref().and_then(Ready::signer) {
        None => None,
        Some(signer) => match errand::payload(context, signer, http, &mut request).await {
            Ok(payload) => Some(payload),
            Err(failure) => return failed(call.id, guard, failure).await,
        },
    };
    let hide = swapped.as_ref().map_or_else(|| tool_hides.cloned(), |swapped| swapped.hide.clone());
    let orders = errand::orders(context, http, hide, request.headers());
    // What answers to a credential is looked at, and a stream of another protocol can't be.
    let upgradable = http.tool.is_none() && swapped.is_none() && request.version() == Version::HTTP_11;
    let protocol = headers::upgrade(request.headers()).filter(|_| upgradable);
    let client_side = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
    let sent = Arc::new(AtomicU64::new(0));
    let url = swapped.and_then(|swapped| swapped.url);
    let dressed = errand::Dressed { call: http, ready: ready.as_deref(), url, payload };
    let (outgoing, wanted, caught) = match outgoing(context, &dressed, request, protocol, &sent) {
        Ok(outgoing) => outgoing,
        Err(failure) => return failed(call.id, guard, failure).await,
    };
    let kind = kind(http, client_side.is_some());
    if let Some(model) = &http.model {
        model.is_sent();
    }
    let asked = context.caller.run.pool.send(&context.settings, kind, outgoing);
    let patience = orders.as_ref().and_then(|orders| orders.within).unwrap_or_else(|| context.idle_time());
    let answer = tokio::time::timeout(patience.min(context.idle_time()), asked).await;
    let sending = Sending { call, guard, sent, wanted, orders, caught };
    let mut answer = match answer {
        Ok(Ok(answer)) => answer,
        Ok(Err(failure)) => {
            let cut = sending.caught.as_ref().and_then(|caught| caught.get()).cloned();
            return failed(sending.call.id, sending.guard, cut.map_or(failure, Failure::from)).await;
        }
        Err(_) => {
            let reason = "the upstream did not begin to answer in time".to_owned();
            let failure = Failure { code: Code::UpstreamTimeout, reason };
            return failed(sending.call.id, sending.guard, failure).await;
        }
    };
    match client_side {
        Some(client_side) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
            let upstream_side = hyper::upgrade::on(&mut answer);
            upgrade::switch(context, sending.call, sending.guard, answer, client_side, upstream_side).await
        }
        None if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
            let reason = "the upstream switched to another protocol without being asked".to_owned();
            let failure = Failure { code: Code::UpstreamProtocol, reason };
            failed(sending.call.id, sending.guard, failure).await
        }
        _ => stream_back(context, sending, answer).await,
    }
}

/// Which of the run's clients sends it: the version of the client is kept, since what depends on it (upgrades,
/// gRPC) would break otherwise.
fn kind(call: &HttpCall, upgrade: bool) -> Kind {
    if call.tool.as_ref().is_some_and(|tool| matches!(tool.kind, tools::Kind::Web)) {
        Kind::Public
    } else if call.version != Version::HTTP_2 || upgrade {
        Kind::Http1
    } else if call.target.scheme() == crate::url::Scheme::Https {
        Kind::Http2
    } else {
        Kind::Http2Clear
    }
}

type Outgoing = (Request<Upload>, Option<watch::Sender<Wanted>>, Option<Caught>);

fn outgoing(
    context: &Context,
    dressed: &errand::Dressed<'_>,
    request: Request<Payload>,
    protocol: Option<HeaderValue>,
    sent: &Arc<AtomicU64>,
) -> Result<Outgoing, Failure> {
    let (head, body) = request.into_parts();
    let body_is_empty = body.is_end_stream();
    let unsized_body = !body.is_end_stream() && body.size_hint().exact().is_none();
    let mut upload = Upload::new(body, context.caller.run.info.token, Arc::clone(sent), context.idle_time());
    let watch = match body_is_empty {
        true => None,
        false => Watch::of_body(&context.gateway, &context.caller, dressed.call, &head.headers),
    };
    let caught = watch.as_ref().map(Watch::caught);
    upload = upload.watched(watch);
    let mut fields = dress(&context.caller.run, dressed, head.headers);
    if dressed.call.tool.is_some() {
        fields.remove(header::TRAILER);
        upload = upload.without_trailers();
    }
    if unsized_body && head.version == Version::HTTP_11 {
        // Without it hyper sends a GET or DELETE without the body that it has.
        fields.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if let Some(protocol) = protocol {
        fields.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        fields.insert(header::UPGRADE, protocol);
        if context.caller.run.exposure.is_some() {
            // What is compressed couldn't be looked through.
            fields.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        }
    }
    let wanted = expects_continue(&fields).then(|| watch::Sender::new(Wanted::Unknown));
    if let Some(wanted) = &wanted {
        upload = upload.gated(wanted.subscribe());
    }
    let mut outgoing = Request::new(upload);
    *outgoing.method_mut() = dressed.call.method.clone();
    *outgoing.uri_mut() = dressed.uri()?;
    // The last thing that is done to it: whatever else changes makes the signature a wrong one.
    dressed.sign(outgoing.uri(), &mut fields)?;
    *outgoing.headers_mut() = fields;
    if let Some(wanted) = &wanted {
        let wanted = wanted.clone();
        hyper::ext::on_informational(&mut outgoing, move |answer| {
            if answer.status() == StatusCode::CONTINUE {
                wanted.send_replace(Wanted::Yes);
            }
        });
    }
    Ok((outgoing, wanted, caught))
}

/// A caller's fields as they are sent.
fn dress(run: &Run, dressed: &errand::Dressed<'_>, mut fields: HeaderMap) -> HeaderMap {
    headers::for_upstream(&mut fields);
    token::strip(&mut fields, &run.info.token);
    dressed.put_on(&mut fields);
    fields
}

/// A caller's fields as they are sent but for the credential: what a person is shown.
pub(crate) fn fields(run: &Run, call: &HttpCall, fields: &HeaderMap) -> HeaderMap {
    dress(run, &errand::Dressed { call, ready: None, url: None, payload: None }, fields.clone())
}

/// What the tool of a permitted call proves itself with.
async fn credential(context: &Context, permitted: &Permitted) -> Result<Option<Arc<Ready>>, String> {
    match permitted.call().tool().and_then(|tool| tool.credential.as_ref()) {
        Some(credential) => credential.ready(&context.gateway.whois).await.map(Some),
        None => Ok(None),
    }
}

fn expects_continue(fields: &HeaderMap) -> bool {
    fields.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

async fn stream_back(context: &Context, sending: Sending, answer: Response<Incoming>) -> Response<Body> {
    let (mut head, body) = answer.into_parts();
    let addr = head.extensions.get::<UpstreamAddr>().and_then(|addr| addr.0);
    head.extensions.clear();
    let coded = headers::transfer_coded(&head.headers);
    headers::strip_hop_by_hop(&mut head.headers);
    head.version = Version::HTTP_11;
    if let Some(wanted) = &sending.wanted {
        wanted.send_if_modified(|wanted| {
            let unknown = *wanted == Wanted::Unknown;
            if unknown {
                *wanted = Wanted::Answered;
            }
            unknown
        });
    }
    let mut outcome = Outcome { status: Some(head.status.as_u16()), addr, ..Outcome::default() };
    let Sending { call, guard, sent, wanted, orders, caught } = sending;
    if coded && orders.is_some() {
        let reason =
            "the upstream sent its answer in a transfer coding that it was not asked for and that can't be \
                      looked through"
                .to_owned();
        return failed(call.id, guard, Failure { code: Code::UpstreamProtocol, reason }).await;
    }
    let mut body = match errand::screened(orders, &call, &mut head, body) {
        Ok(body) => body,
        Err(reason) => return failed(call.id, guard, Failure { code: Code::UpstreamProtocol, reason }).await,
    };
    outcome.truncated = body.is_cut();
    if body.is_end_stream() {
        outcome.model = body.answered();
    }
    let ending = Ending { guard, outcome, sent, wanted, caught };
    if body.is_end_stream() {
        // Nothing follows the head, so the head is the end of the answer.
        return match ending.write(0).await {
            Ok(()) => Response::from_parts(head, Body::empty()),
            Err(why) => serve::refused(crate::decide::unrecorded(call.id, why)),
        };
    }
    let mut download = Download::new(body, ending, context.idle_time());
    // A small answer comes whole with its head. Its record is then written before either is released, and both leave
    // in one segment.
    match download.at_once().await {
        Ok(Some(whole)) => Response::from_parts(head, Body::full(whole)),
        Ok(None) => Response::from_parts(head, Body::Upstream(Box::new(download))),
        Err(why) => serve::refused(crate::decide::unrecorded(call.id, why)),
    }
}

/// A permitted request that could not be answered.
pub(crate) async fn failed(
    id: strait_contract::ids::RecordId,
    guard: Guard,
    failure: Failure,
) -> Response<Body> {
    let Failure { code, reason } = failure;
    let status = Some(refuse::status(code).as_u16());
    let outcome = Outcome { status, ..Outcome::failed(code, reason.clone()) };
    if let Err(why) = guard.done(&outcome).await {
        return serve::refused(crate::decide::unrecorded(id, why));
    }
    let hint = match code {
        Code::CredentialUnavailable => "policy permits this call; the operator is to look at the credential",
        Code::PlaceholderMisused => {
            "policy permits this call; a placeholder is good at its own origins alone"
        }
        Code::AddressRefused | Code::NameRefused => {
            "policy permits this call, but where it leads is refused: sending it again changes nothing"
        }
        _ => "policy permits this call; the upstream is what failed",
    };
    let hint = Some(hint.to_owned());
    serve::refused(Refused { id, code, rules: Vec::new(), reason, hint })
}
