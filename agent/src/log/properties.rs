//! What holds for any line, for property tests and fuzzers.

use sha2::{Digest as _, Sha256};

use super::{
    line::{checked_hash, place},
    read::Entry,
};

/// No line does harm, and one whose hash is right fails with any other bit in it.
pub fn a_hash_covers_its_line(bytes: &[u8]) {
    let _ = (place(bytes), checked_hash(bytes), Entry::parse(bytes));
    let mut line = sealed(bytes);
    assert!(checked_hash(&line).is_some(), "{line:?}");
    let at = bytes.first().map_or(0, |first| usize::from(*first)) % line.len();
    if let Some(byte) = line.get_mut(at) {
        *byte ^= 1 << (bytes.len() % 8);
    }
    assert_eq!(checked_hash(&line), None, "byte {at} of {line:?}");
}

/// A line that begins with these bytes and has a right hash.
fn sealed(body: &[u8]) -> Vec<u8> {
    let digits: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    [body, b",\"hash\":\"", digits.as_bytes(), b"\"}\n"].concat()
}
