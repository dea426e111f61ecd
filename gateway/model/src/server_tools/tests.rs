use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn offers(dialect: Dialect, operation: Operation, body: &Value) -> (Document, Vec<Offered>) {
    let document = Document::read(body.to_string().into_bytes()).unwrap();
    let offered = offered(dialect, operation, &document).unwrap();
    (document, offered)
}

fn names(offered: &[Offered]) -> Vec<&str> {
    offered.iter().map(|offer| offer.name.as_str()).collect()
}

/// The body without all its offers, which then offers none.
fn stripped(dialect: Dialect, operation: Operation, body: &Value) -> Value {
    let (document, found) = offers(dialect, operation, body);
    let all = (0..found.len()).collect();
    let left = strip(dialect, document, &found, &all).unwrap();
    assert_eq!(offered(dialect, operation, &left).unwrap(), []);
    serde_json::from_str(left.as_str()).unwrap()
}

#[test]
fn a14_anthropic_tools_of_the_providers_go_and_the_clients_stay() {
    let client = json!([
        {"name": "pay", "input_schema": {"type": "object"}},
        {"type": "custom", "name": "f"},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "computer_20250124", "name": "computer"},
        {"type": "memory_20250818", "name": "memory"},
    ]);
    let body = json!({"model": "m", "tools": client, "tool_choice": {"type": "auto"}});
    let (document, none) = offers(Dialect::Anthropic, Operation::Messages, &body);
    assert_eq!(none, []);
    assert_eq!(
        strip(Dialect::Anthropic, document, &none, &BTreeSet::new()).unwrap().as_str(),
        body.to_string()
    );

    let mut tools = client.as_array().unwrap().clone();
    tools.insert(
        1,
        json!({"type": "web_search_20250305", "name": "web_search", "allowed_domains": ["a.example"]}),
    );
    tools.extend([
        json!({"type": "web_fetch_20250910", "name": "web_fetch"}),
        json!({"type": "code_execution_20250825", "name": "code_execution"}),
        json!({"type": "bash_evil", "name": "bash"}),
        json!({"type": "brand_new_20991231", "name": "new"}),
        json!({"type": "mcp_toolset", "mcp_server_name": "x"}),
    ]);
    let body = json!({"model": "m", "tools": tools, "tool_choice": {"type": "tool", "name": "web_search", "disable_parallel_tool_use": true},
        "mcp_servers": [{"type": "url", "name": "x", "url": "https://evil.example/mcp"}], "container": "c1"});
    let (_, found) = offers(Dialect::Anthropic, Operation::Messages, &body);
    let wanted = ["web_search", "web_fetch", "code_execution", "bash_evil", "brand_new", "mcp", "container"];
    assert_eq!(names(&found), wanted);
    assert_eq!(found[0].domains, ["a.example"]);
    assert_eq!(found[5].url.as_deref(), Some("https://evil.example/mcp"));
    let left = stripped(Dialect::Anthropic, Operation::Messages, &body);
    let choice = json!({"type": "auto", "disable_parallel_tool_use": true});
    assert_eq!(left, json!({"model": "m", "tools": client, "tool_choice": choice}));
}

#[test]
fn a14_a_list_with_nothing_left_goes_with_the_choice() {
    let body = json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}, "x": 1});
    assert_eq!(stripped(Dialect::Anthropic, Operation::Messages, &body), json!({"x": 1}));
    let body = json!({"tools": [{"type": "web_search"}], "tool_choice": "required", "parallel_tool_calls": true, "x": 1});
    assert_eq!(stripped(Dialect::OpenAi, Operation::Responses, &body), json!({"x": 1}));
    let body = json!({"tools": [{"googleSearch": {}}], "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}}, "x": 1});
    assert_eq!(stripped(Dialect::Gemini, Operation::Generate, &body), json!({"x": 1}));
}

#[test]
fn a14_a_toolset_goes_with_its_server_alone() {
    let body = json!({
        "mcp_servers": [{"name": "a", "url": "https://a.example"}, {"name": "b", "url": "https://b.example"}],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "a"}, {"type": "mcp_toolset", "mcp_server_name": "b"}],
    });
    let (document, found) = offers(Dialect::Anthropic, Operation::Messages, &body);
    let denied = found.iter().position(|offer| offer.url.as_deref() == Some("https://a.example")).unwrap();
    let left = strip(Dialect::Anthropic, document, &found, &BTreeSet::from([denied])).unwrap();
    let wanted = json!({
        "mcp_servers": [{"name": "b", "url": "https://b.example"}],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "b"}],
    });
    assert_eq!(serde_json::from_str::<Value>(left.as_str()).unwrap(), wanted);
}

#[test]
fn a14_a_toolset_without_a_server_is_decided_by_itself() {
    let body = json!({"mcp_servers": [{"name": "a", "url": "https://a.example"}],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "elsewhere"}, {"name": "f"}]});
    let (_, found) = offers(Dialect::Anthropic, Operation::Messages, &body);
    assert_eq!(names(&found), ["mcp_toolset", "mcp"]);
    assert_eq!(stripped(Dialect::Anthropic, Operation::Messages, &body), json!({"tools": [{"name": "f"}]}));
}

#[test]
fn a14_tools_that_waited_for_a_search_or_were_for_code_stay_callable() {
    let body = json!({"tools": [
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "code_execution_20250825", "name": "code_execution"},
        {"name": "f", "defer_loading": true, "allowed_callers": ["code_execution_20250825"]},
        {"name": "g", "allowed_callers": ["direct", "code_execution_20250825"]},
    ]});
    let wanted = json!({"tools": [{"name": "f"}, {"name": "g", "allowed_callers": ["direct"]}]});
    assert_eq!(stripped(Dialect::Anthropic, Operation::Messages, &body), wanted);

    let body = json!({"tools": [{"type": "tool_search"}, {"type": "namespace", "name": "n", "tools": [
        {"type": "function", "name": "f", "defer_loading": true}]}]});
    let wanted =
        json!({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]});
    assert_eq!(stripped(Dialect::OpenAi, Operation::Responses, &body), wanted);

    // A search of the client's stays, and what waits for it.
    let body = json!({"tools": [{"type": "tool_search", "execution": "client"},
        {"type": "function", "name": "f", "defer_loading": true}, {"type": "web_search"}]});
    let wanted = json!({"tools": [{"type": "tool_search", "execution": "client"},
        {"type": "function", "name": "f", "defer_loading": true}]});
    assert_eq!(stripped(Dialect::OpenAi, Operation::Responses, &body), wanted);
}

#[test]
fn a14_tools_loaded_in_the_course_of_a_talk_are_doors_too() {
    let body = |tools: Value| {
        json!({"model": "m", "input": [{"role": "user", "content": "tools"},
            {"type": "mcp_list_tools", "server_label": "x", "tools": [{"name": "told"}]},
            {"type": "tool_search_output", "execution": "client", "tools": tools}]})
    };
    let harmless =
        body(json!([{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]));
    assert_eq!(offers(Dialect::OpenAi, Operation::Responses, &harmless).1, []);
    let door = body(json!([{"type": "mcp", "server_label": "e", "server_url": "https://evil.example/mcp"}]));
    let (document, found) = offers(Dialect::OpenAi, Operation::Responses, &door);
    assert_eq!(names(&found), ["mcp"]);
    assert_eq!(found[0].url.as_deref(), Some("https://evil.example/mcp"));
    assert!(strip(Dialect::OpenAi, document, &found, &BTreeSet::from([0])).is_err());
}

#[test]
fn a14_a_choice_of_what_is_left_stays() {
    let mcp = |label: &str| json!({"type": "mcp", "server_label": label, "server_url": format!("https://{label}.example/")});
    let choose = |choice: Value| {
        let body = json!({"tools": [mcp("a"), mcp("b")], "tool_choice": choice});
        let (document, found) = offers(Dialect::OpenAi, Operation::Responses, &body);
        let left = strip(Dialect::OpenAi, document, &found, &BTreeSet::from([1])).unwrap();
        serde_json::from_str::<Value>(left.as_str()).unwrap()["tool_choice"].clone()
    };
    let kept = json!({"type": "mcp", "server_label": "a"});
    assert_eq!(choose(kept.clone()), kept);
    assert_eq!(choose(json!({"type": "mcp", "server_label": "b"})), "auto");
    let chat =
        |tools: Value| json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}});
    let both = json!([{"type": "mcp", "server_label": "a"}, {"type": "mcp", "server_label": "b"}]);
    assert_eq!(choose(chat(both)), chat(json!([kept])));
    assert_eq!(choose(chat(json!([{"type": "mcp", "server_label": "b"}]))), "none");
    // Anthropic: a client's tool of the same name.
    let body = json!({"tools": [{"type": "web_search_20250305", "name": "s"}, {"name": "s"}],
        "tool_choice": {"type": "tool", "name": "s"}});
    let left = stripped(Dialect::Anthropic, Operation::Messages, &body);
    assert_eq!(left["tool_choice"], body["tool_choice"]);
}

#[test]
fn a14_gemini_keeps_what_its_other_tools_are_told() {
    let body = json!({"tools": [{"googleSearch": {}}, {"googleMaps": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}, "retrievalConfig": {"languageCode": "de"}}});
    let (document, found) = offers(Dialect::Gemini, Operation::Generate, &body);
    let left = strip(Dialect::Gemini, document, &found, &BTreeSet::from([0])).unwrap();
    let wanted =
        json!({"tools": [{"googleMaps": {}}], "toolConfig": {"retrievalConfig": {"languageCode": "de"}}});
    assert_eq!(serde_json::from_str::<Value>(left.as_str()).unwrap(), wanted);
}

#[test]
fn a14_openai_tools_of_the_providers_go_and_what_spoke_of_them_is_mended() {
    let body = json!({
        "model": "gpt-5",
        "tools": [
            {"type": "function", "name": "f"}, {"type": "web_search_preview_2025_03_11"}, {"type": "custom", "name": "c"},
            {"type": "mcp", "server_label": "x", "server_url": "https://evil.example/sse"},
            {"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "file_search"}, {"type": "image_generation"},
            {"type": "computer_use_preview"}, {"type": "local_shell"}, {"type": "shell", "environment": {"type": "local"}},
            {"type": "shell"}, {"type": "novel"},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}, {"type": "web_search"}]},
            {"type": "namespace", "name": "e", "tools": [{"type": "web_search"}]},
        ],
        "tool_choice": {"type": "web_search_preview"},
        "include": ["web_search_call.action.sources", "reasoning.encrypted_content", "code_interpreter_call.outputs"],
    });
    let (_, found) = offers(Dialect::OpenAi, Operation::Responses, &body);
    let wanted = [
        "web_search",
        "mcp",
        "code_interpreter",
        "file_search",
        "image_generation",
        "computer_use",
        "shell",
        "novel",
        "web_search",
        "web_search",
    ];
    assert_eq!(names(&found), wanted);
    assert_eq!(found[1].url.as_deref(), Some("https://evil.example/sse"));
    let left = stripped(Dialect::OpenAi, Operation::Responses, &body);
    let wanted = json!({
        "model": "gpt-5",
        "tools": [
            {"type": "function", "name": "f"}, {"type": "custom", "name": "c"}, {"type": "local_shell"},
            {"type": "shell", "environment": {"type": "local"}},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
        ],
        "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"],
    });
    assert_eq!(left, wanted);
}

#[test]
fn a14_allowed_tools_lose_what_is_gone() {
    let tools = json!([{"type": "function", "name": "f"}, {"type": "web_search"}]);
    let allowed = |tools: Value| json!({"type": "allowed_tools", "mode": "required", "tools": tools});
    let body = json!({"tools": tools, "tool_choice": allowed(tools.clone())});
    let left = stripped(Dialect::OpenAi, Operation::Responses, &body);
    assert_eq!(left["tool_choice"], allowed(json!([{"type": "function", "name": "f"}])));
    let body = json!({"tools": tools, "tool_choice": allowed(json!([{"type": "web_search"}]))});
    assert_eq!(stripped(Dialect::OpenAi, Operation::Responses, &body)["tool_choice"], "none");
}

#[test]
fn a14_chat_has_doors_besides_its_tools() {
    let body = json!({"model": "gpt-4o", "web_search_options": {}, "tools": [{"type": "function", "function": {"name": "f"}}]});
    let left = stripped(Dialect::OpenAi, Operation::Chat, &body);
    assert_eq!(left, json!({"model": "gpt-4o", "tools": [{"type": "function", "function": {"name": "f"}}]}));
    for door in [
        json!({"search_parameters": {"mode": "on"}}),
        json!({"enable_search": true}),
        json!({"plugins": [{"id": "web"}]}),
    ] {
        assert_eq!(stripped(Dialect::OpenAi, Operation::Chat, &door), json!({}), "{door}");
    }
    let off = json!({"enable_search": false, "plugins": null});
    assert_eq!(offers(Dialect::OpenAi, Operation::Chat, &off).1, []);
    for (body, name) in [
        (json!({"model": "some/model:online"}), "web_search"),
        (json!({"model": "gpt-4o-search-preview"}), "web_search"),
        (json!({"model": "o3-deep-research"}), "web_search"),
        (json!({"model": "m", "prompt": {"id": "pmpt_1"}}), "stored_prompt"),
        (json!({"model": "m", "background": true}), "background"),
        (
            json!({"model": "m", "input": [{"content": [{"type": "input_image", "image_url": "https://a.example/"}]}]}),
            "url_fetch",
        ),
    ] {
        let (document, found) = offers(Dialect::OpenAi, Operation::Responses, &body);
        assert_eq!(names(&found), [name], "{body}");
        let refused = strip(Dialect::OpenAi, document, &found, &BTreeSet::from([0])).unwrap_err();
        assert!(refused.to_string().contains(name), "{refused}");
    }
    let plain =
        json!({"model": "gpt-4o", "prompt": "legacy completions have text here", "background": false});
    assert_eq!(offers(Dialect::OpenAi, Operation::Completions, &plain).1, []);
}

#[test]
fn a14_gemini_tools_in_both_spellings() {
    let body = json!({"tools": [
        {"functionDeclarations": [{"name": "f"}], "google_search": {}}, {"urlContext": {}}, {"codeExecution": {}},
        {"function_declarations": []}, {"brandNew": {}}, {"computerUse": {}},
    ], "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}});
    let (_, found) = offers(Dialect::Gemini, Operation::StreamGenerate, &body);
    assert_eq!(names(&found), ["google_search", "url_context", "code_execution", "brand_new"]);
    let left = stripped(Dialect::Gemini, Operation::StreamGenerate, &body);
    let wanted = json!({"tools": [{"functionDeclarations": [{"name": "f"}]}, {"function_declarations": []}, {"computerUse": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}});
    assert_eq!(left, wanted);
    let twice = json!({"tools": [{"googleSearch": {}, "google_search": {}}]});
    let document = Document::read(twice.to_string().into_bytes()).unwrap();
    assert!(matches!(
        offered(Dialect::Gemini, Operation::Generate, &document),
        Err(DocumentError::Duplicate(_))
    ));
    let cached = json!({"cachedContent": "cachedContents/x"});
    assert_eq!(names(&offers(Dialect::Gemini, Operation::Generate, &cached).1), ["cached_content"]);
}

#[test]
fn a14_what_cant_be_read_cant_be_decided() {
    for (dialect, body) in [
        (Dialect::Anthropic, r#"{"tools":{}}"#),
        (Dialect::Anthropic, r#"{"tools":["web_search_20250305"]}"#),
        (Dialect::Anthropic, r#"{"tools":[{"type":"custom","t\u0079pe":"web_search_20250305","name":"x"}]}"#),
        (Dialect::Anthropic, r#"{"tools":[{"type":7,"name":"x"}]}"#),
        (Dialect::Anthropic, r#"{"tools":[{"Type":"web_search_20250305","name":"x"}]}"#),
        (Dialect::OpenAi, r#"{"tools":[{"type":"function","TYPE":"web_search"}]}"#),
        (Dialect::OpenAi, r#"{"tools":[{"name":"x"}]}"#),
        (Dialect::OpenAi, r#"{"tools":[{"type":"function","type":"web_search"}]}"#),
        (Dialect::Gemini, r#"{"tools":{"googleSearch":{}}}"#),
    ] {
        let document = Document::read(body.as_bytes().to_vec()).unwrap();
        let read = offered(dialect, Operation::Chat, &document);
        assert!(read.is_err(), "{body}: {read:?}");
    }
}

/// Whatever types stand in whatever order, only those that the client runs are left, byte for byte.
fn entry() -> impl Strategy<Value = (bool, Value)> {
    prop_oneof![
        Just((true, json!({"type": "function", "name": "f", "big": 12345678901234567890_u64}))),
        Just((true, json!({"type": "custom", "name": "ü"}))),
        "[a-z_]{1,12}"
            .prop_filter("one of the client's", |kind| ![
                "function",
                "custom",
                "local_shell",
                "apply_patch",
                "namespace"
            ]
            .contains(&kind.as_str()))
            .prop_map(|kind| (false, json!({"type": kind}))),
    ]
}

proptest! {
    #[test]
    fn a14_nothing_offered_is_left(entries in proptest::collection::vec(entry(), 0..8)) {
        let tools: Vec<&Value> = entries.iter().map(|(_, entry)| entry).collect();
        let body = json!({"model": "m", "tools": tools, "z": 1.0});
        let left = stripped(Dialect::OpenAi, Operation::Responses, &body);
        let kept: Vec<&Value> = entries.iter().filter(|(clients, _)| *clients).map(|(_, entry)| entry).collect();
        if kept.is_empty() && !entries.is_empty() {
            prop_assert!(left.get("tools").is_none());
        } else {
            prop_assert_eq!(&left["tools"], &json!(kept));
        }
        prop_assert_eq!(&left["z"], &json!(1.0));
    }

    #[test]
    fn any_document_is_read_or_refused(text in r#"\{("(tools|messages|input|mcp_servers|tool_choice)":[\[\]{}":a-z,]{0,24}){0,3}\}"#) {
        if let Ok(document) = Document::read(text.into_bytes()) {
            for dialect in [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini] {
                if let Ok(found) = offered(dialect, Operation::Chat, &document) {
                    let all = (0..found.len()).collect();
                    if let Ok(left) = strip(dialect, document.clone(), &found, &all) {
                        prop_assert_eq!(offered(dialect, Operation::Chat, &left), Ok(Vec::new()));
                    }
                }
            }
        }
    }
}
