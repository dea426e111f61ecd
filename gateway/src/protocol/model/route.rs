//! Where a model call is sent: by the operator's routes, and to their next model where one fails before it answers (A18,
//! case 75).
//!
//! Each try is a call of its own on record, with its own budget; the later ones name the one before as their parent. What
//! is fallen back from never reached the client, so an answer is one model's from its first byte to its last.

use std::{
    sync::{Arc, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header, request::Parts};
use http_body_util::BodyExt as _;
use strait_contract::{
    code::Code,
    ids::RecordId,
    record::{Decision, ModelStep, ServerTool},
};
use strait_model::{
    api::{Dialect, Operation},
    document::Document,
    endpoint, estimate,
    price::Price,
    route::{self, Outcome, falls_back},
    translate::{self, Direction},
};

use super::{
    Asked, ModelCall,
    draft::{Draft, unreadable, without_denied},
    joined, translated,
};
use crate::{
    budget::{self, Reservation},
    call::{Call, What},
    decide::{self, Refusal, decide_with},
    forward,
    hold::Carried,
    protocol::http::{
        Front,
        body::{Body, Payload},
        serve,
    },
    providers::Provider,
    record::now_ms,
    url::Target,
};

/// What is read of an answer that is fallen back from, so that its connection can be used again.
const MOST_DROPPED: usize = 64 * 1024;
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most output tokens asked for where the client's API needs no limit and the provider's does.
const MAX_OUTPUT: u64 = 8192;

/// One place where a call may be sent.
struct Aim {
    provider: Arc<Provider>,
    model: String,
    rule: Option<String>,
    /// Needed where the provider speaks another API than the client.
    direction: Option<Direction>,
}

/// One try of a call, as it is before it has a place.
struct Try<'a> {
    operation: Operation,
    step: ModelStep,
    /// The try before.
    parent: Option<RecordId>,
    call: Call,
    head: &'a Parts,
    document: Document,
}

/// A call as it is sent to one place.
struct Aimed {
    call: Call,
    fields: HeaderMap,
    body: Bytes,
    back: Option<translated::Back>,
}

/// Sends a judged request to the first place that answers.
pub(super) async fn send(front: &Front, draft: &Draft, asked: Asked) -> Response<Body> {
    let Some(operation) = draft.operation else {
        return refused(front, draft, asked.call, Refusal::new(Code::Internal, "the operation isn't known"))
            .await;
    };
    let aims = match aims(front, draft, operation, &asked.document) {
        Ok(aims) => aims,
        Err(refusal) => return refused(front, draft, asked.call, refusal).await,
    };
    let context = &front.context;
    let Asked { call, head, body, document } = asked;
    let mut document = Some(document);
    let mut left = aims.len();
    let mut parent = None;
    for aim in aims {
        left = left.saturating_sub(1);
        let mut call = call.clone();
        if parent.is_some() {
            call.id = RecordId::now();
        }
        let id = call.id;
        // The last one takes it: no request is in memory more often than it may have to be sent.
        let one = if left == 0 { document.take() } else { document.clone() };
        let Some(one) = one else { break };
        let (document, tools) = match at_provider(front, draft, &aim, operation, &call, one).await {
            Ok(left) => left,
            Err(refusal) => return refused(front, draft, call, refusal).await,
        };
        let step = step(draft, &aim, tools);
        let one = Try { operation, step, parent, call: call.clone(), head: &head, document };
        let aimed = match aimed(front, draft, &aim, one) {
            Ok(aimed) => aimed,
            Err(refusal) => return refused(front, draft, call, refusal).await,
        };
        let Aimed { call, fields, body: text, back } = aimed;
        let response = match decide_with(&context.gateway, call, Carried::Nothing).await {
            Ok(permitted) => {
                let mut head = head.clone();
                head.headers = fields;
                let request = Request::from_parts(head, Payload::whole(text));
                Box::pin(forward::send(context, permitted, request)).await
            }
            Err(why) => return serve::refused(why),
        };
        if left == 0 || !falls_back(Outcome::Status(response.status().as_u16())) {
            drop(body);
            return match back {
                Some(back) => back.take(response, &context.caller.run.model_bytes).await,
                None => response,
            };
        }
        finish(response).await;
        parent = Some(id);
    }
    refused(front, draft, call, Refusal::new(Code::Internal, "a route leads nowhere")).await
}

async fn refused(front: &Front, draft: &Draft, mut call: Call, refusal: Refusal) -> Response<Body> {
    if let What::Http(http) = &mut call.what
        && http.model.is_none()
    {
        let model = ModelCall::uncounted(draft.step.clone(), draft.operation, draft.provider.content);
        http.model = Some(Arc::new(model));
    }
    serve::refused(decide::refuse(&front.context.gateway, &call, refusal).await)
}

/// Reads what is left of an answer that nobody gets, so that its record says how it ended.
async fn finish(response: Response<Body>) {
    let mut body = response.into_body();
    let read = async {
        let mut bytes = 0_usize;
        while let Some(Ok(frame)) = body.frame().await {
            bytes = bytes.saturating_add(frame.data_ref().map_or(0, Bytes::len));
            if bytes > MOST_DROPPED {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, read).await;
}

/// The places that the routes name, in the order in which they are tried; never none.
fn aims(
    front: &Front,
    draft: &Draft,
    operation: Operation,
    document: &Document,
) -> Result<Vec<Aim>, Refusal> {
    let context = &front.context;
    let providers = context.gateway.providers();
    let (run, model) = (&context.caller.run, draft.step.asked.as_str());
    if providers.routes().is_empty() {
        let provider = Arc::clone(&draft.provider);
        return Ok(vec![Aim { provider, model: model.to_owned(), rule: None, direction: None }]);
    }
    let minute = now_ms() / 60_000 % (24 * 60);
    let chosen = providers.routes().choose(&route::Asked {
        agent: run.info.agent.as_str(),
        provider: draft.provider.name().as_str(),
        model,
        bytes: u64::try_from(document.as_str().len()).unwrap_or(u64::MAX),
        minute_of_day: u16::try_from(minute).unwrap_or_default(),
        budget_left: Some(context.gateway.budgets.left(&run.info.agent, &run.models)),
    });
    let mut aims = Vec::with_capacity(chosen.targets.len());
    for target in chosen.targets {
        let provider = providers.find(&target.provider)?;
        let direction = Direction::between(operation, provider.dialect);
        if direction.is_none() && provider.dialect != draft.provider.dialect {
            // Only chat and messages are translated: the next of the rule may speak the client's API.
            continue;
        }
        aims.push(Aim { provider, model: target.model, rule: chosen.rule.clone(), direction });
    }
    if aims.is_empty() {
        let rule = chosen.rule.unwrap_or_default();
        let reason = format!(
            "the route `{rule}` leads to another API, and `{}` can't be translated",
            operation.as_str()
        );
        return Err(Refusal::new(Code::ToolCallDenied, reason)
            .hint("have the operator add a target of the same API to the route, or narrow its `models`"));
    }
    Ok(aims)
}

/// The call as it is sent to one place, with its budget held.
fn aimed(front: &Front, draft: &Draft, aim: &Aim, one: Try<'_>) -> Result<Aimed, Refusal> {
    let Try { operation, step, parent, mut call, head, mut document } = one;
    let context = &front.context;
    let mut fields = head.headers.clone();
    let providers = context.gateway.providers();
    let name = aim.provider.name().as_str();
    let price = providers.prices().find(name, aim.provider.dialect, &aim.model).cloned();
    let (mut rest, mut sent_as, mut back, mut hides_usage) = (own_path(draft, &call), operation, None, false);
    if let Some(direction) = aim.direction {
        let limit = price.as_ref().and_then(Price::max_output).unwrap_or(MAX_OUTPUT).min(MAX_OUTPUT);
        let made = translate::request(direction, document.as_str().as_bytes(), &aim.model, limit)
            .map_err(|why| Refusal::new(untranslated(&why), why.to_string()))?;
        back = Some(translated::Back::new(direction, made.usage, made.stream));
        document = Document::read(made.body).map_err(unreadable)?;
        sent_as = direction.operation();
        rest = at_version(&draft.provider.url, &aim.provider.url, speak(direction, &mut fields));
    } else {
        if aim.provider.name() != draft.provider.name() {
            rest = at_version(&draft.provider.url, &aim.provider.url, &rest);
        }
        if aim.model != draft.step.asked {
            rest = with_model(draft.provider.dialect, &rest, &draft.step.asked, &aim.model, &mut document)?;
        }
        if operation == Operation::Chat && draft.step.stream {
            hides_usage = ask_usage(&mut document)?;
        }
    }
    let input = estimate::input(document.as_str().as_bytes());
    let reservation = held(front, sent_as, price.as_ref(), (&document, input))?;
    let target = joined(&aim.provider, &rest)?;
    let model = ModelCall {
        step,
        reservation,
        parent,
        operation: Some(sent_as),
        price,
        input,
        hides_usage,
        content: aim.provider.content,
        sent: OnceLock::new(),
        attempts: AtomicU32::new(0),
    };
    if let What::Http(http) = &mut call.what {
        http.query = target.query_pairs();
        http.target = target;
        http.tool = Some(Arc::clone(&aim.provider.tool));
        http.model = Some(Arc::new(model));
    }
    Ok(Aimed { call, fields, body: Bytes::from(document.into_bytes()), back })
}

/// Holds what the call may use at most.
fn held(
    front: &Front,
    operation: Operation,
    price: Option<&Price>,
    (document, input): (&Document, u64),
) -> Result<Option<Reservation>, Refusal> {
    if !operation.is_charged() {
        return Ok(None);
    }
    let most = document.max_output(operation).map_err(unreadable)?;
    // `max_output` has counted the choices of a request that limits them.
    let worst = estimate::worst(operation, input, most, 1, price.and_then(Price::max_output));
    let worst = budget::Worst {
        tokens: worst.input.saturating_add(worst.output),
        usd: price.map(|price| price.worst(worst.input, worst.output)),
    };
    let context = &front.context;
    let held = budget::reserve(&context.gateway, &context.caller.run, worst);
    held.map(Some).map_err(|why| Refusal::new(why.code(), why.to_string()).hint(why.hint()))
}

/// The body as this place may get it, with what was decided of the provider's tools in it: another provider's are other
/// tools to policy, and both have to be permitted.
async fn at_provider(
    front: &Front,
    draft: &Draft,
    aim: &Aim,
    operation: Operation,
    call: &Call,
    document: Document,
) -> Result<(Document, Vec<ServerTool>), Refusal> {
    if aim.provider.name() == draft.provider.name() && aim.model == draft.step.asked {
        return Ok((document, draft.step.server_tools.clone()));
    }
    let (spoken, name) = ((draft.provider.dialect, operation), aim.provider.name().as_str());
    let (document, decided) = without_denied(front, &call.caller, spoken, name, &aim.model, document).await?;
    let gone = draft.step.server_tools.iter().filter(|tool| tool.decision == Decision::Deny);
    Ok((document, gone.cloned().chain(decided).collect()))
}

fn step(draft: &Draft, aim: &Aim, server_tools: Vec<ServerTool>) -> ModelStep {
    let mut step = ModelStep { server_tools, ..draft.step.clone() };
    if aim.provider.name() != draft.provider.name() {
        step.asked = format!("{}/{}", draft.provider.name(), draft.step.asked);
    }
    step.provider = aim.provider.name().to_string();
    step.route.clone_from(&aim.rule);
    if aim.model != draft.step.asked {
        step.used = Some(aim.model.clone());
    }
    step
}

/// Path and query below the provider's base URL.
fn own_path(draft: &Draft, call: &Call) -> String {
    let path = call.http().and_then(|http| draft.provider.below(http.target.path_and_query()));
    path.unwrap_or_default().to_owned()
}

/// A path below one provider's base URL as one below another's: the version stands in the URL or in the path, once.
fn at_version(from: &Target, to: &Target, rest: &str) -> String {
    let own = |url: &Target| {
        let last = url.path().trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        endpoint::VERSIONS.iter().find(|version| **version == last).copied()
    };
    let path = rest.strip_prefix('/').unwrap_or(rest);
    let named = endpoint::VERSIONS
        .iter()
        .find_map(|version| Some((*version, path.strip_prefix(version)?.strip_prefix('/')?)));
    let (version, path) = match named {
        Some((version, path)) => (Some(version), path),
        None => (own(from), path),
    };
    match version.filter(|_| own(to).is_none()) {
        Some(version) => format!("/{version}/{path}"),
        None => format!("/{path}"),
    }
}

/// Names another model of the same API: in the body, or in the path where that has it.
fn with_model(
    dialect: Dialect,
    rest: &str,
    asked: &str,
    model: &str,
    document: &mut Document,
) -> Result<String, Refusal> {
    if dialect == Dialect::Gemini {
        if document.get("model").is_some() {
            let name = serde_json::Value::from(format!("models/{model}")).to_string();
            document.set("model", &name).map_err(unreadable)?;
        }
        return Ok(rest.replacen(&format!("models/{asked}"), &format!("models/{model}"), 1));
    }
    let name = serde_json::Value::from(model).to_string();
    document.set("model", &name).map_err(unreadable)?;
    Ok(rest.to_owned())
}

/// A chat stream says what it used only if it is asked to: it is, and `true` says that this is to be kept from a client
/// that didn't ask (case 63).
fn ask_usage(document: &mut Document) -> Result<bool, Refusal> {
    let options = document.get("stream_options").map(str::to_owned).unwrap_or_default();
    let mut options = match serde_json::from_str(&options) {
        Ok(serde_json::Value::Object(options)) => options,
        _ => serde_json::Map::new(),
    };
    if options.get("include_usage") == Some(&serde_json::Value::Bool(true)) {
        return Ok(false);
    }
    options.insert("include_usage".to_owned(), true.into());
    let options = serde_json::Value::Object(options).to_string();
    document.set("stream_options", &options).map_err(unreadable)?;
    Ok(true)
}

/// Makes a client's fields those of the other API, and says where its requests go.
fn speak(direction: Direction, fields: &mut HeaderMap) -> &'static str {
    let foreign: Vec<HeaderName> = fields
        .keys()
        .filter(|name| name.as_str().starts_with("anthropic-") || name.as_str().starts_with("openai-"))
        .cloned()
        .collect();
    for name in foreign {
        fields.remove(name);
    }
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // What is encoded would have to be decoded to be read.
    fields.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    match direction {
        Direction::ChatToMessages => {
            let version = HeaderValue::from_static(translate::ANTHROPIC_VERSION);
            fields.insert(HeaderName::from_static("anthropic-version"), version);
            "/v1/messages"
        }
        Direction::MessagesToChat => "/v1/chat/completions",
    }
}

fn untranslated(why: &translate::Refused) -> Code {
    match why {
        translate::Refused::Malformed { .. } => Code::MalformedRequest,
        _ => Code::ToolCallDenied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_stands_in_the_url_or_in_the_path_once() {
        let url = |text: &str| Target::from_absolute(text).unwrap();
        let (plain, versioned) = (url("https://a.test/"), url("https://b.test/openai/v1"));
        for (from, to, rest, expect) in [
            (&plain, &versioned, "/v1/chat/completions?a=b", "/chat/completions?a=b"),
            (&versioned, &plain, "/chat/completions", "/v1/chat/completions"),
            (&versioned, &versioned, "/chat/completions", "/chat/completions"),
            (&plain, &plain, "/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent"),
            (&plain, &versioned, "/v1/messages", "/messages"),
            (&plain, &plain, "/v10/x", "/v10/x"),
        ] {
            assert_eq!(at_version(from, to, rest), expect, "{rest}");
        }
    }
}
