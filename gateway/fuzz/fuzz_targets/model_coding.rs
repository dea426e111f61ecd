//! Answers in a content coding, in one piece and in several.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_model::meter::Coding;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let coding = match first % 4 {
        0 => Coding::Gzip,
        1 => Coding::Deflate,
        2 => Coding::Brotli,
        _ => Coding::Zstd,
    };
    strait_model::meter::properties::decoded_in_pieces(coding, bytes, 1 + usize::from(first / 4));
});
