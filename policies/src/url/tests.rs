use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

fn target(url: &str) -> Target {
    Target::from_absolute(url).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn refused(url: &str) -> UrlError {
    match Target::from_absolute(url) {
        Ok(target) => panic!("{url} became {target}"),
        Err(error) => error,
    }
}

#[test]
fn parts_of_a_target_are_slices_of_its_canonical_url() {
    let it = target("HTTPS://API.GitHub.com:443/repos/a%2fb?q=%7e1&x=a+b");
    assert_eq!(it.url(), "https://api.github.com/repos/a%2Fb?q=~1&x=a+b");
    assert_eq!((it.scheme(), it.port()), (Scheme::Https, 443));
    assert_eq!(it.authority(), "api.github.com");
    assert_eq!(it.path(), "/repos/a%2Fb");
    assert_eq!(it.query(), Some("q=~1&x=a+b"));
    assert_eq!(it.path_and_query(), "/repos/a%2Fb?q=~1&x=a+b");
    assert_eq!(it.query_pairs(), [("q".into(), "~1".into()), ("x".into(), "a b".into())]);

    let it = target("http://ok.test:8080");
    assert_eq!((it.authority(), it.path(), it.query()), ("ok.test:8080", "/", None));
    assert_eq!(target("http://ok.test?a=1").path_and_query(), "/?a=1");
    assert_eq!(target("http://ok.test/?").query(), Some(""));
    assert_eq!(
        Target::from_parts(Scheme::Http, "[2001:db8::1]:81", "/").unwrap().url(),
        "http://[2001:db8::1]:81/"
    );
}

#[test]
fn a_query_holds_what_either_separator_makes_of_it() {
    let pairs = |query: &str| target(&format!("http://ok.test/?{query}")).query_pairs();
    let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(pairs("q=ok;admin=1"), owned(&[("q", "ok;admin=1"), ("q", "ok"), ("admin", "1")]));
    assert_eq!(pairs("a=1&b=2;;c"), owned(&[("a", "1"), ("b", "2;;c"), ("b", "2"), ("c", "")]));
    // Encoded it separates nothing.
    assert_eq!(pairs("q=ok%3badmin=1"), owned(&[("q", "ok;admin=1")]));
    assert_eq!(pairs("q=ok&admin=1"), owned(&[("q", "ok"), ("admin", "1")]));
}

/// Case 26: one canonical path, judged and sent. (A9.)
#[test]
fn case_26_equivalent_paths_become_one_and_ambiguous_ones_are_refused() {
    let same = |path: &str, canonical: &str| {
        let it = Target::from_parts(Scheme::Http, "ok.test", path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(it.path_and_query(), canonical, "{path}");
    };
    for (path, canonical) in [
        ("/public/../secret", "/secret"),
        ("/public/%2e%2e/secret", "/secret"),
        ("/public/.%2E/secret", "/secret"),
        ("/public/%2e/x", "/public/x"),
        ("/a/b/..", "/a/"),
        ("/a/b/.", "/a/b/"),
        ("/a/..", "/"),
        ("/a/../b/../c", "/c"),
        ("/...", "/..."),
        ("/%61%7e%41", "/a~A"),
        ("/a%c3%bc", "/a%C3%BC"),
        ("/a\u{fc}", "/a%C3%BC"),
        ("/@scope%2fname", "/@scope%2Fname"),
        ("/%252e%252e/x", "/%252e%252e/x"),
        ("/a;v=1/b", "/a;v=1/b"),
        ("/a[b]{c}|d", "/a%5Bb%5D%7Bc%7D%7Cd"),
        ("/x?a=/../b&c=\\", "/x?a=/../b&c=%5C"),
        ("/x?filter[name]=%5b%22", "/x?filter[name]=%5B%22"),
        ("", "/"),
    ] {
        same(path, canonical);
    }
    let not = |path: &str, why: PathError| {
        let got = Target::from_parts(Scheme::Http, "ok.test", path);
        assert_eq!(got, Err(UrlError::Path(why)), "{path}");
        assert_eq!(got.unwrap_err().code(), Code::MalformedRequest);
    };
    for path in ["/..", "/%2e%2e/x", "/a/../../x", "/./../x"] {
        not(path, PathError::AboveRoot);
    }
    for path in ["//evil.test/", "/a//b", "/a/..//b", "/;x=1/a", "/a/%3bx"] {
        not(path, PathError::EmptySegment);
    }
    for path in [
        "/public/..;/secret",
        "/public/..;x=1/s",
        "/public/x;../s",
        "/public/..%2fsecret",
        "/public/%2e%2e%2fsecret",
        "/a%2f../b",
        "/a%2F.%2Fb",
        "/public/..%3b/s",
        "/public/.;/s",
    ] {
        not(path, PathError::HiddenDots);
    }
    for path in ["/a\\..\\b", "/a%5cb", "/..%5c..%5c"] {
        not(path, PathError::Backslash);
    }
    for path in ["/a\0", "/a%00", "/a b", "/a\tb", "/a%0d%0aX:1", "/a\x7f", "/a?b=%00", "/a?b c"] {
        not(path, PathError::Control);
    }
    for path in ["/%", "/%2", "/%zz", "/%+1", "/a?b=%G0"] {
        not(path, PathError::Escape);
    }
    not("/a#b", PathError::Fragment);
    not("/a?b#c", PathError::Fragment);
    not("a/b", PathError::Relative);
    not("*", PathError::Relative);
}

/// Case 28: every spelling of a name is the same name.
#[test]
fn case_28_spellings_of_a_name_are_one_name() {
    for text in ["no.test", "no.test.", "NO.Test", "No.TEST.", "\u{ff2e}o.test", "no\u{3002}test"] {
        assert_eq!(Name::parse(text).unwrap().as_str(), "no.test", "{text}");
    }
    assert_eq!(Name::parse("B\u{fc}cher.Test").unwrap().as_str(), "xn--bcher-kva.test");
    assert_eq!(Name::parse("XN--BCHER-KVA.test").unwrap().as_str(), "xn--bcher-kva.test");
    assert_eq!(Name::parse("_dmarc.my_x.ok.test").unwrap().as_str(), "_dmarc.my_x.ok.test");
    for text in ["no.test..", "no..test", ".no.test", ".", ".."] {
        let error = Name::parse(text).unwrap_err();
        assert!(matches!(error, NameError::EmptyLabel(_) | NameError::Empty), "{text}: {error}");
        assert_eq!(error.code(), Code::MalformedRequest);
    }
    let long = format!("{}.test", "a".repeat(64));
    let deep = format!("{}test", "a.".repeat(125));
    for text in [
        "",
        "%6eo.test",
        "no\0.test",
        "no test",
        "no\t.test",
        "no.te\r\nst",
        "a,b.test",
        "no.test/",
        "-a.test",
        "a-.test",
        "xn--a-\u{e4}.test",
        "xn--zzzzzzzz--.test",
        "a:b.test",
        "\u{ad}",
        &long,
        &deep,
        "[::1",
        "no.test]",
    ] {
        let error = Name::parse(text).unwrap_err();
        assert_eq!(error.code(), Code::MalformedRequest, "{text}: {error}");
    }
    assert!(Name::parse(&format!("{}.test", "a".repeat(63))).is_ok());
}

/// Case 29: look-alikes stay other names; nothing here cuts or joins labels.
#[test]
fn case_29_look_alikes_are_other_names() {
    for text in ["evilok.test", "ok.test.evil.test", "a.b.ok.test"] {
        assert_eq!(Name::parse(text).unwrap().as_str(), text);
    }
}

/// Case 30: only real ports.
#[test]
fn case_30_malformed_ports_are_refused() {
    assert_eq!(host_and_port("ok.test:22", None).unwrap().1, 22);
    assert_eq!(host_and_port("ok.test:65535", None).unwrap().1, 65535);
    assert_eq!(host_and_port("[2001:db8::1]:443", None).unwrap().1, 443);
    for text in [
        "ok.test:0",
        "ok.test:65536",
        "ok.test:443x",
        "ok.test:",
        "ok.test",
        "ok.test:+80",
        "ok.test:080",
        "ok.test: 80",
        "ok.test:80:80",
        "[2001:db8::1]",
        "[2001:db8::1]80",
        "[2001:db8::1]:",
        "ok.test:99999999999",
    ] {
        let error = host_and_port(text, None).unwrap_err();
        assert!(matches!(error, UrlError::Port(_)), "{text}: {error}");
        assert_eq!(error.code(), Code::MalformedRequest);
    }
}

/// Case 45: other spellings of IPv4 are read as the address.
#[test]
fn case_45_odd_spellings_of_an_address_are_the_address() {
    for text in [
        "2852039166",
        "0xA9FEA9FE",
        "0251.0376.0251.0376",
        "169.254.43518",
        "0xa9.254.0251.254",
        "169.254.169.254.",
    ] {
        assert_eq!(Host::parse(text), Ok(Host::Address(Ipv4Addr::new(169, 254, 169, 254).into())), "{text}");
    }
    for text in ["017700000001", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "\u{ff11}27.0.0.1", "127.0x1"]
    {
        assert_eq!(Host::parse(text), Ok(Host::Address(Ipv4Addr::LOCALHOST.into())), "{text}");
    }
    assert_eq!(Host::parse("0"), Ok(Host::Address(Ipv4Addr::UNSPECIFIED.into())));
    for text in [
        "256.1.1.1",
        "1.2.3.4.5",
        "0x1.ok.08",
        "4294967296",
        "1.2.3.256",
        "1.2.65536",
        "ok.test.1",
        "09.1.1.1",
        "a.0x",
        "1..2",
        "[127.0.0.1]",
        "[::1%lo]",
        "[::1%25lo]",
        "[]",
    ] {
        let error = Host::parse(text).unwrap_err();
        assert_eq!(error.code(), Code::MalformedRequest, "{text}: {error}");
    }
    assert_eq!(Host::parse("[::ffff:a9fe:a9fe]").unwrap().to_string(), "[::ffff:169.254.169.254]");
    assert_eq!(Host::parse("[::1]"), Ok(Host::Address(Ipv6Addr::LOCALHOST.into())));
}

/// Case 46: what two readers could read differently is refused.
#[test]
fn case_46_two_readings_are_refused() {
    for url in [
        "http://127.0.0.1:6666\\@203.0.113.9/",
        "http://ok.test@no.test/",
        "http://no.test#@ok.test/",
        "http:/\\no.test",
        "http:\\\\no.test",
        "http://ok.test\t.no.test/",
        "http://ok.test\r\nX/",
        "http:///no.test",
        "http:no.test",
        "http://ok.test\\.no.test/",
        "http:// ok.test/",
        " http://ok.test/",
        "ftp://ok.test/",
        "//ok.test/",
        "ok.test",
        "http://ok.test:80@no.test/",
        "http://[::1]ok.test/",
        "http://ok.test%2f@no.test/",
        "http://ok.test%00.no.test/",
    ] {
        assert_eq!(refused(url).code(), Code::MalformedRequest, "{url}");
    }
}

/// A11: names that mean something inside are refused, with the way to reach them if it's wanted.
#[test]
fn local_names_are_refused_unless_the_operator_names_them() {
    for text in [
        "localhost",
        "a.localhost",
        "printer.local",
        "host.docker.internal",
        "metadata.google.internal",
        "db.svc",
        "kubernetes.default.svc.cluster.local",
        "LOCALHOST.",
        "10.in-addr.arpa",
        "intranet",
        "db",
        "x.onion",
        "a.home.arpa",
    ] {
        let error = Name::parse(text).unwrap_err();
        assert_eq!(error.code(), Code::NameRefused, "{text}: {error}");
    }
    for text in ["notlocal.test", "local.test", "my-internal.test", "svc.test"] {
        assert!(Name::parse(text).is_ok(), "{text}");
    }
    let names = Names::new(["DB.internal.", "cache", "10.0.0.7", "[fd00::7]"]).unwrap();
    assert_eq!(Name::parse_with("db.internal", &names).unwrap().as_str(), "db.internal");
    assert_eq!(Name::parse_with("Cache.", &names).unwrap().as_str(), "cache");
    assert!(Name::parse_with("x.db.internal", &names).is_err());
    assert!(Names::new(["a..b"]).is_err());
    assert_eq!(Target::from_absolute_with("http://cache:6379/x", &names).unwrap().authority(), "cache:6379");
}

/// Texts near to URLs, so that a fair part of them is accepted.
fn urlish() -> impl Strategy<Value = String> {
    // The first of each kind is mostly good, so that about a third of the texts is accepted.
    let host = prop_oneof![
        6 => "[a-zA-Z0-9]{1,8}(\\.|-|\\.x-)[a-zA-Z]{1,4}\\.[Tt]est\\.?",
        1 => "[a-zA-Z0-9.-]{1,20}",
        2 => "(0x)?[0-9a-f]{1,8}(\\.[0-9]{1,3}){0,4}",
        2 => "\\[[0-9a-f]{0,4}::[0-9a-f]{0,4}(:[0-9a-f]{1,4})?\\]",
        1 => "\\[[0-9a-f:.]{2,20}\\]",
        2 => "[a-z\u{e4}\u{fc}\u{3002}\u{ff0e}]{1,6}\\.[a-z]{2,4}",
        1 => "[ -~]{1,12}",
        1 => "xn--[a-z0-9-]{1,8}\\.test",
    ];
    let port = prop_oneof![6 => Just(String::new()), 3 => ":[1-9][0-9]{0,3}", 1 => ":[0-9]{0,6}", 1 => ":[ -~]{0,3}"];
    let path = prop_oneof![
        4 => "(/(%[2-6][0-9a-fA-F]|[a-zA-Z~@:!$;-]|%2f|%25|\u{e4}){1,4}(\\.|%2e|[a-z])?){0,3}(/\\.|/\\.\\.|/%2E\\.)?/?",
        2 => "(/(\\.|%2[eE]|[a-z;%@]|%2f|%5[cC]|%[0-9a-fA-F]{2}){0,4}){0,5}",
        1 => "/[ -~]{0,20}",
        1 => "/\\PC{0,10}",
    ];
    let query = prop_oneof![
        3 => Just(String::new()),
        3 => "\\?([a-z]=(%[2-7][0-9a-f]|[a-z+&\\[\\]\"|]){0,4}&?){0,3}",
        1 => "\\?[ -~]{0,16}",
    ];
    ("(http|https|HTTP)://", host, port, path, query).prop_map(|(a, b, c, d, e)| a + &b + &c + &d + &e)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// What comes out goes in again unchanged, and parses alike whichever way it's taken apart.
    #[test]
    fn canonical_is_a_fixed_point(text in urlish()) {
        properties::canonical_is_a_fixed_point(&text);
    }

    /// Where ours and the URL Standard's reader both read a host, they read the same one; the path too.
    #[test]
    fn case_46_the_url_crate_agrees_with_what_we_accept(text in urlish()) {
        if let Ok(it) = Target::from_absolute(&text) {
            let other = ::url::Url::parse(&text);
            prop_assert!(other.is_ok(), "only ours accepts `{}`", text);
            let other = other.unwrap();
            let host = Host::parse(other.host_str().unwrap_or_default());
            prop_assert_eq!(host.as_ref(), Ok(it.host()));
            prop_assert_eq!(other.port_or_known_default(), Some(it.port()));
            let canonical = ::url::Url::parse(it.url()).unwrap();
            prop_assert_eq!(canonical.path(), it.path());
        }
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,40}", any in any::<String>()) {
        properties::canonical_is_a_fixed_point(&text);
        properties::canonical_is_a_fixed_point(&any);
        properties::canonical_is_a_fixed_point(&format!("http://{any}"));
    }
}
