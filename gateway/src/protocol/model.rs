//! Calls of models, at `/model/PROVIDER/…` and at the providers' own origins (A14 to A18).
//!
//! Takes HTTP requests that a provider's API knows; gives calls that config and budget have judged, with their bodies read.
//! Policy isn't asked about them: which models an agent may use is config. What an answer used is counted behind the bytes
//! that pass ([`answer`]).
//!
//! Architecture invariant: a call made here leads below its provider's base URL, so the credential that `forward` adds goes
//! to that provider's origin and nowhere else.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

use http::{Method, Request, Response, request::Parts};
use http_body::Body as _;
use hyper::body::Incoming;
use strait_contract::{code::Code, ids::RecordId, model::Usd, provider::Content, record::ModelStep};
use strait_model::{
    api::{Dialect, Operation},
    document::Document,
    endpoint::{self, Endpoint},
    price::Price,
};

use self::draft::{Draft, Judged};
use super::http::{
    Front,
    body::{Body, Payload},
    endpoint::{address, same_origin},
    read, serve,
};
use crate::{
    budget::Reservation,
    call::{Call, Via},
    decide::{self, Refusal, decide_with},
    forward,
    hold::Carried,
    providers::Provider,
    token,
    url::Target,
};

pub(crate) mod answer;
mod body;
mod draft;
mod route;
pub(crate) mod translated;
mod words;

/// What is to be known of a model call while it is under way.
#[derive(Debug)]
pub(crate) struct ModelCall {
    /// What its records say of it.
    pub(crate) step: ModelStep,
    /// What is held of the budget for it.
    pub(crate) reservation: Option<Reservation>,
    /// The call that was tried before it and failed.
    pub(crate) parent: Option<RecordId>,
    operation: Option<Operation>,
    /// What the model costs, if that is known.
    price: Option<Price>,
    /// Estimated tokens of the request.
    input: u64,
    /// Whether the stream's counts are kept from a client that hasn't asked for them.
    hides_usage: bool,
    /// What of prompt and answer is kept.
    content: Content,
    /// When it was first sent.
    sent: OnceLock<Instant>,
    attempts: AtomicU32,
}

impl ModelCall {
    /// One of which nothing is counted: it isn't charged, or isn't sent.
    fn uncounted(step: ModelStep, operation: Option<Operation>, content: Content) -> Self {
        Self {
            step,
            reservation: None,
            parent: None,
            operation,
            price: None,
            input: 0,
            hides_usage: false,
            content,
            sent: OnceLock::new(),
            attempts: AtomicU32::new(0),
        }
    }

    /// It could not be sent: nothing of it was read by anybody.
    pub(crate) fn is_unsent(&self) {
        if let Some(reservation) = &self.reservation {
            reservation.settle(0, Some(Usd::default()));
        }
    }

    /// It is about to be sent.
    pub(crate) fn is_sent(&self) {
        self.sent.get_or_init(Instant::now);
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if let Some(reservation) = &self.reservation {
            reservation.sent();
        }
    }
}

/// A request that was judged, and is to be sent.
struct Asked {
    call: Call,
    head: Parts,
    /// Keeps its place in the run's room until an answer has begun.
    body: Payload,
    document: Document,
}

/// Answers a request to `/model/{name}{rest}`.
pub(crate) async fn addressed(
    front: &Front,
    name: &str,
    rest: &str,
    request: Request<Incoming>,
) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    let context = &front.context;
    let found = context.gateway.providers().find(name);
    let dialect = found.as_ref().map_or(Dialect::OpenAi, |provider| provider.dialect);
    let checked = same_origin(&context.settings, &head.headers)
        .and_then(|()| token::check(&context.gateway, &context.caller, &head.headers));
    let provider = match checked.and(found) {
        Ok(provider) => provider,
        Err(refusal) => return unread(front, Via::Model, dialect, &head, refusal).await,
    };
    // Nobody behind this sees it.
    token::strip(&mut head.headers, &context.caller.run.info.token);
    if rest.trim_matches('/').is_empty() && matches!(head.method, Method::GET | Method::HEAD) {
        // Claude Code asks whether anybody is there, and takes any answer for a yes.
        return Response::new(Body::empty());
    }
    match joined(&provider, rest) {
        Ok(target) => carry(front, Via::Model, provider, target, head, body).await,
        Err(refusal) => unread(front, Via::Model, dialect, &head, refusal).await,
    }
}

/// The provider to whose own origin a request is addressed, if it is a model call.
pub(crate) fn at_origin(front: &Front, call: &Call) -> Option<Arc<Provider>> {
    let http = call.http()?;
    let providers = front.context.gateway.providers();
    let provider = providers.at(&http.target)?;
    let path = provider.below(http.target.path())?;
    let known = endpoint::read(provider.dialect, http.method.as_str(), path);
    matches!(known, Endpoint::Operation(..) | Endpoint::Method(_)).then(|| Arc::clone(provider))
}

/// Answers a model call that was addressed to the provider itself: whoever its caller took for the provider, the way is the
/// same. Its key, the run's token or anything else, goes no further.
pub(crate) async fn intercepted(
    front: &Front,
    provider: Arc<Provider>,
    call: Call,
    mut head: Parts,
    body: Incoming,
) -> Response<Body> {
    let context = &front.context;
    let dialect = provider.dialect;
    let path = call.http().and_then(|http| provider.below(http.target.path_and_query()));
    let target = joined(&provider, path.unwrap_or_default());
    // The run is known; that a token is another run's is worth a refusal all the same.
    let other = token::check(&context.gateway, &context.caller, &head.headers);
    let mismatch = other.err().filter(|refusal| refusal.code == Code::TokenAddressMismatch);
    token::strip(&mut head.headers, &context.caller.run.info.token);
    match mismatch.map_or(target, Err) {
        Ok(target) => carry(front, call.via, provider, target, head, body).await,
        Err(refusal) => unread(front, call.via, dialect, &head, refusal).await,
    }
}

/// What a path leads to at a provider. A key in the query is the caller's, and not sent.
fn joined(provider: &Provider, rest: &str) -> Result<Target, Refusal> {
    let replaced = (provider.dialect == Dialect::Gemini).then_some("key");
    address::join(&provider.url, rest, replaced)
        .map_err(|why| Refusal::new(why.code(), why.to_string()).hint(why.hint()))
}

async fn unread(front: &Front, via: Via, dialect: Dialect, head: &Parts, refusal: Refusal) -> Response<Body> {
    words::in_dialect(dialect, serve::refused(serve::unread_via(front, via, head, refusal).await))
}

/// Reads, judges, decides and sends.
async fn carry(
    front: &Front,
    via: Via,
    provider: Arc<Provider>,
    target: Target,
    mut head: Parts,
    body: Incoming,
) -> Response<Body> {
    let (context, dialect) = (&front.context, provider.dialect);
    let tool = Some(Arc::clone(&provider.tool));
    let call = match read::call(front, via, tool, target, &head, body.size_hint().exact()) {
        Ok(call) => call,
        Err(refusal) => return unread(front, via, dialect, &head, refusal).await,
    };
    let mut draft = Draft::new(provider);
    let mut body = Payload::Live(body);
    let response = match draft.judge(front, &call, &mut head, &mut body).await {
        Ok(Judged::Plain) => {
            let call = draft.into_call(call);
            match decide_with(&context.gateway, call, Carried::Nothing).await {
                Ok(permitted) => {
                    Box::pin(forward::send(context, permitted, Request::from_parts(head, body))).await
                }
                Err(why) => serve::refused(why),
            }
        }
        Ok(Judged::Routed(document)) => {
            let asked = Asked { call, head, body, document };
            Box::pin(route::send(front, &draft, asked)).await
        }
        Err(refusal) => {
            let call = draft.into_call(call);
            serve::refused(decide::refuse(&context.gateway, &call, refusal).await)
        }
    };
    words::in_dialect(dialect, response)
}
