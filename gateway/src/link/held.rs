//! Calls that wait for a person, as far as the link is concerned. They don't outlive a session: whoever is still waiting
//! when it ends learns that the agent has gone.

use std::collections::HashMap;

use strait_contract::{
    approval::{Answer, PIECE},
    ids::RecordId,
    message::ToAgent,
    seqpacket::{self, LinkError},
};
use tokio::sync::oneshot;

use super::session::Session;
use crate::hold::Message;

/// Who waits for which answer.
#[derive(Debug, Default)]
pub(super) struct Waiting(HashMap<RecordId, oneshot::Sender<Answer>>);

impl Waiting {
    /// Hands an answer on. One that nobody waits for any more is not used; the agent has been told, or will be.
    pub(super) fn answered(&mut self, call: RecordId, answer: Answer) {
        if let Some(waiter) = self.0.remove(&call) {
            let _ = waiter.send(answer);
        }
    }
}

impl Session {
    /// Tells the agent of a call that waits, or waits no longer.
    pub(super) fn hold(&mut self, message: Message) -> Result<(), LinkError> {
        match message {
            Message::Held { held, content, answer } => {
                if answer.is_closed() {
                    // It went away before the agent knew of it.
                    return Ok(());
                }
                for piece in content.chunks(PIECE) {
                    let piece = ToAgent::HeldPiece { call: held.call, bytes: piece.to_vec() };
                    self.send(seqpacket::encode(&piece)?)?;
                }
                self.held.0.insert(held.call, answer);
                self.send(seqpacket::encode(&ToAgent::Held(held))?)
            }
            Message::Withdrawn(call) => {
                self.held.0.remove(&call);
                self.send(seqpacket::encode(&ToAgent::Withdrawn { call })?)
            }
        }
    }
}
