//! What the gateway keeps of a run's MCP traffic: sessions under names of its own, questions of servers that wait for an
//! answer, and how far lists were paged through. All of it is bounded; the eldest goes first.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::HeaderValue;
use lru::LruCache;
use strait_contract::tool::ToolName;

/// Bytes of answers of one run that are looked at whole.
const ROOM: usize = 64 * 1024 * 1024;
/// Most sessions of one run.
const SESSIONS: usize = 512;
/// Most questions of servers that one run may leave open.
const QUESTIONS: usize = 1024;
/// Most cursors that are remembered of one run.
const CURSORS: usize = 4096;

/// A run's sessions with MCP servers.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    state: Mutex<State>,
    /// Bytes of answers that have not come to their end.
    held: AtomicUsize,
}

#[derive(Debug)]
struct State {
    sessions: LruCache<String, Arc<Session>>,
    questions: LruCache<Question, ()>,
    cursors: LruCache<u64, u32>,
    hasher: RandomState,
}

/// Which question of which server.
type Question = (ToolName, Option<String>, String);

/// One session. The client knows it by another name than the server does, so that nobody can name a session that isn't
/// the run's own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) tool: ToolName,
    /// As the client knows it.
    pub(crate) ours: String,
    /// As the server knows it.
    pub(crate) theirs: HeaderValue,
}

impl Default for State {
    fn default() -> Self {
        Self {
            sessions: LruCache::unbounded(),
            questions: LruCache::unbounded(),
            cursors: LruCache::unbounded(),
            hasher: RandomState::new(),
        }
    }
}

impl Sessions {
    /// Holds `now` bytes of an answer of which `before` were held; `false` if that is more than the run's room.
    pub(crate) fn hold(&self, before: usize, now: usize) -> bool {
        self.held.fetch_add(now, Ordering::Relaxed);
        let all = self.held.fetch_sub(before, Ordering::Relaxed);
        all.saturating_sub(before) <= ROOM
    }

    /// Takes a session in that a server has begun.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub(crate) fn begin(&self, tool: &ToolName, theirs: HeaderValue) -> Result<Arc<Session>, String> {
        let ours = name()?;
        let session = Arc::new(Session { tool: tool.clone(), ours: ours.clone(), theirs });
        put(&mut self.lock().sessions, ours, Arc::clone(&session), SESSIONS);
        Ok(session)
    }

    /// The session of a tool by the client's name for it.
    pub(crate) fn find(&self, tool: &ToolName, ours: &str) -> Option<Arc<Session>> {
        let mut state = self.lock();
        state.sessions.get(ours).filter(|session| session.tool == *tool).cloned()
    }

    /// Forgets a session.
    pub(crate) fn end(&self, session: &Session) {
        self.lock().sessions.pop(&session.ours);
    }

    /// Notes that a server's question was passed on: its answer may be sent, once.
    pub(crate) fn asked(&self, tool: &ToolName, session: Option<&Session>, id: String) {
        let key = (tool.clone(), session.map(|session| session.ours.clone()), id);
        put(&mut self.lock().questions, key, (), QUESTIONS);
    }

    /// Whether a client's response answers a question that was passed on.
    pub(crate) fn answers(&self, tool: &ToolName, session: Option<&Session>, id: String) -> bool {
        let key = (tool.clone(), session.map(|session| session.ours.clone()), id);
        self.lock().questions.pop(&key).is_some()
    }

    /// Whether paging from `from` (`None`: from the beginning) to `to` goes on: a server that names a cursor which it has
    /// named nearer to the beginning leads round in a circle (case 56).
    pub(crate) fn pages_on(
        &self,
        tool: &ToolName,
        session: Option<&Session>,
        from: Option<&str>,
        to: &str,
    ) -> bool {
        let mut state = self.lock();
        let session = session.map(|session| session.ours.as_str());
        let key = |state: &State, cursor: &str| state.hasher.hash_one((tool, session, cursor));
        let here = match from {
            None => 0,
            Some(cursor) => {
                let key = key(&state, cursor);
                state.cursors.get(&key).copied().unwrap_or(0)
            }
        };
        let key = key(&state, to);
        match state.cursors.get(&key) {
            Some(there) => *there > here,
            None => {
                put(&mut state.cursors, key, here.saturating_add(1), CURSORS);
                from != Some(to)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under this lock is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn put<K: std::hash::Hash + Eq, V>(cache: &mut LruCache<K, V>, key: K, value: V, most: usize) {
    cache.put(key, value);
    while cache.len() > most {
        cache.pop_lru();
    }
}

/// 128 random bits.
fn name() -> Result<String, String> {
    let mut bytes = [0_u8; 16];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| "the kernel gives no random bytes".to_owned())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> ToolName {
        name.parse().unwrap()
    }

    #[test]
    fn a_session_is_known_by_its_own_name_and_tool_alone() {
        let sessions = Sessions::default();
        let begun = sessions.begin(&tool("a"), HeaderValue::from_static("upstream")).unwrap();
        assert_eq!(begun.ours.len(), 32);
        assert_eq!(sessions.find(&tool("a"), &begun.ours).as_ref(), Some(&begun));
        assert_eq!(sessions.find(&tool("b"), &begun.ours), None);
        assert_eq!(sessions.find(&tool("a"), "upstream"), None);
        for _ in 0..SESSIONS {
            sessions.begin(&tool("a"), HeaderValue::from_static("other")).unwrap();
        }
        assert_eq!(sessions.find(&tool("a"), &begun.ours), None, "the eldest has gone");
    }

    #[test]
    fn answers_have_room_until_it_is_full() {
        let sessions = Sessions::default();
        assert!(sessions.hold(0, ROOM - 1) && sessions.hold(0, 1));
        assert!(!sessions.hold(1, 2));
        assert!(sessions.hold(2, 0) && sessions.hold(ROOM - 1, 0));
        assert!(sessions.hold(0, ROOM));
    }

    #[test]
    fn a_question_is_answered_once() {
        let sessions = Sessions::default();
        sessions.asked(&tool("a"), None, "7".to_owned());
        assert!(!sessions.answers(&tool("b"), None, "7".to_owned()));
        assert!(sessions.answers(&tool("a"), None, "7".to_owned()));
        assert!(!sessions.answers(&tool("a"), None, "7".to_owned()));
    }

    /// Case 56: circles are cut, and two listings at once aren't taken for one.
    #[test]
    fn paging_goes_on_and_never_round_case_56() {
        let sessions = Sessions::default();
        let on = |from, to| sessions.pages_on(&tool("a"), None, from, to);
        for _ in 0..2 {
            assert!(on(None, "1") && on(Some("1"), "2") && on(Some("2"), "3"));
        }
        assert!(!on(Some("3"), "3") && !on(Some("3"), "1") && !on(Some("2"), "1"));
        assert!(!on(Some("never seen"), "never seen"));
    }
}
