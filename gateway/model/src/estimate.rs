//! Tokens where nobody has counted them: before a call, and where a provider gives no numbers. Rough by nature: what
//! comes from here is marked as an estimate, and reservations are settled by what the provider says.

use crate::api::Operation;
use memchr::memchr2;

/// Output of a call that sets no limit, for a model whose own limit isn't known.
pub const OUTPUT: u64 = 32_768;
/// What an image costs at most, whatever its bytes: providers scale it down first.
const IMAGE: u64 = 5_000;
/// Strings shorter than this are text.
const BLOB: usize = 1_024;

/// Text weighed for its tokens: a token is about four letters of English or code, or two of three bytes of other
/// scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Quarters of a token.
    quarters: u64,
}

impl Weight {
    /// Adds text, as UTF-8 or as it stands in JSON; in any pieces.
    pub fn add(&mut self, text: &[u8]) {
        let wide = text.iter().filter(|byte| !byte.is_ascii()).count();
        let quarters = u64::try_from(text.len().saturating_add(wide)).unwrap_or(u64::MAX);
        self.quarters = self.quarters.saturating_add(quarters);
    }

    fn add_tokens(&mut self, tokens: u64) {
        self.quarters = self.quarters.saturating_add(tokens.saturating_mul(4));
    }

    /// Tokens, rounded up.
    pub fn tokens(self) -> u64 {
        self.quarters.div_ceil(4)
    }
}

/// Tokens of a request by its body, JSON: images and documents by what such cost, all else as text.
pub fn input(body: &[u8]) -> u64 {
    let mut weight = Weight::default();
    let mut rest = body;
    while let Some(begin) = memchr::memchr(b'"', rest) {
        let (before, string) = rest.split_at_checked(begin.saturating_add(1)).unwrap_or((rest, &[]));
        weight.add(before);
        let (string, behind) = string.split_at_checked(string_length(string)).unwrap_or((string, &[]));
        match blob(string) {
            Some(tokens) => weight.add_tokens(tokens),
            None => weight.add(string),
        }
        rest = behind.get(1..).unwrap_or_default();
    }
    weight.add(rest);
    weight.tokens()
}

/// The most that a call is expected to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Worst {
    /// Tokens read.
    pub input: u64,
    /// Tokens written.
    pub output: u64,
}

/// What to reserve for a call: what [`input`] says of it and a third more, since it is a guess; the output as limited by
/// the request (`max_output`, for each of `choices` answers), else by the model, else [`OUTPUT`].
pub fn worst(
    operation: Operation,
    input: u64,
    max_output: Option<u64>,
    choices: u64,
    model_output: Option<u64>,
) -> Worst {
    let read = input.saturating_add(input / 3).saturating_add(1);
    match operation {
        Operation::CountTokens | Operation::Models => Worst::default(),
        Operation::Embeddings | Operation::Embed => Worst { input: read, output: 0 },
        Operation::Chat
        | Operation::Completions
        | Operation::Responses
        | Operation::Messages
        | Operation::Generate
        | Operation::StreamGenerate => {
            let one = max_output.or(model_output).unwrap_or(OUTPUT);
            // A limit beyond the model's is refused or cut by the provider.
            let one = model_output.map_or(one, |most| one.min(most));
            Worst { input: read, output: one.saturating_mul(choices.clamp(1, 1_024)) }
        }
    }
}

/// Length of a JSON string's content up to its closing quote.
fn string_length(string: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = string.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if string.get(at) == Some(&b'"') {
            return at;
        }
        at += 2;
    }
    string.len()
}

/// Tokens of a string that is base64 of something; `None` for text.
fn blob(string: &[u8]) -> Option<u64> {
    if string.len() < BLOB {
        return None;
    }
    let data = if string.starts_with(b"data:") {
        let comma = memchr::memchr(b',', string.get(..256)?)?;
        string.get(comma.saturating_add(1)..)?
    } else {
        string
    };
    // All of it is looked at: a text that only begins like base64 is text.
    // With `\/` for a slash, as some serializers write it.
    if !data
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=' | b'\\'))
    {
        return None;
    }
    let bytes = u64::try_from(string.len()).unwrap_or(u64::MAX);
    // PNG, JPEG, GIF, WebP by how their base64 begins.
    let image = [&b"iVBORw0KGgo"[..], b"/9j/", b"\\/9j\\/", b"R0lGOD", b"UklGR"]
        .iter()
        .any(|magic| data.starts_with(magic));
    Some(if image || string.starts_with(b"data:image/") { IMAGE.min(bytes) } else { bytes / 16 })
}

#[cfg(test)]
mod tests;
