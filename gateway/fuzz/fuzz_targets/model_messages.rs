//! Answers of Anthropic messages, streamed or not: counted the same in one piece and in several.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_model::api::Operation;

fuzz_target!(|bytes: &[u8]| {
    let size = 1 + usize::from(bytes.first().copied().unwrap_or(0) % 32);
    for operation in [Operation::Messages] {
        strait_model::meter::properties::same_in_pieces(operation, bytes.get(1..).unwrap_or_default(), size);
    }
});
