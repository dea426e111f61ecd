//! A run's workload token in clear: from its making to the run's environment, and nowhere else.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use strait_contract::token::{PREFIX, TokenHash};
use zeroize::Zeroizing;

/// A token in clear; wiped when dropped, no Debug text.
#[derive(Clone)]
pub(super) struct Token(Zeroizing<String>);

impl Token {
    /// A fresh one, of 256 random bits.
    ///
    /// # Errors
    /// The kernel gave no random bytes.
    pub(super) fn fresh() -> Result<Self, getrandom::Error> {
        let mut bytes = Zeroizing::new([0u8; 32]);
        getrandom::fill(bytes.as_mut_slice())?;
        let body = Zeroizing::new(URL_SAFE_NO_PAD.encode(bytes.as_slice()));
        Ok(Self(Zeroizing::new(format!("{PREFIX}{}", body.as_str()))))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// What may be kept of it.
    pub(super) fn hash(&self) -> TokenHash {
        TokenHash::of(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_are_found_again_and_are_hidden_in_records() {
        let (one, other) = (Token::fresh().unwrap(), Token::fresh().unwrap());
        assert_ne!(one.as_str(), other.as_str());
        assert_eq!(strait_contract::token::find(one.as_str()).collect::<Vec<_>>(), [(0, one.as_str())]);
        assert!(!one.hash().matches(&other.hash()) && one.hash().matches(&TokenHash::of(one.as_str())));
        let shown = strait_contract::redact::redact_text(&format!("token is {} here", one.as_str()), 200);
        assert!(!shown.contains(one.as_str().get(7..17).unwrap()) && shown.contains("[hidden:"), "{shown}");
        assert!(!format!("{one:?}").contains(one.as_str()));
    }
}
