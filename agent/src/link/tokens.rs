//! Workload tokens that came from the wrong run: an event in the logs of both, at most one a second for each two.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use strait_contract::ids::RunId;

use super::Link;
use crate::log;

/// How far apart events about the same two runs are.
const APART: Duration = Duration::from_secs(1);

/// What was told lately.
#[derive(Debug, Default)]
pub(super) struct Mismatches(HashMap<(RunId, RunId), Instant>);

impl Mismatches {
    /// Writes the events, unless one of the runs isn't live.
    pub(super) async fn tell(&mut self, link: &Link, from: RunId, owner: RunId) {
        let live = {
            let state = link.state();
            state.runs.contains_key(&from) && state.runs.contains_key(&owner)
        };
        let now = Instant::now();
        self.0.retain(|_, told| now.duration_since(*told) < APART);
        if !live || from == owner || self.0.contains_key(&(from.clone(), owner.clone())) {
            return;
        }
        let facts = [("from", from.to_string()), ("owner", owner.to_string())];
        for run in [&from, &owner] {
            let event = log::event(Some(run.clone()), "token.address_mismatch", &facts);
            if let Err(why) = link.0.parts.log.append(vec![event]).await {
                tracing::warn!(%run, %why, "a misused workload token can't be put on record");
            }
        }
        self.0.insert((from, owner), now);
    }
}
