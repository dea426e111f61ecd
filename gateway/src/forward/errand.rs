//! What a call of a tool has that other calls don't: fixed fields and a credential on its way out, and an answer that is
//! looked at on its way back.

use std::{sync::Arc, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Uri,
    header::{ACCEPT_ENCODING, AUTHORIZATION, COOKIE, IF_RANGE, ORIGIN, RANGE, REFERER, SET_COOKIE},
    response::Parts,
};
use http_body::Body as _;
use hyper::body::Incoming;
use strait_contract::code::Code;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::{
    Failure,
    sigv4::{self, Payload, Signer},
};
use crate::{
    call::{Call, HttpCall},
    credential::{Ready, remove_like},
    mask::Patterns,
    pipeline::Context,
    protocol::{
        http::body::{Collect, Orders, Payload as Upload, Source, takes_trailers},
        mcp,
        model::answer::Counting,
    },
    tools::Kind,
};

/// A permitted request with what its tool adds.
pub(super) struct Dressed<'a> {
    pub(super) call: &'a HttpCall,
    pub(super) ready: Option<&'a Ready>,
    /// The URL with values in place of placeholders.
    pub(super) url: Option<Zeroizing<String>>,
    /// What a signature says of its body.
    pub(super) payload: Option<Payload>,
}

/// Largest body that is read whole to be signed, bytes.
const MAX_SIGNED: usize = 1024 * 1024;

/// What a signature says of a request's body. A client that has signed it for itself has said its digest, which the service
/// compares with what comes; else the body is read whole.
pub(super) async fn payload(
    context: &Context,
    signer: &Signer,
    http: &HttpCall,
    request: &mut Request<Upload>,
) -> Result<Payload, Failure> {
    let malformed = |reason: String| Failure { code: Code::MalformedRequest, reason };
    let told = request.headers().get(sigv4::CONTENT_SHA256).map(HeaderValue::as_bytes);
    if let Some(payload) = Payload::told(told, http.target.scheme()).map_err(malformed)? {
        return Ok(payload);
    }
    if request.body().is_end_stream() {
        return Ok(Payload::of(&[]));
    }
    let collected = request.body_mut().collect(MAX_SIGNED, &context.caller.run.held_bytes);
    match tokio::time::timeout(context.idle_time(), collected).await {
        Ok(Ok(bytes)) => Ok(Payload::of(&bytes)),
        Ok(Err(Collect::TooLarge(_))) if signer.may_leave_out_body(http.target.scheme()) => {
            Ok(Payload::unsigned())
        }
        Ok(Err(Collect::Source(why))) => {
            Err(Failure { code: Code::ClientGone, reason: format!("the body is to be signed, and {why}") })
        }
        Ok(Err(why)) => Err(malformed(format!(
            "the body is to be signed, and {why}: send its SHA-256 as `x-amz-content-sha256`, and it streams"
        ))),
        Err(_) => Err(malformed("the body is to be signed, and it did not come in time".to_owned())),
    }
}

impl Dressed<'_> {
    /// Makes a caller's fields those of its tool. `Connection` has had its say before, so nothing put in here can be
    /// named there (case 90).
    pub(super) fn put_on(&self, fields: &mut HeaderMap) {
        let Some(tool) = &self.call.tool else { return };
        // They speak of the gateway's own address.
        for own in [ORIGIN, REFERER] {
            fields.remove(own);
        }
        if let Some(credential) = &tool.credential {
            credential.clear(fields);
            // A part of an answer may be a part of the credential, and what is encoded can't be looked through.
            for name in [RANGE, IF_RANGE] {
                fields.remove(name);
            }
            fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if matches!(tool.kind, Kind::Model) {
            // A caller's keys and accounts are its own affair; the provider gets the operator's.
            for name in KEYS.iter().chain(&ACCOUNTS) {
                remove_like(fields, name);
            }
        }
        if matches!(tool.kind, Kind::Mcp { .. } | Kind::Model) {
            fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if matches!(tool.kind, Kind::Web) {
            // Pages get nothing that names the caller.
            for name in &KEYS {
                remove_like(fields, name);
            }
            fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, identity"));
        }
        for (name, value) in &tool.headers {
            remove_like(fields, name);
            fields.insert(name.clone(), value.clone());
        }
        if let Some(ready) = self.ready {
            ready.add_to(fields);
        }
    }

    /// Signs the request, if its credential does.
    pub(super) fn sign(&self, uri: &Uri, fields: &mut HeaderMap) -> Result<(), Failure> {
        let (Some(signer), Some(payload)) = (self.ready.and_then(Ready::signer), &self.payload) else {
            return Ok(());
        };
        let now = OffsetDateTime::now_utc();
        signer
            .sign(&self.call.method, uri, fields, payload, now)
            .map_err(|reason| Failure { code: Code::Internal, reason })
    }

    /// The URL that was judged, byte for byte, and behind it the credential if that goes into the query.
    pub(super) fn uri(&self) -> Result<Uri, Failure> {
        let url = self.url.as_ref().map_or_else(|| self.call.target.url(), |url| url.as_str());
        let with_credential = self.ready.and_then(|ready| ready.url(url));
        // No error shows the URL: a credential may be in it.
        with_credential.as_ref().map_or(url, |url| url.as_str()).parse().map_err(|_| Failure {
            code: Code::Internal,
            reason: "the canonical URL can't be sent".to_owned(),
        })
    }
}

/// What servers take for a proof of who calls.
const KEYS: [HeaderName; 5] = [
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
];
/// What says on whose account a model call is.
const ACCOUNTS: [HeaderName; 3] = [
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
    HeaderName::from_static("x-goog-user-project"),
];

/// What is done to the answer of a call; `None` if nothing is.
pub(super) fn orders(
    context: &Context,
    call: &HttpCall,
    hide: Option<Arc<Patterns>>,
    headers: &HeaderMap,
) -> Option<Orders> {
    let limits = &context.settings.limits;
    let web = call.tool.as_ref().is_some_and(|tool| matches!(tool.kind, Kind::Web));
    let orders = Orders {
        hide,
        most: web.then_some(u64::from(limits.web_bytes)),
        within: web.then(|| Duration::from_secs(u64::from(limits.web_seconds))),
        trailers: takes_trailers(headers),
    };
    let mcp = call.tool.as_ref().is_some_and(|tool| matches!(tool.kind, Kind::Mcp { .. }));
    (mcp || orders.hide.is_some() || orders.most.is_some()).then_some(orders)
}

/// The answer's body under its orders, and its head made to fit.
pub(super) fn screened(
    orders: Option<Orders>,
    call: &Call,
    head: &mut Parts,
    body: Incoming,
) -> Result<Source, String> {
    if call.tool().is_some() {
        // Words of the gateway's own are not the upstream's to say.
        let ours: Vec<HeaderName> =
            head.headers.keys().filter(|name| name.as_str().starts_with("x-strait-")).cloned().collect();
        for name in ours {
            head.headers.remove(name);
        }
    }
    let ongoing = call.mcp().and_then(|call| call.ongoing.as_ref());
    let source = looked_through(orders, head, body)?;
    if let Some(model) = call.model() {
        return Ok(Source::Model(Box::new(Counting::new(Arc::clone(model), head, source))));
    }
    match ongoing {
        Some(ongoing) => mcp::answer::take(ongoing, head, source),
        None => Ok(source),
    }
}

fn looked_through(orders: Option<Orders>, head: &mut Parts, body: Incoming) -> Result<Source, String> {
    let Some(orders) = orders else { return Ok(Source::Upstream(body)) };
    if orders.hide.is_some() {
        // A session of the credential's would be the agent's to keep.
        head.headers.remove(SET_COOKIE);
    }
    if body.is_end_stream() {
        if let Some(hide) = &orders.hide {
            hide.hide_in(&mut head.headers);
        }
        return Ok(Source::Upstream(body));
    }
    Ok(Source::Screened(Box::new(orders.take(&mut head.headers, body)?)))
}
