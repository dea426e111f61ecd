//! What either side is told that the other can do: nothing that the gateway would refuse anyway (A7, A8, case 61).

use strait_policies::json::Json;

use super::{
    drift,
    exchange::Exchange,
    methods::{is_tool_name, opts_in},
};
use crate::tools::Tool;

/// Capabilities of clients that a tool must opt into, and the group of each.
const OF_CLIENTS: [(&str, &str); 3] =
    [("sampling", "sampling"), ("elicitation", "elicitation"), ("roots", "roots")];
/// Capabilities of servers, likewise.
const OF_SERVERS: [(&str, &str); 4] = [
    ("resources", "resources"),
    ("prompts", "prompts"),
    ("completions", "completion"),
    ("logging", "logging"),
];
/// Capabilities whose methods aren't passed.
const NEVER: [&str; 2] = ["tasks", "extensions"];
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Takes what isn't opted into out of what a client says of itself.
pub(super) fn withdraw_capabilities(message: &mut Json, tool: &Tool) {
    let initialize = message.get("method").and_then(Json::as_text) == Some("initialize");
    let Some(params) = field(message, "params") else { return };
    if initialize && let Some(capabilities) = field(params, "capabilities") {
        withdraw(capabilities, tool, &OF_CLIENTS);
    }
    if let Some(capabilities) = field(params, "_meta").and_then(|meta| field(meta, META_CAPABILITIES)) {
        withdraw(capabilities, tool, &OF_CLIENTS);
    }
}

fn withdraw(capabilities: &mut Json, tool: &Tool, groups: &[(&str, &str)]) -> bool {
    let Json::Object(fields) = capabilities else { return false };
    let before = fields.len();
    fields.retain(|(name, _)| {
        let group = groups.iter().find(|(capability, _)| capability == name);
        !NEVER.contains(&name.as_str()) && group.is_none_or(|(_, group)| opts_in(tool, group))
    });
    fields.len() != before
}

/// Makes a server's result fit to be shown; `true` if something was changed. Told by its shape, since a stream that is
/// taken up again brings answers to requests of long ago.
pub(super) fn fit(exchange: &Exchange, result: &mut Json, answers: bool) -> bool {
    let greeting = result.get("protocolVersion").is_some() || result.get("supportedVersions").is_some();
    let mut changed = false;
    if greeting && let Some(capabilities) = field(result, "capabilities") {
        changed |= withdraw(capabilities, &exchange.tool, &OF_SERVERS);
    }
    if let Some(Json::List(tools)) = field(result, "tools") {
        exchange.context.gateway.seen.note(&exchange.tool.name, tools, answers && exchange.cursor.is_none());
        changed |= hide(exchange, tools);
    }
    changed | cut(exchange, result, answers)
}

/// Takes the tools out that no call of the run's could be permitted for, or that aren't what was pinned.
fn hide(exchange: &Exchange, tools: &mut Vec<Json>) -> bool {
    let gateway = &exchange.context.gateway;
    let policy = gateway.policy.load_full();
    let run = &exchange.context.caller.run.info;
    let server = &exchange.tool.name;
    let before = tools.len();
    tools.retain(|tool| {
        let Some(name) = tool.get("name").and_then(Json::as_text) else { return false };
        is_tool_name(name)
            && drift::look(gateway, &policy, &run.id, server, name, tool)
            && policy.visible(run, server.as_str(), name)
    });
    tools.len() != before
}

/// Ends a list that goes round in a circle (case 56).
fn cut(exchange: &Exchange, result: &mut Json, answers: bool) -> bool {
    let listing = exchange.method.as_deref() == Some("tools/list");
    let Some(next) = result.get("nextCursor").and_then(Json::as_text).filter(|_| answers && listing) else {
        return false;
    };
    let sessions = &exchange.context.caller.run.mcp;
    let from = exchange.cursor.as_deref();
    if sessions.pages_on(&exchange.tool.name, exchange.session.as_deref(), from, next) {
        return false;
    }
    let tool = &exchange.tool.name;
    tracing::warn!(%tool, "an MCP server pages its tools in a circle: the list was cut");
    if let Json::Object(fields) = result {
        fields.retain(|(name, _)| name != "nextCursor");
    }
    true
}

/// A question of a server's in a result (MCP 2026-07-28, *multi round-trip requests*) that must not be passed.
pub(super) fn unwanted_question(result: &Json, allowed: impl Fn(&str) -> bool) -> Option<String> {
    let questions = result.get("inputRequests")?;
    let all: Vec<&Json> = match questions {
        Json::Object(fields) => fields.iter().map(|(_, question)| question).collect(),
        Json::List(list) => list.iter().collect(),
        _ => return Some("?".to_owned()),
    };
    all.into_iter().find_map(|question| {
        let method = question.get("method").and_then(Json::as_text).unwrap_or("?");
        (!allowed(method)).then(|| method.to_owned())
    })
}

pub(super) fn field<'a>(json: &'a mut Json, key: &str) -> Option<&'a mut Json> {
    match json {
        Json::Object(fields) => fields.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value),
        _ => None,
    }
}
