//! Hides a secret in bytes that flow by, however it is spelled there, also across the borders of chunks (A26).
//!
//! Looked for: the value itself; as JSON, URL and HTML escape it; in hexadecimal; in base64, plain and URL-safe, at each of the
//! three places where it can stand in what was encoded. What is found becomes as many `*`, so no length changes.
//! Kept back is only what may be the beginning of one of these.

use std::sync::Arc;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use memchr::memmem;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

/// What RFC 3986 has encoded.
const URL: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Shortest fragment of base64 that is looked for: shorter ones are in any text.
const SHORTEST: usize = 6;

/// The spellings of a secret; wiped when dropped.
pub(crate) struct Patterns {
    all: Vec<Zeroizing<Vec<u8>>>,
    longest: usize,
}

impl std::fmt::Debug for Patterns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Patterns(***)")
    }
}

/// The spellings of `secret`.
pub(crate) fn spellings(secret: &str) -> Vec<Zeroizing<Vec<u8>>> {
    let mut all: Vec<Zeroizing<Vec<u8>>> = Vec::new();
    let mut add = |text: String| {
        let text = Zeroizing::new(text.into_bytes());
        if !text.is_empty() && !all.contains(&text) {
            all.push(text);
        }
    };
    add(secret.to_owned());
    let json = serde_json::to_string(secret).unwrap_or_default();
    let json = json.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or_default().to_owned();
    add(json.replace('/', "\\/"));
    for escaped in wider(&json) {
        add(escaped);
    }
    add(json);
    let url = utf8_percent_encode(secret, URL).to_string();
    // As a credential goes into a query: an error page may repeat the URL.
    let sent = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
    add(lower_escapes(&sent));
    add(sent);
    add(lower_escapes(&url));
    add(url.replace("%20", "+"));
    add(url);
    let escaped = secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    add(escaped.replace('"', "&quot;").replace('\'', "&#39;"));
    add(escaped.replace('"', "&#34;").replace('\'', "&#x27;"));
    add(secret.bytes().map(|byte| format!("{byte:02x}")).collect());
    add(secret.bytes().map(|byte| format!("{byte:02X}")).collect());
    for shift in 0..3 {
        for text in encoded(secret, shift) {
            if text.len() >= SHORTEST {
                add(text.replace('/', "\\/"));
                add(utf8_percent_encode(&text, URL).to_string());
                add(text);
            }
        }
    }
    all
}

impl Patterns {
    /// The spellings of `secret`.
    pub(crate) fn of(secret: &str) -> Self {
        Self::from(spellings(secret))
    }

    /// Those of several secrets.
    pub(crate) fn joined(first: &Self, others: &[&Arc<Self>]) -> Self {
        let others = others.iter().flat_map(|other| &other.all);
        Self::from(first.all.iter().chain(others).cloned().collect::<Vec<_>>())
    }

    fn from(all: Vec<Zeroizing<Vec<u8>>>) -> Self {
        let longest = all.iter().map(|pattern| pattern.len()).max().unwrap_or(0);
        Self { all, longest }
    }

    /// Hides the secret in every field's value.
    pub(crate) fn hide_in(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            let found = self.found(value.as_bytes());
            if found.is_empty() {
                continue;
            }
            let mut bytes = value.as_bytes().to_vec();
            cover(&mut bytes, &found);
            *value = HeaderValue::from_bytes(&bytes).unwrap_or_else(|_| HeaderValue::from_static("***"));
        }
    }

    /// Where the secret stands, each place as start and end; overlapping ones too.
    fn found(&self, text: &[u8]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for pattern in &self.all {
            let mut from = 0;
            // Not `find_iter`: of two that overlap, both are to be hidden.
            while let Some(at) = text.get(from..).and_then(|rest| memmem::find(rest, pattern)) {
                found.push((from + at, from + at + pattern.len()));
                from += at + 1;
            }
        }
        found
    }

    /// Where what may be the beginning of a spelling starts at the end of `text`.
    fn open(&self, text: &[u8]) -> usize {
        let earliest = text.len().saturating_sub(self.longest.saturating_sub(1));
        let begins = |at: &usize| {
            let Some(tail) = text.get(*at..) else { return false };
            self.all.iter().any(|pattern| pattern.len() > tail.len() && pattern.starts_with(tail))
        };
        (earliest..text.len()).find(begins).unwrap_or(text.len())
    }
}

fn cover(bytes: &mut [u8], found: &[(usize, usize)]) {
    for (start, end) in found {
        if let Some(part) = bytes.get_mut(*start..*end) {
            part.fill(b'*');
        }
    }
}

/// JSON as writers spell it that escape more than they must: what HTML takes for its own (Go, and with `+` and `'` .NET),
/// and everything that isn't ASCII (Python, PHP), with either case of digits.
fn wider(json: &str) -> Vec<String> {
    let spell = |html: &str, upper: bool| {
        let mut text = String::with_capacity(json.len());
        for c in json.chars() {
            if c.is_ascii() && !html.contains(c) {
                text.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                text.push_str(&if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") });
            }
        }
        text.replace("\\\"", if html.contains('+') { "\\u0022" } else { "\\\"" })
    };
    let families = ["", "&<>", "&<>+'`"];
    families.iter().flat_map(|html| [spell(html, false), spell(html, true)]).collect()
}

/// `%2F` as `%2f`.
fn lower_escapes(url: &str) -> String {
    let mut left = 0_u8;
    url.chars()
        .map(|c| {
            let escaped = left > 0;
            left = if c == '%' { 2 } else { left.saturating_sub(1) };
            if escaped { c.to_ascii_lowercase() } else { c }
        })
        .collect()
}

/// The characters that only the secret decides, where `shift` bytes stand before it in a group of three.
fn encoded(secret: &str, shift: usize) -> [String; 2] {
    let mut bytes = Zeroizing::new(vec![0; shift]);
    bytes.extend_from_slice(secret.as_bytes());
    // A character holds 6 bits: those that hold some of a neighbour's say nothing.
    let first = (shift * 8).div_ceil(6);
    let end = bytes.len() * 8 / 6;
    let cut = |text: String| text.get(first..end).unwrap_or_default().to_owned();
    [cut(STANDARD_NO_PAD.encode(&*bytes)), cut(URL_SAFE_NO_PAD.encode(&*bytes))]
}

/// Hides a secret in a stream.
#[derive(Debug)]
pub(crate) struct Masker {
    patterns: Arc<Patterns>,
    /// What may be the beginning of a spelling, as it came.
    held: Vec<u8>,
    /// How much of it belongs to one that was found.
    covered: usize,
}

impl Masker {
    pub(crate) fn new(patterns: Arc<Patterns>) -> Self {
        Self { patterns, held: Vec::new(), covered: 0 }
    }

    /// What can go on after `chunk` has come.
    pub(crate) fn push(&mut self, chunk: Bytes) -> Bytes {
        if self.held.is_empty() {
            let (found, open) = (self.patterns.found(&chunk), self.patterns.open(&chunk));
            if found.is_empty() && open == chunk.len() {
                return chunk;
            }
            return self.split(chunk.to_vec(), &found, open);
        }
        let mut text = std::mem::take(&mut self.held);
        text.extend_from_slice(&chunk);
        let (found, open) = (self.patterns.found(&text), self.patterns.open(&text));
        self.split(text, &found, open)
    }

    /// What was kept back, at the end.
    pub(crate) fn finish(&mut self) -> Bytes {
        let text = std::mem::take(&mut self.held);
        let (found, all) = (self.patterns.found(&text), text.len());
        self.split(text, &found, all)
    }

    fn split(&mut self, mut text: Vec<u8>, found: &[(usize, usize)], open: usize) -> Bytes {
        let held = text.split_off(open);
        let shown = |(start, end): &(usize, usize)| (*start < open).then(|| (*start, (*end).min(open)));
        let mut parts: Vec<_> = found.iter().filter_map(shown).collect();
        parts.push((0, self.covered.min(open)));
        cover(&mut text, &parts);
        let reach = found.iter().filter(|(start, _)| *start < open).map(|(_, end)| *end).max().unwrap_or(0);
        self.covered = reach.max(self.covered).saturating_sub(open);
        self.held = held;
        Bytes::from(text)
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};
    use proptest::prelude::*;

    use super::*;

    const SECRET: &str = "s3cr/t+\"key\" of ours?";

    fn masked(secret: &str, text: &[u8], sizes: &[usize]) -> Vec<u8> {
        let mut masker = Masker::new(Arc::new(Patterns::of(secret)));
        let (mut out, mut rest) = (Vec::new(), text);
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*sizes.next().unwrap_or(&7)).max(1));
            out.extend_from_slice(&masker.push(Bytes::copy_from_slice(now)));
            assert!(masker.held.len() < masker.patterns.longest, "no more is kept back than a beginning");
            rest = later;
        }
        out.extend_from_slice(&masker.finish());
        out
    }

    #[test]
    fn every_spelling_is_hidden_with_its_length_kept() {
        let json = serde_json::to_string(SECRET).unwrap();
        let url = utf8_percent_encode(SECRET, URL).to_string();
        for text in [
            SECRET.to_owned(),
            json.clone(),
            json.replace('/', "\\/"),
            url.clone(),
            lower_escapes(&url),
            url.replace("%20", "+"),
            utf8_percent_encode(SECRET, NON_ALPHANUMERIC).to_string(),
            json.replace('+', "\\u002B").replace("\\\"", "\\u0022"),
            json.replace('+', "\\u002b").replace("\\\"", "\\u0022"),
            SECRET.replace('"', "&quot;"),
            SECRET.bytes().map(|byte| format!("{byte:02x}")).collect(),
        ] {
            let whole = format!("before {text} after");
            let out = String::from_utf8(masked(SECRET, whole.as_bytes(), &[1])).unwrap();
            assert_eq!(out.len(), whole.len());
            let inner = out.strip_prefix("before ").unwrap().strip_suffix(" after").unwrap();
            assert!(inner.trim_matches('"').bytes().all(|byte| byte == b'*'), "{text}: {inner}");
        }
        for before in ["", "u", "us", "user:"] {
            for encode in [|text: String| STANDARD.encode(text), |text: String| URL_SAFE.encode(text)] {
                let whole = encode(format!("{before}{SECRET}:tail"));
                let out = String::from_utf8(masked(SECRET, whole.as_bytes(), &[5])).unwrap();
                let stars = out.matches('*').count();
                assert!(stars >= SECRET.len() * 8 / 6 - 1, "{before}: {out}");
            }
        }
        assert_eq!(masked(SECRET, b"nothing of the kind s3cr/t", &[4]), b"nothing of the kind s3cr/t");
    }

    #[test]
    fn occurrences_that_overlap_are_hidden_whole() {
        for size in 1..10 {
            assert_eq!(masked("abcabc", b"xabcabcabcabx", &[size]), b"x*********abx", "{size}");
        }
    }

    proptest! {
        /// However it is cut into chunks, the same comes out, and never the secret.
        #[test]
        fn chunks_make_no_difference(
            parts in prop::collection::vec(prop_oneof![Just(SECRET.to_owned()), "[a-z3/\" ]{0,12}", Just("s3cr/t+".to_owned())], 0..6),
            sizes in prop::collection::vec(1_usize..40, 1..8),
        ) {
            let text = parts.concat();
            let once = masked(SECRET, text.as_bytes(), &[usize::MAX]);
            prop_assert_eq!(&masked(SECRET, text.as_bytes(), &sizes), &once);
            prop_assert_eq!(once.len(), text.len());
            prop_assert!(memmem::find(&once, SECRET.as_bytes()).is_none());
        }

        /// Any secret, anywhere.
        #[test]
        fn no_secret_survives(secret in "[ -)+-~äß]{1,40}", before in "[ -~]{0,30}", size in 1_usize..9) {
            let text = format!("{before}{secret}{before}");
            let out = masked(&secret, text.as_bytes(), &[size]);
            prop_assert!(memmem::find(&out, secret.as_bytes()).is_none() || secret.bytes().all(|byte| byte == b'*'));
        }
    }
}
