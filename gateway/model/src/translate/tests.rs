//! A18 translation, case 75.

mod property;

use serde_json::{Value, json};

use super::{Direction, Refused, Stream, answer, error, request};

use Direction::{ChatToMessages, MessagesToChat};

fn translated(direction: Direction, body: &Value) -> Value {
    let request = request(direction, body.to_string().as_bytes(), "target", 4096).unwrap();
    serde_json::from_slice(&request.body).unwrap()
}

fn refused(direction: Direction, body: &Value) -> String {
    request(direction, body.to_string().as_bytes(), "target", 4096).unwrap_err().to_string()
}

fn chat() -> Value {
    json!({
        "model": "gpt-5", "max_completion_tokens": 900, "temperature": 0.5, "stop": ["END"], "stream": true,
        "stream_options": {"include_usage": true}, "parallel_tool_calls": false, "user": "u1",
        "reasoning_effort": "low", "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "tools": [{"type": "function", "function": {"name": "weather", "description": "Of a place",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}],
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "text", "text": "Which is warmer?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
            {"role": "assistant", "content": "I look.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"at\":\"Oslo\",\"n\":1.50}"}},
                {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "4"},
            {"role": "tool", "tool_call_id": "c2", "content": "The tool call failed:"},
            {"role": "user", "content": "And now?"}]
    })
}

fn messages() -> Value {
    json!({
        "model": "target", "max_tokens": 900, "temperature": 0.5, "stop_sequences": ["END"], "stream": true,
        "metadata": {"user_id": "u1"}, "output_config": {"effort": "low"},
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": true},
        "tools": [{"name": "weather", "description": "Of a place",
            "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}],
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "Which is warmer?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"at": "Oslo", "n": 1.5}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "4"}]},
                {"type": "tool_result", "tool_use_id": "c2", "is_error": true},
                {"type": "text", "text": "And now?"}]}]
    })
}

#[test]
fn a18_a_chat_request_with_tools_and_images_becomes_messages() {
    assert_eq!(translated(ChatToMessages, &chat()), messages());
    // Arguments keep their text: 1.50 isn't made 1.5.
    let request = request(ChatToMessages, chat().to_string().as_bytes(), "target", 1).unwrap();
    assert!(String::from_utf8(request.body).unwrap().contains(r#"{"at":"Oslo","n":1.50}"#));
    assert!(request.stream && request.usage && request.left_out.is_empty());
}

#[test]
fn a18_a_messages_request_becomes_chat_that_means_the_same() {
    let there = translated(MessagesToChat, &messages());
    assert_eq!(there["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!(there["messages"][3], json!({"role": "tool", "tool_call_id": "c1", "content": "4"}));
    assert_eq!(there["stream_options"], json!({"include_usage": true}));
    assert_eq!(translated(ChatToMessages, &there), messages());
}

#[test]
fn a18_messages_need_a_bound_of_output_and_get_the_given_one() {
    let body = json!({"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]});
    let there = translated(ChatToMessages, &body);
    let content = json!([{"type": "text", "text": "hi"}]);
    let expect =
        json!({"model": "target", "max_tokens": 4096, "messages": [{"role": "user", "content": content}]});
    assert_eq!(there, expect);
}

#[test]
fn a18_a_schema_of_answers_and_late_system_messages_go_over() {
    let schema = json!({"type": "object", "properties": {"title": {"type": "string"}}});
    let body = json!({"model": "m", "max_tokens": 9,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "Be brief."}]});
    let there = translated(MessagesToChat, &body);
    let expect = json!({"name": "answer", "schema": schema, "strict": true});
    assert_eq!(there["response_format"], json!({"type": "json_schema", "json_schema": expect}));
    assert_eq!(there["messages"][1], json!({"role": "system", "content": "Be brief."}));
    let back = translated(ChatToMessages, &there);
    assert_eq!(back["output_config"], body["output_config"]);
    assert_eq!(back["messages"][1]["role"], "system");
}

#[test]
fn a18_hints_are_left_out_by_name() {
    let mut body = chat();
    body["prompt_cache_key"] = json!("k");
    body["messages"][1]["content"][2]["image_url"]["detail"] = json!("high");
    let left = request(ChatToMessages, body.to_string().as_bytes(), "t", 1).unwrap().left_out;
    assert_eq!(left, ["/messages/1/content/2/image_url/detail", "/prompt_cache_key"]);
    let mut body = messages();
    body["system"][0]["cache_control"] = json!({"type": "ephemeral"});
    let left = request(MessagesToChat, body.to_string().as_bytes(), "t", 1).unwrap().left_out;
    assert_eq!(left, ["/system/0/cache_control"]);
    body["thinking"] = json!({"type": "adaptive", "display": "omitted"});
    body["context_management"] = json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]});
    let left = request(MessagesToChat, body.to_string().as_bytes(), "t", 1).unwrap().left_out;
    assert_eq!(left, ["/system/0/cache_control", "/thinking/display", "/context_management/edits/0"]);
}

#[test]
fn a18_what_messages_cannot_say_is_refused_by_name() {
    let check = |name: &str, value: Value, at: &str| {
        let mut body = chat();
        *body.pointer_mut(name).unwrap_or(&mut Value::Null) = value.clone();
        if body.pointer(name).is_none() {
            body[name.trim_start_matches('/')] = value;
        }
        let error = refused(ChatToMessages, &body);
        assert!(error.starts_with(&format!("`{at}` ")), "{error}");
    };
    for (name, value) in [
        ("/n", json!(2)),
        ("/temperature", json!(1.5)),
        ("/logit_bias", json!({"1": 2})),
        ("/seed", json!(1)),
        ("/audio", json!({})),
        ("/web_search_options", json!({})),
        ("/reasoning_effort", json!("minimal")),
        ("/store", json!(true)),
        ("/functions", json!([])),
        ("/future_member", json!(false)),
        ("/max_tokens", json!(5)),
    ] {
        check(name, value, name);
    }
    check("/response_format", json!({"type": "json_object"}), "/response_format/type");
    check("/tools/0/type", json!("custom"), "/tools/0/type");
    check("/tools/0/function/name", json!("a b"), "/tools/0/function/name");
    check("/messages/2/content", json!([{"type": "refusal", "refusal": "no"}]), "/messages/2/content/0");
    check(
        "/messages/1/content/1",
        json!({"type": "input_audio", "input_audio": {}}),
        "/messages/1/content/1",
    );
    check("/messages/1/content/1/image_url/url", json!("data:,x"), "/messages/1/content/1/image_url/url");
    check(
        "/messages/2/tool_calls/0/function/arguments",
        json!("[1]"),
        "/messages/2/tool_calls/0/function/arguments",
    );
    check("/messages/3/name", json!("other"), "/messages/3/name");
    check("/messages/5", json!({"role": "user", "content": "x", "name": "ann"}), "/messages/5/name");
    // The same call with nothing changed goes through.
    translated(ChatToMessages, &chat());
}

#[test]
fn a18_what_chat_cannot_say_is_refused_by_name() {
    let check = |name: &str, value: Value, at: &str| {
        let mut body = messages();
        if let Some(place) = body.pointer_mut(name) {
            *place = value;
        } else {
            body[name.trim_start_matches('/')] = value;
        }
        let error = refused(MessagesToChat, &body);
        assert!(error.starts_with(&format!("`{at}` ")), "{error}");
    };
    for (name, value) in [
        ("/top_k", json!(5)),
        ("/mcp_servers", json!([{"url": "https://example.com"}])),
        ("/container", json!("c")),
        ("/thinking", json!({"type": "enabled", "budget_tokens": 1024})),
        ("/stop_sequences", json!(["a", "b", "c", "d", "e"])),
        ("/future_member", json!(0)),
    ] {
        check(name, value, name);
    }
    let edits = json!({"edits": [{"type": "clear_tool_uses_20250919"}]});
    check("/context_management", edits, "/context_management/edits/0");
    check("/tools/0", json!({"type": "web_search_20250305", "name": "web_search"}), "/tools/0/type");
    check("/tools/0/name", json!("n".repeat(65)), "/tools/0/name");
    check("/output_config/effort", json!("least"), "/output_config/effort");
    let thought = json!({"type": "thinking", "thinking": "x", "signature": "s"});
    check("/messages/1/content/0", thought, "/messages/1/content/0");
    check("/messages/0/content/1", json!({"type": "document"}), "/messages/0/content/1");
    let image = json!([{"type": "image", "source": {"type": "url", "url": "https://example.com"}}]);
    check("/messages/2/content/0/content", image, "/messages/2/content/0/content/0");
    let late = json!([{"type": "text", "text": "x"}, {"type": "tool_result", "tool_use_id": "c1"}]);
    check("/messages/2/content", late, "/messages/2");
    translated(MessagesToChat, &messages());
}

#[test]
fn a_request_with_a_member_twice_is_refused() {
    let body = br#"{"model":"a","messages":[],"model":"b"}"#;
    assert!(matches!(request(ChatToMessages, body, "t", 1), Err(Refused::Malformed { .. })));
    let deep = "[".repeat(200_000);
    assert!(request(ChatToMessages, deep.as_bytes(), "t", 1).is_err());
    let wide = format!(r#"{{"model":"a","messages":[{}1]}}"#, "1,".repeat(100_000));
    assert!(request(ChatToMessages, wide.as_bytes(), "t", 1).unwrap_err().to_string().contains("100000"));
}

fn chat_answer() -> Value {
    json!({"id": "x1", "object": "chat.completion", "created": 7, "model": "m",
        "choices": [{"index": 0, "logprobs": null, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": "Hi", "refusal": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"at\":\"Oslo\"}"}},
                {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]}}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
            "completion_tokens_details": {"reasoning_tokens": 5}}})
}

fn messages_answer() -> Value {
    json!({"id": "x1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
        "stop_sequence": null, "content": [{"type": "text", "text": "Hi"},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"at": "Oslo"}},
            {"type": "tool_use", "id": "c2", "name": "weather", "input": {}}],
        "usage": {"input_tokens": 30, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 60,
            "output_tokens": 20, "output_tokens_details": {"thinking_tokens": 5}}})
}

#[test]
fn a18_answers_keep_text_tools_usage_and_ending_both_ways() {
    let back = |direction, body: &Value| -> Value {
        serde_json::from_slice(&answer(direction, body.to_string().as_bytes(), 7).unwrap().body).unwrap()
    };
    assert_eq!(back(MessagesToChat, &chat_answer()), messages_answer());
    assert_eq!(back(ChatToMessages, &messages_answer()), chat_answer());
    for (chat, messages) in [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("tool_calls", "tool_use"),
        ("content_filter", "refusal"),
    ] {
        let (mut c, mut m) = (chat_answer(), messages_answer());
        c["choices"][0]["finish_reason"] = json!(chat);
        m["stop_reason"] = json!(messages);
        assert_eq!(back(MessagesToChat, &c), m);
        assert_eq!(back(ChatToMessages, &m), c);
    }
}

#[test]
fn a18_an_answers_thinking_is_hidden_as_chat_does_and_unknown_blocks_are_refused() {
    let mut body = messages_answer();
    body["content"][0] = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
    let there = answer(ChatToMessages, body.to_string().as_bytes(), 7).unwrap();
    assert_eq!(there.left_out, ["/content/0"]);
    body["content"][0] = json!({"type": "server_tool_use"});
    let error = answer(ChatToMessages, body.to_string().as_bytes(), 7).unwrap_err().to_string();
    assert!(error.starts_with("`/content/0` can't be said"), "{error}");
    body["stop_reason"] = json!("pause_turn");
    body["content"] = json!([]);
    assert!(answer(ChatToMessages, body.to_string().as_bytes(), 7).is_err());
}

#[test]
fn usage_that_lies_counts_as_none() {
    let mut body = chat_answer();
    body["usage"] =
        json!({"prompt_tokens": -5, "completion_tokens": 1.5, "prompt_tokens_details": {"cached_tokens": 9}});
    let there = answer(MessagesToChat, body.to_string().as_bytes(), 7).unwrap();
    let there: Value = serde_json::from_slice(&there.body).unwrap();
    assert_eq!(there["usage"]["input_tokens"], 0);
    assert_eq!(there["usage"]["output_tokens"], 0);
}

#[test]
fn a18_errors_come_in_the_clients_own_shape() {
    let body = br#"{"type":"error","error":{"type":"overloaded_error","message":"Busy"}}"#;
    let there = error(ChatToMessages, 529, body);
    let expect = json!({"error": {"message": "Busy", "type": "server_error", "param": null, "code": null}});
    assert_eq!((there.status, serde_json::from_slice::<Value>(&there.body).unwrap()), (503, expect));
    let body = br#"{"error":{"message":"Slow down","type":"tokens","code":"rate_limit_exceeded"}}"#;
    let there = error(MessagesToChat, 429, body);
    let expect = json!({"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down"}});
    assert_eq!((there.status, serde_json::from_slice::<Value>(&there.body).unwrap()), (429, expect));
    let there = error(MessagesToChat, 502, b"<html>bad gateway</html>");
    assert!(String::from_utf8(there.body).unwrap().contains("the provider answered 502 without saying why"));
}

fn sse(events: &[Value]) -> String {
    events
        .iter()
        .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or("x")))
        .collect()
}

fn messages_stream() -> Vec<Value> {
    let delta =
        |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let tool = |id: &str| json!({"type": "tool_use", "id": id, "name": "weather", "input": {}});
    vec![
        json!({"type": "message_start", "message": {"id": "x1", "type": "message", "role": "assistant", "model": "m",
            "content": [], "stop_reason": null, "usage": {"input_tokens": 30, "cache_creation_input_tokens": 10,
            "cache_read_input_tokens": 60, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "ping"}),
        delta(0, json!({"type": "text_delta", "text": "Grüß "})),
        delta(0, json!({"type": "text_delta", "text": "dich"})),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": tool("c1")}),
        delta(1, json!({"type": "input_json_delta", "partial_json": ""})),
        delta(1, json!({"type": "input_json_delta", "partial_json": "{\"at\":"})),
        delta(1, json!({"type": "input_json_delta", "partial_json": "\"Oslo\"}"})),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "content_block_start", "index": 2, "content_block": tool("c2")}),
        json!({"type": "content_block_stop", "index": 2}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
            "usage": {"output_tokens": 20}}),
        json!({"type": "message_stop"}),
    ]
}

fn stream(direction: Direction, bytes: &[u8]) -> (String, Stream) {
    let (mut stream, mut out) = (Stream::new(direction, true, 7), Vec::new());
    stream.feed(bytes, &mut out);
    stream.finish(&mut out);
    (String::from_utf8(out).unwrap(), stream)
}

/// What the `data` of a stream of chat say together: text, calls, reason to end, usage, whether `[DONE]` came.
fn gathered(out: &str) -> (String, Vec<(String, String)>, String, Value, bool) {
    let (mut text, mut calls, mut end, mut usage, mut done) =
        <(String, Vec<(String, String)>, String, Value, bool)>::default();
    for data in out.lines().filter_map(|line| line.strip_prefix("data: ")) {
        assert!(!done, "nothing follows [DONE]");
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(data).unwrap();
        if chunk["usage"].is_object() {
            usage = chunk["usage"].clone();
        }
        let choice = &chunk["choices"][0];
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        end += choice["finish_reason"].as_str().unwrap_or_default();
        let call = &choice["delta"]["tool_calls"][0];
        if let Some(id) = call["id"].as_str() {
            assert_eq!(call["index"], calls.len());
            calls.push((id.to_owned(), String::new()));
        }
        if let Some(piece) = call["function"]["arguments"].as_str() {
            calls[usize::try_from(call["index"].as_u64().unwrap()).unwrap()].1 += piece;
        }
    }
    (text, calls, end, usage, done)
}

#[test]
fn a18_a_stream_of_messages_says_the_same_as_chat_and_back() {
    let (chat, to_chat) = stream(ChatToMessages, sse(&messages_stream()).as_bytes());
    assert!(to_chat.ended() && to_chat.fault().is_none());
    let (text, calls, end, usage, done) = gathered(&chat);
    assert_eq!((text.as_str(), end.as_str(), done), ("Grüß dich", "tool_calls", true));
    assert_eq!(calls, [("c1".into(), r#"{"at":"Oslo"}"#.into()), ("c2".into(), "{}".into())]);
    assert_eq!(usage["prompt_tokens"], 100);
    assert_eq!(usage["completion_tokens"], 20);
    assert_eq!(usage["prompt_tokens_details"], json!({"cached_tokens": 60, "cache_write_tokens": 10}));
    let (back, to_messages) = stream(MessagesToChat, chat.as_bytes());
    assert!(to_messages.ended(), "{back}");
    let (again, _) = stream(ChatToMessages, back.as_bytes());
    assert_eq!(gathered(&again), gathered(&chat));
    let names: Vec<_> = back.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names[0], "message_start");
    assert_eq!(names[names.len() - 2..], ["message_delta", "message_stop"]);
    let count = |name: &str| names.iter().filter(|known| **known == name).count();
    assert_eq!((count("content_block_start"), count("content_block_stop")), (3, 3));
}

#[test]
fn a18_a_client_that_asked_for_no_usage_gets_none() {
    let (mut stream, mut out) = (Stream::new(ChatToMessages, false, 7), Vec::new());
    stream.feed(sse(&messages_stream()).as_bytes(), &mut out);
    assert!(stream.ended() && !String::from_utf8(out).unwrap().contains("usage"));
}

#[test]
fn case75_a_stream_cut_anywhere_never_ends_cleanly() {
    let whole = sse(&messages_stream());
    // All but the blank line at the very end, without which the last event is whole too.
    for at in 0..whole.len() - 2 {
        let (out, stream) = stream(ChatToMessages, &whole.as_bytes()[..at]);
        assert!(!out.contains("[DONE]") && out.contains(r#""error""#), "cut at {at}: {out}");
        assert_eq!(stream.fault(), Some(&Refused::Cut));
    }
    let (chat, _) = stream(ChatToMessages, whole.as_bytes());
    let reason = chat.find("\"finish_reason\":\"").unwrap();
    for at in (0..reason).step_by(7) {
        let (out, stream) = stream(MessagesToChat, &chat.as_bytes()[..at]);
        assert!(!out.contains("message_stop") && out.contains("event: error"), "cut at {at}: {out}");
        assert_ne!(stream.fault(), None);
    }
}

#[test]
fn case75_an_error_inside_of_a_stream_is_told_in_the_clients_shape() {
    let mut events = messages_stream();
    events[4] = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}});
    let (out, to_chat) = stream(ChatToMessages, sse(&events).as_bytes());
    assert!(out.ends_with(
        "data: {\"error\":{\"message\":\"Busy\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n"
    ));
    assert!(matches!(to_chat.fault(), Some(Refused::Upstream { .. })));
    let (out, _) =
        stream(MessagesToChat, b"data: {\"error\":{\"message\":\"Busy\",\"type\":\"server_error\"}}\n\n");
    assert_eq!(
        out,
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"Busy\"}}\n\n"
    );
}

#[test]
fn an_event_that_never_ends_is_given_up_at_a_bound() {
    let (mut stream, mut out) = (Stream::new(ChatToMessages, true, 7), Vec::new());
    // A comment as long costs nothing and is none.
    stream.feed(b":", &mut out);
    for _ in 0..100 {
        stream.feed(&[b'x'; 100_000], &mut out);
    }
    assert_eq!(stream.fault(), None);
    stream.feed(b"\ndata: ", &mut out);
    for _ in 0..100 {
        stream.feed(&[b'x'; 100_000], &mut out);
    }
    assert_eq!(stream.fault(), Some(&Refused::TooLong(super::sse::MAX_EVENT)));
    assert!(out.len() < 1000);
}

#[test]
fn calls_that_are_interleaved_are_refused_by_name() {
    let piece = |index: u64, id: Option<&str>| {
        let function = json!({"name": id.map(|_| "weather"), "arguments": "{}"});
        let call = json!({"index": index, "id": id, "function": function});
        let choice = json!({"index": 0, "delta": {"tool_calls": [call]}});
        json!({"id": "x", "model": "m", "choices": [choice]})
    };
    let (out, stream) =
        stream(MessagesToChat, sse(&[piece(0, Some("a")), piece(1, Some("b")), piece(0, None)]).as_bytes());
    let fault = stream.fault().unwrap().to_string();
    assert!(fault.starts_with("`/choices/0/delta/tool_calls/0/index` can't be said"), "{fault}");
    assert!(out.contains("event: error"));
}
