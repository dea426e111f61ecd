//! What Cedar's validator lets pass although it can't mean what its author thinks.
//!
//! Entity ids and string literals are free text to Cedar: `Domain::"*.ok.test"`, `context.method == "get"` and
//! `context has metod` validate and never match, so that a forbid written so is open.

mod host;
mod literal;
mod path;
mod tool;

use cedar_policy::{
    ActionConstraint, ResourceConstraint,
    pst::{Clause, Expr},
};

use crate::{
    load::{Rule, Sources},
    problem::Problem,
    vocabulary::Vocabulary,
};

/// Adds what is wrong with `rule` to `problems`.
pub(crate) fn check(vocabulary: &Vocabulary, sources: Sources<'_>, rule: &Rule, problems: &mut Vec<Problem>) {
    let mut findings = Vec::new();
    for uid in rule.policy.entity_literals() {
        let kind = uid.type_name().to_string();
        let id: &str = uid.id().unescaped();
        let known = host::entity(&kind, id).and_then(|()| tool::entity(&vocabulary.pins, &kind, id));
        if let Err(help) = known {
            findings.push(Finding {
                message: format!("`{kind}::\"{id}\"` can't match anything"),
                help,
                near: format!("{kind}::\"{id}\""),
            });
        }
    }
    findings.extend(scope(vocabulary, rule));
    findings.extend(tool::scope(rule));
    for clause in rule.tree.clauses() {
        let (Clause::When(condition) | Clause::Unless(condition)) = clause;
        walk(condition, &mut |part| {
            findings.extend(literal::check(part));
            findings.extend(path::check(vocabulary, rule, part));
            findings.extend(tool::flat(vocabulary, rule, part));
        });
    }
    problems.extend(findings.into_iter().map(|finding| finding.problem(sources, rule)));
}

/// Something that can't be meant, and a text near which it stands.
pub(super) struct Finding {
    message: String,
    help: String,
    near: String,
}

impl Finding {
    fn problem(self, sources: Sources<'_>, rule: &Rule) -> Problem {
        let place = sources.near(&rule.place, &self.near);
        sources.problem(&place, self.message).rule(&rule.id).help(self.help)
    }
}

/// `==` with something that only has members never matches.
fn scope(vocabulary: &Vocabulary, rule: &Rule) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let ActionConstraint::Eq(action) = rule.policy.action_constraint()
        && vocabulary.schema.action_groups().any(|group| *group == action)
    {
        findings.push(Finding {
            message: format!("`action == {action}` never matches: it is a group of actions"),
            help: format!("write `action in {action}`"),
            near: action.to_string(),
        });
    }
    if let ResourceConstraint::Eq(resource) = rule.policy.resource_constraint()
        && ["Domain", "Host", "Net"].contains(&resource.type_name().to_string().as_str())
    {
        findings.push(Finding {
            message: format!("`resource == {resource}` never matches: resources are in it"),
            help: format!("write `resource in {resource}`"),
            near: resource.to_string(),
        });
    }
    findings
}

/// Calls `visit` with every part of `expr`.
pub(crate) fn walk(expr: &Expr, visit: &mut dyn FnMut(&Expr)) {
    let visit = std::cell::RefCell::new(visit);
    expr.reduce(
        &|part| {
            (visit.borrow_mut())(part);
            None::<()>
        },
        &|(), ()| (),
        (),
    );
}
