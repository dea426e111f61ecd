//! Which methods there are, and which of them a tool's config must opt into.

use strait_contract::{code::Code, redact::is_unprintable};
use strait_policies::json::Json;

use crate::{
    decide::Refusal,
    tools::{Kind, Tool},
};

/// Longest name of a tool, bytes.
const NAME: usize = 128;
/// Parts of `_meta` that concern the exchange and not what is asked for.
const PROTOCOL_META: [&str; 4] = ["progressToken", "traceparent", "tracestate", "baggage"];

/// How a method is decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Every client says it whatever it does: passes if anything of the server could.
    Protocol,
    /// A call of a tool.
    Tool,
    /// Passes if the tool's config opts into the group and policy permits it.
    Group(&'static str),
    /// Not known here.
    Unknown,
}

/// A request of a client's.
pub(super) fn of_request(method: &str) -> Standing {
    match method {
        "initialize" | "ping" | "tools/list" | "server/discover" | "subscriptions/listen" => {
            Standing::Protocol
        }
        "tools/call" => Standing::Tool,
        "resources/list"
        | "resources/templates/list"
        | "resources/read"
        | "resources/subscribe"
        | "resources/unsubscribe" => Standing::Group("resources"),
        "prompts/list" | "prompts/get" => Standing::Group("prompts"),
        "completion/complete" => Standing::Group("completion"),
        "logging/setLevel" => Standing::Group("logging"),
        _ => Standing::Unknown,
    }
}

/// A notification of a client's.
pub(super) fn of_notification(method: &str) -> Standing {
    match method {
        "notifications/initialized" | "notifications/cancelled" | "notifications/progress" => {
            Standing::Protocol
        }
        "notifications/roots/list_changed" => Standing::Group("roots"),
        _ => Standing::Unknown,
    }
}

/// A request of a server's.
pub(super) fn of_question(method: &str) -> Standing {
    match method {
        "ping" => Standing::Protocol,
        "sampling/createMessage" => Standing::Group("sampling"),
        "elicitation/create" => Standing::Group("elicitation"),
        "roots/list" => Standing::Group("roots"),
        _ => Standing::Unknown,
    }
}

/// Whether the tool's config opts into a group.
pub(super) fn opts_in(tool: &Tool, group: &str) -> bool {
    matches!(&tool.kind, Kind::Mcp { methods, .. } if methods.iter().any(|listed| listed == group))
}

/// Whether a name can be one of a tool: what a person is shown of it is what it is.
pub(super) fn is_tool_name(name: &str) -> bool {
    (1..=NAME).contains(&name.len()) && !name.chars().any(is_unprintable)
}

pub(super) fn not_opted_in(tool: &Tool, method: &str, group: &str) -> Refusal {
    let name = &tool.name;
    let reason = format!("the tool `{name}` doesn't opt into `{method}`");
    Refusal::new(Code::ToolCallDenied, reason).hint(format!(
        "have the operator add \"{group}\" to `methods` of `[tools.{name}]`, and a policy that permits it"
    ))
}

pub(super) fn unknown(method: &str) -> Refusal {
    Refusal::new(Code::ToolCallDenied, format!("the method `{method}` is none that this gateway passes"))
}

/// Parameters without what concerns the exchange alone: what is asked for, whatever the attempt.
pub(super) fn without_protocol(params: &Json) -> Json {
    let Some(fields) = params.as_object() else { return params.clone() };
    let own = |key: &str| PROTOCOL_META.contains(&key) || key.starts_with("io.modelcontextprotocol/");
    let kept = fields.iter().filter_map(|(name, value)| match value {
        Json::Object(meta) if name == "_meta" => {
            let rest: Vec<_> = meta.iter().filter(|(key, _)| !own(key)).cloned().collect();
            (!rest.is_empty()).then(|| (name.clone(), Json::Object(rest)))
        }
        _ => Some((name.clone(), value.clone())),
    });
    Json::Object(kept.collect())
}
