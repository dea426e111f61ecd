//! HTTP/1.x as the strict filter sees it, in one piece and in several.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    use strait_gateway::protocol::http::head::properties::{read_like_httparse, same_in_pieces};
    read_like_httparse(bytes);
    let sizes = bytes.iter().take(64).map(|byte| 1 + usize::from(*byte % 32));
    same_in_pieces(bytes, sizes);
});
