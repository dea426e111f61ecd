//! The workload token: proof of a run to the gateway's own endpoints, besides its address (A2, A4).
//!
//! In clear it exists in the run's environment and bundle alone. Agent and gateway keep a SHA-256 of it, which is enough
//! for 256 random bits: there is nothing to guess that a slow hash would protect.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

/// How a token begins.
pub const PREFIX: &str = "strait_";
/// Characters of base64url behind [`PREFIX`]: 256 bits.
pub const BODY: usize = 43;

/// SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenHash([u8; 32]);

/// A text that isn't 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token's hash is 64 hexadecimal digits")]
pub struct BadHash;

impl TokenHash {
    /// The hash of a token in clear.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    /// Whether both are of one token, in a time that tells nothing of where they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// The tokens that stand in `text`: each with its place.
pub fn find(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices(PREFIX).filter_map(move |(at, _)| {
        let token = text.get(at..at + PREFIX.len() + BODY)?;
        let body = token.get(PREFIX.len()..)?;
        let good = body.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        good.then_some((at, token))
    })
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(…)")
    }
}

impl From<TokenHash> for String {
    fn from(hash: TokenHash) -> Self {
        hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for TokenHash {
    type Error = BadHash;

    fn try_from(text: String) -> Result<Self, BadHash> {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let digits: Vec<u8> = text.as_bytes().iter().map(digit).collect::<Option<_>>().ok_or(BadHash)?;
        let bytes: Vec<u8> =
            digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |all, half| all << 4 | half)).collect();
        if digits.len() != 64 {
            return Err(BadHash);
        }
        bytes.try_into().map(Self).map_err(|_| BadHash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_goes_to_text_and_back_and_tells_tokens_apart() {
        let token = format!("{PREFIX}{}", "aB3-_".repeat(9).get(..BODY).unwrap());
        let hash = TokenHash::of(&token);
        let text = String::from(hash);
        assert_eq!(text.len(), 64);
        assert!(TokenHash::try_from(text.clone()).unwrap().matches(&hash));
        assert!(!TokenHash::of("strait_other").matches(&hash));
        for bad in [String::new(), "0".repeat(63), "0".repeat(66), "g".repeat(64)] {
            assert!(TokenHash::try_from(bad).is_err());
        }
        assert!(!format!("{hash:?}").contains(text.get(..8).unwrap()));
        let found: Vec<_> = find(&format!("a={token}&b=strait_short;{token}x")).map(|(at, _)| at).collect();
        assert_eq!(found, [2, 2 + token.len() + 16]);
    }
}
