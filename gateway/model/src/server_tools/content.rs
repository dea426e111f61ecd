//! Pages, pictures and files that a provider would fetch for a message: a way out by an address in the request.
//!
//! Looks into whatever a message may hold, but not into what tools are called with or answered: there an address is
//! only text.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{At, Offered};
use crate::document::{Document, DocumentError, snake_case};

/// Members of a body in which messages stand.
const MESSAGES: [&str; 8] = [
    "messages",
    "input",
    "system",
    "contents",
    "content",
    "systemInstruction",
    "system_instruction",
    "requests",
];
/// Members whose value is an address that a provider fetches, or holds one at `url`; in snake case.
const FETCHED: [&str; 6] = ["image_url", "file_url", "video_url", "audio_url", "input_video", "file_uri"];

/// Types whose `url` tells where something came from, in the history of a talk: nothing is fetched again.
const TOLD: [&str; 7] = [
    "find_in_page",
    "open_page",
    "search_result",
    "url_citation",
    "web_fetch_result",
    "web_search_result",
    "web_search_result_location",
];

/// Adds what the messages of a request would have the provider fetch.
pub(super) fn fetched(document: &Document, found: &mut Vec<Offered>) -> Result<(), DocumentError> {
    for name in MESSAGES {
        let Some(text) = document.get(name).filter(|text| may_hold_address(text)) else { continue };
        let mut urls = Vec::new();
        let mut reader = serde_json::Deserializer::from_str(text);
        Walk { urls: &mut urls }
            .deserialize(&mut reader)
            .map_err(|error| DocumentError::Malformed(error.to_string()))?;
        for (kind, url) in urls {
            if is_inline(&url) {
                continue;
            }
            let mut offer = Offered::new(&kind, At::Fixed);
            offer.name = "url_fetch".to_owned();
            offer.url = Some(url);
            found.push(offer);
        }
    }
    Ok(())
}

/// Cheap and never wrong in one direction: no name of [`FETCHED`], nor `url`, is spelled without one of these.
fn may_hold_address(text: &str) -> bool {
    ["url\"", "uri\"", "Url\"", "Uri\"", "input_video", "\\u"]
        .iter()
        .any(|part| memchr::memmem::find(text.as_bytes(), part.as_bytes()).is_some())
}

/// What carries its bytes along, and is fetched from nowhere.
fn is_inline(url: &str) -> bool {
    url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
}

struct Walk<'a> {
    urls: &'a mut Vec<(String, String)>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    /// The string, if it was one.
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        // Addresses are short; what is longer is inline data or prose.
        let end = text.char_indices().nth(2_048).map_or(text.len(), |(at, _)| at);
        Ok(text.get(..end).map(str::to_owned))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element_seed(Walk { urls: &mut *self.urls })?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut kind = None;
        let mut url = None;
        let mut below: Vec<(String, Vec<(String, String)>)> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let mut inner = Vec::new();
            let value = map.next_value_seed(Walk { urls: &mut inner })?;
            match (key.as_str(), value) {
                ("type", Some(value)) => kind = kind.or(Some(value)),
                ("url", Some(value)) => url = url.or(Some(value)),
                (name, Some(value)) if FETCHED.contains(&snake_case(name).as_str()) => {
                    self.urls.push((snake_case(name), value));
                }
                _ => {}
            }
            if !inner.is_empty() {
                below.push((key, inner));
            }
        }
        let calls_a_tool = kind.as_deref().is_some_and(|kind| kind.ends_with("tool_use"));
        for (key, inner) in below {
            let only_text = (key == "input" && calls_a_tool) || matches!(key.as_str(), "args" | "response");
            if !only_text {
                self.urls.extend(inner);
            }
        }
        if let Some(url) = url.filter(|_| !kind.as_deref().is_some_and(|kind| TOLD.contains(&kind))) {
            // `image_url: {url}` of chat, `source: {type: "url", url}` of messages, and what comes to be like them.
            self.urls.push((kind.unwrap_or_else(|| "url".to_owned()), url));
        }
        Ok(None)
    }
}

#[cfg(test)]
#[test]
fn addresses_are_found_however_they_are_spelled() {
    let read = |text: &str| {
        let document = Document::read(text.as_bytes().to_vec()).unwrap();
        let mut found = Vec::new();
        fetched(&document, &mut found).unwrap();
        found.into_iter().filter_map(|offer| offer.url).collect::<Vec<_>>()
    };
    let url = "https://evil.example/x";
    for fetches in [
        r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"URL"}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"URL"}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"tool_result","content":[{"type":"document","source":{"url":"URL","type":"url"}}]}]}]}"#,
        r#"{"input":[{"role":"user","content":[{"type":"input_image","image_url":"URL"}]}]}"#,
        r#"{"input":[{"content":[{"type":"input_file","file_url":"URL"}]}]}"#,
        r#"{"contents":[{"parts":[{"fileData":{"fileUri":"URL"}}]}]}"#,
        r#"{"contents":[{"parts":[{"file_data":{"file_uri":"URL"}}]}]}"#,
        r#"{"contents":[{"parts":[{"fileData":{"file\u0055ri":"URL"}}]}]}"#,
    ] {
        assert_eq!(read(&fetches.replace("URL", url)), [url], "{fetches}");
    }
    for quiet in [
        r#"{"messages":[{"content":[{"type":"tool_use","input":{"url":"URL"},"id":"1"}]}]}"#,
        r#"{"messages":[{"content":[{"input":{"image_url":"URL"},"type":"tool_use"}]}]}"#,
        r#"{"messages":[{"content":"see URL"}]}"#,
        r#"{"messages":[{"content":[{"type":"web_search_tool_result","content":[{"type":"web_search_result","url":"URL"}]}]}]}"#,
        r#"{"input":[{"type":"web_search_call","action":{"type":"open_page","url":"URL"}}]}"#,
        r#"{"contents":[{"parts":[{"functionCall":{"name":"f","args":{"url":"URL"}}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}"#,
    ] {
        assert_eq!(read(&quiet.replace("URL", url)), [""; 0], "{quiet}");
    }
}
