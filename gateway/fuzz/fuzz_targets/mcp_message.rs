//! JSON-RPC messages of MCP: what is judged is what is sent.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    strait_gateway::protocol::mcp::properties::sent_as_judged(bytes);
});
