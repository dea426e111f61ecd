//! Placeholders exchanged for their values, each in the words of the place where it stands.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderValue};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use zeroize::Zeroizing;

use super::{Exposure, as_basic};
use crate::{credential::Ready, mask::Patterns};

/// What a body is that placeholders can be replaced in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Json,
    Form,
}

/// The kind of a body by its type, if placeholders can be replaced in it.
pub(crate) fn content_kind(content_type: Option<&str>) -> Option<Content> {
    match content_type? {
        "application/x-www-form-urlencoded" => Some(Content::Form),
        json if json == "application/json" || json.ends_with("+json") => Some(Content::Json),
        _ => None,
    }
}

/// Placeholders of one request with what comes in their place.
pub(crate) struct Swap<'a> {
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Swap<'a> {
    /// With the values.
    pub(crate) fn new(exposure: &'a Exposure, values: &'a [(usize, Arc<Ready>)]) -> Self {
        Self { pairs: values.iter().map(|(which, ready)| (exposure.text(*which), ready.value())).collect() }
    }

    /// With nothing in their place, to see whether each stands where it can be replaced.
    pub(crate) fn dry(exposure: &'a Exposure, found: &[usize]) -> Self {
        Self { pairs: found.iter().map(|which| (exposure.text(*which), "")).collect() }
    }

    /// Replaces in every field, and within Basic authentication.
    pub(crate) fn fields(&self, fields: &mut HeaderMap) {
        for (name, value) in fields.iter_mut() {
            let replaced = match as_basic(name, value) {
                Some(pair) => self
                    .plain(&pair, str::to_owned)
                    .map(|pair| Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())))),
                None => value.to_str().ok().and_then(|text| self.plain(text, str::to_owned)),
            };
            // A value that no field can hold was refused when it was looked up.
            if let Some(mut new) = replaced.and_then(|text| HeaderValue::from_str(&text).ok()) {
                new.set_sensitive(true);
                *value = new;
            }
        }
    }

    /// The URL with the values in its query; `None` if there is nothing to replace.
    pub(crate) fn url(&self, url: &str) -> Option<Zeroizing<String>> {
        let (place, query) = url.split_once('?')?;
        let query = self.plain(query, |value| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string())?;
        Some(Zeroizing::new(format!("{place}?{}", query.as_str())))
    }

    /// A whole body with the values; `None` if there is nothing to replace or it isn't text.
    pub(crate) fn body(&self, kind: Content, body: &[u8]) -> Option<Zeroizing<String>> {
        let text = std::str::from_utf8(body).ok()?;
        self.plain(text, |value| match kind {
            Content::Form => utf8_percent_encode(value, NON_ALPHANUMERIC).to_string(),
            Content::Json => {
                let quoted = serde_json::to_string(value).unwrap_or_default();
                quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned()
            }
        })
    }

    fn plain(&self, text: &str, spell: impl Fn(&str) -> String) -> Option<Zeroizing<String>> {
        let mut out: Option<Zeroizing<String>> = None;
        for (placeholder, value) in &self.pairs {
            let now = out.as_ref().map_or(text, |text| text.as_str());
            if now.contains(placeholder) {
                out = Some(Zeroizing::new(now.replace(placeholder, &spell(value))));
            }
        }
        out
    }
}

/// What to hide in the answer of a request that holds these values.
pub(crate) fn patterns(values: &[(usize, Arc<Ready>)], and: Option<&Arc<Patterns>>) -> Option<Arc<Patterns>> {
    let mut all = values.iter().map(|(_, ready)| &ready.patterns).chain(and);
    let first = all.next()?;
    let rest: Vec<_> = all.collect();
    Some(if rest.is_empty() { Arc::clone(first) } else { Arc::new(Patterns::joined(first, &rest)) })
}
