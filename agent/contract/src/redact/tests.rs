use proptest::prelude::*;

use super::*;

const KEYS: [&str; 22] = [
    "sk-ant-api03-abcDEF0123456789_-x",
    "sk-proj-Zm9vYmFyQmF6MTIzNDU2",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "gho_16C7e42F292c6912E7710c838347Ae178B4a",
    "ghs_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghijkl_MNOPqrstuv",
    "xoxb-123456789012-abcdefABCDEF",
    "xoxp-123456789012-abcdefABCDEF",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA-1234567890abcdefghijklmnopqrstu",
    "ya29.a0AfH6SMBx-1234567890abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "lin_api_abcdefABCDEF0123456789",
    "ntn_123456789012abcdefABCDEF0123",
    "secret_abcdefABCDEF0123456789abcdef",
    "tvly-abcdefABCDEF0123456789",
    "rk_live_abcdefABCDEF0123456789",
    "sk_live_abcdefABCDEF0123456789",
    "sntrys_abcdefABCDEF0123456789",
    "sntryu_abcdefABCDEF0123456789",
    "glpat-abcdefABCDEF0123456789",
    "xoxs-123456789012-abcdefABCDEF",
];

fn check(text: &str, expect: &str) {
    let hidden = hide_marks(&redact_text(text, 10_000));
    assert_eq!(hidden, expect, "{text}");
}

/// Replaces each `[hidden:…]` by `*`.
fn hide_marks(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[hidden:") {
        out.push_str(before);
        out.push('*');
        rest = after.split_once(']').map_or("", |(_, rest)| rest);
    }
    out + rest
}

#[test]
fn keys_are_hidden_by_their_look_or_their_name_and_the_rest_stays() {
    check("nothing here", "nothing here");
    check(
        "a task-force of risk-takers, monkeys and eyes. honey-bee",
        "a task-force of risk-takers, monkeys and eyes. honey-bee",
    );
    check("key is sk-abcdefgh12345 ok", "key is * ok");
    check(r#"{"a":"x\nsk-abcdefgh12345ABCDEFGH","b":1}"#, r#"{"a":"x\n*","b":1}"#);
    check(r#"{"password":"hun\"ter2","user":"bob"}"#, r#"{"password":*,"user":"bob"}"#);
    check(r#"{\"api_key\":\"abc\",\"x\":1}"#, r#"{\"api_key\":*,\"x\":1}"#);
    check(r#"{"secrets":["a","b]"],"x":[1]}"#, r#"{"secrets":*,"x":[1]}"#);
    check("DB_PASSWORD=hunter2 run", "DB_PASSWORD=* run");
    check("client-secret: hunter2, next", "client-secret: *, next");
    check(
        "curl -H 'Authorization: Bearer abc.def' https://x.test/",
        "curl -H 'Authorization: *' https://x.test/",
    );
    check("Cookie: a=b; c=d\nnext: 1", "Cookie: *\\nnext: 1");
    check("with Bearer abcdef123 and", "with Bearer * and");
    check("the bearer of news", "the bearer of news");
    check("max_tokens: 4096, tokens=12", "max_tokens: 4096, tokens=12");
    check("https://bob:hunter2@host.test/x", "https://*@host.test/x");
    check("see https://host.test/@scope/x", "see https://host.test/@scope/x");
    check("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- tail", "* tail");
    check(r"x\n-----BEGIN PRIVATE KEY-----\nabc", r"x\n*");
    check(
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\\nabc\\n-----END CERTIFICATE-----",
    );
    for key in KEYS {
        check(&format!("a {key} b"), "a * b");
        check(&format!("https://x.test/{key}/y"), "https://x.test/*/y");
    }
}

#[test]
fn urls_keep_their_shape_and_lose_their_secrets() {
    let check = |url: &str, expect: &str| assert_eq!(hide_marks(&redact_url(url, 10_000)), expect, "{url}");
    check("https://host.test/a/b?x=1&y=2#z", "https://host.test/a/b?x=1&y=2#z");
    check("https://u:p@host.test:8443/", "https://*@host.test:8443/");
    check("https://host.test/v1?key=abc&q=1", "https://host.test/v1?key=*&q=1");
    check("https://host.test/?access%5Ftoken=abc", "https://host.test/?access%5Ftoken=*");
    check("https://host.test/?q=ghp%5Fabcdef0123456789", "https://host.test/?q=*");
    check(
        "https://b.test/o?X-Amz-Signature=aa&X-Amz-Date=1",
        "https://b.test/o?X-Amz-Signature=*&X-Amz-Date=1",
    );
    check("https://host.test/@scope%2fname", "https://host.test/@scope%2fname");
    check("https://host.test/#access_token=abc&x=1", "https://host.test/#access_token=*&x=1");
    check("/only/path?password=x", "/only/path?password=*");
    for key in KEYS {
        check(&format!("https://x.test/a?q={key}&r=1"), "https://x.test/a?q=*&r=1");
    }
}

#[test]
fn the_same_key_has_the_same_mark_and_another_key_another() {
    let mark = |key: &str| redact_text(&format!("x {key} y"), 100);
    assert_eq!(mark(KEYS[0]), mark(KEYS[0]));
    assert_ne!(mark(KEYS[0]), mark(KEYS[1]));
}

#[test]
fn one_record_cannot_look_like_two() {
    assert_eq!(redact_text("a\nb\u{202e}c\u{2028}d\u{7}", 100), "a\\nb\\u{202e}c\\u{2028}d\\u{7}");
    assert!(redact_url("http://h/\u{202e}x", 100).is_ascii());
}

#[test]
fn a_cut_is_marked_and_falls_on_a_character() {
    assert_eq!(redact_text("äöüäöü", 12), "äöüäöü");
    assert_eq!(redact_text("äöüäöü", 11), "äöüä…");
    assert_eq!(redact_text("äöüäöü", 10), "äöü…");
    assert_eq!(redact_text("abc", 2), "");
    assert_eq!(redact_text("", 0), "");
}

#[test]
fn work_grows_with_length_and_not_faster() {
    let time = |text: &str| {
        let start = std::time::Instant::now();
        let _ = redact_text(text, usize::MAX);
        start.elapsed()
    };
    for seed in [
        "sk-",
        "xsk-",
        "token",
        "token\"",
        "token=",
        "a://",
        "://",
        "-----BEGIN",
        "-----BEGIN PUBLIC-----",
        "Bearer ",
        "eyJ",
        "eyJa.",
        "[",
        "password:[",
        "\"token\":\"",
        "\\\"",
        "ey",
        "\u{202e}",
        "ghp_",
        "-",
        "a=",
        "secret:{",
    ] {
        let short = time(&seed.repeat(40_000 / seed.len()));
        let long = time(&seed.repeat(640_000 / seed.len()));
        let allowed = short.max(std::time::Duration::from_millis(2)) * 16 * 6;
        assert!(long < allowed, "{seed}: {short:?} then {long:?}");
    }
}

proptest! {
    /// A28: whatever stands around it and wherever the cut falls, no fragment of a key is left.
    #[test]
    fn no_fragment_of_a_planted_key_survives_any_cut(
        before in "[ -~äß\n\"]{0,60}",
        after in "[ -~äß\n\"]{0,60}",
        key in prop::sample::select(&KEYS[..]),
        max in 0_usize..200,
        gap in prop::sample::select(&[" ", "\"", "=", "/", "\n", "(", ","][..]),
    ) {
        for out in [
            redact_text(&format!("{before}{gap}{key}{gap}{after}"), max),
            redact_url(&format!("https://h.test/{before}{gap}{key}{gap}{after}"), max),
        ] {
            prop_assert!(out.len() <= max);
            let body = key.get(key.len() - 12..).unwrap();
            for at in 0..=body.len() - 6 {
                let fragment = body.get(at..at + 6).unwrap();
                prop_assert!(before.contains(fragment) || after.contains(fragment) || !out.contains(fragment), "{out}");
            }
            let head = key.get(..key.len().min(12)).unwrap();
            prop_assert!(before.contains(head) || after.contains(head) || !out.contains(head), "{out}");
        }
    }

    #[test]
    fn any_text_is_bounded_and_printable(text in any::<String>(), max in 0_usize..100) {
        for out in [redact_text(&text, max), redact_url(&text, max)] {
            prop_assert!(out.len() <= max);
            prop_assert!(!out.contains(is_unprintable));
        }
    }
}
