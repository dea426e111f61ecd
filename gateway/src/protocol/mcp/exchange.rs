//! One request under way at an MCP server: what is to be known when its answer comes, or when its client goes.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU8, Ordering},
};

use http::HeaderValue;
use strait_contract::ids::RecordId;
use strait_policies::json::Json;

use super::{
    back,
    message::{Kind, Message},
    session::Session,
};
use crate::{pipeline::Context, tools::Tool, url::Target};

/// Nothing has gone out.
const NEW: u8 = 0;
/// The server works on it.
const SENT: u8 = 1;
/// It was answered, or can be taken up again where it was left.
const OVER: u8 = 2;

/// One exchange. Dropped before it is over, it tells the server that nobody waits any more (case 58).
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) context: Context,
    pub(super) tool: Arc<Tool>,
    /// The server's endpoint.
    pub(super) target: Target,
    pub(super) session: Option<Arc<Session>>,
    /// `MCP-Protocol-Version`, as the client sent it.
    pub(super) version: Option<HeaderValue>,
    pub(super) stateless: bool,
    /// Of the client's request, if it is one.
    pub(super) id: Option<Json>,
    pub(super) method: Option<String>,
    /// Where in a list it goes on.
    pub(super) cursor: Option<String>,
    /// The record of its call.
    pub(super) call: OnceLock<RecordId>,
    /// Whether it is to end its session.
    ends: bool,
    state: AtomicU8,
}

impl Exchange {
    pub(super) fn new(
        context: &Context,
        (tool, target): (&Arc<Tool>, &Target),
        session: Option<Arc<Session>>,
        version: Option<HeaderValue>,
        stateless: bool,
        request: Option<&Message>,
        ends: bool,
    ) -> Self {
        let (id, method) = match request.map(|message| &message.kind) {
            Some(Kind::Request { id, method }) => (Some(id.clone()), Some(method.clone())),
            _ => (None, None),
        };
        let cursor = request.and_then(|message| message.param("cursor")).and_then(Json::as_text);
        Self {
            context: context.clone(),
            tool: Arc::clone(tool),
            target: target.clone(),
            session,
            version,
            stateless,
            id,
            method,
            cursor: cursor.map(str::to_owned),
            call: OnceLock::new(),
            ends,
            state: AtomicU8::new(NEW),
        }
    }

    /// It goes out now.
    pub(super) fn sent(&self) {
        let _ = self.state.compare_exchange(NEW, SENT, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Its stream has events with ids: its client may go and come back for the rest (`Last-Event-ID`), as it could without
    /// a gateway, so nothing is cancelled for it.
    pub(super) fn resumable(&self) {
        self.over();
    }

    /// Whether it is a stream that listens to what the server has to say.
    pub(super) fn listens(&self) -> bool {
        self.id.is_none() && !self.ends
    }

    /// Whether it is to end its session.
    pub(super) fn ends_session(&self) -> bool {
        self.ends
    }

    /// It was answered: nobody needs to be told if its client goes.
    pub(super) fn over(&self) {
        self.state.store(OVER, Ordering::Relaxed);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        // Where there are no sessions, closing the stream is what cancels; `initialize` can't be cancelled.
        let told = self.stateless || self.method.as_deref() == Some("initialize");
        if *self.state.get_mut() == SENT && !told {
            let there = back::Server::of(self);
            back::say(there, back::cancelled(&id));
        }
    }
}
