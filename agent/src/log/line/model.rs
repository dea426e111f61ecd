//! What a line says of a model call.

use serde::{Serialize, Serializer, ser::SerializeMap as _};
use strait_contract::{
    model::Tokens,
    record::{Kept, ModelStep, ServerTool},
};

use super::{MAX_ITEMS, decision, milliseconds};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ModelLine<'a> {
    provider: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    operation: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    asked: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<&'a str>,
    stream: bool,
    /// Only of what was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    complete: Option<bool>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unpriced: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token_ms: Option<f64>,
    #[serde(skip_serializing_if = "is_zero")]
    attempts: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    server_tools: Vec<ServerToolLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<KeptLine<'a>>,
}

#[derive(Serialize)]
struct ServerToolLine<'a> {
    name: &'a str,
    decision: &'static str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    rules: &'a [String],
}

#[derive(Serialize)]
struct KeptLine<'a> {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TokensLine<'a> {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    reasoning: u64,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "units")]
    units: &'a [(String, u64)],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    estimated: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn units<S: Serializer>(units: &[(String, u64)], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(units.len()))?;
    for (name, count) in units {
        map.serialize_entry(name, count)?;
    }
    map.end()
}

impl<'a> ModelLine<'a> {
    pub(super) fn of(step: &'a ModelStep) -> Self {
        let tool = |ServerTool { name, decision: decided, rules }: &'a ServerTool| ServerToolLine {
            name,
            decision: decision(*decided),
            rules,
        };
        let kept = |Kept { mode, request, answer }: &'a Kept| KeptLine {
            mode: mode.as_str(),
            request: request.as_deref(),
            answer: answer.as_deref(),
        };
        let answered = step.tokens.is_some();
        Self {
            provider: &step.provider,
            operation: &step.operation,
            asked: &step.asked,
            used: step.used.as_deref(),
            route: step.route.as_deref(),
            stream: step.stream,
            complete: answered.then_some(step.complete),
            unpriced: answered && step.cost.is_none(),
            first_token_ms: step.first_token_us.map(milliseconds),
            attempts: step.attempts,
            server_tools: step.server_tools.iter().map(tool).collect(),
            content: step.content.as_deref().map(kept),
        }
    }
}

impl<'a> TokensLine<'a> {
    pub(super) fn of(tokens: &'a Tokens) -> Self {
        let Tokens { input, output, cache_read, cache_write, reasoning, units, estimated } = tokens;
        Self {
            input: *input,
            output: *output,
            cache_read: *cache_read,
            cache_write: *cache_write,
            reasoning: *reasoning,
            units,
            estimated: *estimated,
        }
    }
}

/// Whether every text of it is within its bound.
pub(super) fn is_acceptable(step: &ModelStep, mut fits: impl FnMut(&str) -> bool) -> bool {
    let ModelStep { provider, operation, asked, used, route, tokens, server_tools, content, .. } = step;
    let content = content.as_deref();
    let optional = [
        used.as_deref(),
        route.as_deref(),
        content.and_then(|kept| kept.request.as_deref()),
        content.and_then(|kept| kept.answer.as_deref()),
    ];
    let units = tokens.as_ref().map_or(&[][..], |tokens| &tokens.units);
    server_tools.len() <= MAX_ITEMS
        && units.len() <= MAX_ITEMS
        && units.iter().all(|(name, _)| fits(name))
        && [provider, operation, asked].into_iter().all(|text| fits(text))
        && optional.into_iter().flatten().all(&mut fits)
        && server_tools.iter().all(|tool| {
            tool.rules.len() <= MAX_ITEMS && fits(&tool.name) && tool.rules.iter().all(|rule| fits(rule))
        })
}
