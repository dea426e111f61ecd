//! What holds for any bytes, for property tests and fuzzers.

use super::{Framing, HeadLimits, Violation};

/// hyper's own reader finds the same head in whatever passes, ending at the same byte.
pub fn read_like_httparse(input: &[u8]) {
    let mut search = Framing::new(HeadLimits::default());
    // The first head alone: hand over byte by byte until it has passed.
    let first = (1..=input.len()).find_map(|come| match search.pass(input.get(..come).unwrap_or_default()) {
        Ok(0) => None,
        Ok(passed) => Some(passed),
        Err(_) => Some(0),
    });
    let Some(head) = input.get(..first.unwrap_or(0)).filter(|head| !head.is_empty()) else { return };
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut theirs = httparse::Request::new(&mut headers);
    assert_eq!(theirs.parse(head), Ok(httparse::Status::Complete(head.len())));
    let version = format!("HTTP/1.{}", theirs.version.unwrap_or(9));
    let line = [theirs.method.unwrap_or_default(), theirs.path.unwrap_or_default(), &version].join(" ");
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    assert_eq!(lines.next(), Some(line.as_bytes()));
    let ours: Vec<(&[u8], &[u8])> = lines.filter(|line| !line.is_empty()).map(field).collect();
    let theirs: Vec<_> = theirs.headers.iter().map(|field| (field.name.as_bytes(), field.value)).collect();
    assert_eq!(theirs, ours);
}

fn field(line: &[u8]) -> (&[u8], &[u8]) {
    let at = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
    let (name, value) = line.split_at(at);
    (name, value.get(1..).unwrap_or_default().trim_ascii())
}

/// What passes and what is wrong doesn't depend on how the bytes come.
pub fn same_in_pieces(input: &[u8], sizes: impl IntoIterator<Item = usize>) {
    assert_eq!(in_pieces(input, sizes.into_iter().chain([input.len()])), at_once(input));
}

/// What passes when `input` comes at once, and the violation behind it.
pub(super) fn at_once(input: &[u8]) -> (usize, Option<Violation>) {
    match Framing::new(HeadLimits::default()).pass(input) {
        Ok(passed) => (passed, None),
        Err((passed, violation)) => (passed, Some(violation)),
    }
}

pub(super) fn in_pieces(input: &[u8], sizes: impl IntoIterator<Item = usize>) -> (usize, Option<Violation>) {
    let mut framing = Framing::new(HeadLimits::default());
    let (mut passed, mut come) = (0, 0);
    for size in sizes {
        come = input.len().min(come + size);
        match framing.pass(input.get(passed..come).unwrap_or_default()) {
            Ok(more) => passed += more,
            Err((more, violation)) => return (passed + more, Some(violation)),
        }
    }
    (passed, None)
}
