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

use bytes::Bytes;
use http::{Method, Request, Response, header, request::Parts};
use http_body::Body as _;
use hyper::body::Incoming;
use strait_contract::{code::Code, record::ModelStep};
use strait_model::{
    api::{Dialect, Operation},
    endpoint::{self, Endpoint},
};

use super::http::{
    Front,
    body::{Body, Payload},
    endpoint::{address, same_origin},
    headers, read, serve,
};
use crate::{
    budget::Reservation,
    call::{Call, Via, What},
    decide::{self, Refusal, decide_with},
    forward,
    hold::Carried,
    providers::Provider,
    token,
    url::Target,
};

pub(crate) mod answer;
mod body;
mod words;

/// What is to be known of a model call while it is under way.
#[derive(Debug)]
pub(crate) struct ModelCall {
    /// What its records say of it.
    pub(crate) step: ModelStep,
    /// What is held of the budget for it.
    pub(crate) reservation: Option<Reservation>,
    operation: Option<Operation>,
    /// When it was first sent.
    sent: OnceLock<Instant>,
    attempts: AtomicU32,
}

impl ModelCall {
    /// It is about to be sent.
    pub(crate) fn is_sent(&self) {
        self.sent.get_or_init(Instant::now);
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if let Some(reservation) = &self.reservation {
            reservation.sent();
        }
    }
}

/// What is known of a request so far.
struct Draft {
    provider: Arc<Provider>,
    operation: Option<Operation>,
    step: ModelStep,
    reservation: Option<Reservation>,
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
    let judged = draft.judge(front, &call, &mut head, &mut body).await;
    let call = draft.into_call(call);
    let decided = match judged {
        Ok(()) => decide_with(&context.gateway, call, Carried::Nothing).await,
        Err(refusal) => Err(decide::refuse(&context.gateway, &call, refusal).await),
    };
    let response = match decided {
        Ok(permitted) => Box::pin(forward::send(context, permitted, Request::from_parts(head, body))).await,
        Err(why) => serve::refused(why),
    };
    words::in_dialect(dialect, response)
}

impl Draft {
    fn new(provider: Arc<Provider>) -> Self {
        let step = ModelStep { provider: provider.name().to_string(), ..ModelStep::default() };
        Self { provider, operation: None, step, reservation: None }
    }

    /// The call with what is known of it.
    fn into_call(self, mut call: Call) -> Call {
        let Self { provider: _, operation, step, reservation } = self;
        if let What::Http(http) = &mut call.what {
            http.model = Some(Arc::new(ModelCall {
                step,
                reservation,
                operation,
                sent: OnceLock::new(),
                attempts: AtomicU32::new(0),
            }));
        }
        call
    }

    /// Reads what is asked for and judges it.
    async fn judge(
        &mut self,
        front: &Front,
        call: &Call,
        head: &mut Parts,
        body: &mut Payload,
    ) -> Result<(), Refusal> {
        let Some(http) = call.http() else { return Err(Refusal::new(Code::Internal, "the call isn't HTTP")) };
        let upgrades = head.headers.get_all(header::UPGRADE).iter().any(headers::is_websocket);
        if upgrades {
            return Err(Refusal::new(Code::UpgradeRefused, "WebSocket isn't offered for calls of models")
                .hint("send the same request as POST; its answer can be a stream of events"));
        }
        let path = self.provider.below(http.target.path()).unwrap_or_default();
        let (operation, named) = match endpoint::read(self.provider.dialect, head.method.as_str(), path) {
            Endpoint::Operation(operation, model) => (operation, model),
            Endpoint::Group(group) => return self.group(group),
            Endpoint::Method(method) => {
                let reason = format!("`{path}` is asked for with {method}, not {}", head.method);
                return Err(Refusal::new(Code::NotFound, reason));
            }
            Endpoint::Unknown => {
                let reason = format!("`{path}` is no endpoint for models that is known here");
                return Err(Refusal::new(Code::NotFound, reason).hint(
                    "chat, responses, messages, generateContent, embeddings and the like are: see the provider's API",
                ));
            }
        };
        self.operation = Some(operation);
        operation.as_str().clone_into(&mut self.step.operation);
        if let Some(named) = named {
            named.clone_into(&mut self.step.asked);
        }
        if operation == Operation::Models {
            return Ok(());
        }
        let text = body::read(front, head, body).await?;
        self.read(operation, &text)?;
        let agent = &front.context.caller.run.info.agent;
        front.context.gateway.providers().check(agent, self.provider.name(), &self.step.asked)
    }

    /// An endpoint in which nothing is counted passes if the config says so.
    fn group(&mut self, group: &str) -> Result<(), Refusal> {
        group.clone_into(&mut self.step.operation);
        if self.provider.allow.iter().any(|allowed| allowed == group) {
            return Ok(());
        }
        let name = self.provider.name();
        let reason = format!("the endpoints `{group}` of the provider `{name}` aren't passed on here");
        Err(Refusal::new(Code::ToolCallDenied, reason).hint(format!(
            "nothing in them is counted; the operator may add `{group}` to `providers.{name}.allow`"
        )))
    }

    /// What the body says.
    fn read(&mut self, operation: Operation, text: &Bytes) -> Result<(), Refusal> {
        let said = body::Said::read(text)?;
        if self.step.asked.is_empty() {
            self.step.asked = said.model.unwrap_or_default();
        }
        self.step.stream = operation == Operation::StreamGenerate || said.stream.unwrap_or_default();
        if self.step.asked.is_empty() {
            let reason = "the request names no model";
            return Err(
                Refusal::new(Code::MalformedRequest, reason).hint("put the model's name into `model`")
            );
        }
        Ok(())
    }
}
