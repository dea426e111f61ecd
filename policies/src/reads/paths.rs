//! Which arguments a rule reads, so that one that had to be left out refuses exactly the calls it matters for.

use std::collections::BTreeSet;

use cedar_policy::pst::{Clause, Expr, Template, Var};

/// Attributes below `context.arguments`; no attributes are all of it.
pub(crate) type Path = Vec<String>;

/// Attributes of `context.arguments`, without what is in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fields {
    /// Each of them.
    All,
    These(BTreeSet<String>),
}

impl Default for Fields {
    fn default() -> Self {
        Self::These(BTreeSet::new())
    }
}

impl Fields {
    pub(crate) fn add(&mut self, path: &[String]) {
        match (&mut *self, path.first()) {
            (Self::All, _) => {}
            (Self::These(names), Some(name)) => drop(names.insert(name.clone())),
            (Self::These(_), None) => *self = Self::All,
        }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(names) => names.contains(name),
        }
    }
}

/// Every part of `context.arguments` that `rule` looks at.
pub(crate) fn argument_paths(rule: &Template) -> Vec<Path> {
    let mut paths: Vec<Path> = Vec::new();
    for clause in rule.clauses() {
        let (Clause::When(condition) | Clause::Unless(condition)) = clause;
        let join = |mut a: Vec<Path>, b: Vec<Path>| {
            a.extend(b);
            a
        };
        paths.extend(condition.reduce(&part, &join, Vec::new()));
    }
    paths.sort();
    paths.dedup();
    paths
}

/// Whether a rule that reads `read` sees that the value at `left_out` isn't there.
pub(crate) fn touches(read: &[String], left_out: &[String]) -> bool {
    read.iter().zip(left_out).all(|(a, b)| a == b)
}

/// What `part` reads, if it is a path from `context` as long as it gets.
fn part(part: &Expr) -> Option<Vec<Path>> {
    let path = chain(part)?;
    match path.split_first() {
        // `context` as a whole.
        None => Some(vec![Path::new()]),
        // Whether a tool has arguments that are typed at all is always known.
        Some((first, [])) if first == "arguments" && matches!(part, Expr::HasAttr { .. }) => Some(Vec::new()),
        Some((first, rest)) if first == "arguments" => Some(vec![rest.to_vec()]),
        Some(_) => Some(Vec::new()),
    }
}

/// The attributes from `context` to `expr`.
fn chain(expr: &Expr) -> Option<Path> {
    match expr {
        Expr::Var(Var::Context) => Some(Path::new()),
        Expr::GetAttr { expr, attr } => {
            let mut path = chain(expr)?;
            path.push(attr.to_string());
            Some(path)
        }
        Expr::HasAttr { expr, attrs } => {
            let mut path = chain(expr)?;
            path.extend(attrs.iter().map(ToString::to_string));
            Some(path)
        }
        _ => None,
    }
}
