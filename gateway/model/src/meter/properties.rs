//! What holds for any bytes: for tests and fuzz targets.

use super::{Asked, Coding, Counted, Meter};
use crate::api::Operation;

/// Operations whose answers are counted.
pub const COUNTED: [Operation; 8] = [
    Operation::Chat,
    Operation::Completions,
    Operation::Responses,
    Operation::Embeddings,
    Operation::Messages,
    Operation::Generate,
    Operation::StreamGenerate,
    Operation::Embed,
];

/// Feeds an answer in pieces of the given sizes, the rest in one.
pub fn in_pieces(
    operation: Operation,
    coding: Coding,
    bytes: &[u8],
    sizes: impl IntoIterator<Item = usize>,
) -> Counted {
    let mut meter = Meter::new(operation, Asked { input: 7 }, coding);
    let mut rest = bytes;
    for size in sizes {
        let (piece, behind) = rest.split_at_checked(size).unwrap_or((rest, &[]));
        meter.feed(piece);
        rest = behind;
    }
    meter.feed(rest);
    meter.finish()
}

/// The count doesn't depend on how the bytes arrive, and is bounded by what arrived or was said; hiding what holds
/// nothing but counts changes no count and hides no byte of anything else.
///
/// # Panics
/// If that doesn't hold.
pub fn same_in_pieces(operation: Operation, bytes: &[u8], size: usize) {
    let whole = in_pieces(operation, Coding::Identity, bytes, []);
    let parts = in_pieces(operation, Coding::Identity, bytes, std::iter::repeat_n(size.max(1), bytes.len()));
    assert_eq!(whole, parts, "in pieces of {size}");
    let mut meter = Meter::new(operation, Asked { input: 7 }, Coding::Identity);
    let mut shown = Vec::new();
    for piece in bytes.chunks(size.max(1)) {
        meter.feed_hiding(piece, &mut shown);
    }
    meter.shown_at_end(&mut shown);
    assert_eq!(whole, meter.finish(), "while hiding");
    assert!(is_part_of(&shown, bytes), "something is shown that wasn't sent");
    assert!(
        shown.len() == bytes.len()
            || memchr::memmem::find(bytes, b"usage").is_some()
            || bytes.contains(&b'\\')
    );
}

/// Coded bytes of any kind are decoded or given up on, the same in any pieces.
///
/// # Panics
/// If that doesn't hold.
pub fn decoded_in_pieces(coding: Coding, bytes: &[u8], size: usize) {
    let whole = in_pieces(Operation::Chat, coding, bytes, []);
    let parts = in_pieces(Operation::Chat, coding, bytes, std::iter::repeat_n(size.max(1), bytes.len()));
    // What was read before an error may be more in small pieces.
    assert_eq!(whole.complete, parts.complete, "in pieces of {size}");
}

fn is_part_of(shown: &[u8], sent: &[u8]) -> bool {
    let mut sent = sent.iter();
    shown.iter().all(|byte| sent.any(|other| other == byte))
}
