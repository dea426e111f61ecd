//! Streams, event by event.
//!
//! Architecture invariant: what a stream gives is a function of its bytes, not of how they were cut; at most one event is
//! kept; a stream that ends early or goes wrong never looks like a clean end (case 75).

mod to_chat;
mod to_messages;

use super::sse::Sse;
use super::{Direction, LeftOut, Refused, error};
use to_chat::ToChat;
use to_messages::ToMessages;

/// A streamed answer on its way back to the client.
#[derive(Debug)]
pub struct Stream {
    direction: Direction,
    sse: Sse,
    to: To,
    left_out: LeftOut,
    fault: Option<Refused>,
}

#[derive(Debug)]
enum To {
    Chat(ToChat),
    Messages(ToMessages),
}

impl Stream {
    /// A stream that answers a request of `direction`. `usage`: whether a client of chat asked for it
    /// ([`Request::usage`](super::Request::usage)); `now`: seconds since the epoch, for chat's `created`.
    #[must_use]
    pub fn new(direction: Direction, usage: bool, now: u64) -> Self {
        let to = match direction {
            Direction::ChatToMessages => To::Chat(ToChat::new(usage, now)),
            Direction::MessagesToChat => To::Messages(ToMessages::default()),
        };
        Self { direction, sse: Sse::new(), to, left_out: LeftOut::default(), fault: None }
    }

    /// Takes bytes of the provider's and appends what the client is to get. After a fault or the end it takes no more.
    pub fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while self.fault.is_none() && !self.ended() {
            match self.sse.next(&mut bytes) {
                Ok(Some(data)) => {
                    if let Err(fault) = self.read(&data, out) {
                        self.fail(fault, out);
                    }
                }
                Ok(None) => return,
                Err(fault) => self.fail(fault, out),
            }
        }
    }

    /// The provider's stream is at its end: appends the client's end, or an error if the answer isn't whole.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.fault.is_none()
            && !self.ended()
            && let Some(data) = self.sse.rest()
        {
            match self.read(&data, out) {
                // Half an event.
                Err(Refused::Malformed { .. }) => self.fail(Refused::Cut, out),
                Err(fault) => self.fail(fault, out),
                Ok(()) => {}
            }
        }
        if self.fault.is_some() || self.ended() {
            return;
        }
        let whole = match &mut self.to {
            To::Chat(_) => false,
            To::Messages(to) => to.end(out),
        };
        if !whole {
            self.fail(Refused::Cut, out);
        }
    }

    /// What went wrong; the client got it as an error event.
    #[must_use]
    pub fn fault(&self) -> Option<&Refused> {
        self.fault.as_ref()
    }

    /// Whether the client got its end.
    #[must_use]
    pub fn ended(&self) -> bool {
        match &self.to {
            To::Chat(to) => to.ended(),
            To::Messages(to) => to.ended(),
        }
    }

    /// Pointers (within events) of what was left out, at most 32.
    #[must_use]
    pub fn left_out(&self) -> &[String] {
        &self.left_out.0
    }

    fn read(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        match &mut self.to {
            To::Chat(to) => to.event(data, &mut self.left_out, out),
            To::Messages(to) => to.event(data, &mut self.left_out, out),
        }
    }

    fn fail(&mut self, fault: Refused, out: &mut Vec<u8>) {
        match &fault {
            Refused::Upstream { kind, message } => error::event(self.direction, kind, message, out),
            fault => error::event(self.direction, "api_error", &fault.to_string(), out),
        }
        self.fault = Some(fault);
    }
}
