//! Text on its way into a record.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    strait_contract::redact::properties::bounded_and_printable(text, text.len() % 300);
});
