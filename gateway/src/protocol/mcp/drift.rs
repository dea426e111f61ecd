//! Tools whose server says otherwise of them than what was pinned: nobody calls them until they are pinned anew (case 59).

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use sha2::{Digest as _, Sha256};
use strait_contract::{code::Code, ids::RunId, message, tool::ToolName};
use strait_policies::{PinnedTool, Snapshot, json::Json};

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
    /// SHA-256 of the pin that was compared.
    pinned: [u8; 32],
}

fn digest(pinned: &PinnedTool) -> [u8; 32] {
    Sha256::digest(pinned.digest_input()).into()
}

impl Drift {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the agent kept of an earlier gateway. What this one has seen itself is newer.
    pub(crate) fn known(&self, drifted: message::Drifted) {
        let message::Drifted { server, tool, differs, pinned } = drifted;
        let mut state = self.lock();
        if state.tools.len() < MANY {
            state.tools.entry((server, tool)).or_insert(Drifted { differs, pinned });
        }
    }

    /// Everything that has drifted, for an agent that may not know.
    pub(crate) fn all(&self) -> Vec<message::Drifted> {
        let state = self.lock();
        let of = |((server, tool), drifted): (&(ToolName, String), &Drifted)| message::Drifted {
            server: server.clone(),
            tool: tool.clone(),
            differs: drifted.differs.clone(),
            pinned: drifted.pinned,
        };
        state.tools.iter().map(of).collect()
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
        let drifted = state.tools.remove(&key).is_some();
        drop(state);
        if drifted {
            gateway.whois.tool_agrees(server.clone(), name.to_owned());
        }
        return true;
    }
    if state.tools.len() >= MANY {
        let pinned = |server: &ToolName, name: &str| policy.pins().tool(server.as_str(), name);
        state.tools.retain(|(server, name), old| {
            pinned(server, name).is_some_and(|pinned| digest(pinned) == old.pinned)
        });
    }
    let pinned = digest(pinned);
    let drifted = Drifted { differs: differs.clone(), pinned };
    // Without a bound of its own: only pinned tools get here, and those of earlier pins were taken out.
    if state.tools.get(&key) != Some(&drifted) {
        state.tools.insert(key, drifted);
        drop(state);
        let (server, tool) = (server.clone(), name.to_owned());
        gateway.whois.tool_drifted(run.clone(), message::Drifted { server, tool, differs, pinned });
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
    match drifted.filter(|drifted| drifted.pinned == digest(pinned)) {
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
