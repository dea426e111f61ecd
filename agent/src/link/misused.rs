//! Placeholders that were on their way to where they aren't for: an event of their run, which names process and host.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use strait_contract::{ids::RunId, message::Misused, redact::redact_text};
use tokio::{sync::OwnedSemaphorePermit, task::spawn_blocking};

use super::Link;
use crate::log;

/// Events of one run in a second: the refused calls are on record, each of them.
const MOST: u32 = 20;
/// Longest host, bytes.
const MAX_HOST: usize = 300;
/// Longest command name, bytes.
const MAX_COMM: usize = 128;

/// How many were told of lately, by run.
#[derive(Debug, Default)]
pub(super) struct Canaries(HashMap<RunId, (Instant, u32)>);

impl Canaries {
    /// Whether one more of this run is written down now.
    pub(super) fn admits(&mut self, run: &RunId) -> bool {
        let now = Instant::now();
        self.0.retain(|_, (since, _)| now.duration_since(*since) < Duration::from_secs(1));
        let (_, told) = self.0.entry(run.clone()).or_insert((now, 0));
        *told = told.saturating_add(1);
        *told <= MOST
    }
}

/// Writes the event, unless the run isn't live.
pub(super) async fn tell(link: Link, misused: Misused, permit: OwnedSemaphorePermit) {
    let Misused { run, credential, host, port, bound, process } = misused;
    if !link.state().runs.contains_key(&run) {
        return;
    }
    let (processes, asked) = (link.0.parts.processes.clone(), run.clone());
    let pid = process.as_ref().map(|(pid, _)| *pid);
    let known = spawn_blocking(move || processes.whois(&asked, pid?)).await.ok().flatten();
    let mut facts = vec![("credential", credential.to_string()), ("host", redact_text(&host, MAX_HOST))];
    facts.extend(port.map(|port| ("port", port.to_string())));
    facts.push(("place", if bound { "not replaceable" } else { "not its origin" }.to_owned()));
    if let Some((pid, comm)) = process {
        facts.push(("pid", pid.to_string()));
        facts.push(("comm", redact_text(&comm, MAX_COMM)));
    }
    // It may have ended meanwhile.
    facts.extend(known.and_then(|process| process.for_record().exe).map(|exe| ("exe", exe)));
    let event = log::event(Some(run.clone()), "credential.misused", &facts);
    if let Err(why) = link.0.parts.log.append(vec![event]).await {
        tracing::warn!(%run, %why, "a misused placeholder can't be put on record");
    }
    drop(permit);
}
