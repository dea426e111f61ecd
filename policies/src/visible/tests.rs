use super::*;
use crate::{
    PolicyFile, Verdict,
    fixture::{NOON, compile_files, compile_pinned, file, run},
};

fn github() -> PolicyFile {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/cases/tools/github.json");
    let text = std::fs::read_to_string(path).unwrap();
    PolicyFile { name: "../tools/github.json".to_owned(), guardrail: false, text }
}

fn call(snapshot: &Snapshot, run: &RunInfo, server: &str, tool: &str, text: &str) -> Verdict {
    let arguments = Arguments::parse(text.as_bytes()).unwrap();
    let ask = Ask::Tool(ToolAsk { server, tool, arguments: &arguments });
    snapshot.decide(&Question { run, now_ms: NOON, ask, process: None })
}

#[test]
fn a7_a_read_only_policy_shows_the_58_readers_of_github_and_a_hidden_tool_is_refused_all_the_same() {
    let pin = crate::Pin::parse(&github()).unwrap();
    let readers =
        || pin.tools.iter().filter(|tool| tool.read_only() == Some(true)).map(|tool| tool.name.as_str());
    assert_eq!((pin.tools.len(), readers().count()), (117, 58));
    let named: Vec<String> = readers().map(|name| format!("Action::\"github/{name}\"")).collect();
    let by_name = format!("action in [{}], resource in Tool::\"github\");", named.join(", "));
    for scope in [
        by_name.as_str(),
        r#"action in Action::"tools/call", resource in Tool::"github") when { resource has readOnly && resource.readOnly };"#,
        r#"action in Action::"tools/call", resource)
            when { resource in Tool::"github" && resource has readOnly && resource.readOnly && context.time.hour < 20 }
            unless { context.flat.hasTag("secret") };"#,
    ] {
        let text = format!("@id(\"read\") permit (principal in Agent::\"coder\", {scope}");
        let snapshot = compile_files(&[github(), file(&text)]).unwrap();
        let coder = run("coder");
        let shown: Vec<&str> = pin
            .tools
            .iter()
            .map(|tool| tool.name.as_str())
            .filter(|tool| snapshot.visible(&coder, "github", tool))
            .collect();
        assert_eq!(shown, readers().collect::<Vec<_>>(), "{scope}");
        assert!(!snapshot.visible(&run("other"), "github", "get_me"));
        let verdict = call(
            &snapshot,
            &coder,
            "github",
            "merge_pull_request",
            r#"{"owner":"a","repo":"b","pullNumber":1}"#,
        );
        assert!(verdict.is_unpermitted(), "{verdict}");
        let verdict = call(&snapshot, &coder, "github", "get_me", "{}");
        assert!(matches!(verdict, Verdict::Permit { .. }), "{verdict}");
    }
}

#[test]
fn case_61_a_tool_is_listed_if_some_call_could_pass_and_judged_by_its_arguments() {
    let permit = r#"@id("pay") permit (principal, action == Action::"bank/pay", resource) when { context.arguments.amount <= 100 };"#;
    let snapshot = compile_pinned(permit);
    let coder = run("coder");
    assert!(snapshot.visible(&coder, "bank", "pay"));
    assert!(!snapshot.visible(&coder, "github", "get_me"));
    assert!(!snapshot.visible(&coder, "bank", "else"));
    for (amount, passes) in
        [("100", true), ("101", false), ("\"100\"", false), ("1e2", false), ("100.0", false)]
    {
        let verdict = call(&snapshot, &coder, "bank", "pay", &format!("{{\"amount\":{amount}}}"));
        assert_eq!(matches!(verdict, Verdict::Permit { .. }), passes, "{amount}: {verdict}");
    }
    assert!(!matches!(call(&snapshot, &coder, "bank", "pay", "{}"), Verdict::Permit { .. }));
    // A set of forbids alone permits nothing, and hides everything.
    let forbids = compile_pinned(
        r#"@id("no") forbid (principal, action == Action::"bank/pay", resource) when { context.arguments.amount > 100 };"#,
    );
    assert!(!forbids.visible(&coder, "bank", "pay"));
    assert!(call(&forbids, &coder, "bank", "pay", "{\"amount\":1}").is_unpermitted());
}

#[test]
fn only_what_holds_whatever_is_called_hides() {
    let all = r#"@id("all") permit (principal, action, resource);"#;
    let coder = run("coder");
    for (rule, pay, me) in [
        ("", true, true),
        (r#"forbid (principal, action in Action::"tools/call", resource);"#, false, false),
        (r#"forbid (principal, action, resource in Tool::"bank");"#, false, true),
        (r#"forbid (principal, action == Action::"bank/pay", resource);"#, false, true),
        (r#"forbid (principal, action, resource == Tool::"bank/pay");"#, false, true),
        (
            r#"forbid (principal in Agent::"coder", action, resource) when { resource is Tool && resource.name == "pay" };"#,
            false,
            true,
        ),
        (r#"forbid (principal in AgentVersion::"coder/4", action, resource);"#, true, true),
        (
            r#"forbid (principal, action in Action::"tools/call", resource) when { context.time.hour < 24 };"#,
            true,
            true,
        ),
        (
            r#"forbid (principal, action == Action::"bank/pay", resource) when { context.arguments.amount > 0 || context.arguments.amount <= 0 };"#,
            true,
            true,
        ),
        (
            r#"forbid (principal, action == Action::"bank/pay", resource) unless { context has process };"#,
            true,
            true,
        ),
        (
            r#"forbid (principal, action in Action::"tools/call", resource) unless { resource has readOnly && resource.readOnly };"#,
            false,
            true,
        ),
    ] {
        let rule = if rule.is_empty() { String::new() } else { format!("@id(\"no\") {rule}") };
        let snapshot = compile_pinned(&format!("{all}{rule}"));
        let shown = |server, tool| snapshot.visible(&coder, server, tool);
        assert_eq!((shown("bank", "pay"), shown("github", "get_me")), (pay, me), "{rule}");
    }
    let held = compile_pinned(r#"@id("ask") @approval("why") permit (principal, action, resource);"#);
    assert!(held.visible(&coder, "bank", "pay"));
    assert!(held.visible(&coder, "unpinned", "any"));
    assert!(!held.visible(&coder, "Not A Tool", "any"));
    assert!(!Snapshot::empty().visible(&coder, "bank", "pay"));
}

/// Only who could be permitted something of a server may greet it.
#[test]
fn a_server_is_addressable_by_those_that_a_permit_is_about_a20() {
    let check = |text: &str, expect: bool| {
        let snapshot = compile_pinned(text);
        assert_eq!(snapshot.addressable(&run("coder"), "bank"), expect, "{text}");
    };
    for text in [
        r#"@id("x") permit (principal, action == Action::"bank/pay", resource);"#,
        r#"@id("x") permit (principal in Agent::"coder", action in Action::"tools/call", resource in Tool::"bank");"#,
        r#"@id("x") permit (principal, action in Action::"tools/call", resource) when { resource.name == "pay" };"#,
        r#"@id("x") permit (principal, action == Action::"mcp/method", resource == Tool::"bank");"#,
        r#"@id("x") @approval("a") permit (principal, action in Action::"tools/call", resource in Tool::"bank");"#,
    ] {
        check(text, true);
    }
    for text in [
        "",
        r#"@id("x") permit (principal, action == Action::"http", resource);"#,
        r#"@id("x") permit (principal in Agent::"other", action in Action::"tools/call", resource in Tool::"bank");"#,
        r#"@id("x") permit (principal, action in Action::"tools/call", resource in Tool::"github");"#,
        r#"@id("x") permit (principal, action == Action::"github/get_me", resource);"#,
        r#"@id("x") forbid (principal, action in Action::"tools/call", resource in Tool::"bank");"#,
    ] {
        check(text, false);
    }
}
