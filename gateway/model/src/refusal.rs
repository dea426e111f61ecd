//! A refusal in each API's own error shape: clients show `error.message` or the raw body, and nothing else.

use serde_json::{Map, Value, json};

use crate::api::Dialect;

/// What is to be said.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// HTTP status of the answer.
    pub status: u16,
    /// Strait's code, `BUDGET_EXCEEDED`.
    pub code: &'a str,
    /// A line with code, reason and record, for clients that show nothing else.
    pub message: &'a str,
    /// Whether a budget is used up.
    pub is_budget: bool,
    /// Strait's own members, which stand beside the API's: rule, reason, record, hint.
    pub own: &'a [(&'a str, Option<&'a str>)],
}

/// The body of a refusal, JSON.
pub fn body(dialect: Dialect, refusal: &Refusal<'_>) -> Vec<u8> {
    let mut error = match dialect {
        Dialect::OpenAi => openai(refusal),
        Dialect::Anthropic => anthropic(refusal),
        Dialect::Gemini => gemini(refusal),
    };
    for (name, value) in refusal.own {
        error.insert((*name).to_owned(), value.map_or(Value::Null, Value::from));
    }
    let whole = match dialect {
        Dialect::Anthropic => json!({"type": "error", "error": error}),
        Dialect::OpenAi | Dialect::Gemini => json!({"error": error}),
    };
    let mut text = whole.to_string().into_bytes();
    text.push(b'\n');
    text
}

fn members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

fn openai(refusal: &Refusal<'_>) -> Map<String, Value> {
    // Codex and others give up on `insufficient_quota`, and on nothing else that comes with 429.
    let (kind, code) = match refusal.status {
        429 if refusal.is_budget => ("insufficient_quota", "insufficient_quota"),
        401 => ("authentication_error", refusal.code),
        500.. => ("server_error", refusal.code),
        _ => ("invalid_request_error", refusal.code),
    };
    members(
        json!({"message": refusal.message, "type": kind, "param": null, "code": code, "strait": refusal.code}),
    )
}

fn anthropic(refusal: &Refusal<'_>) -> Map<String, Value> {
    let kind = match refusal.status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    members(json!({"type": kind, "message": refusal.message, "code": refusal.code}))
}

fn gemini(refusal: &Refusal<'_>) -> Map<String, Value> {
    let status = match refusal.status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        500.. => "INTERNAL",
        _ => "INVALID_ARGUMENT",
    };
    let mut error = members(json!({
        "code": refusal.status, "status": status, "message": refusal.message, "strait": refusal.code,
    }));
    if refusal.is_budget {
        // Gemini CLI gives up on a quota of a day; on any other it tries again and again.
        let violation =
            json!({"subject": "strait", "quotaId": "StraitBudgetPerDay", "description": refusal.message});
        let details =
            json!([{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}]);
        error.insert("details".to_owned(), details);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(dialect: Dialect, status: u16, is_budget: bool) -> Value {
        let own = [("reason", Some("too much")), ("rule", None)];
        let refusal =
            Refusal { status, code: "BUDGET_EXCEEDED", message: "BUDGET_EXCEEDED: x", is_budget, own: &own };
        serde_json::from_slice(&body(dialect, &refusal)).unwrap()
    }

    #[test]
    fn each_api_is_refused_in_its_own_shape_a18() {
        let openai = said(Dialect::OpenAi, 429, true);
        assert_eq!(openai["error"]["code"], "insufficient_quota");
        assert_eq!(openai["error"]["type"], "insufficient_quota");
        assert_eq!(said(Dialect::OpenAi, 429, false)["error"]["code"], "BUDGET_EXCEEDED");
        let anthropic = said(Dialect::Anthropic, 429, true);
        assert_eq!(
            (&anthropic["type"], &anthropic["error"]["type"]),
            (&json!("error"), &json!("rate_limit_error"))
        );
        assert_eq!(said(Dialect::Anthropic, 403, false)["error"]["type"], "permission_error");
        let gemini = said(Dialect::Gemini, 429, true);
        assert_eq!(
            (&gemini["error"]["code"], &gemini["error"]["status"]),
            (&json!(429), &json!("RESOURCE_EXHAUSTED"))
        );
        let quota = gemini["error"]["details"][0]["violations"][0]["quotaId"].as_str().unwrap();
        assert!(quota.contains("PerDay"));
        for whole in [openai, anthropic, gemini] {
            assert_eq!(whole["error"]["message"], "BUDGET_EXCEEDED: x");
            assert_eq!(whole["error"]["reason"], "too much");
            assert_eq!(whole["error"]["rule"], Value::Null);
        }
    }
}
