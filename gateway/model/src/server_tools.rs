//! Tools that a request offers and the provider would run: doors out that no connection of the run's shows (A14,
//! case 70).
//!
//! [`offered`] names each of them, [`strip`] takes out those that aren't permitted and mends what spoke of them, so that
//! the model goes on without. What can't be taken out without changing the question (a page that the provider is to
//! fetch, a model that always searches) is refused by name. A type that isn't known as one the client runs is taken for
//! the provider's.

use std::collections::BTreeSet;

use crate::{
    api::{Dialect, Operation},
    document::{Document, DocumentError, Member, members},
};

mod anthropic;
mod content;
mod gemini;
mod openai;

/// One thing that the provider would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// What it is called in policies: `web_search`, whatever its version.
    pub name: String,
    /// Its type as the request has it: `web_search_20250305`.
    pub kind: String,
    /// Where the provider would go, if the request says.
    pub url: Option<String>,
    /// Domains that the request narrows it to.
    pub domains: Vec<String>,
    at: At,
}

/// Where an offer stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    /// An entry of `tools`; in Codex's `namespace` entries further down.
    Tool(Vec<usize>),
    /// A member of an entry of `tools` (Gemini).
    ToolMember(usize, String),
    /// An entry of `mcp_servers`, with its name.
    McpServer(usize, String),
    /// A member of the body that can be taken out.
    Member(&'static str),
    /// What can't be taken out: a part of a message, a model, a stored prompt.
    Fixed,
}

/// Why a request can't be sent without a tool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StripError {
    /// It can't be taken out.
    #[error("`{name}` (`{kind}`) can't be taken out of the request")]
    Fixed {
        /// [`Offered::name`].
        name: String,
        /// [`Offered::kind`].
        kind: String,
    },
    /// The body; can't happen for one that was read and whose offers are its own.
    #[error(transparent)]
    Document(#[from] DocumentError),
}

/// What a request offers of the provider's tools, in order.
///
/// # Errors
/// [`DocumentError`] if a part isn't of the shape that its API gives it: what can't be read can't be decided.
pub fn offered(
    dialect: Dialect,
    operation: Operation,
    document: &Document,
) -> Result<Vec<Offered>, DocumentError> {
    let mut found = match dialect {
        Dialect::OpenAi => openai::offered(operation, document)?,
        Dialect::Anthropic => anthropic::offered(document)?,
        Dialect::Gemini => gemini::offered(document)?,
    };
    content::fetched(document, &mut found)?;
    Ok(found)
}

/// The request without those of its offers whose index is in `denied`; the same bytes if there are none.
///
/// # Errors
/// See [`StripError`].
pub fn strip(
    dialect: Dialect,
    document: Document,
    offered: &[Offered],
    denied: &BTreeSet<usize>,
) -> Result<Document, StripError> {
    let gone: Vec<&Offered> =
        offered.iter().enumerate().filter(|(at, _)| denied.contains(at)).map(|(_, offer)| offer).collect();
    if gone.is_empty() {
        return Ok(document);
    }
    if let Some(fixed) = gone.iter().find(|offer| offer.at == At::Fixed) {
        return Err(StripError::Fixed { name: fixed.name.clone(), kind: fixed.kind.clone() });
    }
    let mut document = document;
    for offer in &gone {
        if let At::Member(name) = offer.at {
            document.remove(name)?;
        }
    }
    match dialect {
        Dialect::OpenAi => openai::strip(&mut document, &gone)?,
        Dialect::Anthropic => anthropic::strip(&mut document, &gone)?,
        Dialect::Gemini => gemini::strip(&mut document, &gone)?,
    }
    Ok(document)
}

impl Offered {
    fn new(kind: &str, at: At) -> Self {
        Self { name: name(kind), kind: kind.to_owned(), url: None, domains: Vec::new(), at }
    }
}

/// A type without its version: `web_search_20250305`, `web_search_preview_2025_03_11` and `web_search_preview` are all
/// `web_search`.
fn name(kind: &str) -> String {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts: Vec<&str> = kind.split('_').collect();
    while parts.len() > 1 && parts.last().is_some_and(|part| digits(part) || *part == "preview") {
        parts.pop();
    }
    parts.join("_")
}

/// Members of an entry of `tools`: each once, and `type` in no other case.
fn entry_members(entry: &str, at: usize) -> Result<Vec<Member>, DocumentError> {
    let parts = members(entry).map_err(|error| match error {
        DocumentError::NotObject => wrong(format!("tools[{at}]"), "an object"),
        DocumentError::Duplicate(name) => DocumentError::Duplicate(format!("tools[{at}].{name}")),
        other => other,
    })?;
    let odd = parts.iter().find(|member| member.name != "type" && member.name.eq_ignore_ascii_case("type"));
    match odd {
        Some(odd) => {
            Err(DocumentError::Spelling { found: format!("tools[{at}].{}", odd.name), known: "type" })
        }
        None => Ok(parts),
    }
}

/// The text of a member's value.
fn value<'t>(text: &'t str, members: &[Member], name: &str) -> Option<&'t str> {
    let member = members.iter().find(|member| member.name == name)?;
    text.get(member.value.clone())
}

/// Whether a tool finds other tools, which are kept from the model (`defer_loading`) until it does.
fn finds_tools(name: &str) -> bool {
    name.starts_with("tool_search")
}

/// A JSON value as text, if it is a string.
fn text(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

fn wrong(member: impl Into<String>, wanted: &'static str) -> DocumentError {
    DocumentError::WrongType { member: member.into(), wanted }
}

#[cfg(test)]
mod tests;
