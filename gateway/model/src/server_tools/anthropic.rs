//! Anthropic's tools: types with a date are its own unless they are known to be run by the client.

use super::{At, Offered, entry_members, finds_tools, name, text, value, wrong};
use crate::document::{Document, DocumentError, each, elements, members, spans, without};

/// Types that the client runs, without their date.
const CLIENT: [&str; 4] = ["bash", "computer", "memory", "text_editor"];

pub(super) fn offered(document: &Document) -> Result<Vec<Offered>, DocumentError> {
    let mut servers = Vec::new();
    if let Some(list) = document.get("mcp_servers").filter(|list| *list != "null") {
        let places = elements(list).map_err(|_| wrong("mcp_servers", "a list"))?;
        for (at, range) in places.into_iter().enumerate() {
            let entry = list.get(range).unwrap_or_default();
            let parts = members(entry)?;
            let named = value(entry, &parts, "name").and_then(text).unwrap_or_default();
            let mut offer = Offered::new("mcp", At::McpServer(at, named));
            offer.url = value(entry, &parts, "url").and_then(text);
            servers.push(offer);
        }
    }
    let is_server = |named: &str| {
        servers.iter().any(|server| matches!(&server.at, At::McpServer(_, name) if name == named))
    };
    let mut found = Vec::new();
    if let Some(tools) = document.get("tools").filter(|tools| *tools != "null") {
        for (at, range) in elements(tools).map_err(|_| wrong("tools", "a list"))?.into_iter().enumerate() {
            let entry = tools.get(range).unwrap_or_default();
            let parts = entry_members(entry, at)?;
            let Some(kind) = value(entry, &parts, "type").filter(|kind| *kind != "null") else { continue };
            let kind = text(kind).ok_or_else(|| wrong(format!("tools[{at}].type"), "a string"))?;
            // A toolset is decided with its server.
            let of_server = name(&kind) == "mcp_toolset"
                && value(entry, &parts, "mcp_server_name")
                    .and_then(text)
                    .is_some_and(|name| is_server(&name));
            if kind != "custom" && !is_clients(&kind) && !of_server {
                let mut offer = Offered::new(&kind, At::Tool(vec![at]));
                offer.domains = value(entry, &parts, "allowed_domains")
                    .and_then(|list| serde_json::from_str(list).ok())
                    .unwrap_or_default();
                found.push(offer);
            }
        }
    }
    found.extend(servers);
    if document.get("container").is_some_and(|container| container != "null") {
        found.push(Offered::new("container", At::Member("container")));
    }
    Ok(found)
}

pub(super) fn strip(document: &mut Document, gone: &[&Offered]) -> Result<(), DocumentError> {
    let servers: Vec<(usize, &str)> = gone
        .iter()
        .filter_map(|offer| match &offer.at {
            At::McpServer(at, name) => Some((*at, name.as_str())),
            _ => None,
        })
        .collect();
    if let (false, Some(list)) = (servers.is_empty(), document.get("mcp_servers")) {
        let places = elements(list)?;
        if servers.len() >= places.len() {
            document.remove("mcp_servers")?;
        } else {
            let left = without(list, &places, |at| servers.iter().any(|(gone, _)| *gone == at));
            document.set("mcp_servers", &left)?;
        }
    }
    let Some(tools) = document.get("tools").filter(|tools| *tools != "null") else { return Ok(()) };
    let places = elements(tools)?;
    let mut out = vec![false; places.len()];
    let (mut names, mut kept) = (Vec::new(), Vec::new());
    let mut search_kept = false;
    for ((at, range), out) in places.iter().enumerate().zip(&mut out) {
        let entry = tools.get(range.clone()).unwrap_or_default();
        let parts = entry_members(entry, at)?;
        // A toolset is nothing without its server.
        let toolset = value(entry, &parts, "mcp_server_name").and_then(text);
        *out = gone.iter().any(|offer| offer.at == At::Tool(vec![at]))
            || toolset.is_some_and(|name| servers.iter().any(|(_, gone)| *gone == name));
        let named = value(entry, &parts, "name").and_then(text);
        if *out {
            names.extend(named);
        } else {
            kept.extend(named);
            search_kept |= value(entry, &parts, "type").and_then(text).is_some_and(|kind| finds_tools(&kind));
        }
    }
    let is_out = |at: usize| out.get(at).copied().unwrap_or(false);
    if out.iter().all(|out| *out) {
        document.remove("tools")?;
        return document.remove("tool_choice");
    }
    let search_gone = !search_kept && gone.iter().any(|offer| finds_tools(&offer.name));
    let left = each(&without(tools, &places, is_out), |entry| mend_entry(entry, search_gone, gone))?;
    document.set("tools", &left)?;
    names.retain(|name| !kept.contains(name));
    mend_choice(document, &names)
}

/// A tool that stays isn't kept for a search that is gone, nor for callers that are.
fn mend_entry(entry: &str, search_gone: bool, gone: &[&Offered]) -> Result<Option<String>, DocumentError> {
    let mut tool = Document::read(entry.as_bytes().to_vec())?;
    if search_gone {
        tool.remove("defer_loading")?;
    }
    if let Some(callers) = tool.get("allowed_callers").filter(|callers| callers.starts_with('[')) {
        let places = elements(callers)?;
        let is_gone = |at: usize| {
            let caller = places.get(at).and_then(|range| callers.get(range.clone())).and_then(text);
            caller.is_some_and(|caller| gone.iter().any(|offer| offer.kind == caller))
        };
        let lost = (0..places.len()).filter(|at| is_gone(*at)).count();
        let left = without(callers, &places, is_gone);
        match lost {
            0 => {}
            _ if lost == places.len() => tool.remove("allowed_callers")?,
            _ => tool.set("allowed_callers", &left)?,
        }
    }
    Ok((tool.as_str() != entry).then(|| tool.as_str().to_owned()))
}

/// A choice that names what is gone becomes one that the model makes.
fn mend_choice(document: &mut Document, names: &[String]) -> Result<(), DocumentError> {
    let Some(choice) = document.get("tool_choice").filter(|choice| choice.starts_with('{')) else {
        return Ok(());
    };
    let parts = members(choice)?;
    let named = value(choice, &parts, "name").and_then(text);
    if !named.is_some_and(|named| names.contains(&named)) {
        return Ok(());
    }
    let free = without(choice, &spans(&parts), |at| {
        parts.get(at).is_none_or(|part| part.name != "disable_parallel_tool_use" && part.name != "type")
    });
    let mut choice = Document::read(free.into_bytes())?;
    choice.set("type", "\"auto\"")?;
    let choice = choice.as_str().to_owned();
    document.set("tool_choice", &choice)
}

fn is_clients(kind: &str) -> bool {
    let dated = kind.rsplit_once('_').is_some_and(|(_, date)| date.len() == 8);
    dated && CLIENT.contains(&name(kind).as_str())
}
