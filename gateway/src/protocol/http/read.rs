//! From a request's head to a call. Every authority in it must agree with what the connection was made for.

use std::sync::Arc;

use http::{HeaderMap, Method, header, request::Parts};
use strait_contract::{
    code::Code,
    record::{Destination, Request},
};

use super::{Front, Origin, doh, endpoint, overrides};
use crate::{
    call::{Call, Endpoint, HttpCall, Via, What},
    decide::Refusal,
    gateway::Settings,
    pipeline::Context,
    record::facts,
    token,
    tools::Tool,
    url::{Scheme, Target, UrlError, host_and_port_with},
};

/// Name of the gateway itself.
pub(crate) const GATEWAY_NAME: &str = "strait.internal";

/// What a head asks for.
#[derive(Debug)]
pub(crate) enum Asked {
    /// A request to an origin.
    Call(Box<Call>),
    /// A tunnel.
    Tunnel(Endpoint),
    /// Something of the gateway's own.
    Own,
}

/// Reads a head.
///
/// # Errors
/// Why it can't be a call.
pub(crate) fn read(front: &Front, head: &Parts, body_bytes: Option<u64>) -> Result<Asked, Refusal> {
    if head.method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) {
        let reason = format!("the method `{}` isn't upper case", head.method);
        return Err(Refusal::new(Code::MalformedRequest, reason));
    }
    let target = match &front.place {
        Origin::Fixed { scheme, to } => fixed(&front.context.settings, *scheme, to, head)?,
        Origin::Proxy if head.method == Method::CONNECT => return tunnel(front, head).map(Asked::Tunnel),
        Origin::Proxy => match absolute(front, head)? {
            Some(target) => target,
            None => return Ok(Asked::Own),
        },
    };
    call(front, front.via, None, target, head, body_bytes).map(|call| Asked::Call(Box::new(call)))
}

/// The call of a request for `target`, of a tool if it is one.
///
/// # Errors
/// What in its head keeps it from being one.
pub(crate) fn call(
    front: &Front,
    via: Via,
    tool: Option<Arc<Tool>>,
    target: Target,
    head: &Parts,
    body_bytes: Option<u64>,
) -> Result<Call, Refusal> {
    let Context { settings, caller, .. } = &front.context;
    token::check_url(&target, &caller.run.info.token)?;
    let call = HttpCall {
        method: head.method.clone(),
        query: target.query_pairs(),
        target,
        version: head.version,
        body_bytes,
        content_type: content_type(&head.headers),
        tool,
        model: None,
    };
    doh::check(settings, &call, &head.headers)?;
    overrides::check(&call, &head.headers, &settings.names)?;
    Ok(Call::new(Arc::clone(caller), via, What::Http(call)))
}

/// A request on a connection that was made for one origin.
fn fixed(settings: &Settings, scheme: Scheme, to: &Endpoint, head: &Parts) -> Result<Target, Refusal> {
    if head.method == Method::CONNECT {
        return Err(Refusal::new(
            Code::MalformedRequest,
            "CONNECT inside a connection that leads somewhere already",
        )
        .hint("send CONNECT to the gateway's own address"));
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let named = head.uri.authority().map(|authority| authority.as_str());
    if let Some(said) = head.uri.scheme_str()
        && said != scheme.as_str()
    {
        let reason = format!("the request says `{said}`, the connection is `{}`", scheme.as_str());
        return Err(Refusal::new(Code::NameMismatch, reason));
    }
    let target = match (named, host(&head.headers)?) {
        (Some(named), Some(host)) => agreed(settings, scheme, named, host, path)?,
        (Some(one), None) | (None, Some(one)) => parse(settings, scheme, one, path)?,
        // HTTP/1.0 without Host: the connection itself says where it goes.
        (None, None) => {
            Target::from_host(scheme, to.host.clone(), to.port, path).map_err(|error| unreadable(&error))?
        }
    };
    if target.host() != &to.host || target.port() != to.port {
        let reason = format!(
            "the request names `{}:{}`, the connection was made for `{}`",
            target.host(),
            target.port(),
            to.text()
        );
        return Err(Refusal::new(Code::NameMismatch, reason)
            .hint("connect to the address that the name in the request resolves to"));
    }
    Ok(target)
}

/// A request to the gateway's own address: for an origin in absolute form, else for the gateway itself.
fn absolute(front: &Front, head: &Parts) -> Result<Option<Target>, Refusal> {
    let settings = &front.context.settings;
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let host = host(&head.headers)?;
    let Some((scheme, named)) = head.uri.scheme_str().zip(head.uri.authority()) else {
        let own = host.is_none_or(|host| is_own(settings, host));
        return if own { Ok(None) } else { Err(foreign(host.unwrap_or_default(), path)) };
    };
    if is_own(settings, named.as_str()) {
        return match host {
            Some(host) if !is_own(settings, host) => Err(foreign(host, path)),
            _ => Ok(None),
        };
    }
    let scheme = match scheme {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        other => {
            let reason = format!("the scheme `{other}` is none that the gateway forwards");
            return Err(Refusal::new(Code::MalformedRequest, reason).hint("use http or https"));
        }
    };
    match host {
        Some(host) => agreed(settings, scheme, named.as_str(), host, path).map(Some),
        None => parse(settings, scheme, named.as_str(), path).map(Some),
    }
}

/// Where a CONNECT leads. Its port must be told.
fn tunnel(front: &Front, head: &Parts) -> Result<Endpoint, Refusal> {
    let asked = head.uri.authority().map_or_else(|| head.uri.to_string(), |authority| authority.to_string());
    let settings = &front.context.settings;
    if is_own(settings, &asked) {
        let reason = format!("`{asked}` is the gateway itself");
        return Err(Refusal::new(Code::MalformedRequest, reason).hint("ask it without CONNECT"));
    }
    let endpoint = endpoint(settings, &asked)?;
    let Some(host) = host(&head.headers)? else { return Ok(endpoint) };
    // Some clients leave the port out here.
    let (named, port) =
        host_and_port_with(host, Some(endpoint.port), &settings.names).map_err(|error| unreadable(&error))?;
    if named != endpoint.host || port != endpoint.port {
        let reason = format!("CONNECT names `{asked}`, Host names `{host}`");
        return Err(Refusal::new(Code::NameMismatch, reason).hint("name the same host in both"));
    }
    Ok(endpoint)
}

/// `host:port`, both required.
fn endpoint(settings: &Settings, authority: &str) -> Result<Endpoint, Refusal> {
    let read = host_and_port_with(authority, None, &settings.names);
    let (host, port) = read.map_err(|error| unreadable(&error).hint("write CONNECT host:port"))?;
    Ok(Endpoint { host, port })
}

fn agreed(
    settings: &Settings,
    scheme: Scheme,
    named: &str,
    host: &str,
    path: &str,
) -> Result<Target, Refusal> {
    let target = parse(settings, scheme, named, path)?;
    if named != host {
        let other = parse(settings, scheme, host, "/")?;
        if other.host() != target.host() || other.port() != target.port() {
            let reason = format!("the request line names `{named}`, Host names `{host}`");
            return Err(Refusal::new(Code::NameMismatch, reason).hint("name the same host in both"));
        }
    }
    Ok(target)
}

fn parse(settings: &Settings, scheme: Scheme, authority: &str, path: &str) -> Result<Target, Refusal> {
    Target::from_parts_with(scheme, authority, path, &settings.names).map_err(|error| unreadable(&error))
}

fn unreadable(error: &UrlError) -> Refusal {
    Refusal::new(error.code(), error.to_string())
}

/// The `Host` field, of which there may be one at most.
fn host(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut all = headers.get_all(header::HOST).iter();
    let first = all.next();
    if all.next().is_some() {
        return Err(Refusal::new(Code::MalformedRequest, "there are two Host fields"));
    }
    match first.map(|value| value.to_str()) {
        None => Ok(None),
        Some(Ok(host)) => Ok(Some(host)),
        Some(Err(_)) => Err(Refusal::new(Code::MalformedRequest, "the Host field isn't text")),
    }
}

/// Whether an authority is the gateway itself.
pub(super) fn is_own(settings: &Settings, authority: &str) -> bool {
    let host = authority.strip_suffix(":80").unwrap_or(authority);
    let host = host.strip_suffix('.').unwrap_or(host);
    host.eq_ignore_ascii_case(GATEWAY_NAME) || host.parse() == Ok(settings.gateway)
}

/// A page of another origin whose name leads here, or a client that takes this for an old kind of proxy (case 62).
fn foreign(host: &str, path: &str) -> Refusal {
    let reason = format!("this is `{GATEWAY_NAME}`, not `{host}`");
    let code = if endpoint::is_tool(path) { Code::OriginRefused } else { Code::NameMismatch };
    Refusal::new(code, reason)
        .hint("to use the gateway as a proxy, send the whole URL in the request line or use CONNECT")
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let essence = value.split(';').next().unwrap_or_default().trim();
    (!essence.is_empty()).then(|| essence.to_ascii_lowercase())
}

/// What of an unreadable request is fit for its record.
pub(crate) fn facts_of(front: &Front, head: &Parts) -> (Destination, Request) {
    let to = match &front.place {
        Origin::Fixed { to, .. } => facts::destination(to),
        Origin::Proxy => Destination::default(),
    };
    let request = Request {
        method: head.method.as_str().to_owned(),
        url: match &front.place {
            Origin::Proxy if head.uri.scheme().is_none() && head.method != Method::CONNECT => {
                format!("http://{GATEWAY_NAME}{}", head.uri)
            }
            _ => head.uri.to_string(),
        },
        version: facts::version(head.version).to_owned(),
        ..Request::default()
    };
    (to, request)
}
