//! Pages, pictures and files that a provider would fetch for a message: a way out by an address in the request.
//!
//! Looks into whatever a message may hold, but not into what tools are called with or answered: there an address is
//! only text.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{At, Offered};
use crate::document::{Document, DocumentError, snake_case};

/// Members of a body in which messages stand.
const MESSAGES: [&str; 10] = [
    "messages",
    "input",
    "system",
    "contents",
    "content",
    "systemInstruction",
    "system_instruction",
    "requests",
    "generateContentRequest",
    "generate_content_request",
];
/// Members whose value is an address that a provider fetches, or holds one at `url`; in snake case.
const FETCHED: [&str; 6] = ["image_url", "file_url", "video_url", "audio_url", "input_video", "file_uri"];
/// Members that some servers fetch if they hold an address.
const PERHAPS: [&str; 3] = ["image", "video", "audio"];

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
/// What a provider's tool did, in the history of a talk.
const DONE: [&str; 3] = ["code_interpreter_call", "file_search_call", "web_search_call"];

/// Adds what the messages of a request would have the provider fetch.
pub(super) fn fetched(document: &Document, found: &mut Vec<Offered>) -> Result<(), DocumentError> {
    for name in MESSAGES {
        let Some(text) = document.get(name).filter(|text| may_hold_address(text)) else { continue };
        let mut seen = Seen::default();
        let mut reader = serde_json::Deserializer::from_str(text);
        Walk { seen: &mut seen, under: Under::Anything, keep: false }
            .deserialize(&mut reader)
            .map_err(|error| DocumentError::Malformed(error.to_string()))?;
        if let Some(twice) = seen.twice {
            return Err(DocumentError::Duplicate(format!("{name}[…].{twice}")));
        }
        for (kind, url) in seen.urls {
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

/// Cheap and never wrong in one direction: no name of [`FETCHED`] or [`PERHAPS`], nor `url`, is spelled without one of
/// these.
fn may_hold_address(text: &str) -> bool {
    ["url\"", "uri\"", "Url\"", "Uri\"", "input_video", "inputVideo", "image\"", "video\"", "audio\"", "\\u"]
        .iter()
        .any(|part| memchr::memmem::find(text.as_bytes(), part.as_bytes()).is_some())
}

/// What carries its bytes along, and is fetched from nowhere.
fn is_inline(url: &str) -> bool {
    url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"))
}

/// Whether text is an address and not, say, the bytes of a picture.
fn is_address(text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme.trim_start());
    scheme.is_some_and(|scheme| scheme.len() < 16 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// What was found in messages.
#[derive(Default)]
struct Seen {
    /// Types and addresses.
    urls: Vec<(String, String)>,
    /// A member that stands twice, where readers differ in what is fetched (case 69).
    twice: Option<&'static str>,
}

/// The member that a value stands at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    /// One whose address is fetched whatever type the value says it is.
    Fetched,
    Anything,
}

struct Walk<'a> {
    seen: &'a mut Seen,
    under: Under,
    /// Whether a string is wanted.
    keep: bool,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    /// The string, if it was one and wanted.
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
        if !self.keep {
            return Ok(None);
        }
        // Addresses are short; what is longer is inline data or prose.
        let end = text.char_indices().nth(2_048).map_or(text.len(), |(at, _)| at);
        Ok(text.get(..end).map(str::to_owned))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let Self { seen, under, .. } = self;
        let keep = under == Under::Fetched;
        while let Some(text) = seq.next_element_seed(Walk { seen: &mut *seen, under, keep })? {
            // A list of addresses at a member that holds one.
            seen.urls.extend(text.map(|url| ("url".to_owned(), url)));
        }
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut kind, mut url) = (None, None);
        let (mut kinds, mut addresses) = (0_u8, 0_u8);
        let mut below: Vec<(String, Vec<(String, String)>)> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let spelled = snake_case(&key);
            let fetched = FETCHED.contains(&spelled.as_str());
            let perhaps = PERHAPS.contains(&spelled.as_str());
            let under = if fetched || key == "source" { Under::Fetched } else { Under::Anything };
            let keep = fetched || perhaps || key == "type" || key == "url";
            let mut inner = Seen::default();
            let value = map.next_value_seed(Walk { seen: &mut inner, under, keep })?;
            self.seen.twice = self.seen.twice.or(inner.twice);
            match key.as_str() {
                "type" => (kind, kinds) = (value, kinds.saturating_add(1)),
                "url" => (url, addresses) = (value, addresses.saturating_add(1)),
                _ => {
                    if let Some(value) = value.filter(|value| fetched || is_address(value)) {
                        self.seen.urls.push((spelled, value));
                    }
                }
            }
            if !inner.urls.is_empty() {
                below.push((key, inner.urls));
            }
        }
        if kinds > 1 || addresses > 1 {
            self.seen.twice = Some(if kinds > 1 { "type" } else { "url" });
        }
        let kind = kind.as_deref();
        for (_, inner) in below.into_iter().filter(|(key, _)| !is_told(kind, key)) {
            self.seen.urls.extend(inner);
        }
        let told = self.under == Under::Anything && kind.is_some_and(|kind| TOLD.contains(&kind));
        if let Some(url) = url.filter(|_| !told) {
            // `image_url: {url}` of chat, `source: {type: "url", url}` of messages, and what comes to be like them.
            self.seen.urls.push((kind.unwrap_or("url").to_owned(), url));
        }
        Ok(None)
    }
}

/// Whether a member of something of that type is only text to a provider: what a tool is called with or answered, what
/// was done before.
fn is_told(kind: Option<&str>, member: &str) -> bool {
    let kind = kind.unwrap_or_default();
    match member {
        "args" | "response" => true,
        "input" => kind.ends_with("tool_use"),
        "action" | "outputs" | "results" => DONE.contains(&kind),
        "url_citation" => kind == "url_citation",
        _ => false,
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
        r#"{"generateContentRequest":{"contents":[{"parts":[{"fileData":{"fileUri":"URL"}}]}]}}"#,
        r#"{"contents":[{"parts":[{"functionResponse":{"response":{},"parts":[{"fileData":{"fileUri":"URL"}}]}}]}]}"#,
        // A type that tells of history makes no picture history.
        r#"{"messages":[{"content":[{"type":"image_url","image_url":{"type":"url_citation","url":"URL"}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image","source":{"type":"web_search_result","url":"URL"}}]}]}"#,
        r#"{"input":[{"type":"web_search_call","image_url":"URL"}]}"#,
        // Servers that speak the API and fetch what others name differently.
        r#"{"messages":[{"content":[{"type":"image","image":"URL"}]}]}"#,
        r#"{"input":[{"image":"URL"}]}"#,
        r#"{"messages":[{"content":[{"type":"video_url","video_url":["URL"]}]}]}"#,
    ] {
        assert_eq!(read(&fetches.replace("URL", url)), [url], "{fetches}");
    }
    for quiet in [
        r#"{"messages":[{"content":[{"type":"tool_use","input":{"url":"URL"},"id":"1"}]}]}"#,
        r#"{"messages":[{"content":[{"input":{"image_url":"URL"},"type":"tool_use"}]}]}"#,
        r#"{"messages":[{"content":"see URL"}]}"#,
        r#"{"messages":[{"content":[{"type":"web_search_tool_result","content":[{"type":"web_search_result","url":"URL"}]}]}]}"#,
        r#"{"input":[{"type":"web_search_call","action":{"type":"open_page","url":"URL"}}]}"#,
        r#"{"input":[{"type":"web_search_call","action":{"type":"search","sources":[{"type":"url","url":"URL"}]}}]}"#,
        r#"{"input":[{"type":"code_interpreter_call","outputs":[{"type":"image","url":"URL"}]}]}"#,
        r#"{"messages":[{"annotations":[{"type":"url_citation","url_citation":{"url":"URL"}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"search_result","source":"URL","title":"t"},{"type":"image"}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image","image":"iVBORw0KGgo="}]}]}"#,
        r#"{"contents":[{"parts":[{"functionCall":{"name":"f","args":{"url":"URL"}}}]}]}"#,
        r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}"#,
    ] {
        assert_eq!(read(&quiet.replace("URL", url)), [""; 0], "{quiet}");
    }
}

#[cfg(test)]
#[test]
fn case69_an_address_or_type_that_stands_twice_is_refused() {
    let read = |text: &str| {
        let document = Document::read(text.as_bytes().to_vec()).unwrap();
        let mut found = Vec::new();
        fetched(&document, &mut found).map(|()| found.len())
    };
    let once =
        r#"{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://a.example"}}]}]}"#;
    assert_eq!(read(once), Ok(1));
    for twice in [
        once.replace(r#""type":"url","#, r#""type":"web_search_result","type":"url","#),
        once.replace(r#""type":"image""#, r#""type":"web_search_result","t\u0079pe":"image""#),
        once.replace(r#""url":"https"#, r#""url":"https://b.example","url":"https"#),
    ] {
        assert!(matches!(read(&twice), Err(DocumentError::Duplicate(_))), "{twice}");
    }
}
