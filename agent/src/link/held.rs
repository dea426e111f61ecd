//! Calls of a gateway that wait for a person: what they carry is put together here, and their answers go back.

use strait_contract::{
    approval::{Answer, Held, MAX_CONTENT, PIECE},
    ids::RecordId,
    message::ToGateway,
};

use super::{Link, Packet};
use crate::approval::Owner;

/// What comes in pieces, of one call at a time.
#[derive(Debug, Default)]
pub(super) struct Pieces(Option<(RecordId, Vec<u8>)>);

impl Pieces {
    /// Takes a piece in. What breaks the contract's bounds is dropped, and its call refused when it asks.
    pub(super) fn take(&mut self, call: RecordId, bytes: &[u8]) {
        let whole = match &mut self.0 {
            Some((known, whole)) if *known == call => whole,
            other => &mut other.insert((call, Vec::new())).1,
        };
        if bytes.len() <= PIECE && whole.len().saturating_add(bytes.len()) <= MAX_CONTENT {
            whole.extend_from_slice(bytes);
        } else {
            self.0 = None;
        }
    }

    fn of(&mut self, held: &Held) -> Option<Vec<u8>> {
        let bytes =
            self.0.take().filter(|(call, _)| *call == held.call).map(|(_, bytes)| bytes).unwrap_or_default();
        let told = held.shown.content.map_or(0, |content| content.bytes);
        (u64::try_from(bytes.len()) == Ok(told)).then_some(bytes)
    }
}

/// Puts a call to people, and its answer to the gateway that asked.
pub(super) async fn ask(link: &Link, session: u64, held: Box<Held>, pieces: &mut Pieces) {
    let call = held.call;
    let content = pieces.of(&held);
    let Some(place) = link.0.parts.approvals.place().await else { return };
    let told = {
        // INVARIANT: within this lock, so that what is asked for a run comes before its end.
        let state = link.state();
        let owner = state
            .runs
            .get(&held.run)
            .map(|run| Owner { agent: run.info.agent.to_string(), user: run.info.started_by.clone() });
        owner
            .zip(content)
            .map(|(owner, content)| link.0.parts.approvals.held(session, owner, (held, content), place))
    };
    let Some(told) = told else {
        let why = "its run has ended, or what it carries didn't come whole".to_owned();
        return answer(link, session, call, Answer::Unavailable(why));
    };
    let link = link.clone();
    tokio::spawn(async move {
        // Dropped if nobody waits any more.
        if let Ok(said) = told.await {
            answer(&link, session, call, said);
        }
    });
}

/// Takes a call back.
pub(super) async fn withdraw(link: &Link, call: RecordId) {
    if let Some(place) = link.0.parts.approvals.place().await {
        link.0.parts.approvals.withdrawn(call, place);
    }
}

fn answer(link: &Link, session: u64, call: RecordId, answer: Answer) {
    let state = link.state();
    if state.outbox.as_ref().is_some_and(|(known, _)| *known == session)
        && let Ok(packet) = Packet::new(&ToGateway::Answer { call, answer }, Vec::new())
    {
        state.send(packet);
    }
}
