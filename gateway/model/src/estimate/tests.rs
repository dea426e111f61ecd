use super::*;

fn weigh(text: &str) -> u64 {
    let mut weight = Weight::default();
    weight.add(text.as_bytes());
    weight.tokens()
}

#[test]
fn text_is_weighed_by_its_bytes() {
    assert_eq!(weigh(""), 0);
    assert_eq!(weigh("a"), 1);
    assert_eq!(weigh("four score and seven years"), 7);
    assert_eq!(weigh("東京"), 3);
}

#[test]
fn an_image_costs_as_an_image_however_it_is_sent() {
    let image = format!("iVBORw0KGgo{}", "A".repeat(1_000_000));
    let plain = format!(r#"{{"messages":[{{"content":"{}"}}]}}"#, "word ".repeat(200_000));
    assert!(input(plain.as_bytes()) >= 250_000);
    for body in [
        format!(r#"{{"image_url":{{"url":"data:image/png;base64,{image}"}}}}"#),
        format!(r#"{{"source":{{"type":"base64","media_type":"image/png","data":"{image}"}}}}"#),
    ] {
        let tokens = input(body.as_bytes());
        assert!((5_000..5_100).contains(&tokens), "{tokens}");
    }
    let document = format!(r#"{{"data":"JVBERi0x{}"}}"#, "A".repeat(1_000_000));
    assert!((62_000..63_000).contains(&input(document.as_bytes())));
    // Text that only begins like one is text.
    let text = format!(r#"{{"content":"iVBORw0KGgo{} and a word"}}"#, "A".repeat(1_000_000));
    assert!(input(text.as_bytes()) >= 250_000);
}

#[test]
fn the_worst_is_what_the_request_or_the_model_allows() {
    let body = br#"{"model":"m","messages":[]}"#;
    let output = |asked, choices, model| worst(Operation::Chat, input(body), asked, choices, model).output;
    assert_eq!(output(Some(100), 1, None), 100);
    assert_eq!(output(Some(100), 3, None), 300);
    assert_eq!(output(None, 1, Some(4_096)), 4_096);
    assert_eq!(output(Some(u64::MAX), 0, Some(4_096)), 4_096);
    assert_eq!(output(None, 1, None), OUTPUT);
    assert_eq!(worst(Operation::Embeddings, input(body), None, 1, None).output, 0);
    assert_eq!(worst(Operation::CountTokens, input(body), None, 1, None), Worst::default());
    assert!(worst(Operation::Messages, input(body), None, 1, None).input > input(body));
}

proptest::proptest! {
    #[test]
    fn any_bytes_have_an_estimate(body: Vec<u8>) {
        let tokens = input(&body);
        proptest::prop_assert!(tokens <= u64::try_from(body.len()).unwrap());
    }
}
