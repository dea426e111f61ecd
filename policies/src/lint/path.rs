//! `has` on an attribute that exists nowhere: to Cedar it is just false, so that a typo switches a rule off.

use cedar_policy::{
    ActionConstraint, ResourceConstraint,
    pst::{Expr, Var},
};
use serde_json::Value;

use super::Finding;
use crate::{load::Rule, vocabulary::Vocabulary};

/// What of `part` can't be meant.
pub(super) fn check(vocabulary: &Vocabulary, rule: &Rule, part: &Expr) -> Option<Finding> {
    let Expr::HasAttr { expr, attrs } = part else { return None };
    let schema = vocabulary.schema_json.get("")?;
    let environments = environments(vocabulary, rule, schema);
    let mut misses = Vec::new();
    for environment in &environments {
        // INVARIANT: what can't be resolved is left to the validator.
        let root = shape(schema, environment, expr)?;
        misses.push(miss(schema, root, attrs.iter().map(|attr| attr.as_str()))?);
    }
    let word = misses.first()?.0;
    let names: Vec<&str> = misses.into_iter().flat_map(|(_, known)| known).collect();
    let help = match nearest(word, &names) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "see `strait policy schema` for what there is".to_owned(),
    };
    let path = attrs.iter().map(|attr| attr.as_str()).collect::<Vec<_>>().join(".");
    let message = format!("`has {path}` is never true: there is no `{word}`");
    Some(Finding { message, help, near: format!("has {path}") })
}

/// The first attribute of `path` that doesn't exist below `root`, and what exists there; `None` if all do.
fn miss<'a, 'p>(
    schema: &'a Value,
    root: &'a Value,
    path: impl Iterator<Item = &'p str>,
) -> Option<(&'p str, Vec<&'a str>)> {
    let mut kind = root;
    for name in path {
        match attribute(schema, kind, name) {
            Some(inner) => kind = inner,
            None => {
                let known =
                    fields(schema, kind).into_iter().flat_map(|fields| fields.keys().map(String::as_str));
                return Some((name, known.collect()));
            }
        }
    }
    None
}

struct Environment<'a> {
    resource: &'a Value,
    context: &'a Value,
}

/// What the rule's scope fits: pairs of action and resource type.
fn environments<'a>(vocabulary: &Vocabulary, rule: &Rule, schema: &'a Value) -> Vec<Environment<'a>> {
    let only = match rule.policy.resource_constraint() {
        ResourceConstraint::Is(kind) | ResourceConstraint::IsIn(kind, _) => Some(kind.to_string()),
        ResourceConstraint::Eq(uid) => Some(uid.type_name().to_string()),
        ResourceConstraint::Any | ResourceConstraint::In(_) => None,
    };
    let mut found = Vec::new();
    for uid in vocabulary.schema.actions() {
        let within = |group: &cedar_policy::EntityUid| {
            group == uid || vocabulary.action_entities.is_ancestor_of(group, uid)
        };
        let fits = match rule.policy.action_constraint() {
            ActionConstraint::Any => true,
            ActionConstraint::Eq(one) => one == *uid,
            ActionConstraint::In(groups) => groups.iter().any(within),
        };
        let applies = schema.get("actions").and_then(|all| all.get(uid.id().unescaped())?.get("appliesTo"));
        let (true, Some(applies)) = (fits, applies) else { continue };
        let Some(context) = applies.get("context") else { continue };
        let resources = applies.get("resourceTypes").and_then(Value::as_array).into_iter().flatten();
        found.extend(
            resources
                .filter(|kind| only.is_none() || only.as_deref() == kind.as_str())
                .map(|resource| Environment { resource, context }),
        );
    }
    found
}

/// The type of `expr`, as the schema's JSON has it.
fn shape<'a>(schema: &'a Value, environment: &Environment<'a>, expr: &Expr) -> Option<&'a Value> {
    match expr {
        Expr::Var(Var::Context) => Some(environment.context),
        Expr::Var(Var::Resource) => Some(environment.resource),
        Expr::Var(Var::Principal) => schema.get("entityTypes")?.get("Run"),
        Expr::GetAttr { expr, attr } => attribute(schema, shape(schema, environment, expr)?, attr),
        _ => None,
    }
}

fn attribute<'a>(schema: &'a Value, kind: &'a Value, name: &str) -> Option<&'a Value> {
    fields(schema, kind)?.get(name)
}

/// The attributes of a record or entity type; `None` if it has none.
fn fields<'a>(schema: &'a Value, kind: &'a Value) -> Option<&'a serde_json::Map<String, Value>> {
    if let Some(fields) = kind.get("attributes") {
        return fields.as_object();
    }
    if let Some(shape) = kind.get("shape") {
        return fields(schema, shape);
    }
    let name = kind.as_str().or_else(|| kind.get("name")?.as_str()).or_else(|| kind.get("type")?.as_str())?;
    let common = schema.get("commonTypes").and_then(|types| types.get(name));
    let entity = || schema.get("entityTypes").and_then(|types| types.get(name)?.get("shape"));
    fields(schema, common.or_else(entity)?)
}

/// The known name that differs in at most two letters.
pub(super) fn nearest<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let scored = names.iter().map(|name| (distance(word, name), *name));
    scored.min().filter(|(distance, _)| *distance <= 2).map(|(_, name)| name)
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i.saturating_add(1);
        let mut next = vec![left];
        for (to, above) in b.chars().zip(row.iter().skip(1)) {
            let cost = usize::from(from != to);
            left = diagonal.saturating_add(cost).min(left.saturating_add(1)).min(above.saturating_add(1));
            diagonal = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}
