//! Finds placeholders however they are spelled, in a text or in a stream whose chunks cut them anywhere.

use aho_corasick::{AhoCorasick, MatchKind};
use percent_encoding::{NON_ALPHANUMERIC, percent_encode_byte, utf8_percent_encode};

use crate::mask::spellings;

/// Looks for several texts at once, in all their spellings.
#[derive(Debug)]
pub(super) struct Finder {
    /// `None` if it could not be built: then everything is taken for a find.
    automaton: Option<AhoCorasick>,
    /// Which text each pattern spells.
    of: Vec<usize>,
    longest: usize,
}

/// A text that stands at `start..end`.
pub(super) struct Find {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) which: usize,
}

impl Finder {
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let (mut patterns, mut of) = (Vec::new(), Vec::new());
        for (which, text) in texts.enumerate() {
            let whole: String = text.bytes().map(percent_encode_byte).collect();
            let encoded =
                [whole.to_ascii_lowercase(), whole, utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()];
            let encoded = encoded.into_iter().map(|text| text.into_bytes().into());
            for pattern in spellings(text).into_iter().chain(encoded) {
                if !patterns.contains(&pattern) {
                    patterns.push(pattern);
                    of.push(which);
                }
            }
        }
        let longest = patterns.iter().map(|pattern| pattern.len()).max().unwrap_or(0);
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns.iter().map(|pattern| pattern.as_slice()));
        Self { automaton: automaton.ok(), of, longest }
    }

    /// The first of the texts in these bytes.
    pub(super) fn first(&self, bytes: &[u8]) -> Option<usize> {
        match &self.automaton {
            Some(automaton) => automaton.find(bytes).map(|found| self.which(found.pattern())),
            None => Some(0),
        }
    }

    /// Every place of one of the texts.
    pub(super) fn all(&self, bytes: &[u8]) -> Vec<Find> {
        let Some(automaton) = &self.automaton else {
            return vec![Find { start: 0, end: bytes.len(), which: 0 }];
        };
        let find = |found: aho_corasick::Match| Find {
            start: found.start(),
            end: found.end(),
            which: self.which(found.pattern()),
        };
        automaton.find_iter(bytes).map(find).collect()
    }

    fn which(&self, pattern: aho_corasick::PatternID) -> usize {
        self.of.get(pattern.as_usize()).copied().unwrap_or(0)
    }
}

/// Looks through a stream. What has passed can't be taken back, so a find is told before the chunk that completes it.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The last bytes that passed: they may be the beginning of one.
    tail: Vec<u8>,
}

impl Scan {
    /// The first text that `chunk` completes or holds.
    pub(super) fn push(&mut self, finder: &Finder, chunk: &[u8]) -> Option<usize> {
        let keep = finder.longest.saturating_sub(1);
        let joins = chunk.get(..keep.min(chunk.len())).unwrap_or_default();
        if !self.tail.is_empty() {
            self.tail.extend_from_slice(joins);
            if let Some(found) = finder.first(&self.tail) {
                return Some(found);
            }
        }
        if let Some(found) = finder.first(chunk) {
            return Some(found);
        }
        match chunk.len().checked_sub(keep) {
            Some(from) => {
                self.tail.clear();
                self.tail.extend_from_slice(chunk.get(from..).unwrap_or_default());
            }
            None if self.tail.is_empty() => self.tail.extend_from_slice(chunk),
            // It was joined above, whole.
            None => {
                let over = self.tail.len().saturating_sub(keep);
                self.tail.drain(..over);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "ghp_0Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv1Wx2Yz3";

    fn spelled() -> Vec<String> {
        let hex: String = TEXT.bytes().map(|byte| format!("{byte:02x}")).collect();
        let percent: String = TEXT.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let mut all = vec![TEXT.to_owned(), hex.clone(), hex.to_uppercase(), percent.to_lowercase(), percent];
        all.extend(["", "u:", "me:"].map(|before| STANDARD.encode(format!("{before}{TEXT} and more"))));
        all.push(TEXT.replace('_', "%5F"));
        all
    }

    fn scan(finder: &Finder, bytes: &[u8], sizes: &[usize]) -> Option<usize> {
        let (mut scan, mut rest, mut passed) = (Scan::default(), bytes, 0);
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*sizes.next().unwrap()).max(1));
            if scan.push(finder, now).is_some() {
                return Some(passed);
            }
            assert!(scan.tail.len() < finder.longest, "memory is flat");
            passed += now.len();
            rest = later;
        }
        None
    }

    #[test]
    fn every_spelling_is_found_before_its_last_byte_has_passed() {
        let finder = Finder::new(["another-one-0123456789", TEXT].into_iter());
        for text in spelled() {
            assert_eq!(finder.first(text.as_bytes()), Some(1), "{text}");
            let whole = format!("before {text} after");
            for size in [1, 2, 3, 7, 64, 1000] {
                let passed =
                    scan(&finder, whole.as_bytes(), &[size]).unwrap_or_else(|| panic!("{text} by {size}"));
                assert!(passed < 7 + text.len(), "{text} by {size}: {passed} bytes passed");
            }
        }
        for other in ["", "ghp_", TEXT.strip_suffix('3').unwrap(), "the quick brown fox"] {
            assert_eq!(scan(&finder, other.as_bytes(), &[3]), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn chunks_cut_it_anywhere(
            before in prop::collection::vec(any::<u8>(), 0..300),
            after in prop::collection::vec(any::<u8>(), 0..300),
            spelling in 0..9_usize,
            sizes in prop::collection::vec(1..200_usize, 1..8),
        ) {
            let finder = Finder::new([TEXT].into_iter());
            let text = spelled().remove(spelling);
            prop_assert_eq!(scan(&finder, &before, &sizes), None);
            let whole = [&before, text.as_bytes(), &after].concat();
            let passed = scan(&finder, &whole, &sizes);
            prop_assert!(passed.is_some_and(|passed| passed < before.len() + text.len()));
        }
    }
}
