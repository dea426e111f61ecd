//! Tools and arguments that no call will ever have, as far as pins tell.

use cedar_policy::{
    ActionConstraint, ResourceConstraint,
    pst::{BinaryOp, Expr, Literal, Var},
};

use super::{Finding, path::nearest};
use crate::{load::Rule, pins::Pins, vocabulary::Vocabulary};

/// Whether there can be such a tool; if not, what to write instead. Nothing is known of a server that isn't pinned.
pub(super) fn entity(pins: &Pins, kind: &str, id: &str) -> Result<(), String> {
    let (true, Some((server, tool))) = (kind == "Tool", id.split_once('/')) else { return Ok(()) };
    let Some(pin) = pins.server(server) else { return Ok(()) };
    if pins.tool(server, tool).is_some() {
        return Ok(());
    }
    let names: Vec<&str> = pin.tools.iter().map(|tool| tool.name.as_str()).collect();
    Err(match nearest(tool, &names) {
        Some(name) => format!("`{server}` has no tool `{tool}`; did you mean `Tool::\"{server}/{name}\"`?"),
        None => {
            format!("`{server}` is pinned without a tool `{tool}`: pin it anew if the server has one now")
        }
    })
}

/// `resource == Tool::"server"` holds for a server's other methods, never for its tools or for requests.
pub(super) fn scope(rule: &Rule) -> Option<Finding> {
    let ResourceConstraint::Eq(uid) = rule.policy.resource_constraint() else { return None };
    let id: &str = uid.id().unescaped();
    let on_itself = |action: &cedar_policy::EntityUid| {
        let id: &str = action.id().unescaped();
        ["mcp/method", "core_tool"].contains(&id)
    };
    let right = match rule.policy.action_constraint() {
        ActionConstraint::Any => false,
        ActionConstraint::Eq(action) => on_itself(&action),
        ActionConstraint::In(actions) => actions.iter().all(on_itself),
    };
    if right || uid.type_name().to_string() != "Tool" || id.contains('/') {
        return None;
    }
    Some(Finding {
        message: format!("`resource == {uid}` matches no call of a tool: calls are in it"),
        help: format!("write `resource in {uid}`"),
        near: uid.to_string(),
    })
}

/// `context.flat.hasTag("rep")` where no tool that the rule is about has such an argument.
pub(super) fn flat(vocabulary: &Vocabulary, rule: &Rule, part: &Expr) -> Option<Finding> {
    let Expr::BinaryOp { op: BinaryOp::HasTag, left, right } = part else { return None };
    let is_flat = matches!(&**left, Expr::GetAttr { expr, attr }
        if attr == "flat" && matches!(**expr, Expr::Var(Var::Context)));
    let (true, Expr::Literal(Literal::String(key))) = (is_flat, &**right) else { return None };
    let named = match rule.policy.action_constraint() {
        // Tools that aren't pinned may have any argument.
        ActionConstraint::Any => return None,
        ActionConstraint::Eq(action) => vec![action],
        ActionConstraint::In(actions) => actions,
    };
    let mut tools = Vec::new();
    for action in &named {
        let id: &str = action.id().unescaped();
        let (server, tool) = id.split_once('/')?;
        tools.push(vocabulary.pins.tool(server, tool)?);
    }
    if tools.iter().any(|tool| tool.shape.may_hold(key)) {
        return None;
    }
    let names: Vec<&str> =
        tools.iter().flat_map(|tool| &tool.shape.fields).map(|field| field.name.as_str()).collect();
    let help = match nearest(key, &names) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "see the tool's `inputSchema` in its pinned file".to_owned(),
    };
    let message = format!("`hasTag(\"{key}\")` is never true: no tool of this rule has such an argument");
    Some(Finding { message, help, near: format!("\"{key}\"") })
}
