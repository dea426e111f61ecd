//! The tools that MCP servers last said they have, whole: what a person looks at before pinning them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use strait_contract::tool::ToolName;
use strait_policies::json::Json;

/// Most bytes that are kept of one server's list.
const MOST: usize = 2 * 1024 * 1024;

/// Lists of tools by server; as many servers as are configured.
#[derive(Debug, Default)]
pub struct Seen(Mutex<HashMap<ToolName, List>>);

#[derive(Debug, Default)]
struct List {
    /// Name and text of each tool, in the order in which they came.
    tools: Vec<(String, String)>,
    bytes: usize,
}

impl Seen {
    /// Notes a page of a list, before anything is hidden from it. `first` says that a new list begins.
    pub(super) fn note(&self, server: &ToolName, page: &[Json], first: bool) {
        let mut seen = self.lock();
        let list = seen.entry(server.clone()).or_default();
        if first {
            *list = List::default();
        }
        for tool in page {
            let Some(name) = tool.get("name").and_then(Json::as_text) else { continue };
            list.put(name, tool.to_string());
        }
    }

    /// The list of a server as a pinned file has it, a tool a line; `None` if no run has asked for it.
    pub(crate) fn of(&self, server: &ToolName) -> Option<String> {
        let seen = self.lock();
        let tools: Vec<&str> = seen.get(server)?.tools.iter().map(|(_, text)| text.as_str()).collect();
        Some(format!("{{\"tools\":[\n{}\n]}}\n", tools.join(",\n")))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ToolName, List>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    /// Puts a tool in, in the place of one of its name. What is beyond the limit is left out: a pin without a tool leaves
    /// that unpinned.
    fn put(&mut self, name: &str, text: String) {
        let place = self.tools.iter_mut().find(|(known, _)| known == name);
        let before = place.as_ref().map_or(0, |(_, text)| text.len());
        let bytes = self.bytes.saturating_sub(before).saturating_add(text.len());
        if bytes > MOST {
            return;
        }
        self.bytes = bytes;
        match place {
            Some((_, known)) => *known = text,
            None => self.tools.push((name.to_owned(), text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use strait_policies::json::Limits;

    use super::*;

    fn page(text: &str) -> Vec<Json> {
        let limits = Limits { bytes: 1 << 24, depth: 32, nodes: 1 << 20 };
        Json::parse(text.as_bytes(), &limits).unwrap().as_list().unwrap().to_vec()
    }

    #[test]
    fn pages_are_put_together_and_a_new_list_begins_anew() {
        let (seen, server) = (Seen::default(), "srv".parse().unwrap());
        assert_eq!(seen.of(&server), None);
        seen.note(&server, &page(r#"[{"name":"a"},{"name":"b","x":1}]"#), true);
        seen.note(&server, &page(r#"[{"name":"b","x":2},{"nameless":1}]"#), false);
        let text = "{\"tools\":[\n{\"name\":\"a\"},\n{\"name\":\"b\",\"x\":2}\n]}\n";
        assert_eq!(seen.of(&server).as_deref(), Some(text));
        seen.note(&server, &page(r#"[{"name":"c"}]"#), true);
        assert_eq!(seen.of(&server).as_deref(), Some("{\"tools\":[\n{\"name\":\"c\"}\n]}\n"));
    }

    #[test]
    fn a_list_without_end_is_bounded() {
        let (seen, server) = (Seen::default(), "srv".parse().unwrap());
        let long = "x".repeat(300_000);
        for count in 0..20 {
            seen.note(&server, &page(&format!(r#"[{{"name":"t{count}","description":"{long}"}}]"#)), false);
        }
        assert!(seen.of(&server).unwrap().len() < MOST + 1000);
    }
}
