//! What a person sees of a call: all of it, and nothing in it that could be taken for something else.
//!
//! Control and direction characters, invisible ones, letters of other scripts that look like Latin ones, and other
//! punctuation and spaces that look like ASCII are spelled out as `\u{…}`, a backslash before `u{` as `\\`, bytes that are
//! no text as `\x..`.

use strait_contract::redact::is_unprintable;

/// Spells a text out. Line feeds and tabs stay if `lines`.
pub(crate) fn text(text: &str, lines: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut word = String::new();
    for c in text.chars() {
        if c.is_alphanumeric() {
            word.push(c);
            continue;
        }
        push_word(&word, &mut out);
        word.clear();
        match c {
            '\n' | '\t' if lines => out.push(c),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c.is_ascii() && !c.is_control() => out.push(c),
            c if is_unprintable(c) || c.is_control() || c.is_whitespace() || looks_like_ascii(c) => {
                spell(c, &mut out)
            }
            c => out.push(c),
        }
    }
    push_word(&word, &mut out);
    out
}

/// Spells bytes out that may be no text.
pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(&text(chunk.valid(), true));
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// A word in another script is left as it is, unless it could be read as Latin: it mixes scripts with ASCII, or every
/// letter of it looks like one.
fn push_word(word: &str, out: &mut String) {
    let foreign = |c: &char| !c.is_ascii();
    let doubtful = word.chars().any(|c| c.is_ascii_alphanumeric()) || word.chars().all(looks_like_ascii);
    for c in word.chars() {
        if doubtful && foreign(&c) && (looks_like_ascii(c) || !is_latin(c)) {
            spell(c, out);
        } else {
            out.push(c);
        }
    }
}

fn spell(c: char, out: &mut String) {
    out.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
}

/// Accented Latin letters, which are read as what they are.
fn is_latin(c: char) -> bool {
    matches!(c, '\u{c0}'..='\u{17f}' | '\u{1e00}'..='\u{1eff}')
}

/// Whether a character that isn't ASCII can pass for one that is. Whole blocks where nearly all do (full width,
/// mathematical letters), single letters of Cyrillic, Greek and Armenian (Unicode TR 39, confusables), punctuation.
fn looks_like_ascii(c: char) -> bool {
    const LETTERS: &str = "АВЕЅІЈКМНОРСТУХҮаеорсухіјѕһԁԛԝүвкмнтгΑΒΕΖΗΙΚΜΝΟΡΤΥΧαινορυχγκτωըսոօցհյ\u{131}\u{251}\u{261}\u{269}\u{28f}";
    const MARKS: &str = "\u{2010}\u{2011}\u{2012}\u{2013}\u{2014}\u{2015}\u{2212}\u{2018}\u{2019}\u{201a}\u{201b}\u{2032}\u{2035}\u{201c}\u{201d}\u{2033}\u{2024}\u{2025}\u{2026}\u{2044}\u{2215}\u{2216}\u{29f8}\u{2236}\u{a789}\u{2039}\u{203a}\u{3002}\u{37e}\u{387}\u{b7}\u{2022}\u{2217}\u{204e}\u{1c3}\u{2223}\u{ad}\u{34f}\u{3164}\u{115f}\u{1160}\u{2800}";
    matches!(c,
        '\u{300}'..='\u{36f}' | '\u{13a0}'..='\u{13f5}' | '\u{2100}'..='\u{214f}' | '\u{2160}'..='\u{217f}'
        | '\u{ff01}'..='\u{ff5e}' | '\u{1d400}'..='\u{1d7ff}' | '\u{1f100}'..='\u{1f1ff}' | '\u{2460}'..='\u{24ff}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
        || LETTERS.contains(c)
        || MARKS.contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_be_taken_for_something_else() {
        for (raw, shown) in [
            ("plain: {\"amount\": 82}", "plain: {\"amount\": 82}"),
            ("a\nb\r\u{1b}[2K", "a\\nb\\r\\u{1b}[2K"),
            ("to \u{202e}evil", "to \\u{202e}evil"),
            ("p\u{430}ypal", "p\\u{430}ypal"),
            ("\u{441}\u{43e}\u{441}\u{43e}", "\\u{441}\\u{43e}\\u{441}\\u{43e}"),
            ("8\u{ff12}", "8\\u{ff12}"),
            ("ok.test\u{2215}x", "ok.test\\u{2215}x"),
            ("1\u{a0}000", "1\\u{a0}000"),
            ("zero\u{200b}width", "zero\\u{200b}width"),
            ("e\u{301}", "e\\u{301}"),
            ("\\u{61}", "\\\\u{61}"),
        ] {
            assert_eq!(text(raw, false), shown, "{raw:?}");
        }
    }

    #[test]
    fn what_cannot_be_mistaken_is_readable() {
        for plain in ["café Zürich", "привет, как дела", "日本語", "naïve"] {
            let shown = text(plain, false);
            let kept = shown.chars().filter(|c| !c.is_ascii()).count();
            assert!(kept * 2 > plain.chars().filter(|c| !c.is_ascii()).count(), "{shown}");
        }
        assert_eq!(text("日本語 Zürich", false), "日本語 Zürich");
    }

    /// Reads what was spelled out.
    fn read(shown: &str) -> Vec<u8> {
        let (mut out, mut rest) = (Vec::new(), shown);
        while let Some(c) = rest.chars().next() {
            rest = rest.split_at(c.len_utf8()).1;
            if c != '\\' {
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            let (kind, after) = rest.split_at(1);
            rest = after;
            match kind {
                "x" => {
                    let (byte, after) = rest.split_at(2);
                    out.push(u8::from_str_radix(byte, 16).unwrap());
                    rest = after;
                }
                "u" => {
                    let (code, after) = rest.strip_prefix('{').unwrap().split_once('}').unwrap();
                    let c = char::from_u32(u32::from_str_radix(code, 16).unwrap()).unwrap();
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    rest = after;
                }
                "r" => out.push(b'\r'),
                other => out.extend_from_slice(other.as_bytes()),
            }
        }
        out
    }

    proptest::proptest! {
        /// No two bodies look alike: what is shown can be read back.
        #[test]
        fn everything_is_shown_and_nothing_can_hide(
            raw in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            text in "[ -~а-яα-ω\\x00-\\x1f\u{200b}-\u{202e}\u{ff01}-\u{ff5e}é日\u{301}]{0,60}",
        ) {
            for raw in [raw, text.into_bytes()] {
                let shown = bytes(&raw);
                assert_eq!(read(&shown), raw, "{shown}");
                assert!(shown.chars().all(|c| c == '\n' || c == '\t' || !(c.is_control() || is_unprintable(c))));
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_all_there() {
        assert_eq!(bytes(b"a\xff\x00b\nc"), "a\\xff\\u{0}b\nc");
    }
}
