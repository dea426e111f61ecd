//! What a rule says before the context of a call is known: the ground on which tools are shown or hidden.
//!
//! INVARIANT: the outline of a permit holds wherever the permit can hold, and that of a forbid only where the forbid
//! holds whatever the context is. So nothing is hidden that some call could get.

use std::sync::Arc;

use cedar_policy::{
    Policy,
    pst::{BinaryOp, Clause, Effect, Expr, Template},
};

use crate::reads::Reads;

/// The outline of the rule `tree`, whose form in the index is `indexed`; `None` if it says nothing before the context
/// is known.
pub(super) fn outline(tree: &Template, indexed: &Policy) -> Result<Option<Policy>, String> {
    let (known, dropped) = split(tree);
    match (tree.effect, dropped) {
        (_, false) => Ok(Some(indexed.clone())),
        (Effect::Forbid, true) => Ok(None),
        (Effect::Permit, true) => {
            let shortened = tree.clone().try_with_clauses(known).map_err(|error| error.to_string())?;
            super::bare(shortened).map(Some)
        }
    }
}

/// The conditions that don't look at the context, and whether there are others.
fn split(tree: &Template) -> (Vec<Clause>, bool) {
    let mut known = Vec::new();
    let mut dropped = false;
    for clause in tree.clauses() {
        match clause {
            Clause::When(condition) => {
                let mut parts = Vec::new();
                conjuncts(condition, &mut parts);
                for part in parts {
                    if is_known(&part) { known.push(Clause::When(part)) } else { dropped = true }
                }
            }
            Clause::Unless(condition) if is_known(condition) => known.push(clause.clone()),
            Clause::Unless(_) => dropped = true,
        }
    }
    (known, dropped)
}

/// `a && b && c`, each of which must hold.
fn conjuncts(condition: &Arc<Expr>, parts: &mut Vec<Arc<Expr>>) {
    match &**condition {
        Expr::BinaryOp { op: BinaryOp::And, left, right } => {
            conjuncts(left, parts);
            conjuncts(right, parts);
        }
        _ => parts.push(Arc::clone(condition)),
    }
}

fn is_known(condition: &Expr) -> bool {
    Reads::of_condition(condition).is_only_resource()
}
