//! A packet between agent and gateway.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    strait_contract::message::properties::read_again(bytes);
});
