//! A18 routing, case 75 (fallback).

use serde_json::json;

use super::{Asked, BadRoute, Chosen, Outcome, Rules, Table, Target, falls_back};

fn rules(tables: serde_json::Value) -> Result<Rules, BadRoute> {
    let tables: Vec<Table> = serde_json::from_value(tables).unwrap();
    Rules::parse(&tables, |name| ["openai", "anthropic", "azure"].contains(&name))
}

const ASKED: Asked<'static> = Asked {
    agent: "coder",
    provider: "anthropic",
    model: "claude-opus-4-6",
    bytes: 1000,
    minute_of_day: 12 * 60,
    budget_left: None,
};

fn chosen(rules: &Rules, asked: Asked<'_>) -> String {
    let Chosen { rule, targets } = rules.choose(&asked);
    let targets: Vec<_> =
        targets.iter().map(|Target { provider, model }| format!("{provider}/{model}")).collect();
    format!("{} {}", rule.as_deref().unwrap_or("-"), targets.join(" "))
}

#[test]
fn a18_the_first_rule_that_matches_names_the_model_and_none_keeps_it() {
    let rules = rules(json!([
        {"agents": ["writer"], "to": "openai/gpt-5"},
        {"name": "cheaper", "models": ["anthropic/claude-opus-*"], "to": "anthropic/claude-haiku-4-5"},
        {"models": ["anthropic/*"], "to": "azure/*"},
    ]))
    .unwrap();
    assert_eq!(chosen(&rules, ASKED), "cheaper anthropic/claude-haiku-4-5");
    assert_eq!(chosen(&rules, Asked { agent: "writer", ..ASKED }), "routes[0] openai/gpt-5");
    // What a rule names isn't looked up again: haiku at anthropic would match the third.
    assert_eq!(
        chosen(&rules, Asked { model: "claude-haiku-4-5", ..ASKED }),
        "routes[2] azure/claude-haiku-4-5"
    );
    assert_eq!(chosen(&rules, Asked { provider: "openai", model: "o4", ..ASKED }), "- openai/o4");
}

#[test]
fn a18_size_time_and_budget_each_hold_a_rule_back() {
    let check = |table: serde_json::Value, yes: Asked<'_>, no: Asked<'_>| {
        let rules = rules(json!([table])).unwrap();
        assert!(rules.choose(&yes).rule.is_some(), "{table}");
        assert!(rules.choose(&no).rule.is_none(), "{table}");
    };
    let to = "openai/gpt-5";
    check(json!({"over_bytes": 1000, "to": to}), Asked { bytes: 1001, ..ASKED }, ASKED);
    check(json!({"up_to_bytes": 1000, "to": to}), ASKED, Asked { bytes: 1001, ..ASKED });
    check(json!({"between": "22:00-06:00", "to": to}), Asked { minute_of_day: 0, ..ASKED }, ASKED);
    let (low, high) = (Asked { budget_left: Some(0.1), ..ASKED }, Asked { budget_left: Some(0.2), ..ASKED });
    check(json!({"budget_below": 0.2, "to": to}), low, high);
    // No budget: none is short.
    check(json!({"budget_below": 1.0, "to": to}), high, ASKED);
}

#[test]
fn case75_fallbacks_come_in_order_and_none_twice() {
    let rules = rules(json!([
        {"models": ["anthropic/*"], "fallback": ["anthropic/claude-opus-4-6", "openai/gpt-5", "azure/*", "openai/gpt-5"]}
    ]))
    .unwrap();
    let expect = "routes[0] anthropic/claude-opus-4-6 openai/gpt-5 azure/claude-opus-4-6";
    assert_eq!(chosen(&rules, ASKED), expect);
}

#[test]
fn case75_only_what_another_provider_could_do_better_falls_back() {
    for outcome in [Outcome::Connect, Outcome::Silent] {
        assert!(falls_back(outcome));
    }
    for status in [429, 500, 502, 503, 504, 529, 599] {
        assert!(falls_back(Outcome::Status(status)), "{status}");
    }
    for status in [200, 204, 301, 400, 401, 403, 404, 408, 413, 422, 600] {
        assert!(!falls_back(Outcome::Status(status)), "{status}");
    }
}

#[test]
fn a_table_that_cannot_be_taken_is_refused_by_key() {
    let check = |table: serde_json::Value, says: &str| {
        let error = rules(json!([{"to": "openai/gpt-5"}, table])).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    check(json!({}), "`routes[1].to`: a route says where to");
    check(json!({"to": "gpt-5"}), "`routes[1].to`: `gpt-5` is not `provider/model`");
    check(json!({"to": "openai/gpt-*"}), "`routes[1].to`: `openai/gpt-*` is not");
    check(json!({"to": "*/gpt-5"}), "is not `provider/model`");
    check(json!({"to": "gemini/x"}), "`routes[1].to`: there is no provider `gemini`");
    check(json!({"fallback": ["openai/x", "eos/x"]}), "`routes[1].fallback[1]`: there is no provider `eos`");
    check(json!({"to": "openai/x", "models": ["gpt-5"]}), "`routes[1].models[0]`: `gpt-5` names no provider");
    check(json!({"to": "openai/x", "agents": [""]}), "`routes[1].agents[0]`");
    check(json!({"to": "openai/x", "between": "9-17"}), "`routes[1].between`: `9-17` is not");
    check(json!({"to": "openai/x", "budget_below": 0.0}), "`routes[1].budget_below`");
    check(json!({"to": "openai/x", "budget_below": 20}), "`routes[1].budget_below`");
    check(json!({"to": "openai/x", "over_bytes": 9, "up_to_bytes": 9}), "`routes[1].up_to_bytes`");
    check(json!({"fallback": vec!["openai/x"; 8]}), "`routes[1].fallback`: at most 7");
    let unknown = serde_json::from_value::<Table>(json!({"model": "x"})).unwrap_err().to_string();
    assert!(unknown.contains("unknown field `model`"), "{unknown}");
}
