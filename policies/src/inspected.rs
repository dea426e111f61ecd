//! Which hosts have rules that only work if their HTTP is looked into.
//!
//! A passthrough host is judged by `connect` alone, so an `http` rule that names it would do nothing (cases 42, 83).

use cedar_policy::pst::{BinaryOp, Clause, Expr, Literal, Var};

use crate::{
    index::concerns,
    load::Rule,
    model::{Action, Model},
    reads::Reads,
};

/// A rule about the HTTP of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRule {
    /// `@id` of the rule.
    pub rule: String,
    /// The host it names.
    pub host: HostPattern,
}

/// How a rule names hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// That name or literal address.
    Exactly(String),
    /// That name and every name below it.
    Within(String),
}

impl HostPattern {
    /// Whether it names `host`, given in canonical form.
    pub fn names(&self, host: &str) -> bool {
        match self {
            Self::Exactly(name) => name == host,
            Self::Within(domain) => {
                host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
        }
    }
}

/// Every (rule, host) of `rules` where the rule needs HTTP to be looked into.
pub(crate) fn path_rules(model: &Model, rules: &[Rule]) -> Vec<PathRule> {
    let mut found = Vec::new();
    for rule in rules.iter().filter(|rule| needs_inspection(model, rule)) {
        let entities = rule.policy.entity_literals().into_iter().filter_map(|uid| {
            let id: &str = uid.id().unescaped();
            pattern(&uid.type_name().to_string(), id)
        });
        let mut hosts: Vec<HostPattern> = entities.collect();
        for clause in rule.tree.clauses() {
            let (Clause::When(condition) | Clause::Unless(condition)) = clause;
            crate::lint::walk(condition, &mut |part| hosts.extend(compared(part)));
        }
        found.extend(hosts.into_iter().map(|host| PathRule { rule: rule.id.clone(), host }));
    }
    found
}

fn needs_inspection(model: &Model, rule: &Rule) -> bool {
    let http_only = !concerns(model, &rule.policy, Action::Connect);
    let reads = Reads::of(&rule.tree);
    let reads_http = [
        Reads::METHOD,
        Reads::PATH,
        Reads::QUERY,
        Reads::QUERY_BYTES,
        Reads::BODY_BYTES,
        Reads::CONTENT_TYPE,
    ]
    .into_iter()
    .any(|attribute| reads.contains(attribute));
    concerns(model, &rule.policy, Action::Http) && (http_only || reads_http)
}

fn pattern(kind: &str, id: &str) -> Option<HostPattern> {
    let host = |authority: &str| {
        let name = match authority.strip_prefix('[') {
            Some(v6) => v6.split(']').next(),
            None => authority.split(':').next(),
        };
        name.map(|name| HostPattern::Exactly(name.to_owned()))
    };
    match kind {
        "Domain" => Some(HostPattern::Within(id.to_owned())),
        "Host" => Some(HostPattern::Exactly(id.to_owned())),
        "Endpoint" => host(id),
        "Url" => id.split_once("://").and_then(|(_, rest)| host(rest.split('/').next()?)),
        _ => None,
    }
}

/// Hosts that `context.host` is compared with.
fn compared(part: &Expr) -> Vec<HostPattern> {
    let is_host = |expr: &Expr| matches!(expr, Expr::GetAttr { expr, attr } if attr == "host" && matches!(**expr, Expr::Var(Var::Context)));
    let name = |expr: &Expr| match expr {
        Expr::Literal(Literal::String(name)) => Some(HostPattern::Exactly(name.to_string())),
        _ => None,
    };
    match part {
        Expr::BinaryOp { op: BinaryOp::Eq, left, right } if is_host(left) => {
            name(right).into_iter().collect()
        }
        Expr::BinaryOp { op: BinaryOp::Eq, left, right } if is_host(right) => {
            name(left).into_iter().collect()
        }
        Expr::BinaryOp { op: BinaryOp::Contains, left, right } if is_host(right) => match &**left {
            Expr::Set(values) => values.iter().filter_map(|value| name(value)).collect(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture::compile;

    #[test]
    fn cases_42_and_83_every_way_to_name_a_host_in_a_path_rule_is_found() {
        for (rule, names, other) in [
            (
                r#"permit (principal, action == Action::"http", resource in Host::"ok.test");"#,
                "ok.test",
                "a.ok.test",
            ),
            (
                r#"permit (principal, action == Action::"http", resource in Domain::"ok.test");"#,
                "a.ok.test",
                "evilok.test",
            ),
            (
                r#"permit (principal, action == Action::"http", resource in Endpoint::"ok.test:443");"#,
                "ok.test",
                "test",
            ),
            (
                r#"forbid (principal, action == Action::"http", resource == Url::"https://ok.test/a");"#,
                "ok.test",
                "test",
            ),
            (
                r#"forbid (principal, action, resource in Host::"ok.test") when { context has path && context.path == "/" };"#,
                "ok.test",
                "test",
            ),
            (
                r#"permit (principal, action == Action::"http", resource) when { resource in Host::"ok.test" };"#,
                "ok.test",
                "test",
            ),
            (
                r#"permit (principal, action == Action::"http", resource) when { context.host == "ok.test" };"#,
                "ok.test",
                "test",
            ),
            (
                r#"permit (principal, action == Action::"http", resource) when { ["ok.test"].contains(context.host) };"#,
                "ok.test",
                "test",
            ),
        ] {
            let snapshot = compile(&format!("@id(\"x\") {rule}"));
            let found = |host: &str| {
                snapshot
                    .hosts_with_path_rules()
                    .iter()
                    .any(|found| found.rule == "x" && found.host.names(host))
            };
            assert!(found(names), "{rule}");
            assert!(!found(other), "{rule}");
        }
        // Rules that hold for the stream as well work without looking into it.
        for rule in [
            r#"permit (principal, action, resource in Host::"ok.test");"#,
            r#"permit (principal, action == Action::"connect", resource in Host::"ok.test");"#,
            r#"permit (principal, action == Action::"http", resource);"#,
        ] {
            assert_eq!(compile(&format!("@id(\"x\") {rule}")).hosts_with_path_rules(), [], "{rule}");
        }
    }
}
