//! What holds for any text, for property tests and fuzzers.

use super::{is_unprintable, redact_text, redact_url};

/// Whatever comes out is bounded and printable.
pub fn bounded_and_printable(text: &str, max: usize) {
    for out in [redact_text(text, max), redact_url(text, max)] {
        assert!(out.len() <= max, "{} bytes of {max}", out.len());
        assert!(!out.contains(is_unprintable), "{out:?}");
    }
}
