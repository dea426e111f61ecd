//! MCP tools at `/mcp/TOOL`: streamable HTTP in both of its eras, each message read, decided, sent as it was judged.
//!
//! Takes HTTP requests that carry one JSON-RPC message, or ask for a stream or the end of a session; gives calls. What
//! servers answer is looked at as well: runs see the tools that they may call, and no question of a server's that the
//! tool's config doesn't opt into.
//!
//! Architecture invariant: what a server gets is written anew from what was judged, and nothing that isn't one JSON-RPC
//! message goes either way.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use strait_contract::{code::Code, record::ToolKind};
use strait_policies::{Arguments, json::Json};

use self::{
    exchange::Exchange,
    message::{Fault, Kind, Message, rpc},
    methods::Standing,
};
use super::http::{
    Front,
    body::{Body, Collect, Payload},
    read,
};
use crate::{
    call::{Call, McpCall, Via, What},
    decide::{self, Refusal, Refused, decide_with},
    forward,
    hold::Carried,
    tools::{Kind as ToolIs, Tool},
    url::Target,
};

pub(crate) mod answer;
mod back;
pub(crate) mod drift;
mod exchange;
mod headers;
mod listing;
mod message;
mod methods;
#[cfg(any(test, fuzzing))]
pub mod properties;
pub(crate) mod seen;
pub(crate) mod session;
mod sse;
mod waiting;
mod words;

pub use self::waiting::Waiting;
pub(crate) use self::{answer::Filter, exchange::Exchange as Ongoing};

/// A request that was read, ready to be decided.
struct Asked {
    call: Call,
    exchange: Arc<Exchange>,
    head: Parts,
    body: Payload,
    /// Why it is refused whatever policy says.
    refused: Option<Refusal>,
    /// The JSON-RPC code of a refusal.
    rpc: i32,
}

/// Answers a request to `/mcp/{name}` whose token was checked.
pub(crate) async fn answer(front: &Front, name: &str, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let mut body = Payload::Live(body);
    let asked = match read_request(front, name, &head, &mut body).await {
        Ok(read) => read,
        Err(fault) => return words::unread(front, &head, fault).await,
    };
    let (exchange, message, tool, target) = asked;
    let asked = match asked_of(front, head, body, exchange, message, tool, target) {
        Ok(asked) => asked,
        Err(unread) => {
            let (head, fault) = *unread;
            return words::unread(front, &head, fault).await;
        }
    };
    let patient = asked.head.method == Method::POST
        && headers::takes_events(&asked.head.headers)
        && asked.call.mcp().is_some_and(|call| call.name.is_some());
    let id = asked.exchange.id.clone();
    let work: Pin<Box<dyn Future<Output = Response<Body>> + Send>> =
        Box::pin(carry_out(front.clone(), asked));
    match id {
        Some(id) if patient => waiting::answer(&front.context, id, work).await,
        _ => work.await,
    }
}

type Read = (Arc<Exchange>, Option<Message>, Arc<Tool>, Target);

/// Reads everything of a request that says what it is.
async fn read_request(front: &Front, name: &str, head: &Parts, body: &mut Payload) -> Result<Read, Fault> {
    let context = &front.context;
    let tools = context.gateway.tools();
    let tool = tools.find(name, ToolKind::Mcp).map_err(|refusal| Fault::refused(rpc::REFUSED, refusal))?;
    let ToolIs::Mcp { url, .. } = &tool.kind else {
        let refusal = Refusal::new(Code::Internal, "a tool isn't of its kind");
        return Err(Fault::refused(rpc::REFUSED, refusal));
    };
    let target = url.clone();
    let message = match head.method {
        Method::POST => {
            headers::check_media(&head.headers)?;
            let bytes = collect(front, body).await?;
            let mut message = Message::parse(&bytes)?;
            listing::withdraw_capabilities(&mut message.json, &tool);
            Some(message)
        }
        Method::GET if headers::takes_events(&head.headers) => None,
        Method::GET => {
            let reason = "`Accept` doesn't list text/event-stream";
            return Err(Fault::malformed(rpc::INVALID, reason).status(StatusCode::NOT_ACCEPTABLE));
        }
        Method::DELETE => None,
        _ => {
            let reason = format!("the method `{}` isn't one of MCP's", head.method);
            return Err(Fault::malformed(rpc::INVALID, reason).status(StatusCode::METHOD_NOT_ALLOWED));
        }
    };
    let id = message.as_ref().and_then(Message::id).cloned();
    let exchange =
        exchange(front, head, message.as_ref(), (&tool, &target)).map_err(|fault| fault.of(id.as_ref()))?;
    Ok((Arc::new(exchange), message, tool, target))
}

/// The whole body, its place in the run's room kept.
async fn collect(front: &Front, body: &mut Payload) -> Result<Bytes, Fault> {
    let context = &front.context;
    let read = body.collect(message::LIMITS.bytes, &context.caller.run.held_bytes);
    let failed = match tokio::time::timeout(context.idle_time(), read).await {
        Ok(Ok(bytes)) => return Ok(bytes),
        Ok(Err(why)) => why,
        Err(_) => Collect::Late,
    };
    let refused = |code, reason: String| Fault::refused(rpc::INVALID, Refusal::new(code, reason));
    Err(match failed {
        Collect::TooLarge(most) => {
            Fault::malformed(rpc::INVALID, format!("the message is longer than {most} bytes"))
                .status(StatusCode::PAYLOAD_TOO_LARGE)
        }
        Collect::Full => {
            refused(Code::LimitExceeded, "the messages under way take the run's whole room".to_owned())
        }
        Collect::Trailers => {
            refused(Code::MalformedRequest, "there are fields behind the message".to_owned())
        }
        Collect::Late => refused(Code::MalformedRequest, "the message did not come in time".to_owned()),
        Collect::Source(_) => refused(Code::ClientGone, "the client broke off its message".to_owned()),
    })
}

/// What is to be known while a request is under way.
fn exchange(
    front: &Front,
    head: &Parts,
    message: Option<&Message>,
    server: (&Arc<Tool>, &Target),
) -> Result<Exchange, Fault> {
    let tool = server.0;
    let stateless = headers::check_version(&head.headers, message)?;
    if let Some(message) = message {
        headers::check_mirrored(&head.headers, message, stateless)?;
    }
    let sessions = &front.context.caller.run.mcp;
    let session = match headers::single(&head.headers, &headers::SESSION)? {
        None => None,
        Some(_) if message.and_then(Message::method) == Some("initialize") => {
            return Err(Fault::malformed(rpc::INVALID, "`initialize` begins a session and can't be in one"));
        }
        Some(ours) => match sessions.find(&tool.name, ours) {
            Some(session) => Some(session),
            None => {
                let refusal = Refusal::new(Code::NotFound, "this run has no such session with this tool")
                    .hint("send `initialize` again to begin a new one");
                return Err(Fault::refused(rpc::SESSION, refusal));
            }
        },
    };
    if head.method == Method::DELETE && session.is_none() {
        return Err(Fault::malformed(rpc::INVALID, "`Mcp-Session-Id` doesn't say which session is to end"));
    }
    let request = message.filter(|message| matches!(message.kind, Kind::Request { .. }));
    Ok(Exchange::new(
        &front.context,
        server,
        session,
        head.headers.get(headers::VERSION).cloned(),
        stateless,
        request,
        head.method == Method::DELETE,
    ))
}

/// The request as a call.
fn asked_of(
    front: &Front,
    mut head: Parts,
    mut body: Payload,
    exchange: Arc<Exchange>,
    message: Option<Message>,
    tool: Arc<Tool>,
    target: Target,
) -> Result<Asked, Box<(Parts, Fault)>> {
    let id = exchange.id.clone();
    let failed = |head: Parts, fault: Fault| Err(Box::new((head, fault.of(id.as_ref()))));
    let text = message.as_ref().map(|message| Bytes::from(message.json.to_string()));
    let length = text.as_ref().map(|text| u64::try_from(text.len()).unwrap_or(u64::MAX));
    let call = match read::call(front, Via::Tool, Some(Arc::clone(&tool)), target, &head, length) {
        Ok(call) => call,
        Err(refusal) => return failed(head, Fault::refused(rpc::INVALID, refusal)),
    };
    let read = match message.as_ref() {
        Some(message) => meaning(message, &tool, &exchange, front),
        None => Ok(Meaning::of(if head.method == Method::GET { "stream" } else { "session/delete" })),
    };
    let meaning = match read {
        Ok(meaning) => meaning,
        Err(fault) => return failed(head, fault),
    };
    body.replace(text.unwrap_or_default());
    for name in [header::CONTENT_LENGTH, header::EXPECT, header::TRAILER, headers::SESSION] {
        head.headers.remove(name);
    }
    if let Some(session) = &exchange.session {
        head.headers.insert(headers::SESSION, session.theirs.clone());
    }
    if length.is_some() {
        head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let Meaning { method, name, arguments, protocol, shown, refused, rpc } = meaning;
    let what = match call.what {
        What::Http(http) => What::Mcp(Box::new(McpCall {
            http,
            method,
            name,
            arguments,
            protocol,
            inbound: false,
            shown,
            ongoing: Some(Arc::clone(&exchange)),
        })),
        other => other,
    };
    Ok(Asked { call: Call { what, ..call }, exchange, head, body, refused, rpc })
}

/// What a message asks for.
struct Meaning {
    method: String,
    name: Option<String>,
    arguments: Arguments,
    protocol: bool,
    shown: Option<Json>,
    refused: Option<Refusal>,
    rpc: i32,
}

impl Meaning {
    fn of(method: &str) -> Self {
        Self {
            method: method.to_owned(),
            name: None,
            arguments: Arguments::none(),
            protocol: true,
            shown: None,
            refused: None,
            rpc: rpc::REFUSED,
        }
    }
}

fn meaning(message: &Message, tool: &Tool, exchange: &Exchange, front: &Front) -> Result<Meaning, Fault> {
    let params = message.json.get("params");
    let (method, standing) = match &message.kind {
        Kind::Request { method, .. } => (method.as_str(), methods::of_request(method)),
        Kind::Notification { method } => (method.as_str(), methods::of_notification(method)),
        Kind::Response { id } => {
            let sessions = &front.context.caller.run.mcp;
            if !sessions.answers(&tool.name, exchange.session.as_deref(), id.to_string()) {
                let reason = "the message answers no question that the server has asked";
                return Err(Fault::malformed(rpc::INVALID, reason));
            }
            let shown = message.json.get("result").or_else(|| message.json.get("error")).cloned();
            return Ok(Meaning { shown, ..Meaning::of("response") });
        }
    };
    let meaning = Meaning { shown: params.cloned(), ..Meaning::of(method) };
    Ok(match standing {
        Standing::Protocol => meaning,
        Standing::Tool => {
            let name = message.param("name").and_then(Json::as_text);
            let Some(name) = name.filter(|name| methods::is_tool_name(name)) else {
                let reason =
                    "`params.name` is not the name of a tool: 1 to 128 bytes without control characters";
                return Err(Fault::malformed(rpc::PARAMS, reason));
            };
            let arguments = match message.param("arguments") {
                None => Arguments::none(),
                Some(json) => arguments(json)?,
            };
            let refused = drift::check(&front.context.gateway, &tool.name, name).err();
            let shown = params.map(methods::without_protocol);
            Meaning { name: Some(name.to_owned()), arguments, protocol: false, shown, refused, ..meaning }
        }
        Standing::Group(group) if methods::opts_in(tool, group) => {
            let shown = params.map(methods::without_protocol);
            let arguments = shown.as_ref().map_or_else(|| Ok(Arguments::none()), arguments)?;
            Meaning { arguments, protocol: false, shown, ..meaning }
        }
        Standing::Group(group) => {
            let refused = Some(methods::not_opted_in(tool, method, group));
            Meaning { protocol: false, refused, rpc: rpc::METHOD, ..meaning }
        }
        Standing::Unknown => {
            let refused = Some(methods::unknown(method));
            Meaning { protocol: false, refused, rpc: rpc::METHOD, ..meaning }
        }
    })
}

fn arguments(json: &Json) -> Result<Arguments, Fault> {
    Arguments::from_json(json.clone()).map_err(|error| Fault::malformed(rpc::PARAMS, error.to_string()))
}

/// Decides, sends, and puts the answer into MCP's words.
async fn carry_out(front: Front, asked: Asked) -> Response<Body> {
    let Asked { call, exchange, head, body, refused, rpc } = asked;
    let context = &front.context;
    let tools = context.gateway.tools();
    let listed = tools.check(&context.caller.run.info.agent, &exchange.tool.name);
    let decided: Result<_, Refused> = match listed.err().or(refused) {
        Some(refusal) => Err(decide::refuse(&context.gateway, &call, refusal).await),
        None => decide_with(&context.gateway, call, Carried::Nothing).await,
    };
    let permitted = match decided {
        Ok(permitted) => permitted,
        Err(why) => return words::refused(exchange.id.as_ref(), rpc, &why),
    };
    let _ = exchange.call.set(permitted.call().id);
    exchange.sent();
    let mut response = Box::pin(forward::send(context, permitted, Request::from_parts(head, body))).await;
    // One of ours: the upstream's extensions never get here.
    if let Some(why) = response.extensions_mut().remove::<Refused>() {
        exchange.over();
        return words::refused(exchange.id.as_ref(), rpc, &why);
    }
    response
}
