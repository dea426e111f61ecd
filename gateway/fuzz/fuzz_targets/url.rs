//! A URL as a client spells it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    strait_policies::url::properties::canonical_is_a_fixed_point(text);
});
