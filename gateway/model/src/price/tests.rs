use super::*;

fn table() -> Table {
    Table::new(&Rows::new()).unwrap()
}

fn tokens(input: u64, output: u64) -> Tokens {
    Tokens { input, output, ..Tokens::default() }
}

#[test]
fn cost_splits_input_by_cache_and_rounds_up() {
    let table = table();
    let price = table.find("anthropic", Dialect::Anthropic, "claude-sonnet-4-5-20250929").unwrap();
    let mut used = tokens(10_000, 1_000);
    // 10,000 × $3 + 1,000 × $15
    assert_eq!(price.cost(&used), Some(Usd(45_000_000)));
    used.cache_read = 4_000;
    used.cache_write = 2_000;
    // 4,000 × 3 + 4,000 × 0.3 + 2,000 × 3.75 + 1,000 × 15
    assert_eq!(price.cost(&used), Some(Usd(35_700_000)));
    used.units = vec![(CACHE_WRITE_1H.to_owned(), 500), ("web_search".to_owned(), 3)];
    // 500 of the written at 6 instead of 3.75, three searches at a cent
    assert_eq!(price.cost(&used), Some(Usd(35_700_000 + 1_125_000 + 30_000_000)));
    let nano = table.find("openai", Dialect::OpenAi, "gpt-5-nano").unwrap();
    let mut one = tokens(1, 0);
    one.cache_read = 1;
    assert_eq!(nano.cost(&one), Some(Usd(5)), "half a cent for a thousand thousand");
}

/// Case 72's long-context tier.
#[test]
fn a_long_input_makes_the_whole_call_dearer() {
    let table = table();
    let price = table.find("anthropic", Dialect::Anthropic, "claude-sonnet-4-5").unwrap();
    assert_eq!(price.cost(&tokens(200_000, 0)), Some(Usd(600_000_000)));
    assert_eq!(price.cost(&tokens(200_001, 1_000)), Some(Usd(1_200_006_000 + 22_500_000)));
    assert!(price.worst(200_001, 1_000) >= price.cost(&tokens(200_001, 1_000)).unwrap());
}

/// Case 74: no price is not a price of zero.
#[test]
fn what_is_unknown_has_no_price() {
    let table = table();
    for model in ["gpt-5-turbo-ultra", "gpt-6", "gpt", "", "gpt-5-2025", "xgpt-5"] {
        assert_eq!(table.find("openai", Dialect::OpenAi, model), None, "{model}");
    }
    assert_eq!(table.find("anthropic", Dialect::Anthropic, "gpt-5"), None);
    let price = table.find("openai", Dialect::OpenAi, "gpt-5").unwrap();
    let mut used = tokens(10, 10);
    used.units = vec![("holodeck".to_owned(), 1)];
    assert_eq!(price.cost(&used), None);
}

#[test]
fn names_may_have_a_date() {
    let table = table();
    for model in ["gpt-5", "gpt-5-2025-08-07", "models/gpt-5", "gpt-5-latest"] {
        assert!(table.find("mine", Dialect::OpenAi, model).is_some(), "{model}");
    }
    assert_eq!(undated("claude-3-haiku-20240307"), "claude-3-haiku");
    assert_eq!(undated("-20240307"), "-20240307");
    assert_eq!(undated("é-2024-03-07"), "é");
    assert_eq!(undated("ééééé"), "ééééé");
}

#[test]
fn operators_rows_go_first_and_the_longest_first() {
    let rows: Rows = toml::from_str(
        r#"
        "openai/*" = { input = 1.0 }
        "openai/gpt-5*" = { input = 2.0, output = 3.0 }
        "eos/*" = { input = 0.0 }
        "#,
    )
    .unwrap();
    let table = Table::new(&rows).unwrap();
    let cost = |provider: &str, model: &str| {
        table.find(provider, Dialect::OpenAi, model).unwrap().cost(&tokens(1_000_000, 0)).unwrap().0
    };
    assert_eq!(cost("openai", "gpt-5"), 2_000_000_000);
    assert_eq!(cost("openai", "other"), 1_000_000_000);
    assert_eq!(cost("eos", "gpt-5"), 0, "a row for the provider goes before one for its API");
    assert_eq!(cost("other", "llama"), 1_000_000_000, "by its API");
}

#[test]
fn senseless_tables_are_refused_by_name() {
    for (rows, message) in [
        (r#""gpt-5" = { input = 1.0 }"#, "`gpt-5`"),
        (r#""openai/gpt-5" = { input = -1.0 }"#, "-1"),
        (r#""openai/gpt-5" = { input = nan }"#, "NaN"),
        (r#""openai/gpt-5" = { input = 1.0, units = { web_search = 1e300 } }"#, "web_search"),
    ] {
        let error = Table::new(&toml::from_str(rows).unwrap()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    assert!(toml::from_str::<Rows>(r#""a/b" = { input = 1.0, inptu = 2.0 }"#).is_err());
}

#[test]
fn patterns_match_whole_names() {
    for (pattern, name, expected) in [
        ("a*", "a", true),
        ("a*", "ab", true),
        ("a*c", "abbc", true),
        ("a*c", "acb", false),
        ("*b*", "abc", true),
        ("a*b*b", "ab", false),
        ("a*a", "a", false),
        ("*", "", true),
        ("abc", "abcd", false),
    ] {
        let read = ModelPattern::of_name(pattern).unwrap();
        assert_eq!(read.matches_name(name), expected, "{pattern} {name}");
    }
}

#[test]
fn grounded_prompts_of_gemini_2_cost_once() {
    let table = table();
    let mut used = tokens(0, 0);
    used.units = vec![("google_search".to_owned(), 4)];
    let cost = |model| table.find("gemini", Dialect::Gemini, model).unwrap().cost(&used);
    assert_eq!(cost("models/gemini-2.5-flash"), Some(Usd(35_000_000)));
    assert_eq!(cost("gemini-3-pro-preview"), Some(Usd(56_000_000)));
}

proptest::proptest! {
    #[test]
    fn no_count_panics_and_reserving_covers_it(input: u64, output: u64, read: u64, written: u64, searches: u64) {
        let table = table();
        let price = table.find("anthropic", Dialect::Anthropic, "claude-sonnet-4-5").unwrap();
        let mut used = tokens(input, output);
        (used.cache_read, used.cache_write) = (read, written);
        let cost = price.cost(&used).unwrap();
        proptest::prop_assert!(price.worst(input, output) >= cost);
        used.units = vec![("web_search".to_owned(), searches), (CACHE_WRITE_1H.to_owned(), searches)];
        let _ = price.cost(&used).unwrap();
    }
}
