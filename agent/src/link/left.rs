//! What a gateway that is gone has left: calls that it had open, and records in its spool. It is written once the process
//! has ended, by this agent or by the next, so that every call that passed is on record, once, with its end.

use std::{collections::VecDeque, io, mem, time::Duration};

use strait_contract::{
    ids::RunId,
    record::{Record, Unrecorded},
};

use super::{
    Link, State,
    calls::{Calls, Step},
    spool::{self, Found, Spool},
};
use crate::{log::Batch, readiness, run::process::ProcessName};

/// Pause before records of a dead gateway are written again that the log refused.
const TRY_AGAIN: Duration = Duration::from_millis(200);
/// How often and for how long it is looked whether an earlier gateway's records are in the log.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const COUNTED_WITHIN: Duration = Duration::from_secs(2);
/// Milliseconds by which the time of a line may be before that of its record.
const CLOCKS_DIFFER: u64 = 2_000;

impl Link {
    /// Takes note of calls that an earlier agent's log shows as begun and not ended.
    pub(crate) fn found(&self, calls: Calls) {
        self.state().found.add(calls);
    }

    /// The calls that a gateway which has come began earlier. One that is new has none: whatever an earlier agent
    /// left open died with the gateway of that time.
    pub(super) async fn calls_of(&self, pid: u32, is_old: bool) -> Calls {
        let (mut own, found) = {
            let mut state = self.state();
            (state.left.remove(&pid).unwrap_or_default(), mem::take(&mut state.found))
        };
        if is_old {
            own.add(found);
        } else {
            self.end_calls(found).await;
        }
        own
    }

    /// Waits until what earlier gateways have recorded is in the log: a gateway that starts is told what was used, and
    /// must not be told too little. One that hangs keeps nobody waiting for long.
    pub(super) async fn predecessors_counted(&self, pid: u32) {
        let counted = async {
            loop {
                {
                    let state = self.state();
                    let others = state.talking.values().chain(&state.watched).any(|other| *other != pid);
                    if !others {
                        return;
                    }
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        if tokio::time::timeout(COUNTED_WITHIN, counted).await.is_err() {
            tracing::warn!(
                "an earlier gateway is still there: what it uses of budgets is not known to this one"
            );
        }
    }

    /// Keeps the calls of a gateway that is gone from the link. When its process has ended, what is left in its spool is
    /// written, and its calls are ended.
    pub(super) fn left(&self, pid: u32, calls: Calls, spool: Spool) {
        {
            let mut state = self.state();
            state.left.entry(pid).or_default().add(calls);
            if !state.watched.insert(pid) {
                return;
            }
        }
        let link = self.clone();
        tokio::spawn(async move {
            ended(spool.owner()).await;
            let mut calls = {
                let mut state = link.state();
                state.watched.remove(&pid);
                state.left.remove(&pid).unwrap_or_default()
            };
            match spool.read() {
                Ok(batches) => {
                    link.replay(batches.into(), &mut calls).await;
                    spool.remove();
                }
                Err(error) => tracing::error!(%error, "the spool of a gateway that died can't be read"),
            }
            link.end_calls(calls).await;
        });
    }

    /// Reads the spools that an earlier agent's gateways have left or still write; [`Link::take_spooled`] gives what was
    /// in them.
    ///
    /// # Errors
    /// I/O errors: records may be missing then.
    pub(crate) fn find_spooled(&self) -> io::Result<()> {
        let (mut found, mut orphans, mut living) = (Found::new(), Vec::new(), Vec::new());
        for spool in Spool::all(&self.0.spools)? {
            spool::by_run(spool.read()?, &mut found);
            match spool.owner().open() {
                Ok(None) => orphans.push(spool),
                // Which can't be told apart is as good as alive.
                Ok(Some(_)) | Err(_) => living.push(spool),
            }
        }
        let mut state = self.state();
        (state.spooled, state.orphans, state.living) = (found, orphans, living);
        Ok(())
    }

    /// Every chain is open that will be: writes what belongs to the host, and removes spools that nobody writes.
    pub(crate) async fn spooled_taken(&self) {
        self.take_spooled(None, Calls::default()).await;
        let (lost, orphans, living, late) = {
            let mut state = self.state();
            let State { spooled, orphans, living, late, .. } = &mut *state;
            (mem::take(spooled), mem::take(orphans), mem::take(living), mem::take(late))
        };
        let waits = !late.is_empty();
        // Not before every chain is open: one that dies meanwhile has more in its spool than was read.
        for spool in living {
            self.left(u32::try_from(spool.owner().pid).unwrap_or_default(), Calls::default(), spool);
        }
        for (run, batches) in lost {
            let run = run.map(|run| run.as_str().to_owned()).unwrap_or_default();
            tracing::error!(run, batches = batches.len(), "records of a run were left whose log is sealed");
        }
        let remove = async move {
            for writing in late {
                // A panic in it was logged by the runtime; then the spool is for the next agent.
                if writing.await.is_err() {
                    return;
                }
            }
            orphans.iter().for_each(Spool::remove);
        };
        if waits { drop(tokio::spawn(remove)) } else { remove.await }
    }

    /// Writes what an earlier agent's gateways had spooled for a run whose chain is open again; gives the calls that
    /// this leaves open, `open` being those that the chain shows. What the log refuses at the moment is written, and its
    /// calls are ended, as soon as it can be: a full disk keeps no agent from starting.
    pub(crate) async fn take_spooled(&self, run: Option<&RunId>, open: Calls) -> Calls {
        let mut calls = open;
        let batches = self.state().spooled.remove(&run.cloned()).unwrap_or_default();
        let Some(oldest) = batches.iter().flatten().map(|record| record.ts_ms).min() else { return calls };
        tracing::warn!(batches = batches.len(), "records that a gateway left behind are written");
        // The earlier agent may have written them long ago, and a gateway that lives sends all of them again: more than
        // the log keeps in mind otherwise.
        let log = self.0.parts.log.clone();
        log.recall(run.cloned(), oldest.saturating_sub(CLOCKS_DIFFER)).await;
        let written = batches.iter().flatten().map(|record| (record.id, record.phase)).collect();
        let mut batches = VecDeque::from(batches);
        if self.write_left(&mut batches, &mut calls).await {
            log.remember(run.cloned(), written).await;
            return calls;
        }
        let (link, run) = (self.clone(), run.cloned());
        let mut state = self.state();
        // A gateway that lives ends its own.
        let (given, kept) =
            if state.living.is_empty() { (Calls::default(), Some(calls)) } else { (calls, None) };
        state.late.push(tokio::spawn(async move {
            let is_dead = kept.is_some();
            let mut calls = kept.unwrap_or_default();
            link.replay(batches, &mut calls).await;
            link.0.parts.log.remember(run, written).await;
            if is_dead {
                link.end_calls(calls).await;
            }
        }));
        given
    }

    /// Writes batches that a gateway left, as often as the log needs, but for what is there already.
    async fn replay(&self, mut batches: VecDeque<Vec<Record>>, calls: &mut Calls) {
        while !self.write_left(&mut batches, calls).await {
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Writes batches as far as the log takes them; whether it took, or refused for good, all of them.
    async fn write_left(&self, batches: &mut VecDeque<Vec<Record>>, calls: &mut Calls) -> bool {
        while let Some(records) = batches.front() {
            let batch = Batch { records: records.clone(), may_repeat: true };
            let log = self.0.parts.log.clone();
            let written = tokio::task::spawn_blocking(move || log.append_now(vec![batch])).await;
            match written.ok().and_then(|mut outcomes| outcomes.pop()) {
                Some(Ok(())) => records.iter().filter_map(Step::of).for_each(|step| calls.take(step)),
                Some(Err(Unrecorded::Log | Unrecorded::Quota)) => return false,
                Some(Err(why)) => tracing::error!(%why, "a record that a gateway left behind is refused"),
                None => {}
            }
            batches.pop_front();
        }
        true
    }

    /// Writes the last lines of calls whose gateway has died, but of those that it ended over another connection. Those
    /// that the log refuses at the moment follow as soon as it takes them.
    pub(crate) async fn end_calls(&self, calls: Calls) {
        let left = self.write_ends(calls.last_lines()).await;
        if !left.is_empty() {
            let link = self.clone();
            tokio::spawn(async move {
                let mut left = left;
                while !left.is_empty() {
                    tokio::time::sleep(TRY_AGAIN).await;
                    left = link.write_ends(left).await;
                }
            });
        }
    }

    /// Gives those lines back that the log refuses at the moment.
    async fn write_ends(&self, lines: Vec<Record>) -> Vec<Record> {
        // Each by itself, since one may belong to a run that has ended: then its chain is sealed.
        let alone = |record: &Record| Batch { records: vec![record.clone()], may_repeat: true };
        let batches: Vec<_> = lines.iter().map(alone).collect();
        let log = self.0.parts.log.clone();
        let written = tokio::task::spawn_blocking(move || log.append_now(batches)).await;
        let outcomes = written.unwrap_or_default();
        let again = lines.into_iter().zip(outcomes).filter(|(_, outcome)| match outcome {
            Ok(()) => false,
            Err(Unrecorded::Log | Unrecorded::Quota) => true,
            Err(why) => {
                tracing::warn!(%why, "the end of a call whose gateway died can't be put on record");
                false
            }
        });
        again.map(|(line, _)| line).collect()
    }
}

/// Waits until a process has ended; its number may have another bearer by then.
async fn ended(process: ProcessName) {
    loop {
        let opened = process.open().and_then(|found| {
            found.map(|process| readiness::watch(process.pidfd().try_clone_to_owned()?)).transpose()
        });
        match opened {
            Ok(None) => return,
            Ok(Some(handle)) if handle.readable().await.is_ok() => return,
            // As good as alive: its calls must not be ended.
            Ok(Some(_)) | Err(_) => tokio::time::sleep(TRY_AGAIN).await,
        }
    }
}
