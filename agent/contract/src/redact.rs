//! Hides values that look like keys, then bounds: in that order, so that no half of a key survives a cut
//! (A28).
//!
//! A hidden value becomes `[hidden:1a2b3c]`, six hex digits of its SHA-256: the same key gives the same mark, so
//! two records about it can be joined (case 97), while 24 bits are too few to confirm a guess.
//! What is left has its control and direction characters spelled out, so that one record can't look like two.
//! Everything here looks at each byte a bounded number of times.

mod escape;
mod named;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod token;

use std::borrow::Cow;

use sha2::{Digest, Sha256};

pub use escape::is_unprintable;

/// How often what is encoded may have been encoded.
const DECODINGS: usize = 3;
/// Mark behind text that was cut.
const CUT: &str = "…";

/// Text with key-like values hidden, control characters spelled out, at most `max` bytes long. A text that was
/// cut ends in `…`.
pub fn redact_text(text: &str, max: usize) -> String {
    let mut out = Bounded::new(max);
    hide_into(text, &mut out);
    out.finish()
}

/// What stands for a hidden value.
pub fn mark(value: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::from("[hidden:");
    for byte in Sha256::digest(value).iter().take(3) {
        let _ = write!(text, "{byte:02x}");
    }
    text.push(']');
    text
}

/// A URL with its user information, and key-like path segments and query values, hidden; at most `max` bytes.
///
/// In a query more names count as secret than in a text (`key`, `sig`, `code`…), and components are judged as
/// they read when percent-decoded, up to three times over. In a path the segment behind `token`, `key`, `secret` and the
/// like is one if it has digits or capitals in it or is long.
pub fn redact_url(url: &str, max: usize) -> String {
    let mut out = Bounded::new(max);
    let rest = match url.split_once("://") {
        Some((scheme, rest)) => {
            out.push_clean(scheme);
            out.push_str("://");
            rest
        }
        None => url,
    };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(authority_end);
    match authority.rsplit_once('@') {
        Some((user, host)) => {
            out.hide(user);
            out.push_str("@");
            out.push_clean(host);
        }
        None => out.push_clean(authority),
    }
    let (rest, fragment) = match rest.split_once('#') {
        Some((rest, fragment)) => (rest, Some(fragment)),
        None => (rest, None),
    };
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (rest, None),
    };
    segments(path, authority, &mut out);
    for (mark, part) in [("?", query), ("#", fragment)] {
        if let Some(part) = part {
            out.push_str(mark);
            pairs(part, &mut out);
        }
    }
    out.finish()
}

/// The segments of a path. One behind a segment that names a secret, and all behind the first of a Slack webhook's, are
/// hidden.
fn segments(path: &str, authority: &str, out: &mut Bounded) {
    let webhook = authority.to_ascii_lowercase().contains(token::SLACK);
    let (mut names_next, mut depth) = (false, 0_usize);
    for (at, segment) in path.split('/').enumerate() {
        if out.full() {
            out.cut = true;
            return;
        }
        if at > 0 {
            out.push_str("/");
        }
        let secret = (webhook && depth > 0 && !segment.is_empty()) || (names_next && named::is_odd(segment));
        if secret {
            out.hide(segment)
        } else {
            component(segment, out)
        }
        names_next = !secret && named::names_next_segment(&decoded(segment));
        depth += usize::from(!segment.is_empty());
    }
}

/// `name=value` pairs of a query or fragment.
fn pairs(text: &str, out: &mut Bounded) {
    let mut rest = text;
    loop {
        let end = rest.find(['&', ';']).unwrap_or(rest.len());
        let (pair, after) = rest.split_at(end);
        match pair.split_once('=') {
            Some((name, value)) if !value.is_empty() && named::is_secret_in_url(&decoded(name)) => {
                component(name, out);
                out.push_str("=");
                out.hide(value);
            }
            Some((name, value)) => {
                component(name, out);
                out.push_str("=");
                component(value, out);
            }
            None => component(pair, out),
        }
        let mut separator = after.chars();
        match separator.next() {
            Some(mark) => out.push_clean(mark.encode_utf8(&mut [0; 4])),
            None => return,
        }
        rest = separator.as_str();
        if out.full() {
            out.cut = true;
            return;
        }
    }
}

/// One component of a URL: hidden whole if it reads like a key when decoded.
fn component(text: &str, out: &mut Bounded) {
    if text.contains('%') {
        let plain = decoded(text);
        let mut judged = Bounded::new(usize::MAX);
        hide_into(&plain, &mut judged);
        if judged.hidden {
            out.hide(text);
            return;
        }
    }
    hide_into(text, out);
}

/// Percent-decoding, again while anything is encoded: some servers decode what a proxy in front of them decoded
/// already. What isn't UTF-8 then is replaced.
fn decoded(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..DECODINGS {
        if !text.contains(['%', '+']) {
            break;
        }
        text = Cow::Owned(decoded_once(&text));
    }
    text
}

fn decoded_once(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let mut ahead = bytes.clone();
        match (byte, hex(ahead.next()), hex(ahead.next())) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                bytes = ahead;
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Copies `text` to `out` with every key-like value hidden; stops early when `out` is full.
fn hide_into(text: &str, out: &mut Bounded) {
    let mut rest = text;
    while !rest.is_empty() {
        if out.full() {
            out.cut = true;
            return;
        }
        let step = named::at(rest).or_else(|| token::at(rest)).unwrap_or_else(|| Step::plain(rest));
        let (keep, after) = rest.split_at(step.keep);
        let (hide, after) = after.split_at(step.hide);
        out.push_clean(keep);
        if !hide.is_empty() {
            out.hide(hide);
        }
        rest = after;
    }
}

/// What to do at the start of a text: bytes to keep, then bytes to hide. Never both zero.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    keep: usize,
    hide: usize,
}

impl Step {
    /// One character that starts nothing of interest.
    fn plain(text: &str) -> Self {
        Self { keep: text.chars().next().map_or(0, char::len_utf8), hide: 0 }
    }
}

/// Text under construction with a bound.
struct Bounded {
    text: String,
    max: usize,
    cut: bool,
    hidden: bool,
}

impl Bounded {
    fn new(max: usize) -> Self {
        Self { text: String::new(), max, cut: false, hidden: false }
    }

    fn full(&self) -> bool {
        self.text.len() > self.max
    }

    fn push_str(&mut self, text: &str) {
        if self.full() {
            self.cut = true;
        } else {
            self.text.push_str(text);
        }
    }

    fn push_clean(&mut self, text: &str) {
        if self.full() {
            self.cut = true;
        } else {
            let room = self.max.saturating_sub(self.text.len());
            escape::push(text, room, &mut self.text);
        }
    }

    fn hide(&mut self, value: &str) {
        self.hidden = true;
        self.push_str(&mark(value.as_bytes()));
    }

    fn finish(mut self) -> String {
        if self.text.len() > self.max || self.cut {
            let mut end = self.max.saturating_sub(CUT.len()).min(self.text.len());
            while !self.text.is_char_boundary(end) {
                end -= 1;
            }
            self.text.truncate(end);
            if self.max >= CUT.len() {
                self.text.push_str(CUT);
            }
        }
        self.text
    }
}

#[cfg(test)]
mod tests;
