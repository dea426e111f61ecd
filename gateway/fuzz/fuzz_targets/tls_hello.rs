//! A TLS client's first bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    strait_gateway::protocol::tls::hello::properties::read_like_rustls(bytes);
});
