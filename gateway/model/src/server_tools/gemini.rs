//! Gemini's tools: each entry of `tools` holds functions of the client's, or members that name Gemini's own.

use std::ops::Range;

use super::{At, Offered, wrong};
use crate::document::{
    Document, DocumentError, Member, elements, members, once_in_any_spelling, snake_case, spans, without,
};

/// Members of an entry that the client runs, in snake case.
const CLIENT: [&str; 2] = ["function_declarations", "computer_use"];

pub(super) fn offered(document: &Document) -> Result<Vec<Offered>, DocumentError> {
    let mut found = Vec::new();
    if let Some(tools) = tools(document) {
        for (at, range) in places(tools)?.into_iter().enumerate() {
            let entry = tools.get(range).unwrap_or_default();
            for member in entry_members(entry, at)? {
                if !CLIENT.contains(&snake_case(&member.name).as_str()) {
                    let mut offer = Offered::new(&member.name, At::ToolMember(at, member.name.clone()));
                    offer.name = snake_case(&member.name);
                    found.push(offer);
                }
            }
        }
    }
    for name in ["cachedContent", "cached_content"] {
        // A cache may hold tools of its own.
        if document.get(name).is_some_and(|value| value != "null") {
            let mut offer = Offered::new(name, At::Fixed);
            offer.name = "cached_content".to_owned();
            found.push(offer);
        }
    }
    Ok(found)
}

pub(super) fn strip(document: &mut Document, gone: &[&Offered]) -> Result<(), DocumentError> {
    let Some(tools) = tools(document) else { return Ok(()) };
    let list = places(tools)?;
    let mut entries = Vec::with_capacity(list.len());
    let mut functions = false;
    for (at, range) in list.iter().enumerate() {
        let entry = tools.get(range.clone()).unwrap_or_default();
        let parts = entry_members(entry, at)?;
        let is_out = |part: usize| {
            let name = parts.get(part).map(|member| member.name.as_str()).unwrap_or_default();
            gone.iter()
                .any(|offer| matches!(&offer.at, At::ToolMember(entry, gone) if *entry == at && gone == name))
        };
        functions |= parts.iter().any(|member| CLIENT.contains(&snake_case(&member.name).as_str()));
        let left = (0..parts.len()).filter(|part| !is_out(*part)).count();
        let touched = left < parts.len();
        entries.push((touched && left == 0, touched.then(|| without(entry, &spans(&parts), is_out))));
    }
    if entries.iter().all(|(out, _)| *out) {
        document.remove("tools")?;
    } else {
        // From behind, so that the places before stay true.
        let mut text = without_edits(tools, &list, &entries);
        let places = elements(&text)?;
        let kept = |at: usize| entries.get(at).is_some_and(|(out, _)| *out);
        text = without(&text, &places, kept);
        document.set("tools", &text)?;
    }
    if functions { Ok(()) } else { mend_config(document) }
}

/// How functions are to be called says nothing without any, and is refused; where maps are looked at stays.
fn mend_config(document: &mut Document) -> Result<(), DocumentError> {
    for name in ["toolConfig", "tool_config"] {
        let Some(config) = document.get(name).filter(|config| config.starts_with('{')) else { continue };
        let mut config = Document::read(config.as_bytes().to_vec())?;
        config.remove("functionCallingConfig")?;
        config.remove("function_calling_config")?;
        if config.names().next().is_none() {
            document.remove(name)?;
        } else {
            document.set(name, config.as_str())?;
        }
    }
    Ok(())
}

/// The list with each entry as it is left.
fn without_edits(tools: &str, list: &[Range<usize>], entries: &[(bool, Option<String>)]) -> String {
    let mut text = tools.to_owned();
    for (range, (_, edited)) in list.iter().zip(entries).rev() {
        if let Some(edited) = edited {
            text.replace_range(range.clone(), edited);
        }
    }
    text
}

fn tools(document: &Document) -> Option<&str> {
    document.get("tools").filter(|tools| *tools != "null")
}

/// Entries of `tools`: one that stands alone is read as a list of itself by no one, so it is refused.
fn places(tools: &str) -> Result<Vec<Range<usize>>, DocumentError> {
    elements(tools).map_err(|_| wrong("tools", "a list"))
}

fn entry_members(entry: &str, at: usize) -> Result<Vec<Member>, DocumentError> {
    let parts = members(entry)?;
    once_in_any_spelling(&parts, &format!("tools[{at}]"))?;
    Ok(parts)
}
