//! The tools that an MCP server last said it has, asked of the gateway in pieces.

use std::time::Duration;

use strait_contract::{
    message::{MAX_SEEN, ToGateway},
    tool::ToolName,
};
use tokio::sync::oneshot;

use super::{Link, Packet};

/// How long the gateway may take to say it.
const WITHIN: Duration = Duration::from_secs(5);

/// A list on its way.
#[derive(Debug)]
pub(super) struct Coming {
    bytes: Vec<u8>,
    told: oneshot::Sender<Vec<u8>>,
}

/// Why there is no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSeen {
    /// No gateway is there, or it says nothing.
    #[error("the gateway doesn't answer")]
    Gateway,
    /// Nobody has asked the server yet.
    #[error("no run has listed the tools of this server since the gateway started")]
    Never,
}

impl Link {
    /// What an MCP server last said its tools are, as a pinned file has it.
    ///
    /// # Errors
    /// [`NotSeen`].
    pub async fn tools_seen(&self, server: &ToolName) -> Result<String, NotSeen> {
        let (told, answer) = oneshot::channel();
        let ticket = {
            let mut state = self.state();
            if state.outbox.is_none() {
                return Err(NotSeen::Gateway);
            }
            state.tickets = state.tickets.wrapping_add(1);
            let ticket = state.tickets;
            let message = ToGateway::ToolsSeen { ticket, server: server.clone() };
            state.send(Packet::new(&message, Vec::new()).map_err(|_| NotSeen::Gateway)?);
            state.coming.insert(ticket, Coming { bytes: Vec::new(), told });
            ticket
        };
        let answer = tokio::time::timeout(WITHIN, answer).await;
        self.state().coming.remove(&ticket);
        let Ok(Ok(bytes)) = answer else { return Err(NotSeen::Gateway) };
        if bytes.is_empty() {
            Err(NotSeen::Never)
        } else {
            String::from_utf8(bytes).map_err(|_| NotSeen::Gateway)
        }
    }

    /// A piece of a list has come.
    pub(super) fn seen_piece(&self, ticket: u64, piece: &[u8], last: bool) {
        let mut state = self.state();
        let Some(coming) = state.coming.get_mut(&ticket) else { return };
        if coming.bytes.len().saturating_add(piece.len()) > MAX_SEEN {
            state.coming.remove(&ticket);
            return;
        }
        coming.bytes.extend_from_slice(piece);
        if last && let Some(Coming { bytes, told }) = state.coming.remove(&ticket) {
            let _ = told.send(bytes);
        }
    }
}
