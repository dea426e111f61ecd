//! Variables by which clients of models find the gateway without being told.

use std::collections::BTreeMap;

use strait_contract::provider::{Dialect, Provider, Providers};

/// Base URLs and keys for the clients of each API that a provider speaks. The key is the run's token.
pub(super) fn variables(providers: &Providers, token: &str) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (dialect, provider) in preset(&providers.providers) {
        let base = format!("http://strait.internal/model/{}", provider.name);
        let versioned = format!("{base}/v1");
        let (url, keys): ((&str, &str), &[&str]) = match dialect {
            // Its clients have the version in the base URL, unless the provider's URL has it already.
            Dialect::OpenAi if provider.url.trim_end_matches('/').ends_with("/v1") => {
                (("OPENAI_BASE_URL", &base), &["OPENAI_API_KEY", "CODEX_API_KEY"])
            }
            Dialect::OpenAi => (("OPENAI_BASE_URL", &versioned), &["OPENAI_API_KEY", "CODEX_API_KEY"]),
            Dialect::Anthropic => (("ANTHROPIC_BASE_URL", &base), &["ANTHROPIC_API_KEY"]),
            Dialect::Gemini => (("GOOGLE_GEMINI_BASE_URL", &base), &["GEMINI_API_KEY"]),
        };
        variables.push((url.0.to_owned(), url.1.to_owned()));
        variables.extend(keys.iter().map(|key| ((*key).to_owned(), token.to_owned())));
    }
    variables
}

/// Of each API the provider named like it, else the first by name.
fn preset(providers: &[Provider]) -> BTreeMap<Dialect, &Provider> {
    let mut preset: BTreeMap<Dialect, &Provider> = BTreeMap::new();
    for provider in providers {
        let known = preset.entry(provider.dialect).or_insert(provider);
        if provider.name.as_str() == provider.dialect.as_str() {
            *known = provider;
        }
    }
    preset
}

#[cfg(test)]
mod tests {
    use strait_contract::provider::Content;

    use super::*;

    fn provider(name: &str, dialect: Dialect, url: &str) -> Provider {
        Provider {
            name: name.parse().unwrap(),
            dialect,
            url: url.to_owned(),
            credential: None,
            intercept: true,
            allow: Vec::new(),
            content: Content::None,
        }
    }

    #[test]
    fn clients_of_each_api_are_told_of_one_provider() {
        let all = |providers| Providers { providers, ..Providers::default() };
        assert!(variables(&all(Vec::new()), "t").is_empty());
        let several = all(vec![
            provider("azure", Dialect::OpenAi, "https://a.test/openai/v1"),
            provider("claude", Dialect::Anthropic, "https://c.test/"),
            provider("openai", Dialect::OpenAi, "https://api.openai.com/"),
        ]);
        let told = variables(&several, "strait_x");
        let has = |name: &str, value: &str| told.contains(&(name.to_owned(), value.to_owned()));
        assert!(has("OPENAI_BASE_URL", "http://strait.internal/model/openai/v1"), "{told:?}");
        assert!(has("ANTHROPIC_BASE_URL", "http://strait.internal/model/claude"));
        assert!(has("OPENAI_API_KEY", "strait_x") && has("CODEX_API_KEY", "strait_x"));
        assert!(!told.iter().any(|(name, _)| name.contains("GEMINI")), "none is configured");
        let one = all(vec![provider("azure", Dialect::OpenAi, "https://a.test/openai/v1")]);
        let told = variables(&one, "t");
        assert!(
            told.contains(&("OPENAI_BASE_URL".to_owned(), "http://strait.internal/model/azure".to_owned()))
        );
    }
}
