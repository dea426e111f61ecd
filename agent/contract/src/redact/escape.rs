//! Spells out what a terminal or a reader could be fooled with.

/// Whether a character must not stand raw in a record: controls, line and paragraph separators, direction
/// marks and overrides (CVE-2021-42574), invisible joiners and tags, byte order marks.
pub fn is_unprintable(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Appends `text` to `out`, spelling out unprintable characters; stops once more than `room` bytes were added.
pub(super) fn push(text: &str, room: usize, out: &mut String) {
    use std::fmt::Write as _;
    if text.len() <= room && text.bytes().all(|byte| (b' '..0x7f).contains(&byte)) {
        out.push_str(text);
        return;
    }
    let limit = out.len().saturating_add(room);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_unprintable(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
        if out.len() > limit {
            return;
        }
    }
}
