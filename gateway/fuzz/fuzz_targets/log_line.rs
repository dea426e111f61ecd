//! A line of the log as its reader and its verifier see it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    strait_agent::log::properties::a_hash_covers_its_line(bytes);
});
