use proptest::prelude::*;

use super::*;

fn fault(text: &str) -> i32 {
    Message::parse(text.as_bytes()).expect_err(text).rpc
}

fn message(text: &str) -> Message {
    Message::parse(text.as_bytes()).unwrap_or_else(|fault| panic!("{text}: {fault:?}"))
}

#[test]
fn messages_are_told_apart() {
    let request = message(r#"  {"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}"#);
    assert!(matches!(&request.kind, Kind::Request { method, .. } if method == "tools/call"));
    assert_eq!(request.param("name").and_then(Json::as_text), Some("x"));
    let notification = message(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    assert_eq!(notification.id(), None);
    for response in
        [r#"{"jsonrpc":"2.0","id":"a","result":{}}"#, r#"{"jsonrpc":"2.0","id":-7,"error":{"code":1}}"#]
    {
        assert!(matches!(message(response).kind, Kind::Response { .. }));
    }
}

/// Case 53: nothing of a batch passes, however it is dressed up.
#[test]
fn batches_and_what_is_no_message_are_refused_case_53() {
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for (text, code) in [
        (format!("[{ping}]"), rpc::INVALID),
        (format!("  \n[{ping},{ping}]"), rpc::INVALID),
        (format!("[[{ping}]]"), rpc::INVALID),
        ("[]".to_owned(), rpc::INVALID),
        (format!("\u{feff}{ping}"), rpc::PARSE),
        (format!("{ping}{ping}"), rpc::PARSE),
        (format!("{ping}\n{ping}"), rpc::PARSE),
        (String::new(), rpc::PARSE),
        ("7".to_owned(), rpc::INVALID),
        ("null".to_owned(), rpc::INVALID),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#.to_owned(), rpc::INVALID),
        (r#"{"id":1,"method":"ping"}"#.to_owned(), rpc::INVALID),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_owned(), rpc::INVALID),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#.to_owned(), rpc::INVALID),
        (r#"{"jsonrpc":"2.0","id":1}"#.to_owned(), rpc::INVALID),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#.to_owned(), rpc::INVALID),
        (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#.to_owned(), rpc::INVALID),
        (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#.to_owned(), rpc::INVALID),
        (r#"{"jsonrpc":"2.0","id":1,"method":"pi ng"}"#.to_owned(), rpc::INVALID),
    ] {
        assert_eq!(fault(&text), code, "{text}");
    }
}

/// What two readers read differently is read by nobody.
#[test]
fn keys_that_some_take_for_another_are_refused() {
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","Method":"tools/call"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","extra":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","NAME":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"Name":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","argumentſ":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"amount":1,"Amount":999}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":[{"k":1,"\u212a":2}]}}}"#,
    ] {
        assert_eq!(fault(text), rpc::INVALID, "{text}");
    }
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"a":{}{}}}}}"#,
        "[".repeat(70),
        "]".repeat(70)
    );
    assert_eq!(fault(&deep), rpc::INVALID);
}

#[test]
fn a_fault_knows_the_request_that_it_answers() {
    let fault = Message::parse(br#"{"jsonrpc":"2.0","id":"x","method":"m","params":7}"#).expect_err("params");
    assert_eq!(fault.id.and_then(|id| id.as_text().map(str::to_owned)), Some("x".to_owned()));
}

proptest! {
    /// No bytes do harm, and what is taken is taken again as the same from what is sent.
    #[test]
    fn what_is_taken_reads_the_same_when_sent(text in "[\\[\\]{}\":,a-z0-9. jsonrpcidmethodparams\\\\]{0,80}") {
        super::super::properties::sent_as_judged(text.as_bytes());
    }

    #[test]
    fn requests_of_any_arguments_stay_what_they_are(key in "[ -~äſK]{0,12}", value in any::<i64>(), id in "[ -~]{1,20}") {
        let text = serde_json::json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": { "name": "n", "arguments": { key: value } },
        }).to_string();
        let message = Message::parse(text.as_bytes());
        let message = message.expect("one key can't be twice there");
        let sent: serde_json::Value = serde_json::from_str(&message.json.to_string()).expect("JSON");
        prop_assert_eq!(sent, serde_json::from_str::<serde_json::Value>(&text).expect("JSON"));
    }
}
