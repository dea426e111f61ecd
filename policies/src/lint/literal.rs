//! String literals that an attribute will never be equal to.

use cedar_policy::pst::{BinaryOp, Expr, Literal, PatternElem, Var};

use super::{Finding, host};

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// What of `part` can't be meant.
pub(super) fn check(part: &Expr) -> Vec<Finding> {
    match part {
        Expr::BinaryOp { op: BinaryOp::Eq | BinaryOp::NotEq, left, right } => [(left, right), (right, left)]
            .into_iter()
            .flat_map(|(subject, value)| compare(subject, value))
            .collect(),
        Expr::BinaryOp { op: BinaryOp::Contains, left, right } => match &**left {
            Expr::Set(values) => values.iter().flat_map(|value| compare(right, value)).collect(),
            _ => Vec::new(),
        },
        Expr::Like { expr, pattern } if attribute(expr).as_deref() == Some("host") => {
            like_host(pattern).into_iter().collect()
        }
        Expr::Like { expr, pattern } if attribute(expr).as_deref() == Some("path") => {
            like_path(pattern).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn compare(subject: &Expr, value: &Expr) -> Option<Finding> {
    let Expr::Literal(Literal::String(value)) = value else { return None };
    let attribute = attribute(subject)?;
    let right = expected(&attribute, value).err()?;
    Some(Finding {
        message: format!("`context.{attribute}` is never `{value}`"),
        help: right,
        near: format!("\"{value}\""),
    })
}

/// `a.b` for `context.a.b`.
fn attribute(expr: &Expr) -> Option<String> {
    match expr {
        Expr::GetAttr { expr, attr } => match &**expr {
            Expr::Var(Var::Context) => Some(attr.to_string()),
            inner => attribute(inner).map(|outer| format!("{outer}.{attr}")),
        },
        _ => None,
    }
}

/// Whether the attribute can have that value; if not, what to write.
fn expected(attribute: &str, value: &str) -> Result<(), String> {
    let one_of = |known: &[&str]| match known.contains(&value) {
        true => Ok(()),
        false => Err(format!("it is one of \"{}\"", known.join("\", \""))),
    };
    match attribute {
        // Methods of MCP servers: `resources/read`.
        "method" if value.contains('/') => Ok(()),
        "method" | "recordType" if value.chars().any(char::is_lowercase) => {
            Err(format!("it is upper case: write \"{}\"", value.to_uppercase()))
        }
        "scheme" => one_of(&["http", "https"]),
        "via" => one_of(&["egress", "proxy", "tool", "web"]),
        "time.weekday" => one_of(&WEEKDAYS),
        "path" if !value.starts_with('/') => Err("a path starts with `/`".to_owned()),
        "path" if value.contains(['?', '#']) => Err("a path has no query; use `context.query`".to_owned()),
        "contentType" if value.chars().any(char::is_uppercase) || value.contains([';', ' ']) => {
            Err("it is lower case and without parameters, such as \"application/json\"".to_owned())
        }
        "process.digest"
            if value.len() != 64 || !value.bytes().all(|byte| b"0123456789abcdef".contains(&byte)) =>
        {
            Err("it is a SHA-256 in 64 lower-case hex digits".to_owned())
        }
        "process.exe" if !value.starts_with('/') => {
            Err("it is an absolute path; a bare command is `context.process.comm`".to_owned())
        }
        "host" => host::entity("Host", value),
        _ => Ok(()),
    }
}

/// `*example.com` also matches `evilexample.com`, and `api.*` matches anyone's name.
fn like_host(pattern: &[PatternElem]) -> Option<Finding> {
    let text: String = pattern
        .iter()
        .map(|part| match part {
            PatternElem::Char(char) => *char,
            PatternElem::Wildcard => '*',
        })
        .collect();
    let last = pattern.iter().rposition(|part| *part == PatternElem::Wildcard)?;
    let tail: String = text.chars().skip(last.saturating_add(1)).collect();
    if tail.starts_with('.') {
        return None;
    }
    let help = match host::canonical(tail.trim_start_matches('.')) {
        Some(name) => format!("write `resource in Domain::\"{name}\"`: it stops at the dots between labels"),
        None => "end the pattern with a domain, or write `resource in Domain::\"example.com\"`".to_owned(),
    };
    Some(Finding {
        message: format!("`{text}` also matches names of other owners"),
        help,
        near: format!("\"{text}\""),
    })
}

fn like_path(pattern: &[PatternElem]) -> Option<Finding> {
    match pattern.first() {
        Some(PatternElem::Char('/') | PatternElem::Wildcard) => None,
        _ => Some(Finding {
            message: "this pattern matches no path".to_owned(),
            help: "a path starts with `/`".to_owned(),
            near: "context.path like".to_owned(),
        }),
    }
}
