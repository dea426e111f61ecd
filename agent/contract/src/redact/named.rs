//! Values that are secret because of the name in front of them.

use super::{Step, token};

/// Parts of a name that make its value secret wherever they stand, in lower case without `-`, `_` and `.`.
const SECRET: [&str; 14] = [
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
    "authorization",
    "cookie",
    "signingkey",
    "sessionid",
    "encryptionkey",
];
/// Names that are secret in a URL's query when they stand alone.
const SECRET_IN_URL: [&str; 11] = [
    "key",
    "sig",
    "signature",
    "code",
    "auth",
    "pass",
    "pwd",
    "jwt",
    "sas",
    "xamzsignature",
    "xgoogsignature",
];

/// Whether a name is one of a secret.
fn is_secret(name: &str) -> bool {
    let plain: String =
        name.chars().filter(|c| !matches!(c, '-' | '_' | '.')).map(|c| c.to_ascii_lowercase()).collect();
    plain == "pwd" || SECRET.iter().any(|part| plain.contains(part))
}

/// Whether a name is one of a secret in a URL's query.
pub(super) fn is_secret_in_url(name: &str) -> bool {
    let plain: String =
        name.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
    is_secret(name) || SECRET_IN_URL.contains(&plain.as_str()) || plain == "xamzcredential"
}

/// Whether a path segment says that the next one is a secret. Plurals are collections: what follows is an id.
pub(super) fn names_next_segment(segment: &str) -> bool {
    if segment.len() > 64 {
        return false;
    }
    let plain: String =
        segment.chars().filter(|c| !matches!(c, '-' | '_' | '.')).map(|c| c.to_ascii_lowercase()).collect();
    matches!(plain.as_str(), "key" | "secret" | "password" | "passwd" | "jwt")
        || ["token", "apikey", "accesskey", "secretkey"].iter().any(|end| plain.ends_with(end))
}

/// Whether a path segment is unlike a word: not `/secret/data/`, not `/key/value`.
pub(super) fn is_odd(segment: &str) -> bool {
    let mixed = segment.bytes().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
    segment.len() >= if mixed { 8 } else { 20 }
}

/// What stands at the start of `text`: a secret's name, its separator and its value, or a URL's user
/// information. `None` if neither starts here.
pub(super) fn at(text: &str) -> Option<Step> {
    if let Some(rest) = text.strip_prefix("://") {
        return user_information(rest);
    }
    let run = token::run(text);
    let (name, after) = text.split_at(run);
    if name.is_empty() {
        return None;
    }
    let (separator, value) = separator(after)?;
    // Longer runs are no names: the end decides.
    let end = tail(name, 64).to_ascii_lowercase();
    if !is_secret(&end) {
        return None;
    }
    let whole_line = end.contains("authorization") || end.contains("cookie");
    let length = if whole_line { line_length(value) } else { value_length(value) };
    let count =
        end.ends_with("tokens") && length <= 9 && value.bytes().take(length).all(|b| b.is_ascii_digit());
    if length == 0 || count {
        return None;
    }
    // A name may itself hold a key; then everything from there is hidden.
    let keep = token::key_in(name).unwrap_or(run + separator);
    Some(Step { keep, hide: run + separator + length - keep })
}

/// Length of a header's value: several words, to the end of its line or of the string it stands in.
fn line_length(value: &str) -> usize {
    if value.starts_with(['"', '\'', '\\', '[', '{']) {
        return value_length(value);
    }
    value.find(['\n', '\r', '"', '\'', '\\', '`']).unwrap_or(value.len())
}

/// The last `most` bytes of an ASCII run.
fn tail(run: &str, most: usize) -> &str {
    run.get(run.len().saturating_sub(most)..).unwrap_or(run)
}

/// Length of what stands between a name and its value (`=`, `: `, `":"`, `\":\"`, `%3D`), and the value.
fn separator(text: &str) -> Option<(usize, &str)> {
    let closed = text.trim_start_matches(['"', '\'', '\\', '`', ']']);
    let spaced = closed.trim_start_matches([' ', '\t']);
    let sign = spaced
        .strip_prefix("=>")
        .or_else(|| spaced.strip_prefix(['=', ':']))
        .or_else(|| spaced.strip_prefix("%3D"))
        .or_else(|| spaced.strip_prefix("%3d"))
        .or_else(|| spaced.strip_prefix("%3A"))?;
    let value = sign.trim_start_matches([' ', '\t']);
    Some((text.len() - value.len(), value))
}

/// Length of a value: a quoted string, a bracketed list or object, a scheme with its credential, or a word.
fn value_length(value: &str) -> usize {
    let escaped = value.starts_with("\\\"");
    match value.as_bytes() {
        [b'"' | b'\'' | b'`', ..] => quoted(value),
        _ if escaped => value.get(2..).and_then(|rest| rest.find("\\\"")).map_or(value.len(), |at| at + 4),
        [b'[' | b'{', ..] => bracketed(value),
        _ => {
            let word = word(value);
            let scheme = value.get(..word).unwrap_or_default();
            let schemes = ["bearer", "basic", "token", "digest", "negotiate", "bot"];
            if schemes.iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
                let gap = value.get(word..).map_or(0, |rest| rest.len() - rest.trim_start_matches(' ').len());
                return word + gap + value.get(word + gap..).map_or(0, self::word);
            }
            word
        }
    }
}

/// Length of a value that ends at white space or punctuation of the text around it.
fn word(value: &str) -> usize {
    value
        .find(|c: char| {
            c.is_whitespace()
                || c.is_control()
                || matches!(c, '&' | ',' | ';' | '}' | ')' | ']' | '"' | '\'' | '<' | '`' | '\\')
        })
        .unwrap_or(value.len())
}

/// Length of a quoted string with its quotes; to the end of the text if it isn't closed.
fn quoted(value: &str) -> usize {
    let mut chars = value.char_indices();
    let Some((_, quote)) = chars.next() else { return 0 };
    let mut escaped = false;
    for (at, c) in chars {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    value.len()
}

/// Length of a bracketed value; to the end of the text if it isn't closed.
fn bracketed(value: &str) -> usize {
    let (mut depth, mut inside, mut escaped) = (0_usize, false, false);
    for (at, c) in value.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if inside => escaped = true,
            '"' => inside = !inside,
            '[' | '{' if !inside => depth += 1,
            ']' | '}' if !inside => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    value.len()
}

/// `user:password@` behind `://`: a name and password, or a token that stands for both.
fn user_information(rest: &str) -> Option<Step> {
    let end = rest
        .find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | '\\'))
        .unwrap_or(rest.len());
    let at = rest.get(..end)?.rfind('@')?;
    (at > 0).then_some(Step { keep: 3, hide: at })
}
