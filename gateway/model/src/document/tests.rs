use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<Document, DocumentError> {
    Document::read(text.as_bytes().to_vec())
}

#[test]
fn a_member_that_stands_twice_is_refused_however_it_is_spelled() {
    // Case 69, A14; the control is the body that says it once.
    assert!(read(r#"{"model":"a","stream":true}"#).is_ok());
    for twice in [
        r#"{"model":"a","model":"b"}"#,
        r#"{"model":"a","mod\u0065l":"b"}"#,
        r#"{"tools":[],"stream":true,"tools":[]}"#,
    ] {
        assert!(matches!(read(twice), Err(DocumentError::Duplicate(_))), "{twice}");
    }
    for spelled in [r#"{"Model":"a"}"#, r#"{"TOOLS":[]}"#, r#"{"MCP_Servers":[]}"#, r#"{"maxTokens":1}"#] {
        assert!(matches!(read(spelled), Err(DocumentError::Spelling { .. })), "{spelled}");
    }
    assert!(matches!(read(r#"{"toolConfig":{},"tool_config":{}}"#), Err(DocumentError::Duplicate(_))));
    assert!(read(r#"{"tool_config":{}}"#).is_ok(), "Gemini reads both");
}

#[test]
fn what_isnt_one_json_object_is_refused() {
    for bad in ["", "[]", "null", "{} {}", "\u{feff}{}", "{\"a\":1,}", "{\"a\":}", "{'a':1}", "{\"a\":NaN}"] {
        assert!(read(bad).is_err(), "{bad}");
    }
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    assert_eq!(read(&deep), Err(DocumentError::TooDeep));
    let fits = format!("{{\"a\":{}1{}}}", "[".repeat(99), "]".repeat(99));
    assert!(read(&fits).is_ok());
    assert_eq!(Document::read(vec![b'{', 0xff, b'}']), Err(DocumentError::NotText));
}

#[test]
fn an_edit_leaves_every_other_byte() {
    // Case 77: big integers, odd escapes, order, spacing.
    let text =
        "{ \"n\" : 123456789012345678901234567890 ,\"model\"\t:\"a\", \"s\":\"\\u00e9\\/\" , \"f\":1.0 }";
    let mut document = read(text).unwrap();
    document.set("model", "\"b\"").unwrap();
    assert_eq!(document.as_str(), text.replace("\"a\"", "\"b\""));
    document.remove("s").unwrap();
    assert_eq!(
        document.as_str(),
        "{ \"n\" : 123456789012345678901234567890 ,\"model\"\t:\"b\" , \"f\":1.0 }"
    );
    document.set("stream_options", "{\"include_usage\":true}").unwrap();
    assert_eq!(document.flag("stream").unwrap(), None);
    assert!(document.as_str().ends_with("\"f\":1.0,\"stream_options\":{\"include_usage\":true} }"));
    let mut empty = read(" { } ").unwrap();
    empty.set("a", "1").unwrap();
    assert_eq!(empty.as_str(), " {\"a\":1 } ");
    empty.remove("a").unwrap();
    assert_eq!(read(empty.as_str()).unwrap().names().count(), 0);
}

#[test]
fn limits_of_the_answer_are_read_in_every_api() {
    let most = |operation, text: &str| read(text).unwrap().max_output(operation);
    assert_eq!(most(Operation::Chat, r#"{"max_tokens":5,"n":3}"#), Ok(Some(15)));
    assert_eq!(most(Operation::Chat, r#"{"max_completion_tokens":7,"max_tokens":5}"#), Ok(Some(7)));
    assert_eq!(most(Operation::Completions, r#"{"max_tokens":5,"best_of":4}"#), Ok(Some(20)));
    assert_eq!(most(Operation::Responses, r#"{"max_output_tokens":9}"#), Ok(Some(9)));
    assert_eq!(most(Operation::Messages, "{}"), Ok(None));
    let gemini = r#"{"generation_config":{"max_output_tokens":3}}"#;
    assert_eq!(most(Operation::Generate, gemini), Ok(Some(3)));
    assert!(most(Operation::Messages, r#"{"max_tokens":-5}"#).is_err());
    assert!(most(Operation::Messages, r#"{"max_tokens":"5"}"#).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Document::read(bytes);
    }

    #[test]
    fn removing_means_what_it_says(gone in proptest::collection::vec(any::<bool>(), 0..8), space in "[ \t\n]{0,2}") {
        let keys: Vec<String> = (0..gone.len()).map(|at| format!("k{at}")).collect();
        let pairs: Vec<String> =
            keys.iter().map(|key| format!("{space}\"{key}\"{space}:{space}[1,2]{space}")).collect();
        let text = format!("{{{space}{}{space}}}", pairs.join(","));
        let members = members(&text).unwrap();
        let left = without(&text, &spans(&members), |at| gone[at]);
        let left: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&left).unwrap();
        let wanted: Vec<&String> = keys.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(key, _)| key).collect();
        prop_assert_eq!(left.keys().collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn gemini_limits_count_for_every_candidate_and_stand_once() {
    let limit = |config: &str| {
        let text = format!(r#"{{"generationConfig":{config}}}"#);
        read(&text).unwrap().max_output(Operation::Generate)
    };
    assert_eq!(limit(r#"{"maxOutputTokens":7}"#), Ok(Some(7)));
    assert_eq!(limit(r#"{"max_output_tokens":7,"candidateCount":3}"#), Ok(Some(21)));
    assert_eq!(limit("{}"), Ok(None));
    let twice = limit(r#"{"maxOutputTokens":7,"max_output_tokens":60000}"#);
    assert!(matches!(twice, Err(DocumentError::Duplicate(_))), "{twice:?}");
}
