//! What holds for any bytes a tool is called with, for property tests and fuzzers.

use std::{net::Ipv4Addr, sync::LazyLock};

use strait_contract::{message::PolicyFile, run::RunInfo};

use super::{Arguments, LIMITS};
use crate::{Ask, Question, Snapshot, ToolAsk, Verdict, json::Json};

/// A tool with an argument of each type, and rules that look at all of them.
static RULES: LazyLock<Option<Snapshot>> = LazyLock::new(|| {
    let file = |name: &str, text: &str| PolicyFile {
        name: name.to_owned(),
        guardrail: false,
        text: text.to_owned(),
    };
    let pin = r#"{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{
        "s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},"a":{"type":"array","items":{"type":"string"}},
        "o":{"type":"object","properties":{"i":{"type":["integer","null"]},"n":{"type":"number"}}},"f":{}}}}]}"#;
    let rules = r#"@id("p") permit (principal, action in Action::"tools/call", resource);
        @id("s") forbid (principal, action in Action::"tools/call", resource) when { context has arguments.s && context.arguments.s like "*x*" };
        @id("i") forbid (principal, action in Action::"tools/call", resource) when { context has arguments.i && context.arguments.i > 100 };
        @id("n") forbid (principal, action in Action::"tools/call", resource) when { context has arguments.n && context.arguments.n.greaterThan(decimal("1.5")) };
        @id("o") forbid (principal, action in Action::"tools/call", resource) when { context has arguments.o.i && context.arguments.o.i == 7 };
        @id("a") forbid (principal, action in Action::"tools/call", resource) when { context has arguments.a && context.arguments.a.contains("x") };
        @id("f") forbid (principal, action in Action::"tools/call", resource) when { context.flat.hasTag("f.x") && context.flat.getTag("f.x").contains("1") };"#;
    Snapshot::compile(&[file("tools/srv.json", pin), file("a.cedar", rules)], 0).ok()
});

/// What is read is written again with the same meaning; it is decided without failing but for what the text itself
/// gives cause for; explained as decided; and permitted only if the tool is shown.
pub fn what_is_read_is_decided(bytes: &[u8]) {
    let Ok(arguments) = Arguments::parse(bytes) else { return };
    let text = arguments.json().to_string();
    let again = Json::parse(text.as_bytes(), &LIMITS).map(|json| json.to_string());
    assert_eq!(again.as_ref(), Ok(&text));
    let sorted = arguments.to_sorted_text();
    let resorted = Json::parse(sorted.as_bytes(), &LIMITS).map(|json| json.to_sorted_text());
    assert_eq!(resorted.as_ref(), Ok(&sorted));
    assert_eq!(Arguments::from_json(arguments.json().clone()).as_ref(), Ok(&arguments));
    let (Some(rules), Ok(id), Ok(agent)) = (RULES.as_ref(), "fuzz-1".parse(), "fuzz".parse()) else {
        assert!(RULES.is_some(), "the rules don't load");
        return;
    };
    let run = RunInfo {
        id,
        number: 1,
        addr: Ipv4Addr::LOCALHOST,
        agent,
        version: "1".to_owned(),
        started_by: "root".to_owned(),
        labels: Vec::new(),
        addresses: Vec::new(),
        token: strait_contract::token::TokenHash::of("test"),
    };
    for tool in ["t", "unpinned"] {
        let ask = Ask::Tool(ToolAsk { server: "srv", tool, arguments: &arguments });
        let question = Question { run: &run, now_ms: 0, ask, process: None };
        let verdict = rules.decide(&question);
        assert_eq!(verdict, rules.explain(&question).verdict, "{text}");
        let permitted = matches!(verdict, Verdict::Permit { .. });
        assert!(!permitted || rules.visible(&run, "srv", tool), "{text}");
        // Nothing in flat arguments can fail.
        assert!(tool == "t" || !verdict.is_failure(), "{text}: {verdict}");
    }
}
