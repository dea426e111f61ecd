//! Tools that aren't what was pinned, kept for gateways that come later: they would know only from the first list that a
//! run asks for (case 59).

use std::collections::BTreeMap;

use strait_contract::{
    ids::RunId,
    message::{Drifted, ToGateway},
    redact::redact_text,
    tool::ToolName,
};

use super::{Link, Packet, credentials::Asked};
use crate::log;

/// Tools that are kept: a gateway that was taken over can't fill the agent's memory.
const MOST: usize = 4096;
/// Longest name of a tool, and of what differs, bytes: what the gateway takes for a pinned tool is no longer.
const MAX_NAME: usize = 128;

/// By server and tool.
#[derive(Debug, Default)]
pub(super) struct Drifts(BTreeMap<(ToolName, String), Drifted>);

impl Drifts {
    fn keep(&mut self, drifted: Drifted) {
        let key = (drifted.server.clone(), drifted.tool.clone());
        if drifted.tool.len() > MAX_NAME || drifted.differs.len() > MAX_NAME {
            return;
        }
        if self.0.len() < MOST || self.0.contains_key(&key) {
            self.0.insert(key, drifted);
        }
    }

    pub(super) fn forget(&mut self, server: ToolName, tool: String) {
        self.0.remove(&(server, tool));
    }

    /// All of them, for a gateway that starts.
    pub(super) fn packets(&self) -> impl Iterator<Item = Packet> {
        self.0
            .values()
            .filter_map(|drifted| Packet::new(&ToGateway::ToolDrifted(drifted.clone()), Vec::new()).ok())
    }
}

/// A gateway tells of a tool: kept, and an event of the run that was shown it. One too many in a second is none: it is
/// news of a tool that is refused all the same, or a gateway that was taken over.
pub(super) async fn tell(link: &Link, run: Option<RunId>, drifted: Drifted, events: &mut Asked) {
    let facts = [
        ("server", drifted.server.to_string()),
        ("tool", redact_text(&drifted.tool, MAX_NAME)),
        ("differs", redact_text(&drifted.differs, MAX_NAME)),
    ];
    link.state().drifts.keep(drifted);
    let Some(run) = run.filter(|_| events.admits()) else { return };
    let event = log::event(Some(run.clone()), "tool.drifted", &facts);
    if let Err(why) = link.0.parts.log.append(vec![event]).await {
        tracing::warn!(%run, %why, "a tool that isn't what was pinned can't be put on record");
    }
}
