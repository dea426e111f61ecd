use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { bytes: 1000, depth: 4, nodes: 20 };

fn parse(text: &str) -> Result<Json, JsonError> {
    Json::parse(text.as_bytes(), &LIMITS)
}

/// A6.
#[test]
fn what_two_readers_could_read_differently_is_refused() {
    for (text, error) in [
        (r#"{"a":1,"a":2}"#, JsonError::Duplicate("a".to_owned())),
        (r#"{"a":1,"b":3,"\u0061":2}"#, JsonError::Duplicate("a".to_owned())),
        (r#"{"x":[{"b":{"a":1,"a":1}}]}"#, JsonError::Duplicate("a".to_owned())),
        ("[[[[[]]]]]", JsonError::TooDeep(4)),
        (r#"{"a":{"a":{"a":{"a":{}}}}}"#, JsonError::TooDeep(4)),
        ("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", JsonError::TooMany(20)),
    ] {
        assert_eq!(parse(text), Err(error), "{text}");
    }
    assert_eq!(parse(&format!("\"{}\"", "a".repeat(1000))), Err(JsonError::TooLong(1000)));
    assert_eq!(Json::parse(b"\"\xff\"", &LIMITS), Err(JsonError::NotText));
    for text in [
        "",
        r#"{"a":1}x"#,
        r#"{"a":1}{"b":1}"#,
        r#""\ud800""#,
        r#""\ude00\ud83d""#,
        "{\"a\":\"\u{1}\"}",
        "[01]",
        "[1.]",
        "[+1]",
        "[.5]",
        "[NaN]",
        "[1e400]",
        "[1,]",
        "{a:1}",
        "{'a':1}",
        "\u{feff}{}",
        "[-]",
        "[1-1]",
        "// no\n1",
    ] {
        assert!(matches!(parse(text), Err(JsonError::Malformed(_))), "{text}: {:?}", parse(text));
    }
    // Positive controls at the limits.
    for text in [
        "[[[[]]]]",
        "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
        r#"{"a":{"b":1},"c":{"b":1}}"#,
        r#""\ud83d\ude00""#,
    ] {
        parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

#[test]
fn case_77_big_integers_odd_letters_and_the_order_of_keys_survive() {
    for text in [
        r#"{"z":123456789012345678901234567890,"a":-0,"m":1.50,"e":1E+2}"#,
        "{\"é\":\"\u{2028}\u{fffe}\u{10ffff}😀\",\"\":null,\"a.b\":[true,false,{}]}",
        r#""a\"\\\n\u0000\u001f/""#,
        "[]",
        "-1.0e-7",
    ] {
        assert_eq!(parse(text).unwrap().to_string(), text);
    }
    assert_eq!(
        parse("{\"a\" : [ 1 ,\n2 ] , \"\\u0062\":\"\\/\" }").unwrap().to_string(),
        r#"{"a":[1,2],"b":"/"}"#
    );
}

#[test]
fn case_85_order_spacing_and_escapes_make_no_other_call_and_a_digit_does() {
    let sorted = |text| parse(text).unwrap().to_sorted_text();
    let one = sorted(r#"{"b":{"y":1,"x":[2,1]},"a":82}"#);
    assert_eq!(one, r#"{"a":82,"b":{"x":[2,1],"y":1}}"#);
    assert_eq!(sorted("{ \"\\u0061\":82, \"b\":{\"x\":[2,1],\"y\":1}}"), one);
    for other in [
        r#"{"b":{"y":1,"x":[2,1]},"a":82.0}"#,
        r#"{"b":{"y":1,"x":[2,1]},"a":820}"#,
        r#"{"b":{"y":1,"x":[1,2]},"a":82}"#,
        r#"{"b":{"y":1,"x":[2,1]},"a":"82"}"#,
        r#"{"b":{"y":1,"x":[2,1]},"a":82,"c":null}"#,
    ] {
        assert_ne!(sorted(other), one, "{other}");
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        prop::num::f64::NORMAL.prop_map(Into::into),
        "[\\PC\"\\\\0-9-]{0,8}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::btree_map("[a-e\"0-9.]{0,3}", inner, 0..5)
                .prop_map(|map| map.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_again_means_the_same_to_another_reader(value in any_json(), pretty in any::<bool>()) {
        let limits = Limits { bytes: 1 << 20, depth: 32, nodes: 4096 };
        let text = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
        let json = Json::parse(text.as_bytes(), &limits).unwrap();
        // As the other reader sees it: it is off by a bit for some doubles.
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for again in [json.to_string(), json.to_sorted_text()] {
            prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&again).unwrap(), &value);
            prop_assert_eq!(Json::parse(again.as_bytes(), &limits).unwrap().to_sorted_text(), json.to_sorted_text());
        }
    }

    #[test]
    fn no_text_does_harm(text in "[\\[\\]{}\",:0-9eE.+\\\\utrn -]{0,60}") {
        let ours = Json::parse(text.as_bytes(), &Limits { bytes: 100, depth: 100, nodes: 100 });
        let theirs = serde_json::from_str::<serde_json::Value>(&text);
        // Whatever is read here is JSON; what isn't read here is no JSON or has a key twice.
        prop_assert_eq!(ours.is_ok() || matches!(ours, Err(JsonError::Duplicate(_))), theirs.is_ok());
    }
}
