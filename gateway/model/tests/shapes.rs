//! Recorded shapes of answers and what was used by each (A16, cases 63, 65, 67, 75, 76).

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

use std::io::Write as _;

use strait_contract::model::Tokens;
use strait_model::api::Operation::{
    self, Chat, Completions, Embed, Embeddings, Generate, Messages, Responses, StreamGenerate,
};
use strait_model::meter::properties::in_pieces;
use strait_model::meter::{Asked, Coding, Counted, Meter};

/// Estimated tokens of the text that all shapes have in common, and of the request where nothing is given.
const TEXT: u64 = 16;
const ASKED: u64 = 7;

struct Shape {
    file: &'static str,
    operation: Operation,
    /// Input, output, cache read, cache write, reasoning.
    counts: [u64; 5],
    units: &'static [(&'static str, u64)],
    estimated: bool,
    complete: bool,
}

const fn shape(file: &'static str, operation: Operation, counts: [u64; 5]) -> Shape {
    Shape { file, operation, counts, units: &[], estimated: false, complete: true }
}

impl Shape {
    const fn units(mut self, units: &'static [(&'static str, u64)]) -> Shape {
        self.units = units;
        self
    }
    const fn estimated(mut self) -> Shape {
        self.estimated = true;
        self
    }
    const fn cut(mut self) -> Shape {
        self.complete = false;
        self
    }
    fn bytes(&self) -> Vec<u8> {
        std::fs::read(format!("{}/tests/shapes/{}", env!("CARGO_MANIFEST_DIR"), self.file)).unwrap()
    }
    fn tokens(&self) -> Tokens {
        let [input, output, cache_read, cache_write, reasoning] = self.counts;
        let units = self.units.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Tokens { input, output, cache_read, cache_write, reasoning, units, estimated: self.estimated }
    }
}

const HOUR: &[(&str, u64)] = &[("cache_write_1h", 40)];

#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    shape("chat_usage.sse", Chat, [31, 142, 16, 0, 128]),
    shape("chat_no_usage.sse", Chat, [ASKED, TEXT, 0, 0, 0]).estimated(),
    shape("chat_usage_in_every_chunk.sse", Chat, [31, 8, 0, 0, 0]),
    shape("chat_filter_results_first.sse", Chat, [31, 142, 16, 0, 128]),
    shape("chat_groq.sse", Chat, [31, 9, 0, 0, 0]),
    shape("chat_reasoning_beside.sse", Chat, [31, 110, 0, 0, 100]),
    shape("chat_tool_calls.sse", Chat, [ASKED, 6, 0, 0, 0]).estimated(),
    shape("chat_error_mid_stream.sse", Chat, [ASKED, 9, 0, 0, 0]).estimated().cut(),
    shape("chat_compatible.sse", Chat, [31, 142, 0, 0, 0]),
    shape("chat.json", Chat, [31, 142, 16, 0, 128]),
    shape("chat_no_usage.json", Chat, [ASKED, TEXT, 0, 0, 0]).estimated(),
    shape("chat_error.json", Chat, [0, 0, 0, 0, 0]).estimated().cut(),
    shape("completions_usage.sse", Completions, [5, 16, 0, 0, 0]),
    shape("completions_no_usage.sse", Completions, [ASKED, TEXT, 0, 0, 0]).estimated(),
    shape("completions.json", Completions, [5, 16, 0, 0, 0]),
    shape("embeddings.json", Embeddings, [24, 0, 0, 0, 0]),
    shape("responses_completed.sse", Responses, [88, 210, 64, 0, 192]),
    shape("responses_incomplete.sse", Responses, [88, 210, 64, 0, 192]),
    shape("responses_failed.sse", Responses, [ASKED, TEXT, 0, 0, 0]).estimated().cut(),
    shape("responses_cancelled.sse", Responses, [88, 210, 64, 0, 192]).cut(),
    shape("responses_searches.sse", Responses, [88, 210, 64, 0, 192]).units(&[("file_search", 1), ("web_search", 2)]),
    shape("responses_no_usage.sse", Responses, [ASKED, TEXT, 0, 0, 0]).estimated(),
    shape("responses.json", Responses, [88, 210, 64, 0, 192]).units(&[("file_search", 1), ("web_search", 2)]),
    shape("responses_failed.json", Responses, [0, 0, 0, 0, 0]).estimated().cut(),
    shape("messages.sse", Messages, [2112, 57, 2000, 100, 0]).units(HOUR),
    shape("messages_cumulative_delta.sse", Messages, [2112, 57, 2000, 100, 0]).units(HOUR),
    shape("messages_delta_only_cache.sse", Messages, [2112, 57, 2000, 100, 0]),
    shape("messages_zeros_in_start.sse", Messages, [42, 57, 30, 0, 0]),
    shape("messages_zeros_in_delta.sse", Messages, [42, 57, 30, 0, 0]),
    shape("messages_server_tool.sse", Messages, [5012, 157, 0, 0, 0]).units(&[("web_fetch", 1), ("web_search", 2)]),
    shape("messages_error_mid_stream.sse", Messages, [2112, 9, 2000, 100, 0]).units(HOUR).estimated().cut(),
    shape("messages_compacted.sse", Messages, [180_300, 3557, 0, 0, 0]),
    shape("messages.json", Messages, [2112, 57, 2000, 100, 0]).units(HOUR),
    shape("messages_error.sse", Messages, [0, 0, 0, 0, 0]).estimated().cut(),
    shape("gemini.sse", StreamGenerate, [20, 92, 8, 0, 70]),
    shape("gemini_metadata_only_chunk.sse", StreamGenerate, [20, 92, 8, 0, 70]),
    shape("gemini_array.json", StreamGenerate, [20, 92, 8, 0, 70]),
    shape("gemini.json", Generate, [20, 92, 8, 0, 70]),
    shape("gemini_tools.json", Generate, [520, 92, 0, 0, 70]).units(&[("google_search", 2)]),
    shape("gemini_audio.json", Generate, [20, 22, 0, 0, 0]).units(&[("audio_input", 16)]),
    shape("gemini_blocked.json", Generate, [20, 0, 0, 0, 0]),
    shape("gemini_embed.json", Embed, [ASKED, 0, 0, 0, 0]).estimated(),
];

fn count(operation: Operation, bytes: &[u8]) -> Counted {
    in_pieces(operation, Coding::Identity, bytes, [])
}

fn find(file: &str) -> &'static Shape {
    SHAPES.iter().find(|shape| shape.file == file).unwrap()
}

#[test]
fn tokens_are_those_of_the_provider_on_every_shape() {
    for shape in SHAPES {
        let counted = count(shape.operation, &shape.bytes());
        assert_eq!(counted.tokens, shape.tokens(), "{}", shape.file);
        assert_eq!(counted.complete, shape.complete, "{}", shape.file);
    }
    let listed = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shapes")).unwrap().count();
    assert_eq!(listed, SHAPES.len(), "a file that no test reads");
}

#[test]
fn the_model_is_the_one_that_the_answer_names() {
    for (file, model) in [
        ("chat_usage.sse", Some("gpt-5-mini-2025-08-07")),
        ("responses_failed.sse", Some("gpt-5-2025-08-07")),
        ("messages_error_mid_stream.sse", Some("claude-sonnet-4-5-20250929")),
        ("gemini_array.json", Some("gemini-2.5-flash")),
        ("embeddings.json", Some("text-embedding-3-small")),
        ("gemini_embed.json", None),
    ] {
        let shape = find(file);
        assert_eq!(count(shape.operation, &shape.bytes()).model.as_deref(), model, "{file}");
    }
}

#[test]
fn a_split_at_any_byte_changes_nothing() {
    for shape in SHAPES {
        let bytes = shape.bytes();
        let whole = count(shape.operation, &bytes);
        for at in 0..bytes.len() {
            assert_eq!(
                in_pieces(shape.operation, Coding::Identity, &bytes, [at]),
                whole,
                "{} at {at}",
                shape.file
            );
        }
        let bytewise = std::iter::repeat_n(1, bytes.len());
        assert_eq!(in_pieces(shape.operation, Coding::Identity, &bytes, bytewise), whole, "{}", shape.file);
    }
}

/// Line ends, the mark at the start, comments, no space behind the colon.
#[test]
fn how_a_stream_is_written_changes_nothing() {
    for shape in
        SHAPES.iter().filter(|shape| shape.file.ends_with(".sse") && !shape.file.contains("compatible"))
    {
        let text = String::from_utf8(shape.bytes()).unwrap().replace("\r\n", "\n");
        let whole = count(shape.operation, text.as_bytes());
        for other in [
            text.replace('\n', "\r\n"),
            text.replace('\n', "\r"),
            text.replace("data: ", "data:"),
            text.replace("\n\n", "\n\n: a comment\n\n"),
            format!("\u{feff}{text}"),
            text.replace("data: {", "data: {\ndata: "),
        ] {
            assert_eq!(count(shape.operation, other.as_bytes()), whole, "{}", shape.file);
        }
    }
}

/// Case 67.
#[test]
fn coded_answers_count_like_plain_ones() {
    for shape in SHAPES {
        let bytes = shape.bytes();
        let whole = count(shape.operation, &bytes);
        for (coding, coded) in coded(&bytes) {
            assert_eq!(in_pieces(shape.operation, coding, &coded, []), whole, "{} {coding:?}", shape.file);
            let bytewise = std::iter::repeat_n(1, coded.len());
            assert_eq!(
                in_pieces(shape.operation, coding, &coded, bytewise),
                whole,
                "{} {coding:?}",
                shape.file
            );
        }
    }
}

/// A client that goes away, or an upstream that does, mid-stream (case 75): what was said counts, the text that was
/// seen is estimated, and it shows.
#[test]
fn a_cut_answer_counts_what_was_seen() {
    for (file, counts) in [
        ("chat_usage.sse", [ASKED, 9, 0, 0, 0]),
        ("completions_usage.sse", [ASKED, 9, 0, 0, 0]),
        ("responses_completed.sse", [ASKED, 12, 0, 0, 0]),
        ("messages.sse", [2112, 5, 2000, 100, 0]),
        ("gemini.sse", [20, 79, 0, 0, 70]),
        ("gemini_array.json", [20, 79, 0, 0, 70]),
    ] {
        let shape = find(file);
        let bytes = shape.bytes();
        let half = &bytes[..bytes.len() / 2];
        let counted = count(shape.operation, half);
        assert!(!counted.complete && counted.tokens.estimated, "{file}: {counted:?}");
        assert!(counted.model.is_some(), "{file}");
        let [input, output, cache_read, cache_write, reasoning] = counts;
        let tokens = &counted.tokens;
        let seen = [tokens.input, tokens.output, tokens.cache_read, tokens.cache_write, tokens.reasoning];
        assert_eq!(seen, [input, output, cache_read, cache_write, reasoning], "{file}");
        for (coding, coded) in flushed(half) {
            // The coded stream is cut as well: its last bytes never come.
            let cut = &coded[..coded.len() - 4];
            let counted = in_pieces(shape.operation, coding, cut, []);
            assert!(!counted.complete && counted.tokens.estimated, "{file} {coding:?}");
            assert_eq!(counted.tokens.input, input, "{file} {coding:?}");
        }
    }
}

/// Before the last counts are there, it shows that they aren't.
#[test]
fn a_cut_anywhere_shows() {
    for shape in SHAPES.iter().filter(|shape| shape.complete && shape.operation != Embed) {
        let bytes = shape.bytes();
        let whole = count(shape.operation, &bytes);
        let last = bytes.iter().rposition(|byte| matches!(byte, b'}' | b']')).unwrap();
        for at in 0..last {
            let counted = count(shape.operation, &bytes[..at]);
            let last_counts = counted.tokens == whole.tokens;
            assert!(counted.tokens.estimated || last_counts, "{} at {at}: {counted:?}", shape.file);
            assert!(!counted.complete || at > bytes.len() / 2, "{} at {at}", shape.file);
        }
    }
}

/// Case 65: the same exchange, streamed or not.
#[test]
fn a_stream_counts_like_the_whole_answer() {
    for (stream, whole) in [
        ("chat_usage.sse", "chat.json"),
        ("completions_usage.sse", "completions.json"),
        ("responses_searches.sse", "responses.json"),
        ("messages.sse", "messages.json"),
        ("gemini.sse", "gemini.json"),
        ("gemini_array.json", "gemini.json"),
    ] {
        let (stream, whole) = (find(stream), find(whole));
        let streamed = count(stream.operation, &stream.bytes());
        assert_eq!(streamed, count(whole.operation, &whole.bytes()), "{}", stream.file);
    }
}

/// Case 63: the chunk that a client hasn't asked for is taken out, and nothing else.
#[test]
fn the_usage_chunk_is_hidden_and_nothing_else() {
    for file in [
        "chat_usage.sse",
        "chat_filter_results_first.sse",
        "chat_compatible.sse",
        "chat_usage_in_every_chunk.sse",
    ] {
        let bytes = find(file).bytes();
        let text = std::str::from_utf8(&bytes).unwrap();
        let end = if text.contains("\r\n\r\n") { "\r\n\r\n" } else { "\n\n" };
        let only_usage = |event: &&str| !(event.contains("\"choices\":[]") && event.contains("\"usage\":{"));
        let expected: String = text.split_inclusive(end).filter(only_usage).collect();
        assert!(expected.len() < text.len() && expected.contains("[DONE]"), "{file}");
        for size in [1, 2, 3, 7, 64, 1_000, 100_000] {
            let mut meter = Meter::new(Chat, Asked::default(), Coding::Identity);
            let mut shown = Vec::new();
            for piece in bytes.chunks(size) {
                meter.feed_hiding(piece, &mut shown);
            }
            meter.shown_at_end(&mut shown);
            assert_eq!(String::from_utf8(shown).unwrap(), expected, "{file} in pieces of {size}");
            assert_eq!(meter.finish(), count(Chat, &bytes), "{file}");
        }
    }
    for file in
        ["chat_no_usage.sse", "chat_groq.sse", "chat_error_mid_stream.sse", "chat.json", "chat_error.json"]
    {
        let bytes = find(file).bytes();
        let mut shown = Vec::new();
        Meter::new(Chat, Asked::default(), Coding::Identity).feed_hiding(&bytes, &mut shown);
        assert_eq!(shown, bytes, "{file}");
    }
}

/// Text goes on as soon as its event shows that it is text, not when the event ends.
#[test]
fn text_is_not_held_back_while_hiding() {
    let mut meter = Meter::new(Chat, Asked::default(), Coding::Identity);
    let mut shown = Vec::new();
    let piece = br#"data: {"id":"1","choices":[{"index":0,"delta":{"content":"The har"#;
    meter.feed_hiding(piece, &mut shown);
    assert_eq!(shown, piece);
    shown.clear();
    meter.feed_hiding(b"bour\"}}]}\n\n: ping\n", &mut shown);
    assert_eq!(shown, b"bour\"}}]}\n\n: ping\n");
}

fn coded(bytes: &[u8]) -> Vec<(Coding, Vec<u8>)> {
    let mut all = flushed(bytes);
    let zstd = |bytes| ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest);
    all.push((Coding::Zstd, zstd(bytes)));
    let (first, second) = bytes.split_at(bytes.len() / 3);
    // A frame to be skipped between two.
    all.push((Coding::Zstd, [zstd(first), b"\x5a\x2a\x4d\x18\x03\0\0\0abc".to_vec(), zstd(second)].concat()));
    all
}

/// As servers do it: flushed after each event.
fn flushed(bytes: &[u8]) -> Vec<(Coding, Vec<u8>)> {
    let level = flate2::Compression::default();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), level);
    let mut bare = flate2::write::DeflateEncoder::new(Vec::new(), level);
    for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
        for encoder in [&mut gzip as &mut dyn std::io::Write, &mut zlib, &mut bare] {
            encoder.write_all(piece).unwrap();
            encoder.flush().unwrap();
        }
    }
    let mut members = flate2::write::GzEncoder::new(Vec::new(), level);
    members.write_all(&bytes[..bytes.len() / 3]).unwrap();
    let mut two = members.finish().unwrap();
    let mut members = flate2::write::GzEncoder::new(two, level);
    members.write_all(&bytes[bytes.len() / 3..]).unwrap();
    two = members.finish().unwrap();
    vec![
        (Coding::Gzip, gzip.finish().unwrap()),
        (Coding::Gzip, two),
        (Coding::Deflate, zlib.finish().unwrap()),
        (Coding::Deflate, bare.finish().unwrap()),
        (Coding::Zstd, stored_zstd(bytes)),
        (Coding::Brotli, stored_brotli(bytes)),
    ]
}

/// A zstd frame (RFC 8878) of raw blocks with a window of 128 KiB and no checksum.
fn stored_zstd(bytes: &[u8]) -> Vec<u8> {
    let mut coded = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    for piece in bytes.chunks(100) {
        coded.extend_from_slice(&u32::try_from(piece.len() << 3).unwrap().to_le_bytes()[..3]);
        coded.extend_from_slice(piece);
    }
    // The last, and empty.
    coded.extend_from_slice(&[1, 0, 0]);
    coded
}

/// A brotli stream (RFC 7932) of metablocks that aren't compressed: an encoder would be a dependency for this alone.
fn stored_brotli(bytes: &[u8]) -> Vec<u8> {
    // A window of 2^16: one bit, clear.
    let mut bits = vec![false];
    let mut coded = Vec::new();
    let flush = |bits: &mut Vec<bool>, coded: &mut Vec<u8>| {
        for byte in bits.chunks(8) {
            coded.push(byte.iter().enumerate().fold(0, |sum, (at, bit)| sum | (u8::from(*bit) << at)));
        }
        bits.clear();
    };
    for piece in bytes.chunks(50_000) {
        let length = piece.len() - 1;
        // Not the last; four nibbles of length; not compressed.
        bits.extend([false, false, false]);
        bits.extend((0..16).map(|bit| length >> bit & 1 == 1));
        bits.push(true);
        flush(&mut bits, &mut coded);
        coded.extend_from_slice(piece);
    }
    // The last, and empty.
    bits.extend([true, true]);
    flush(&mut bits, &mut coded);
    coded
}
