//! The rule that would permit a call: what a refusal shows as a hint.

use crate::{
    names::endpoint_id,
    question::{Ask, HttpAsk, Question},
};

/// A rule that permits this call for its agent and as little more as a rule can say: for HTTP that method on that
/// path of that host and port with any query, for a stream that host and port, for DNS that name and record type.
///
/// The text compiles; what a run wrote stands in it only inside of string literals.
pub fn suggest(question: &Question<'_>) -> String {
    let agent = literal(question.run.agent.as_str());
    match &question.ask {
        Ask::Http(http) => {
            let HttpAsk { method, scheme, path, .. } = http;
            let endpoint = endpoint_id(Some(http.host), http.address, http.port);
            rule(
                &http.host_text(),
                &agent,
                "http",
                &format!("resource in Endpoint::{}", literal(&endpoint)),
                &format!(
                    "context.scheme == {} && context.method == {} && context.path == {}",
                    literal(scheme),
                    literal(method),
                    literal(path),
                ),
            )
        }
        Ask::Connect { host, address, port } => {
            let endpoint = endpoint_id(*host, *address, *port);
            rule(&endpoint, &agent, "connect", &format!("resource == Endpoint::{}", literal(&endpoint)), "")
        }
        Ask::Dns { name, record_type } => {
            let condition = format!("context.recordType == {}", literal(record_type));
            rule(name, &agent, "dns", &format!("resource == Name::{}", literal(name)), &condition)
        }
    }
}

impl HttpAsk<'_> {
    fn host_text(&self) -> String {
        self.address.map_or_else(|| self.host.to_owned(), |address| address.to_string())
    }
}

fn rule(about: &str, agent: &str, action: &str, resource: &str, condition: &str) -> String {
    let words = about.split(|char: char| !char.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name: String = words.collect::<Vec<_>>().join("-").chars().take(60).collect();
    let condition = if condition.is_empty() { String::new() } else { format!("\nwhen {{ {condition} }}") };
    format!(
        "@id(\"allow-{name}\")\npermit (principal in Agent::{agent}, action == Action::\"{action}\", {resource}){condition};"
    )
}

/// A Cedar string literal: its escapes are those of Rust.
fn literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len().saturating_add(2));
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            _ if char.is_ascii_graphic() || char == ' ' => quoted.push(char),
            _ => quoted.extend(char.escape_unicode()),
        }
    }
    quoted.push('"');
    quoted
}
