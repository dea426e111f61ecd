//! What a tool is called with: read, written again and decided.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    strait_policies::arguments::properties::what_is_read_is_decided(bytes);
});
