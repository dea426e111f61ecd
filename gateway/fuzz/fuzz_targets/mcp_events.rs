//! Server-sent events, in one piece and in several.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let size = 1 + usize::from(bytes.first().copied().unwrap_or(0) % 32);
    strait_gateway::protocol::mcp::properties::events_as_read(bytes, size);
});
