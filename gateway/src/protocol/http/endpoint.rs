//! What the gateway itself serves at `http://strait.internal`: an explanation, and tools.
//!
//! A tool's endpoint asks for the run's workload token. From there on a call of a tool is a call like any other: read,
//! decided, forwarded, recorded.

pub(crate) mod address;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header, request::Parts};
use http_body::Body as _;
use hyper::body::Incoming;
use strait_contract::{code::Code, record::ToolKind};

use self::address::Address;
use super::{Front, body::Body, read, serve};
use crate::{
    call::{Call, Via},
    decide::{self, Refusal},
    gateway::Settings,
    protocol::{mcp, model},
    token,
    tools::{Kind, Tools},
};

const ABOUT: &str = "This is Strait's gateway: everything that leaves this run passes it, is decided by policy and \
is on record.\nConnections are captured without any setting; it is also an explicit HTTP proxy (absolute-form and \
CONNECT).\nTools: /http/TOOL/PATH, /web/URL, /web?url=URL and /mcp/TOOL, models: /model/PROVIDER/PATH, with the token in $STRAIT_TOKEN.\nA refusal is JSON: \
error.code, error.reason, error.rule, error.hint and the id of its record.\n";

/// Answers a request to the gateway's own address.
pub(crate) async fn answer(front: &Front, request: Request<Incoming>) -> Response<Body> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let Some(address) = Address::read(path) else { return own(front, &head).await };
    if let Address::Model { provider, rest } = address {
        let (provider, rest) = (provider.to_owned(), rest.to_owned());
        return Box::pin(model::addressed(front, &provider, &rest, Request::from_parts(head, body))).await;
    }
    let via = if matches!(address, Address::Web(_)) { Via::Web } else { Via::Tool };
    let context = &front.context;
    let checked = same_origin(&context.settings, &head.headers)
        .and_then(|()| token::check(&context.gateway, &context.caller, &head.headers));
    if let Err(refusal) = checked {
        return serve::refused(serve::unread_via(front, via, &head, refusal).await);
    }
    // Nobody behind this sees it: not the upstream, nor a person who is asked about the call.
    token::strip(&mut head.headers, &context.caller.run.info.token);
    if let Address::Mcp(tool) = address {
        let tool = tool.to_owned();
        return mcp::answer(front, &tool, Request::from_parts(head, body)).await;
    }
    let tools = context.gateway.tools();
    let call = match call(front, &tools, &address, via, &head, body.size_hint().exact()) {
        Ok(call) => call,
        Err(refusal) => return serve::refused(serve::unread_via(front, via, &head, refusal).await),
    };
    let tool = call.tool().map(|tool| tools.check(&context.caller.run.info.agent, &tool.name));
    if let Some(Err(refusal)) = tool {
        return serve::refused(decide::refuse(&context.gateway, &call, refusal).await);
    }
    serve::send(context, call, head, body).await
}

/// What an address asks for, as a call of its tool.
fn call(
    front: &Front,
    tools: &Tools,
    address: &Address<'_>,
    via: Via,
    head: &Parts,
    body_bytes: Option<u64>,
) -> Result<Call, Refusal> {
    if head.method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) || head.method == Method::CONNECT {
        let reason = format!("the method `{}` isn't one for a tool", head.method);
        return Err(Refusal::new(Code::MalformedRequest, reason));
    }
    let (tool, target) = match address {
        Address::Http { tool, rest } => {
            let tool = tools.find(tool, ToolKind::Http)?;
            let Kind::Http(base) = &tool.kind else {
                return Err(Refusal::new(Code::Internal, "a tool isn't of its kind"));
            };
            let replaced = tool.credential.as_ref().and_then(|credential| credential.query_name());
            let target = address::join(base, rest, replaced);
            (tool.clone(), target)
        }
        Address::Web(url) => {
            let tool = tools.find("web", ToolKind::Web)?;
            (tool, url.target())
        }
        Address::Mcp(_) | Address::Model { .. } => {
            return Err(Refusal::new(Code::Internal, "what is addressed isn't a tool of this kind"));
        }
    };
    let target = target.map_err(|why| Refusal::new(why.code(), why.to_string()).hint(why.hint()))?;
    read::call(front, via, Some(tool), target, head, body_bytes)
}

/// Whether a path is one of a tool's.
pub(crate) fn is_tool(path: &str) -> bool {
    Address::read(path).is_some()
}

/// Refuses what a page of another origin sends: a browser inside the run would add the run's address by itself
/// (case 62). Clients that are no browsers send no `Origin`.
pub(crate) fn same_origin(settings: &Settings, headers: &HeaderMap) -> Result<(), Refusal> {
    for origin in headers.get_all(header::ORIGIN) {
        let text = origin.to_str().unwrap_or_default();
        let own = text.strip_prefix("http://").is_some_and(|authority| read::is_own(settings, authority));
        if !own {
            let reason = "the request comes from a page of another origin".to_owned();
            return Err(
                Refusal::new(Code::OriginRefused, reason).hint("send no `Origin`, or the gateway's own")
            );
        }
    }
    Ok(())
}

/// The gateway's own words.
async fn own(front: &Front, head: &Parts) -> Response<Body> {
    let path = head.uri.path();
    if path == "/" && matches!(head.method, Method::GET | Method::HEAD) {
        let mut response = Response::new(Body::full(Bytes::from_static(ABOUT.as_bytes())));
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
        return response;
    }
    let refusal = Refusal::new(Code::NotFound, format!("the gateway has nothing at `{path}`"))
        .hint("GET / says what this is");
    serve::refused(serve::unread(front, head, refusal).await)
}
