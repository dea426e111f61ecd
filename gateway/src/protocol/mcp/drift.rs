//! Tools whose server says otherwise of them than what was pinned: nobody calls them until they are pinned anew (case 59).

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use strait_contract::{code::Code, ids::RunId, tool::ToolName};
use strait_policies::{Snapshot, json::Json};

use crate::{decide::Refusal, gateway::Gateway};

/// Tools beyond which those of earlier pins are looked for and forgotten.
const MANY: usize = 4096;

/// The tools that have drifted from their pins. An entry counts for as long as the pin is what it was compared with,
/// whatever else of the policies is replaced meanwhile.
#[derive(Debug, Default)]
pub struct Drift(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    tools: HashMap<(ToolName, String), Drifted>,
}

#[derive(Debug, PartialEq, Eq)]
struct Drifted {
    differs: String,
    /// The pin that was compared.
    pinned: String,
}

impl Drift {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares a tool of a server's list with its pin; `false` if it has drifted. News of it are an event.
pub(super) fn look(
    gateway: &Gateway,
    policy: &Snapshot,
    run: &RunId,
    server: &ToolName,
    name: &str,
    live: &Json,
) -> bool {
    let Some(pinned) = policy.pins().tool(server.as_str(), name) else { return true };
    let differs = pinned.drift(live).join(", ");
    let key = (server.clone(), name.to_owned());
    let mut state = gateway.drift.lock();
    if differs.is_empty() {
        state.tools.remove(&key);
        return true;
    }
    if state.tools.len() >= MANY {
        let pinned = |server: &ToolName, name: &str| policy.pins().tool(server.as_str(), name);
        state.tools.retain(|(server, name), old| {
            pinned(server, name).is_some_and(|pinned| pinned.digest_input() == old.pinned)
        });
    }
    let drifted = Drifted { differs: differs.clone(), pinned: pinned.digest_input() };
    // Without a bound of its own: only pinned tools get here, and those of earlier pins were taken out.
    if state.tools.get(&key) != Some(&drifted) {
        state.tools.insert(key, drifted);
        drop(state);
        gateway.whois.tool_drifted(run.clone(), server.clone(), name.to_owned(), differs);
    }
    false
}

/// Whether a tool may be asked about at all.
///
/// # Errors
/// Why not.
pub(super) fn check(gateway: &Gateway, server: &ToolName, name: &str) -> Result<(), Refusal> {
    let policy = gateway.policy.load();
    let Some(pinned) = policy.pins().tool(server.as_str(), name) else { return Ok(()) };
    let state = gateway.drift.lock();
    let drifted = state.tools.get(&(server.clone(), name.to_owned()));
    match drifted.filter(|drifted| drifted.pinned == pinned.digest_input()) {
        None => Ok(()),
        Some(Drifted { differs, .. }) => {
            let reason =
                format!("the server has changed the {differs} of `{server}/{name}` since it was pinned");
            Err(Refusal::new(Code::ToolCallDenied, reason)
                .hint(format!(
                    "have the operator look at the change, `strait tool pin {server}`, and pin the tool anew with `--write`"
                )))
        }
    }
}
