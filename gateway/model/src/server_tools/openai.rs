//! OpenAI's tools, of chat completions and of responses.

use super::{At, Offered, anthropic::value, text, wrong};
use crate::{
    api::Operation,
    document::{Document, DocumentError, Member, elements, members, without},
};

/// Types that the client runs.
const CLIENT: [&str; 4] = ["function", "custom", "local_shell", "apply_patch"];
/// Tools inside of tools that are looked into.
const MAX_NESTING: usize = 4;

pub(super) fn offered(operation: Operation, document: &Document) -> Result<Vec<Offered>, DocumentError> {
    let mut found = Vec::new();
    if let Some(tools) = document.get("tools").filter(|tools| *tools != "null") {
        walk(tools, &mut Vec::new(), &mut found)?;
    }
    if operation == Operation::Chat && document.get("web_search_options").is_some_and(|value| value != "null")
    {
        let mut offer = Offered::new("web_search_options", At::Member("web_search_options"));
        offer.name = "web_search".to_owned();
        found.push(offer);
    }
    if let Some(model) = document.model()? {
        found.extend(model_that_searches(&model));
    }
    if document.get("prompt").is_some_and(|prompt| prompt.starts_with('{')) {
        // What is stored there may offer tools.
        let mut offer = Offered::new("prompt", At::Fixed);
        offer.name = "stored_prompt".to_owned();
        found.push(offer);
    }
    if document.flag("background")? == Some(true) {
        found.push(Offered::new("background", At::Fixed));
    }
    Ok(found)
}

/// Models that go to the web by themselves.
fn model_that_searches(model: &str) -> Option<Offered> {
    let model = model.to_ascii_lowercase();
    let searches =
        model.contains("-search-preview") || model.contains("-search-api") || model.contains("deep-research");
    searches.then(|| {
        let mut offer = Offered::new(&model, At::Fixed);
        offer.name = "web_search".to_owned();
        offer
    })
}

fn walk(tools: &str, path: &mut Vec<usize>, found: &mut Vec<Offered>) -> Result<(), DocumentError> {
    if path.len() >= MAX_NESTING {
        return Err(wrong("tools", "nested that deep in any API"));
    }
    for (at, range) in elements(tools).map_err(|_| wrong("tools", "a list"))?.into_iter().enumerate() {
        let entry = tools.get(range).unwrap_or_default();
        let parts = entry_members(entry, at)?;
        let kind = value(entry, &parts, "type").and_then(text);
        let kind = kind.ok_or_else(|| wrong(format!("tools[{at}].type"), "a string"))?;
        path.push(at);
        if kind == "namespace" {
            if let Some(inner) = value(entry, &parts, "tools") {
                walk(inner, path, found)?;
            }
        } else if !runs_at_client(&kind, entry, &parts) {
            let mut offer = Offered::new(&kind, At::Tool(path.clone()));
            offer.url = ["server_url", "connector_id"]
                .iter()
                .find_map(|name| value(entry, &parts, name).and_then(text));
            offer.domains = domains(entry, &parts);
            found.push(offer);
        }
        path.pop();
    }
    Ok(())
}

/// `shell` runs where its environment says.
fn runs_at_client(kind: &str, entry: &str, parts: &[Member]) -> bool {
    let local = || {
        let environment = value(entry, parts, "environment")?;
        let parts = members(environment).ok()?;
        value(environment, &parts, "type").and_then(text)
    };
    CLIENT.contains(&kind) || (kind == "shell" && local().as_deref() == Some("local"))
}

fn domains(entry: &str, parts: &[Member]) -> Vec<String> {
    let listed = || {
        let filters = value(entry, parts, "filters")?;
        let inner = members(filters).ok()?;
        serde_json::from_str(value(filters, &inner, "allowed_domains")?).ok()
    };
    listed().unwrap_or_default()
}

pub(super) fn strip(document: &mut Document, gone: &[&Offered]) -> Result<(), DocumentError> {
    let Some(tools) = document.get("tools").filter(|tools| *tools != "null") else { return Ok(()) };
    let paths: Vec<&[usize]> = gone
        .iter()
        .filter_map(|offer| match &offer.at {
            At::Tool(path) => Some(path.as_slice()),
            _ => None,
        })
        .collect();
    if paths.is_empty() {
        return Ok(());
    }
    let left = pruned(tools, &paths)?;
    if elements(&left)?.is_empty() {
        for name in ["tools", "tool_choice", "parallel_tool_calls"] {
            document.remove(name)?;
        }
    } else {
        document.set("tools", &left)?;
        mend_choice(document, gone)?;
    }
    mend_include(document, gone)
}

/// A list of tools without those at `paths`, and without a namespace that has none left.
fn pruned(tools: &str, paths: &[&[usize]]) -> Result<String, DocumentError> {
    let places = elements(tools)?;
    let mut out = vec![false; places.len()];
    let mut text = tools.to_owned();
    for ((at, range), out) in places.iter().enumerate().zip(&mut out).rev() {
        let below: Vec<&[usize]> = paths.iter().filter_map(|path| path.strip_prefix(&[at])).collect();
        if below.iter().any(|path| path.is_empty()) {
            *out = true;
        } else if !below.is_empty() {
            let entry = tools.get(range.clone()).unwrap_or_default();
            let parts = members(entry)?;
            let Some(inner) = value(entry, &parts, "tools") else { continue };
            let left = pruned(inner, &below)?;
            *out = elements(&left)?.is_empty();
            let mut entry = Document::read(entry.as_bytes().to_vec())?;
            entry.set("tools", &left)?;
            text.replace_range(range.clone(), entry.as_str());
        }
    }
    let places = elements(&text)?;
    Ok(without(&text, &places, |at| out.get(at).copied().unwrap_or(false)))
}

/// A choice of what is gone becomes one that the model makes.
fn mend_choice(document: &mut Document, gone: &[&Offered]) -> Result<(), DocumentError> {
    let Some(choice) = document.get("tool_choice").filter(|choice| choice.starts_with('{')) else {
        return Ok(());
    };
    let parts = members(choice)?;
    let kind = value(choice, &parts, "type").and_then(text).unwrap_or_default();
    if kind != "allowed_tools" {
        let is_gone = !CLIENT.contains(&kind.as_str())
            && gone.iter().any(|offer| offer.kind == kind || offer.name == super::name(&kind));
        return if is_gone { document.set("tool_choice", "\"auto\"") } else { Ok(()) };
    }
    // Responses has the list beside the type, chat one level down.
    let Some(list) = value(choice, &parts, "tools") else { return Ok(()) };
    let places = elements(list)?;
    let is_gone = |at: usize| {
        let kind = places.get(at).and_then(|range| list.get(range.clone())).and_then(|entry| {
            let parts = members(entry).ok()?;
            value(entry, &parts, "type").and_then(text)
        });
        kind.is_some_and(|kind| gone.iter().any(|offer| offer.kind == kind))
    };
    let left = without(list, &places, is_gone);
    if (0..places.len()).all(is_gone) {
        // Nothing that was allowed is left.
        return document.set("tool_choice", "\"none\"");
    }
    let mut choice = Document::read(choice.as_bytes().to_vec())?;
    choice.set("tools", &left)?;
    let choice = choice.as_str().to_owned();
    document.set("tool_choice", &choice)
}

/// Results of what is gone can't be asked for: `web_search_call.action.sources`.
fn mend_include(document: &mut Document, gone: &[&Offered]) -> Result<(), DocumentError> {
    let Some(include) = document.get("include").filter(|include| include.starts_with('[')) else {
        return Ok(());
    };
    let places = elements(include)?;
    let is_gone = |at: usize| {
        let asked = places.get(at).and_then(|range| include.get(range.clone())).and_then(text);
        let of = asked.as_deref().and_then(|asked| asked.split_once("_call")).map(|(of, _)| of.to_owned());
        of.is_some_and(|of| {
            gone.iter().any(|offer| offer.name == of || (offer.name == "computer_use" && of == "computer"))
        })
    };
    if !(0..places.len()).any(is_gone) {
        return Ok(());
    }
    if (0..places.len()).all(is_gone) {
        return document.remove("include");
    }
    let left = without(include, &places, is_gone);
    document.set("include", &left)
}

fn entry_members(entry: &str, at: usize) -> Result<Vec<Member>, DocumentError> {
    members(entry).map_err(|error| match error {
        DocumentError::NotObject => wrong(format!("tools[{at}]"), "an object"),
        DocumentError::Duplicate(name) => DocumentError::Duplicate(format!("tools[{at}].{name}")),
        other => other,
    })
}
