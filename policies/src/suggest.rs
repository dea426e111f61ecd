//! The rule that would permit a call: what a refusal shows as a hint.

use crate::{
    names::{endpoint_id, tool_id},
    question::{Ask, HttpAsk, Question, ServerToolAsk, ToolAsk},
};

/// A rule that permits this call for its agent and as little more as a rule can say: for HTTP that method on that
/// path of that host and port with any query (by that tool, if it is one's), for a tool of an MCP server that tool with
/// any arguments, for a stream that host and port, for DNS that name and record type.
///
/// The text compiles; what a run wrote stands in it only inside of string literals.
pub fn suggest(question: &Question<'_>) -> String {
    let agent = literal(question.run.agent.as_str());
    match &question.ask {
        Ask::Http(http) => {
            let HttpAsk { method, scheme, path, .. } = http;
            let endpoint = literal(&endpoint_id(Some(http.host), http.address, http.port));
            let what = format!(
                "context.scheme == {} && context.method == {} && context.path == {}",
                literal(scheme),
                literal(method),
                literal(path),
            );
            match http.tool {
                Some(tool) => rule(
                    tool,
                    &agent,
                    "http",
                    &format!("resource in Tool::{}", literal(tool)),
                    &format!("resource in Endpoint::{endpoint} && {what}"),
                ),
                None => {
                    let resource = format!("resource in Endpoint::{endpoint}");
                    rule(&http.host_text(), &agent, "http", &resource, &what)
                }
            }
        }
        Ask::Connect { host, address, port } => {
            let endpoint = endpoint_id(*host, *address, *port);
            rule(&endpoint, &agent, "connect", &format!("resource == Endpoint::{}", literal(&endpoint)), "")
        }
        Ask::Dns { name, record_type } => {
            let condition = format!("context.recordType == {}", literal(record_type));
            rule(name, &agent, "dns", &format!("resource == Name::{}", literal(name)), &condition)
        }
        // By the tool's name and not by `Tool::"server/tool"`, which has to be pinned if others of the server are.
        Ask::Tool(ToolAsk { server, tool, .. }) => {
            let about = format!("{server}-{tool}");
            let resource = format!("resource in Tool::{}", literal(server));
            let condition = format!("resource.name == {}", literal(tool));
            named_rule(&about, &agent, "in Action::\"tools/call\"", &resource, &condition)
        }
        Ask::McpMethod { server, method, .. } => {
            let about = format!("{server}-{method}");
            let resource = format!("resource in Tool::{}", literal(server));
            rule(&about, &agent, "mcp/method", &resource, &format!("context.method == {}", literal(method)))
        }
        Ask::ServerTool(ServerToolAsk { provider, name, host, .. }) => {
            let id = tool_id(provider, name);
            let resource = format!("resource == ServerTool::{}", literal(&id));
            let condition = host.map(|host| format!("context has host && context.host == {}", literal(host)));
            rule(&id, &agent, "model/server_tool", &resource, &condition.unwrap_or_default())
        }
    }
}

impl HttpAsk<'_> {
    fn host_text(&self) -> String {
        self.address.map_or_else(|| self.host.to_owned(), |address| address.to_string())
    }
}

fn rule(about: &str, agent: &str, action: &str, resource: &str, condition: &str) -> String {
    named_rule(about, agent, &format!("== Action::\"{action}\""), resource, condition)
}

fn named_rule(about: &str, agent: &str, action: &str, resource: &str, condition: &str) -> String {
    let words = about.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name: String = words.collect::<Vec<_>>().join("-").chars().take(60).collect();
    let condition = if condition.is_empty() { String::new() } else { format!("\nwhen {{ {condition} }}") };
    format!(
        "@id(\"allow-{name}\")\npermit (principal in Agent::{agent}, action {action}, {resource}){condition};"
    )
}

/// A Cedar string literal: its escapes are those of Rust.
fn literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len().saturating_add(2));
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            _ if char.is_ascii_graphic() || char == ' ' => quoted.push(char),
            _ => quoted.extend(char.escape_unicode()),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Verdict,
        fixture::{arguments, compile, compile_pinned, get, question, run},
    };

    fn check(ask: Ask<'_>, other: Ask<'_>) {
        let coder = run("coder");
        let rule = suggest(&question(&coder, ask.clone()));
        let snapshot = compile(&rule);
        assert_eq!(snapshot.rules(), 1, "{rule}");
        let verdict = snapshot.decide(&question(&coder, ask));
        assert!(matches!(verdict, Verdict::Permit { .. }), "{rule}: {verdict}");
        assert!(snapshot.decide(&question(&coder, other)).is_unpermitted(), "{rule}");
        assert!(snapshot.decide(&question(&run("other"), Ask::Http(get("ok.test", "/")))).is_unpermitted());
    }

    #[test]
    fn a_suggested_stream_or_dns_rule_permits_that_call() {
        let connect = |host, address: Option<&str>, port| Ask::Connect {
            host,
            address: address.map(|text| text.parse().unwrap()),
            port,
        };
        check(connect(Some("db.ok.test"), None, 5432), connect(Some("db.ok.test"), None, 22));
        check(connect(None, Some("192.0.2.1"), 5432), connect(None, Some("192.0.2.2"), 5432));
        check(connect(None, Some("2001:db8::1"), 5432), connect(None, Some("2001:db8::2"), 5432));
        let dns = |name, record_type| Ask::Dns { name, record_type };
        check(dns("_a.ok.test", "TXT"), dns("_a.ok.test", "SRV"));
    }

    #[test]
    fn a_rule_suggested_for_a_tool_opens_nothing_but_that_path_and_only_by_the_tool() {
        let ask = |tool, host, path| Ask::Http(HttpAsk { tool, via: "tool", ..get(host, path) });
        let call = ask(Some("github"), "ok.test", "/a");
        check(call.clone(), ask(None, "ok.test", "/a"));
        check(call.clone(), ask(Some("other"), "ok.test", "/a"));
        check(call.clone(), ask(Some("github"), "no.test", "/a"));
        check(call, ask(Some("github"), "ok.test", "/b"));
    }

    #[test]
    fn a_rule_suggested_for_a_tool_of_a_server_permits_it_pinned_or_not_and_no_other() {
        let (none, pay) = (arguments("{}"), arguments("{\"amount\":1}"));
        let coder = run("coder");
        let tool = |server, tool, arguments| Ask::Tool(ToolAsk { server, tool, arguments });
        let method = |method| Ask::McpMethod { server: "bank", method, arguments: &none };
        let served = |provider, name, host| {
            Ask::ServerTool(ServerToolAsk { provider, name, kind: "k_20250305", model: "m", host })
        };
        for (ask, other) in [
            (tool("bank", "pay", &pay), tool("bank", "new", &none)),
            (tool("bank", "new", &none), tool("bank", "pay", &pay)),
            (tool("slack", "send \"it\"", &none), tool("bank", "send \"it\"", &none)),
            (method("resources/read"), method("resources/list")),
            (served("anthropic", "web_search", None), served("anthropic", "web_fetch", None)),
            (served("openai", "mcp", Some("ok.test")), served("openai", "mcp", Some("no.test"))),
            (served("openai", "mcp", Some("ok.test")), served("other", "mcp", Some("ok.test"))),
        ] {
            let rule = suggest(&question(&coder, ask.clone()));
            let snapshot = compile_pinned(&rule);
            let verdict = snapshot.decide(&question(&coder, ask));
            assert!(matches!(verdict, Verdict::Permit { .. }), "{rule}: {verdict}");
            assert!(snapshot.decide(&question(&coder, other)).is_unpermitted(), "{rule}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_suggested_http_rule_permits_that_call_whatever_its_path(path in "/[!-~ ]{0,30}", method in "[A-Z]{1,7}") {
            prop_assume!(!path.contains(['?', '#']));
            let mut http = get("ok.test", &path);
            http.method = &method;
            check(Ask::Http(http), Ask::Http(get("ok.test", "/elsewhere/at/all")));
        }
    }
}
