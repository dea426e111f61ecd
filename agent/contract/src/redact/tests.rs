use proptest::prelude::*;

use super::*;

const KEYS: [&str; 26] = [
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
    "npm_abcdefABCDEF0123456789abcdefABCDEF0123",
    "hf_abcdefABCDEFGHijklmnopQRSTUVwxyzab",
    "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDA",
    "strait_abcdefABCDEF0123456789_-cdefABCDEF0123456789",
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

/// A28.
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

/// A28.
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
fn secrets_in_paths_are_hidden_and_ordinary_paths_stay() {
    let check = |url: &str, expect: &str| assert_eq!(hide_marks(&redact_url(url, 10_000)), expect, "{url}");
    check(
        "https://api.telegram.org/bot123456:AAHabcdefghij-klmnop/getMe",
        "https://api.telegram.org/bot*/getMe",
    );
    check(
        "https://api.telegram.org/bot123456%3AAAHabcdefghij-klmnop/getMe",
        "https://api.telegram.org/*/getMe",
    );
    check("https://hooks.slack.com/services/T0001/B0002/abcXYZ", "https://hooks.slack.com/services/*/*/*");
    check("https://HOOKS.slack.com:443/workflows/T0001/x", "https://HOOKS.slack.com:443/workflows/*/*");
    check("https://h.test/token/abcd1234/x", "https://h.test/token/*/x");
    check("https://h.test/v1/api-key/ABCDEFGH", "https://h.test/v1/api-key/*");
    check("https://h.test/Secret/abcdefghijklmnopqrst", "https://h.test/Secret/*");
    check("https://h.test/access%5Ftoken/abcd1234", "https://h.test/access%5Ftoken/*");
    check("https://h.test/access%255Ftoken/abcd1234", "https://h.test/access%255Ftoken/*");
    for ordinary in [
        "https://h.test/v1/secret/data/my-app",
        "https://h.test/key/value/token",
        "https://h.test/tokens/12345678/uses",
        "https://h.test/monkey/12345678",
        "https://h.test/turnkey/Abcdefgh1",
        "https://slack.com/services/T0001/B0002/abcXYZ",
        "https://registry.npmjs.org/npm_config_registry_of_the_user_agent_1",
        "https://huggingface.co/hf_hub_download_from_a_long_name_1A",
        "https://pypi.org/simple/pypi-server-with-a-long-name-2000/",
        "https://h.test/robot1234567/parts",
        "https://h.test/robot12345:short/parts",
        "https://h.test/a%20b/100%25/x",
    ] {
        check(ordinary, ordinary);
    }
}

#[test]
fn secrets_of_paths_are_hidden_in_texts_too() {
    check("post to hooks.slack.com/services/T1/B2/abcXYZ now", "post to hooks.slack.com/services/* now");
    check("hooks.slack.com/docs is public", "hooks.slack.com/docs is public");
    check("/bot123456:AAHabcdefghij-klmnop/x", "/bot*/x");
    check("12345678:AAHabcdefghijklmnopqrstuvwxyz0123456 said", "* said");
    check("at 12345678:5 or robot12:5", "at 12345678:5 or robot12:5");
    check("npm_config_cache=/x npm_lifecycle_event=test", "npm_config_cache=/x npm_lifecycle_event=test");
}

/// A name is a secret's however often it was encoded.
#[test]
fn names_that_are_encoded_twice_are_read() {
    let check = |url: &str, expect: &str| assert_eq!(hide_marks(&redact_url(url, 10_000)), expect, "{url}");
    check("https://h.test/?api%5Fkey=abc", "https://h.test/?api%5Fkey=*");
    check("https://h.test/?api%255Fkey=abc", "https://h.test/?api%255Fkey=*");
    check("https://h.test/?%25256Bey=abc", "https://h.test/?%25256Bey=*");
    check("https://h.test/?q=ghp%255Fabcdef0123456789", "https://h.test/?q=*");
    check("https://h.test/?monkey=abc&%256Bind=x", "https://h.test/?monkey=abc&%256Bind=x");
}

/// A run names its processes and executables itself.
#[test]
fn processes_in_records_are_redacted_and_spelled_out() {
    let process = crate::run::Process {
        pid: 7,
        uid: 1000,
        comm: "a\nb\u{202e}".to_owned(),
        exe: Some("/w/ghp_16C7e42F292c6912E7710c838347Ae178B4a/bin/x\n{\"seq\":1}".to_owned()),
        digest: Some("0".repeat(64)),
    };
    let shown = process.clone().for_record();
    assert_eq!(shown.comm, "a\\nb\\u{202e}");
    assert_eq!(hide_marks(shown.exe.as_deref().unwrap()), "/w/*/bin/x\\n{\"seq\":1}");
    assert_eq!((shown.pid, shown.uid, &shown.digest), (7, 1000, &process.digest));
    let plain =
        crate::run::Process { comm: "git".to_owned(), exe: Some("/usr/bin/git-1.2".to_owned()), ..process };
    assert_eq!(plain.clone().for_record(), plain);
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
        let _ = redact_url(text, usize::MAX);
        let _ = redact_url(&format!("?{text}"), usize::MAX);
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
        "npm_",
        "hf_a",
        "pypi-A",
        "bot12345:",
        "12345678:AA",
        "hooks.slack.com/x/",
        "token/",
        "key/1234567A/",
        "%25",
        "%2525",
        "api%255F",
        "k%255Fey=&",
        "+",
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
        properties::bounded_and_printable(&text, max);
    }
}

/// A28: arguments of 1 MiB with a key across the place of the cut.
#[test]
fn a_key_across_the_cut_of_arguments_leaves_no_fragment_a28() {
    let key = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    for at in 2048 - key.len() - 12..2060 {
        for filler in ["x y ", "äö ", "{\"a\": "] {
            let mut text = filler.repeat(at / filler.len());
            text.push_str(&" ".repeat(at - text.len()));
            text.push_str(key);
            text.push(' ');
            text.push_str(&filler.repeat((1 << 20) / filler.len()));
            let shown = crate::record::Step::arguments(&text);
            assert!(shown.len() <= crate::record::MAX_ARGUMENTS && shown.ends_with('…'), "{at}");
            assert!(!shown.contains("ghp_") && !shown.contains("16C7"), "{at}: {shown}");
        }
    }
}
