//! A DNS query of a run.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    strait_gateway::protocol::dns::properties(bytes);
});
