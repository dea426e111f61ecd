//! Calls of tools decided on their arguments, and what of those is on record (A6, A7, A20, A28).

use serde_json::{Value, json};
use strait_contract::{code::Code, message::PolicyFile, record::Decision};

use super::{UNPINNED, pay, pin, world};
use crate::world::World;

/// Tools of GitHub's server as it lists them: 117, of which 58 only read.
const GITHUB: &str = include_str!("../../../../policies/cases/tools/github.json");

/// The server's pin and a policy.
async fn reviewed(world: &World, epoch: u64, tools: Value, policy: &str) {
    let pin = PolicyFile {
        name: "../tools/bank.json".to_owned(),
        guardrail: false,
        text: json!({"tools": tools}).to_string(),
    };
    let policy = PolicyFile { name: "test.cedar".to_owned(), guardrail: false, text: policy.to_owned() };
    world.agent.as_ref().unwrap().policies(epoch, &[pin, policy]).await;
}

/// `params` of a call as they stand here, spelling and all.
async fn call(world: &World, params: &str) -> crate::world::Curl {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    world.post(&body, &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_decide_and_what_two_readers_read_differently_is_refused_a6() {
    let (world, server) = world("", &[]).await;
    let open = json!({"name": "open", "description": "opens", "inputSchema": {"type": "object", "properties": {
        "repo": {"type": "string"}, "count": {"type": "integer"}, "more": {}}}});
    let rule = r#"@id("ours") permit(principal, action == Action::"bank/open", resource)
        when { context.arguments has repo && context.arguments.repo == "a/b" }
        unless { context.arguments has count && context.arguments.count > 100 };"#;
    reviewed(&world, 2, json!([open]), rule).await;
    for good in [
        r#"{"name":"open","arguments":{"repo":"a/b"}}"#,
        r#"{"name":"op\u0065n","arguments":{"\u0072epo":"a\u002fb"}}"#,
        r#"{"arguments":{"count":100,"repo":"a\/b"},"name":"open"}"#,
    ] {
        assert_eq!(call(&world, good).await.status, 200, "{good}");
        let said = server.said_of("tools/call").pop().unwrap();
        assert_eq!(said.json["params"]["arguments"]["repo"], "a/b");
        assert!(!said.text.contains('\\'), "written anew: {}", said.text);
    }
    let deep = format!(
        r#"{{"name":"open","arguments":{{"repo":"a/b","more":{}1{}}}}}"#,
        "[".repeat(40),
        "]".repeat(40)
    );
    for (bad, status) in [
        (r#"{"name":"open","arguments":{"repo":"a/c"}}"#, 403),
        (r#"{"name":"open","arguments":{"repo":"A/B"}}"#, 403),
        (r#"{"name":"open","arguments":{"repo":"a/b","count":101}}"#, 403),
        (r#"{"name":"open","arguments":{"repo":"a/b","count":9223372036854775808}}"#, 403),
        (r#"{"name":"open","arguments":{"repo":"a/b","count":1.5}}"#, 403),
        (r#"{"name":"open","arguments":{"repo":null}}"#, 403),
        (r#"{"name":"open","name":"other","arguments":{"repo":"a/b"}}"#, 400),
        (r#"{"name":"open","arguments":{"repo":"a/b"},"arguments":{"repo":"a/c"}}"#, 400),
        (r#"{"name":"open","arguments":{"repo":"a/b","repo":"a/c"}}"#, 400),
        (r#"{"name":"open","arguments":{"repo":"a/b","\u0072epo":"a/c"}}"#, 400),
        (&deep, 400),
    ] {
        let got = call(&world, bad).await;
        assert_eq!(got.status, status, "{bad}: {got:?}");
    }
    assert_eq!(server.said_of("tools/call").len(), 3, "nothing of those reached the server");
    world.log.settled().await;
    world.log.check_steps();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_policy_shows_the_58_readers_of_github_a7() {
    let (world, server) = world("", &[]).await;
    let tools: Value = serde_json::from_str::<Value>(GITHUB).unwrap()["tools"].clone();
    let all = tools.as_array().unwrap().clone();
    assert_eq!(all.len(), 117);
    server.state.lock().unwrap().pages =
        vec![(all[..60].to_vec(), Some("1".to_owned())), (all[60..].to_vec(), None)];
    let reads = r#"@id("reads") permit(principal, action in Action::"tools/call", resource in Tool::"bank")
        when { resource has readOnly && resource.readOnly };"#;
    reviewed(&world, 2, tools.clone(), reads).await;
    let list = async || {
        let first = world.rpc("tools/list", json!({}), &[]).await;
        let next = world.rpc("tools/list", json!({"cursor": "1"}), &[]).await;
        [first.tool_names(), next.tool_names()].concat()
    };
    let mut shown = list().await;
    assert_eq!(shown.len(), 58, "{shown:?}");
    assert!(shown.contains(&"get_me".to_owned()) && !shown.contains(&"merge_pull_request".to_owned()));
    let merge = r#"{"name":"merge_pull_request","arguments":{"owner":"a","repo":"b","pullNumber":1}}"#;
    assert_eq!(call(&world, merge).await.refusal(), (403, "TOOL_CALL_DENIED".to_owned()));
    assert_eq!(server.said_of("tools/call").len(), 0);
    assert_eq!(call(&world, r#"{"name":"get_me","arguments":{}}"#).await.status, 200);
    // What a person may permit is shown too.
    let asks = r#"@id("merges") @approval("merges") permit(principal, action == Action::"bank/merge_pull_request", resource);"#;
    reviewed(&world, 3, tools, &format!("{reads}{asks}")).await;
    shown = list().await;
    assert_eq!(shown.len(), 59);
    assert!(shown.contains(&"merge_pull_request".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forbid_that_an_argument_would_break_refuses_a20() {
    let (world, server) = world("", &[]).await;
    let policy = r#"
        @id("all") permit(principal, action, resource);
        @id("limit") forbid(principal, action == Action::"bank/pay", resource) when { context.arguments.amount > 100 };
    "#;
    pin(&world, 2, &pay("does pay"), policy).await;
    assert_eq!(world.tool("pay", json!({"amount": 1})).await.status, 200);
    let got = world.tool("pay", json!({"amount": 101})).await;
    assert_eq!(got.refusal(), (403, "TOOL_CALL_DENIED".to_owned()));
    assert_eq!(got.json()["error"]["data"]["rule"], "limit");
    for broken in [json!({"amount": "x"}), json!({"amount": null}), json!({"amount": [1]}), json!({})] {
        let got = world.tool("pay", broken.clone()).await;
        assert_eq!(got.refusal(), (403, "POLICY_ERROR".to_owned()), "{broken}: {got:?}");
    }
    assert_eq!(server.said_of("tools/call").len(), 1);
    let steps = world.log.steps_done(6).await;
    let codes: Vec<_> = steps.iter().map(|step| (step.decision, step.code)).collect();
    assert_eq!(codes[0], (Decision::Allow, None));
    assert_eq!(codes[5], (Decision::Deny, Some(Code::PolicyError)));
    // No rule at all permits nothing.
    pin(&world, 3, &pay("does pay"), "").await;
    assert_eq!(world.tool("pay", json!({"amount": 1})).await.refusal().0, 403);
}

/// Arguments are hidden first and cut then, and nothing of a key is anywhere in the records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_in_arguments_is_on_record_in_no_part_a28() {
    let (world, server) = world(UNPINNED, &[]).await;
    let key = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    // Wherever the cut at 2 KiB falls within the key, and a long way behind it.
    for before in [0, 1990, 2010, 2030, 2045, 100_000] {
        let text = "word ".repeat(before / 5);
        let got = world
            .tool("read", json!({"text": format!("{text}{key} end"), "password": "hunter2hunter2"}))
            .await;
        assert_eq!(got.status, 200, "{got:?}");
        assert!(server.said_of("tools/call").pop().unwrap().text.contains(key), "the server gets it whole");
    }
    let steps = world.log.steps_done(6).await;
    assert!(steps.iter().all(|step| step.args.as_ref().is_some_and(|args| args.len() <= 2048)), "{steps:?}");
    assert!(steps[0].args.as_ref().unwrap().contains("[hidden:"), "{:?}", steps[0].args);
    let records = world.log.text();
    for part in ["ghp_", &key[4..12], &key[20..], "hunter2"] {
        assert!(!records.contains(part), "{part}");
    }
    world.log.settled().await;
}
