use super::properties::{COUNTED, decoded_in_pieces, in_pieces, same_in_pieces};
use super::*;
use proptest::prelude::*;

fn count(operation: Operation, bytes: &[u8]) -> Counted {
    in_pieces(operation, Coding::Identity, bytes, [])
}

fn chat(usage: &str) -> Counted {
    let answer = format!(
        r#"{{"choices":[{{"message":{{"content":"four letters each word"}},"finish_reason":"stop"}}],"usage":{usage}}}"#
    );
    count(Operation::Chat, answer.as_bytes())
}

/// Usage that lies: no count comes of it, but the estimate.
#[test]
fn senseless_counts_are_estimated() {
    for number in
        ["-5", "1e300", "18446744073709551615", "99999999999", "1.5", "\"142\"", "[1]", "{}", "true"]
    {
        let counted = chat(&format!(r#"{{"prompt_tokens":3,"completion_tokens":{number}}}"#));
        assert_eq!((counted.tokens.input, counted.tokens.output), (3, 6), "{number}");
        assert!(counted.tokens.estimated, "{number}");
    }
    for usage in ["null", "7", "\"x\"", "[]", "{}", "{\"prompt_tokens\":1e999}"] {
        let counted = chat(usage);
        assert_eq!((counted.tokens.input, counted.tokens.output), (7, 6), "{usage}");
        assert!(counted.tokens.estimated, "{usage}");
    }
    let counted =
        chat(r#"{"prompt_tokens":3.0,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":90}}"#);
    assert_eq!(
        counted.tokens,
        Tokens { input: 3, output: 4, cache_read: 3, ..Tokens::default() },
        "positive control"
    );
}

#[test]
fn a_malformed_event_ends_with_itself() {
    let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"four\"\n\ndata: ]]]{{{\"\\\n\ndata: \n\ndata\n\nfoo: bar\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n";
    let counted = count(Operation::Chat, stream.as_bytes());
    assert_eq!((counted.tokens.input, counted.tokens.output, counted.complete), (3, 4, true));
    assert!(!counted.tokens.estimated);
}

#[test]
fn escaped_names_are_the_same_names() {
    let answer =
        br#"{"us\u0061ge":{"prompt_tokens":3,"completion_tokens":4},"choices":[{"finish_reason":"stop"}]}"#;
    assert_eq!(count(Operation::Chat, answer).tokens.output, 4);
}

/// Names that mean something elsewhere, in what the model writes.
#[test]
fn usage_inside_of_text_or_arguments_is_text() {
    let answer = br#"{"type":"message","content":[{"type":"tool_use","input":{"usage":{"output_tokens":999},"error":1}},
        {"text":"\"usage\":{\"output_tokens\":999}"}],"usage":{"input_tokens":1,"output_tokens":2}}"#;
    let counted = count(Operation::Messages, answer);
    assert_eq!((counted.tokens.input, counted.tokens.output, counted.complete), (1, 2, true));
}

#[test]
fn other_content_than_announced_is_estimated() {
    for body in ["", "\n", "<html>sorry</html>", "data", "\u{feff}", "event: x\n\n"] {
        let counted = count(Operation::Messages, body.as_bytes());
        assert_eq!((counted.tokens.input, counted.tokens.output), (7, 0), "{body:?}");
        assert!(counted.tokens.estimated && !counted.complete, "{body:?}");
    }
}

#[test]
fn what_costs_nothing_counts_nothing() {
    for operation in [Operation::CountTokens, Operation::Models] {
        let counted = count(operation, br#"{"input_tokens":2095,"usage":{"prompt_tokens":5}}"#);
        assert_eq!(counted.tokens, Tokens::default());
        assert!(counted.complete);
    }
}

fn kept(meter: &Meter) -> usize {
    let reader = meter.reader.as_ref().unwrap();
    reader.scanner.kept() + reader.held.capacity()
}

#[test]
fn a_single_event_of_ten_megabytes_is_counted_and_not_kept() {
    for hiding in [false, true] {
        let mut meter = Meter::new(Operation::Chat, Asked::default(), Coding::Identity);
        let mut shown = Vec::new();
        let mut feed = |meter: &mut Meter, bytes: &[u8]| {
            if hiding {
                meter.feed_hiding(bytes, &mut shown);
                shown.clear();
            } else {
                meter.feed(bytes);
            }
        };
        feed(&mut meter, br#"data: {"choices":[{"delta":{"content":""#);
        for _ in 0..10_000 {
            feed(&mut meter, &[b'a'; 1_000]);
            assert!(kept(&meter) < 256 << 10);
        }
        feed(&mut meter, b"\"}}]}\n\n");
        let counted = meter.finish();
        assert_eq!(counted.tokens.output, 2_500_000);
    }
}

#[test]
fn an_endless_stream_keeps_nothing() {
    for (operation, begin, more) in [
        (
            Operation::Chat,
            "",
            "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"word\"}}],\"usage\":null}\n\n",
        ),
        (Operation::Messages, "data: ", "{\"usage\":{\"a\":1},"),
        (Operation::Messages, "data: {\"usage\":{\"x\":\"", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        (Operation::Messages, "data: {\"", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        (
            Operation::StreamGenerate,
            "[",
            "{\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"word\"}]}}]},",
        ),
        (Operation::Responses, "", ": a comment\n\nevent: x\nid: 1\n\n"),
        (Operation::Generate, "", "[[[[[[[[[[[[["),
        (Operation::Messages, "data: {\"usage\":{\"server_tool_use\":{", "\"a\":1,\"b\":2,"),
    ] {
        let mut meter = Meter::new(operation, Asked::default(), Coding::Identity);
        meter.feed(begin.as_bytes());
        for _ in 0..50_000 {
            meter.feed(more.as_bytes());
        }
        assert!(kept(&meter) < 64 << 10, "{more}: {}", kept(&meter));
        assert!(!meter.finish().complete, "{more}");
    }
}

#[test]
fn while_hiding_an_event_that_never_shows_what_it_is_is_held_to_a_bound() {
    let mut meter = Meter::new(Operation::Chat, Asked::default(), Coding::Identity);
    let (mut shown, mut sent) = (Vec::new(), 0);
    for piece in std::iter::once(&b"data: {\"x\":\""[..]).chain(std::iter::repeat_n(&[b'a'; 1_000][..], 500))
    {
        meter.feed_hiding(piece, &mut shown);
        sent += piece.len();
        assert!(kept(&meter) < 256 << 10);
    }
    meter.shown_at_end(&mut shown);
    assert_eq!(shown.len(), sent);
}

#[test]
fn bombs_are_given_up_on() {
    let mut coded = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..64 {
        std::io::Write::write_all(&mut coded, &vec![b' '; 1 << 20]).unwrap();
    }
    let coded = coded.finish().unwrap();
    let mut meter = Meter::new(Operation::Chat, Asked { input: 7 }, Coding::Gzip);
    meter.feed(&coded);
    assert!(meter.undecodable);
    let counted = meter.finish();
    assert!(counted.tokens.estimated && !counted.complete && counted.tokens.output > 0);
    // Run-length blocks of 128 KiB in 4 bytes each.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    frame.extend([0x02, 0x00, 0x10, b' '].repeat(1_000));
    let mut meter = Meter::new(Operation::Chat, Asked { input: 7 }, Coding::Zstd);
    meter.feed(&frame);
    assert!(meter.undecodable);
}

#[test]
fn codings_are_read_from_the_header() {
    for (header, coding) in [
        ("", Coding::Identity),
        ("identity", Coding::Identity),
        ("GZIP", Coding::Gzip),
        (" x-gzip , identity", Coding::Gzip),
        ("br", Coding::Brotli),
        ("zstd", Coding::Zstd),
        ("deflate", Coding::Deflate),
        ("gzip, br", Coding::Unknown),
        ("compress", Coding::Unknown),
    ] {
        assert_eq!(Coding::of(header), coding, "{header}");
    }
    let counted = in_pieces(Operation::Messages, Coding::Unknown, &[1; 300], []);
    assert_eq!((counted.tokens.input, counted.tokens.output, counted.complete), (7, 300, false));
}

/// Bytes that look like streams of models, with anything wrong.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"data: ",
        b"data:",
        b"\n",
        b"\r\n",
        b"\n\n",
        b": x\n",
        b"{\"usage\":{\"prompt_tokens\":3,\"output_tokens\":5,\"input_tokens\":1}",
        b"\"usageMetadata\":{\"promptTokenCount\":3,\"candidatesTokenCount\":1}",
        b"{\"choices\":[]",
        b"{\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]",
        b"\"type\":\"message_delta\"",
        b"\"type\":\"response.completed\",\"response\":{",
        b"[DONE]",
        b",",
        b"}",
        b"{",
        b"[",
        b"]",
        b"\"",
        b"\\",
        b"-1e9",
        b"null",
        b"\xef\xbb\xbf",
        b"\xff",
    ];
    proptest::collection::vec(proptest::sample::select(words), 0..40).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_stream_counts_the_same_in_any_pieces(bytes in streams(), size in 1usize..40) {
        for operation in COUNTED {
            same_in_pieces(operation, &bytes, size);
        }
    }

    #[test]
    fn any_bytes_count_the_same_in_any_pieces(bytes: Vec<u8>, size in 1usize..40) {
        for operation in COUNTED {
            same_in_pieces(operation, &bytes, size);
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_given_up_on(bytes: Vec<u8>, size in 1usize..40) {
        for coding in [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd, Coding::Unknown] {
            decoded_in_pieces(coding, &bytes, size);
            let mut zstd = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
            zstd.extend_from_slice(&bytes);
            decoded_in_pieces(Coding::Zstd, &zstd, size);
        }
    }
}
