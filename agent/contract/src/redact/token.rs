//! Keys that are known by their own look.

use super::Step;

/// How a kind of key looks: a prefix, then at least so many characters of a token.
struct Shape {
    prefix: &'static str,
    /// Fewest further token characters where the key stands by itself.
    body: usize,
    /// Fewest further token characters, digits or capitals among them, where it is glued to a word.
    glued: usize,
}

const fn shape(prefix: &'static str, body: usize, glued: usize) -> Shape {
    Shape { prefix, body, glued }
}

/// Prefixes that are also those of everyday names (`npm_config_cache`, `hf_hub_download`): what follows must be so many
/// letters and digits without a break, a digit or capital among them.
const SOLID: [(&str, usize); 2] = [("npm_", 24), ("hf_", 20)];

/// Prefixes in use (A28); `sk-ant-` and `sk-proj-` are covered by `sk-`.
const SHAPES: [Shape; 29] = [
    shape("sk-", 8, 20),
    shape("sk_live_", 4, 4),
    shape("sk_test_", 4, 4),
    shape("rk_live_", 4, 4),
    shape("rk_test_", 4, 4),
    shape("ghp_", 4, 8),
    shape("gho_", 4, 8),
    shape("ghu_", 4, 8),
    shape("ghs_", 4, 8),
    shape("ghr_", 4, 8),
    shape("github_pat_", 4, 4),
    shape("glpat-", 4, 8),
    shape("xoxa-", 4, 4),
    shape("xoxb-", 4, 4),
    shape("xoxp-", 4, 4),
    shape("xoxr-", 4, 4),
    shape("xoxs-", 4, 4),
    shape("AKIA", 12, 12),
    shape("ASIA", 16, 16),
    shape("AIza", 16, 16),
    shape("ya29.", 4, 8),
    shape("lin_api_", 4, 4),
    shape("ntn_", 16, 24),
    shape("secret_", 16, 24),
    shape("tvly-", 4, 8),
    shape("sntrys_", 4, 4),
    shape("sntryu_", 4, 4),
    // A serialised macaroon, which starts with the bytes 2 and 1; `pypi-` alone starts names of packages.
    shape("pypi-AgE", 8, 8),
    // A run's own workload token ([`crate::token`]).
    shape("strait_", 43, 43),
];

/// What stands at the start of `text`: a run of token characters with the key in it hidden, a PEM block, or
/// the secret behind `Bearer`. `None` if nothing of the kind starts here.
pub(super) fn at(text: &str) -> Option<Step> {
    if text.starts_with("-----BEGIN") {
        return Some(pem(text));
    }
    let run = run(text);
    if run == 0 {
        return None;
    }
    let (word, after) = text.split_at(run);
    if let Some(key) = key_in(word) {
        return Some(Step { keep: key, hide: run - key });
    }
    if let Some(block) = word.find("-----BEGIN") {
        return Some(Step { keep: block, hide: 0 });
    }
    if let Some(step) = scheme(word, after).or_else(|| bot(word, after)).or_else(|| webhook(word, after)) {
        return Some(step);
    }
    Some(Step { keep: run, hide: 0 })
}

/// Length of the run of token characters at the start.
pub(super) fn run(text: &str) -> usize {
    text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')).count()
}

/// Offset of the first key in a run of token characters.
pub(super) fn key_in(word: &str) -> Option<usize> {
    let bytes = word.as_bytes();
    let last_mixed = bytes.iter().rposition(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
    bytes.windows(2).enumerate().filter(|(_, pair)| may_start(pair)).map(|(at, _)| at).find(|&at| {
        let Some(tail) = bytes.get(at..) else { return false };
        let own =
            at.checked_sub(1).and_then(|before| bytes.get(before)).is_none_or(|b| !b.is_ascii_alphanumeric());
        is_jwt(tail, own)
            || SOLID.iter().any(|(prefix, least)| is_solid(tail, prefix.as_bytes(), *least))
            || SHAPES.iter().filter(|shape| tail.starts_with(shape.prefix.as_bytes())).any(|shape| {
                let body = tail.len() - shape.prefix.len();
                let mixed = last_mixed.is_some_and(|last| last >= at + shape.prefix.len());
                (own && body >= shape.body) || (mixed && body >= shape.glued)
            })
    })
}

fn is_solid(tail: &[u8], prefix: &[u8], least: usize) -> bool {
    let Some(body) = tail.strip_prefix(prefix).and_then(|body| body.get(..least)) else { return false };
    body.iter().all(u8::is_ascii_alphanumeric)
        && body.iter().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
}

/// Whether a prefix of [`SHAPES`] or [`SOLID`] or a JWT starts with these two bytes.
fn may_start(pair: &[u8]) -> bool {
    matches!(
        pair,
        b"sk"
            | b"rk"
            | b"gh"
            | b"gi"
            | b"gl"
            | b"xo"
            | b"AK"
            | b"AS"
            | b"AI"
            | b"ya"
            | b"li"
            | b"nt"
            | b"se"
            | b"tv"
            | b"sn"
            | b"ey"
            | b"np"
            | b"hf"
            | b"py"
            | b"st"
    )
}

/// A JSON Web Token starts with base64url of `{"`, which is `eyJ`; the head is long or followed by a dot.
fn is_jwt(tail: &[u8], own: bool) -> bool {
    tail.starts_with(b"ey") && {
        let head = tail.iter().take(40).position(|byte| *byte == b'.').unwrap_or_else(|| tail.len().min(40));
        let whole = tail.len();
        (tail.starts_with(b"eyJ") && (head < whole && head >= 8 || head >= 20))
            || (own && head < whole && head >= 16)
    }
}

/// `Bearer x`, `Basic x`, `token x`: an authentication scheme and its credential.
fn scheme(word: &str, after: &str) -> Option<Step> {
    // The scheme may be glued to what an escape left in front of it: `\nBearer`.
    let name = ["bearer", "basic"].into_iter().find(|name| {
        word.len() >= name.len()
            && word.get(word.len() - name.len()..).is_some_and(|tail| tail.eq_ignore_ascii_case(name))
    })?;
    let gap = space(after);
    let credential = after.get(gap..)?.bytes().take_while(|byte| is_credential(*byte)).count();
    let least = if name == "bearer" { 6 } else { 8 };
    (gap > 0 && credential >= least).then_some(Step { keep: word.len() + gap, hide: credential })
}

/// A Telegram bot's `ID:TOKEN`, by itself or as `/botID:TOKEN/` in a URL.
fn bot(word: &str, after: &str) -> Option<Step> {
    let name = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let id = word.len() - name.len();
    let token = run(after.strip_prefix(':')?);
    let named = name.ends_with("bot") && id >= 5 && token >= 16;
    let bare = name.is_empty() && id >= 8 && token >= 33 && after.starts_with(":AA");
    (named || bare).then_some(Step { keep: name.len(), hide: id + 1 + token })
}

/// Host of Slack's webhooks, whose whole path is a secret.
pub(super) const SLACK: &str = "hooks.slack.com";

/// What stands behind the first segment of a Slack webhook's path.
fn webhook(word: &str, after: &str) -> Option<Step> {
    word.ends_with(SLACK).then_some(())?;
    let path = after.strip_prefix('/')?;
    let first = run(path) + 1;
    let secret = path.get(first..)?.bytes().take_while(|byte| is_credential(*byte)).count();
    (path.as_bytes().get(first - 1) == Some(&b'/') && secret > 0)
        .then_some(Step { keep: word.len() + 1 + first, hide: secret })
}

fn is_credential(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'_' | b'-' | b'.' | b'~' | b'+' | b'/' | b'=' | b'%' | b':')
}

/// Length of white space at the start, in the spellings of text, JSON and URLs.
fn space(text: &str) -> usize {
    let mut at = 0;
    while let Some(rest) = text.get(at..) {
        match rest.as_bytes() {
            [b' ' | b'\t' | b'+', ..] => at += 1,
            [b'%', b'2', b'0', ..] => at += 3,
            _ => break,
        }
    }
    at
}

/// A PEM block: hidden to its end line, or to the end of the text, unless its label says it's public.
fn pem(text: &str) -> Step {
    let label_end = text.get(10..).and_then(|rest| rest.find("-----")).map_or(text.len(), |at| at + 15);
    let label = text.get(..label_end).unwrap_or_default();
    if label.len() < 80 && (label.contains("CERTIFICATE") || label.contains("PUBLIC")) {
        return Step { keep: label_end, hide: 0 };
    }
    let end = text
        .find("-----END")
        .and_then(|at| text.get(at + 8..).and_then(|rest| rest.find("-----")).map(|more| at + 8 + more + 5))
        .unwrap_or(text.len());
    Step { keep: 0, hide: end }
}
