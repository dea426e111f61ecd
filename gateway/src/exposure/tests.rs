use super::*;

fn exposure() -> Arc<Exposure> {
    let text = |text: &str| Secret::new(text.to_owned());
    let placeholder = Shown::Placeholder {
        text: text("ghp_0Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv1Wx2Yz3"),
        origins: vec![Origin { https: true, host: "api.github.com".to_owned(), port: 443 }],
        ttl_seconds: 1,
    };
    let of = |variable: &str, shown| Exposed {
        variable: variable.to_owned(),
        credential: variable.to_ascii_lowercase().parse().unwrap(),
        shown,
    };
    Exposure::new(&[
        of("GH", placeholder),
        of("X", Shown::Value(text("s3cret/of ours"))),
        of("Y", Shown::Value(text("abc"))),
    ])
    .unwrap()
}

#[test]
fn records_hide_what_was_shown_in_every_spelling_and_leave_the_rest() {
    let exposure = exposure();
    for (text, left) in [
        ("https://a.b/?q=s3cret%2Fof%20ours&r=1", "https://a.b/?q=[hidden:"),
        ("x ghp_0Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8Qr9St0Uv1Wx2Yz3 y", "x [hidden:"),
    ] {
        let hidden = exposure.hide(text);
        assert!(hidden.starts_with(left), "{hidden}");
        assert!(!hidden.contains("s3cret") && !hidden.contains("Ab1Cd2"), "{hidden}");
        assert_eq!(hidden.chars().last(), text.chars().last(), "{hidden}");
    }
    assert_eq!(exposure.hide("abc äöü"), "abc äöü", "short ones are in any text");
    assert!(Exposure::new(&[]).is_none(), "a run that was shown nothing pays nothing");
}

#[test]
fn a_name_holds_a_placeholder_in_any_case() {
    let exposure = exposure();
    let name = "GHP_0ab1cd2ef3gh4ij5kl6mn7op8qr9st0uv1wx2yz3.evil.example";
    assert_eq!(exposure.in_name(name), Some(0));
    assert_eq!(exposure.in_name("evil.example"), None);
    let misuse = exposure.misuse_at(0, (name.to_owned(), None), false, "the name");
    assert!(!misuse.host.to_ascii_lowercase().contains("0ab1cd2"), "{}", misuse.host);
}
