//! Decisions that a thread remembers, by exactly what the rules behind them could read.
//!
//! The rules that can concern a call follow from action, agent and named resources; what they read is known from their
//! text ([`Reads`]). Two calls that are equal in all of that get the same answer from the same set. Rules that read the
//! time are never remembered, nor is a failure, since it can come from the thread it happened on.

use std::{cell::RefCell, collections::HashMap, net::IpAddr};

use crate::{
    caller::Caller,
    names::Lineage,
    question::{Ask, Question, ServerToolAsk, ToolAsk, Verdict},
    reads::Reads,
    request::{Value, attributes},
};

/// Decisions of one generation; two generations are kept.
const KEPT: usize = 512;
/// Longest key, bytes: long paths and queries hardly ever come again.
const MAX_KEY: usize = 512;

/// What tells a decision from others of the same set of rules.
type Key = Box<[u8]>;

/// Keys hold what runs wrote, so they are hashed with a secret seed (the standard library's).
#[derive(Default)]
struct Memo {
    /// The set that decided, by [`crate::Snapshot`]'s own number.
    set: u64,
    young: HashMap<Key, Verdict>,
    old: HashMap<Key, Verdict>,
    /// Scratch space.
    key: Vec<u8>,
}

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::default();
}

/// What `decide` said to an equal call of the same set, or what it says now.
pub(crate) fn remembered(
    set: u64,
    caller: &Caller,
    question: &Question<'_>,
    lineage: &Lineage,
    reads: Reads,
    decide: impl FnOnce() -> Verdict,
) -> Verdict {
    if reads.contains(Reads::TIME) {
        return decide();
    }
    let mut key = MEMO.with_borrow_mut(|memo| std::mem::take(&mut memo.key));
    key.clear();
    let fits = write_key(&mut key, caller, question, lineage, reads).is_ok();
    let known = if fits { MEMO.with_borrow_mut(|memo| memo.get(set, &key)) } else { None };
    // Nothing is borrowed while rules are evaluated.
    let verdict = known.clone().unwrap_or_else(decide);
    MEMO.with_borrow_mut(|memo| {
        if fits && known.is_none() && !verdict.is_failure() {
            memo.keep(&key, &verdict);
        }
        memo.key = key;
    });
    verdict
}

impl Memo {
    fn get(&mut self, set: u64, key: &[u8]) -> Option<Verdict> {
        if self.set != set {
            (self.young, self.old) = Default::default();
            self.set = set;
        }
        if let Some(verdict) = self.young.get(key) {
            return Some(verdict.clone());
        }
        let (key, verdict) = self.old.remove_entry(key)?;
        self.insert(key, verdict.clone());
        Some(verdict)
    }

    fn keep(&mut self, key: &[u8], verdict: &Verdict) {
        self.insert(key.into(), verdict.clone());
    }

    /// What was not asked for during a whole generation is forgotten.
    fn insert(&mut self, key: Key, verdict: Verdict) {
        if self.young.len() >= KEPT {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, verdict);
    }
}

/// The key is too long.
struct TooLong;

/// Every part either has a fixed length or says its own, so that no two calls share a key.
fn write_key(
    key: &mut Vec<u8>,
    caller: &Caller,
    question: &Question<'_>,
    lineage: &Lineage,
    reads: Reads,
) -> Result<(), TooLong> {
    match &question.ask {
        Ask::Http(_) => key.push(0),
        Ask::Connect { .. } => key.push(1),
        Ask::Dns { .. } => key.push(2),
        // Rules may ask for the action and for the resource's own attributes without naming either.
        Ask::Tool(ToolAsk { server, tool, .. }) => {
            key.push(3);
            write_text(key, server);
            write_text(key, tool);
        }
        Ask::McpMethod { server, .. } => {
            key.push(4);
            write_text(key, server);
        }
        Ask::ServerTool(ServerToolAsk { provider, name, .. }) => {
            key.push(5);
            write_text(key, provider);
            write_text(key, name);
        }
    }
    key.extend_from_slice(&caller.serial.to_ne_bytes());
    key.extend_from_slice(&reads.bits().to_ne_bytes());
    write_length(key, lineage.nodes.len());
    lineage.nodes.iter().for_each(|node| key.extend_from_slice(&node.to_ne_bytes()));
    attributes(question, reads, |name, value| {
        write_text(key, name);
        write_value(key, value);
        if key.len() > MAX_KEY { Err(TooLong) } else { Ok(()) }
    })
}

fn write_value(key: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Text(text) => write_text(key, text),
        Value::Number(number) => key.extend_from_slice(&number.to_ne_bytes()),
        Value::Address(IpAddr::V4(address)) => {
            key.push(4);
            key.extend_from_slice(&address.octets());
        }
        Value::Address(IpAddr::V6(address)) => {
            key.push(6);
            key.extend_from_slice(&address.octets());
        }
        Value::Query(pairs) => {
            write_length(key, pairs.len());
            for (name, value) in pairs {
                write_text(key, name);
                write_text(key, value);
            }
        }
        // What is flat or typed of them follows from their text and, for one set, from the tool.
        Value::Flat(arguments) | Value::Typed(arguments) => write_text(key, &arguments.json().to_string()),
        Value::Process(process) => {
            write_text(key, &process.comm);
            key.extend_from_slice(&process.uid.to_ne_bytes());
            for part in [&process.exe, &process.digest] {
                key.push(u8::from(part.is_some()));
                write_text(key, part.as_deref().unwrap_or_default());
            }
        }
    }
}

fn write_length(key: &mut Vec<u8>, length: usize) {
    key.extend_from_slice(&length.to_ne_bytes());
}

fn write_text(key: &mut Vec<u8>, text: &str) {
    write_length(key, text.len());
    key.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests;
