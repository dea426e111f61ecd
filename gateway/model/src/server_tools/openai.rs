//! OpenAI's tools, of chat completions and of responses.

use super::{At, Offered, entry_members, finds_tools, name, text, value, wrong};
use crate::{
    api::Operation,
    document::{Document, DocumentError, Member, each, elements, members, without},
};

/// Types that the client runs.
const CLIENT: [&str; 4] = ["function", "custom", "local_shell", "apply_patch"];
/// Members that have the provider search or more without any tool: OpenAI's own, and those of providers that speak its
/// API (xAI, Groq, Qwen, OpenRouter).
const MEMBERS: [(&str, &str); 5] = [
    ("web_search_options", "web_search"),
    ("search_parameters", "web_search"),
    ("search_settings", "web_search"),
    ("enable_search", "web_search"),
    ("plugins", "plugins"),
];
/// Tools inside of tools that are looked into.
const MAX_NESTING: usize = 4;

pub(super) fn offered(operation: Operation, document: &Document) -> Result<Vec<Offered>, DocumentError> {
    let mut found = Vec::new();
    if let Some(tools) = document.get("tools").filter(|tools| *tools != "null") {
        walk(tools, &mut Vec::new(), &mut found)?;
    }
    if operation == Operation::Responses {
        loaded(document, &mut found)?;
    }
    for (member, name) in MEMBERS {
        if document.get(member).is_some_and(|value| !["null", "false"].contains(&value)) {
            let mut offer = Offered::new(member, At::Member(member));
            offer.name = name.to_owned();
            found.push(offer);
        }
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
    let searches = ["-search-preview", "-search-api", "deep-research", ":online"];
    searches.iter().any(|part| model.contains(part)).then(|| {
        let mut offer = Offered::new(&model, At::Fixed);
        offer.name = "web_search".to_owned();
        offer
    })
}

/// Tools that come with what a search of the client's has found: offered like the others, but part of the talk.
fn loaded(document: &Document, found: &mut Vec<Offered>) -> Result<(), DocumentError> {
    let Some(input) = document.get("input").filter(|input| input.starts_with('[')) else { return Ok(()) };
    // A name of other letters than these has an escape in it.
    let may_hold = |part: &str| memchr::memmem::find(input.as_bytes(), part.as_bytes()).is_some();
    if !may_hold("\"tools\"") && !may_hold("\\u") {
        return Ok(());
    }
    for (at, range) in elements(input)?.into_iter().enumerate() {
        let item = input.get(range).filter(|item| item.starts_with('{')).unwrap_or("{}");
        let parts = members(item).map_err(|error| match error {
            DocumentError::Duplicate(name) => DocumentError::Duplicate(format!("input[{at}].{name}")),
            other => other,
        })?;
        // What a server of the request listed is told, not offered.
        let told = value(item, &parts, "type").and_then(text).as_deref() == Some("mcp_list_tools");
        if let Some(tools) = value(item, &parts, "tools").filter(|tools| !told && *tools != "null") {
            let mut inner = Vec::new();
            walk(tools, &mut Vec::new(), &mut inner)?;
            found.extend(inner.into_iter().map(|offer| Offered { at: At::Fixed, ..offer }));
        }
    }
    Ok(())
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
            offer.url = value(entry, &parts, "server_url").and_then(text);
            offer.domains = domains(entry, &parts);
            found.push(offer);
        }
        path.pop();
    }
    Ok(())
}

/// `shell` runs where its environment says, `tool_search` where its execution does.
fn runs_at_client(kind: &str, entry: &str, parts: &[Member]) -> bool {
    let local = || {
        let environment = value(entry, parts, "environment")?;
        let parts = members(environment).ok()?;
        value(environment, &parts, "type").and_then(text)
    };
    let execution = || value(entry, parts, "execution").and_then(text);
    match kind {
        "shell" => local().as_deref() == Some("local"),
        "tool_search" => execution().as_deref() == Some("client"),
        _ => CLIENT.contains(&kind),
    }
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
        let kept = kinds(&left)?;
        let search_kept = kept.iter().any(|(kind, _)| finds_tools(kind));
        let search_gone = !search_kept && gone.iter().any(|offer| finds_tools(&offer.name));
        let left = if search_gone { undeferred(&left)? } else { left };
        document.set("tools", &left)?;
        mend_choice(document, gone, &kept)?;
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

/// Tools that wait for a search, without waiting.
fn undeferred(tools: &str) -> Result<String, DocumentError> {
    each(tools, |entry| {
        let mut tool = Document::read(entry.as_bytes().to_vec())?;
        tool.remove("defer_loading")?;
        if let Some(inner) = tool.get("tools").filter(|inner| inner.starts_with('[')) {
            let inner = undeferred(inner)?;
            tool.set("tools", &inner)?;
        }
        Ok((tool.as_str() != entry).then(|| tool.as_str().to_owned()))
    })
}

/// What each tool is, and which server it is of.
type Kind = (String, Option<String>);

/// Those of a list, namespaces looked into.
fn kinds(tools: &str) -> Result<Vec<Kind>, DocumentError> {
    let mut found = Vec::new();
    for range in elements(tools)? {
        let entry = tools.get(range).unwrap_or_default();
        let parts = members(entry)?;
        if let Some(inner) = value(entry, &parts, "tools").filter(|inner| inner.starts_with('[')) {
            found.extend(kinds(inner)?);
        }
        found.push(kind_of(entry, &parts));
    }
    Ok(found)
}

fn kind_of(entry: &str, parts: &[Member]) -> Kind {
    let kind = value(entry, parts, "type").and_then(text).unwrap_or_default();
    (name(&kind), value(entry, parts, "server_label").and_then(text))
}

/// Whether a choice or a part of one speaks of what is gone and nothing of its kind is left.
fn speaks_of_gone(entry: &str, gone: &[&Offered], kept: &[Kind]) -> bool {
    let Ok(parts) = members(entry) else { return false };
    let (kind, label) = kind_of(entry, &parts);
    let left = kept.iter().any(|(of, at)| *of == kind && (label.is_none() || *at == label));
    !CLIENT.contains(&kind.as_str()) && !left && gone.iter().any(|offer| offer.name == kind)
}

/// A choice of what is gone becomes one that the model makes.
fn mend_choice(document: &mut Document, gone: &[&Offered], kept: &[Kind]) -> Result<(), DocumentError> {
    let Some(choice) = document.get("tool_choice").filter(|choice| choice.starts_with('{')) else {
        return Ok(());
    };
    if speaks_of_gone(choice, gone, kept) {
        return document.set("tool_choice", "\"auto\"");
    }
    match allowed(choice, gone, kept)? {
        None => Ok(()),
        // Nothing that was allowed is left.
        Some(None) => document.set("tool_choice", "\"none\""),
        Some(Some(left)) => document.set("tool_choice", &left),
    }
}

/// A choice among allowed tools without those that are gone, if it has any: `None` inside if no other is left. Responses
/// has the list beside the type, chat one level down.
fn allowed(choice: &str, gone: &[&Offered], kept: &[Kind]) -> Result<Option<Option<String>>, DocumentError> {
    let mut document = Document::read(choice.as_bytes().to_vec())?;
    if let Some(inner) = document.get("allowed_tools").filter(|inner| inner.starts_with('{')) {
        return Ok(match allowed(inner, gone, kept)? {
            Some(Some(left)) => {
                document.set("allowed_tools", &left)?;
                Some(Some(document.as_str().to_owned()))
            }
            other => other,
        });
    }
    let Some(list) = document.get("tools").filter(|list| list.starts_with('[')) else { return Ok(None) };
    let places = elements(list)?;
    let is_gone = |at: usize| {
        let entry = places.get(at).and_then(|range| list.get(range.clone())).unwrap_or_default();
        speaks_of_gone(entry, gone, kept)
    };
    match (0..places.len()).filter(|at| is_gone(*at)).count() {
        0 => Ok(None),
        lost if lost == places.len() => Ok(Some(None)),
        _ => {
            let left = without(list, &places, is_gone);
            document.set("tools", &left)?;
            Ok(Some(Some(document.as_str().to_owned())))
        }
    }
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
