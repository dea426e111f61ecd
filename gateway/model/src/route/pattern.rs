//! Patterns of `provider/model`: `*` stands for any text (slashes too, as in `eos/meta/llama-3`), `?` for one byte.

use std::fmt;

/// The longest pattern, bytes: with names as long, a match is at most 64k steps.
const MAX_PATTERN: usize = 256;

/// A pattern of `provider/model`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPattern(String);

/// Why a pattern can't be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// It names no provider.
    #[error("`{0}` names no provider; write `provider/model`, e.g. `openai/gpt-*`, or `*` for all")]
    NoProvider(String),
    /// Empty, too long or with blanks and control characters.
    #[error("a pattern is 1 to 256 bytes without blanks")]
    Shape,
}

impl ModelPattern {
    /// A pattern of provider and model, or `*` alone.
    ///
    /// # Errors
    /// [`BadPattern`].
    pub fn parse(text: &str) -> Result<Self, BadPattern> {
        let pattern = Self::of_name(text)?;
        match text.split_once('/') {
            Some((provider, model)) if !provider.is_empty() && !model.is_empty() => Ok(pattern),
            _ if text == "*" => Ok(pattern),
            _ => Err(BadPattern::NoProvider(text.to_owned())),
        }
    }

    /// A pattern of one name.
    ///
    /// # Errors
    /// [`BadPattern::Shape`].
    pub fn of_name(text: &str) -> Result<Self, BadPattern> {
        if text.is_empty()
            || text.len() > MAX_PATTERN
            || text.chars().any(|c| c.is_whitespace() || c.is_control())
        {
            return Err(BadPattern::Shape);
        }
        Ok(Self(text.to_owned()))
    }

    /// Whether it matches `provider/model`.
    #[must_use]
    pub fn matches(&self, provider: &str, model: &str) -> bool {
        if model.len() > MAX_PATTERN || provider.len() > MAX_PATTERN {
            return self.0 == "*";
        }
        let name = [provider.as_bytes(), b"/", model.as_bytes()].concat();
        glob(self.0.as_bytes(), &name)
    }

    /// For ordering: one without wildcards is the most precise, then longer ones.
    pub(crate) fn precision(&self) -> (bool, usize) {
        (!self.0.contains(['*', '?']), self.0.len())
    }

    /// Whether it matches one name.
    #[must_use]
    pub fn matches_name(&self, name: &str) -> bool {
        glob(self.0.as_bytes(), name.as_bytes())
    }
}

impl fmt::Display for ModelPattern {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

/// Goes back to the last star only, which is enough: an earlier one could match no more than it left to the later.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(n) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(wanted) if wanted == byte || *wanted == b'?' => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                p = at + 1;
                n = from + 1;
            }
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

#[cfg(test)]
mod tests {
    use super::{BadPattern, ModelPattern};

    #[test]
    fn a_star_matches_any_text_and_nothing_else_is_special() {
        let check = |pattern: &str, name: &str, expect: bool| {
            let (provider, model) = name.split_once('/').unwrap();
            assert_eq!(
                ModelPattern::parse(pattern).unwrap().matches(provider, model),
                expect,
                "{pattern} {name}"
            );
        };
        check("*", "openai/gpt-5", true);
        check("openai/*", "openai/gpt-5", true);
        check("openai/*", "openai2/gpt-5", false);
        check("openai/gpt-5*", "openai/gpt-5", true);
        check("openai/gpt-5*", "openai/gpt-4", false);
        check("*/gpt-*-mini", "azure/gpt-5-mini", true);
        check("*/gpt-*-mini", "azure/gpt-5-mini-x", false);
        check("eos/*", "eos/meta/llama-3", true);
        check("openai/gpt-?", "openai/gpt-5", true);
        check("openai/gpt-?", "openai/gpt-", false);
        check("openai/gpt.5", "openai/gpt-5", false);
        check("a/*b*c", "a/xbxbxc", true);
        check("a/*b*c", "a/xbxbx", false);
    }

    #[test]
    fn a_pattern_without_a_provider_is_refused() {
        assert_eq!(ModelPattern::parse("gpt-5"), Err(BadPattern::NoProvider("gpt-5".into())));
        assert_eq!(ModelPattern::parse("/gpt"), Err(BadPattern::NoProvider("/gpt".into())));
        assert_eq!(ModelPattern::parse(""), Err(BadPattern::Shape));
        assert_eq!(ModelPattern::parse("a/ b"), Err(BadPattern::Shape));
    }

    #[test]
    fn a_name_longer_than_any_pattern_matches_only_all() {
        let long = "x".repeat(100_000);
        assert!(ModelPattern::parse("*").unwrap().matches("openai", &long));
        assert!(!ModelPattern::parse("openai/*").unwrap().matches("openai", &long));
    }
}
