//! Counts what chains hold beyond the last snapshot: what was written since, in runs that it names, in runs that the
//! host's chain says were opened since, and nothing else.

use std::{
    collections::BTreeSet,
    fs, io,
    io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use memchr::memmem;
use serde::Deserialize;
use strait_contract::{
    budget::{Amount, Charge, Scope, Unit},
    ids::{AgentName, RecordId, RunId},
    model::Usd,
};

use super::{
    Ledger,
    snapshot::{self, Position, Snapshot},
};
use crate::log::{self, ChargeLine};

/// Longest line, bytes, as elsewhere in the log.
const MAX_LINE: u64 = 256 * 1024;

/// The ledger as the log has it.
///
/// # Errors
/// A file can't be read.
pub(crate) fn recover(state_dir: &Path) -> io::Result<Ledger> {
    let (mut ledger, host, mut runs) = match Snapshot::read(&snapshot::path(state_dir))? {
        Some(snapshot) => {
            let (ledger, host) = snapshot.into_ledger();
            let runs: BTreeSet<RunId> = ledger.runs.keys().cloned().collect();
            (ledger, host, runs)
        }
        None => (Ledger::default(), Position::default(), all_runs(state_dir)?),
    };
    let mut items = Vec::new();
    read(&log::host_folder(state_dir), host, &mut items)?;
    runs.extend(items.iter().filter_map(|item| match &item.what {
        What::Opened(run) => Some(run.clone()),
        _ => None,
    }));
    for run in runs {
        let folder = log::run_folder(state_dir, &run);
        let from = ledger.runs.get(&run).map(|state| state.at).unwrap_or_default();
        let first = items.len();
        let (agent, at) = read(&folder, from, &mut items)?;
        for item in items.iter_mut().skip(first) {
            item.run = Some(run.clone());
        }
        if let Some(agent) = agent {
            ledger.opened(&run, &agent);
        }
        if let Some(state) = ledger.runs.get_mut(&run) {
            state.at = at;
        }
    }
    // Each chain keeps its own order.
    items.sort_by_key(|item| item.ms);
    ledger.changed = true;
    let (mut sealed, mut resets) = (Vec::new(), Vec::new());
    for Item { run, what, .. } in items {
        match (what, run) {
            (What::Decided(id, charge), Some(run)) => ledger.begin(&run, id, charge),
            (What::Done(id, charge), Some(run)) => ledger.end(&run, id, charge),
            (What::Told(scope, unit, level), Some(run)) => ledger.was_told(&run, scope, unit, level),
            (What::Reset(agent, cleared), _) => {
                ledger.was_reset(&agent);
                resets.push((agent, cleared));
            }
            // Whatever the clocks say, nothing comes after it.
            (What::Sealed(run), _) => sealed.push(run),
            _ => {}
        }
    }
    sealed.iter().for_each(|run| ledger.sealed(run));
    // It says what it took off, which needs no order.
    resets.into_iter().for_each(|(agent, cleared)| ledger.clear(&agent, cleared));
    Ok(ledger)
}

/// Runs of which there are records.
fn all_runs(state_dir: &Path) -> io::Result<BTreeSet<RunId>> {
    let folders = log::read::folders(state_dir, None)?;
    let names = folders.iter().filter_map(|folder| folder.file_name()?.to_str());
    // The host's own folder has the form of a run's name.
    let host = log::host_folder(state_dir);
    Ok(names.filter(|name| !host.ends_with(name)).filter_map(|name| name.parse().ok()).collect())
}

struct Item {
    /// Unix time, never earlier than that of the line before in its chain.
    ms: i64,
    run: Option<RunId>,
    what: What,
}

enum What {
    Decided(RecordId, Charge),
    Done(RecordId, Option<Charge>),
    Opened(RunId),
    Sealed(RunId),
    Reset(AgentName, Amount),
    /// People were told how far a budget is used.
    Told(Scope, Unit, u8),
}

#[derive(Deserialize)]
struct Line<'a> {
    id: RecordId,
    #[serde(borrow)]
    ts: &'a str,
    #[serde(borrow)]
    phase: Option<&'a str>,
    agent: Option<AgentName>,
    charge: Option<ChargeLine>,
    #[serde(borrow)]
    event: Option<&'a str>,
    facts: Option<Facts>,
}

#[derive(Deserialize)]
struct Facts {
    run: Option<RunId>,
    agent: Option<AgentName>,
    scope: Option<Scope>,
    unit: Option<Unit>,
    calls: Option<String>,
    tokens: Option<String>,
    usd: Option<String>,
}

impl Facts {
    /// What a reset took off ([`super::reset_facts`]).
    fn cleared(&self) -> Option<Amount> {
        let number = |text: &Option<String>| text.as_ref()?.parse().ok();
        let usd = self.usd.as_ref()?.parse().ok().and_then(Usd::from_dollars)?;
        Some(Amount { calls: number(&self.calls)?, tokens: number(&self.tokens)?, usd })
    }
}

/// Reads what counts from a place in a chain on. Gives the chain's agent, if a line names it, and where it ends.
fn read(folder: &Path, from: Position, items: &mut Vec<Item>) -> io::Result<(Option<AgentName>, Position)> {
    let wanted = [r#""kind":"model""#, r#""event":"log."#, r#""event":"budget."#];
    let wanted = wanted.map(memmem::Finder::new);
    let (mut agent, mut at, mut ms) = (None, from, i64::MIN);
    let files = log::segments(folder)?;
    for (number, path) in (0_u32..).zip(&files).skip(usize::try_from(from.segment).unwrap_or(usize::MAX)) {
        at = Position { segment: number, bytes: if number == from.segment { from.bytes } else { 0 } };
        let mut file = fs::File::open(path)?;
        // A power cut may have taken the last lines, of which the snapshot knew.
        at.bytes = at.bytes.min(file.metadata()?.len());
        file.seek(SeekFrom::Start(at.bytes))?;
        let mut reader = BufReader::with_capacity(256 * 1024, file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let got = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
            if line.last() != Some(&b'\n') {
                break;
            }
            at.bytes += u64::try_from(got).unwrap_or(0);
            if agent.is_some() && !wanted.iter().any(|wanted| wanted.find(&line).is_some()) {
                continue;
            }
            let Ok(line) = serde_json::from_slice::<Line<'_>>(&line) else { continue };
            if let Ok(ts) = line.ts.parse::<jiff::Timestamp>() {
                ms = ms.max(ts.as_millisecond());
            }
            agent = agent.or_else(|| line.agent.clone());
            items.extend(what(line).map(|what| Item { ms, run: None, what }));
        }
    }
    Ok((agent, at))
}

fn what(line: Line<'_>) -> Option<What> {
    let told = |facts: Facts, level| Some(What::Told(facts.scope?, facts.unit?, level));
    let charge = line.charge.as_ref().map(ChargeLine::charge);
    match (line.phase, line.event) {
        (Some("decided"), _) => charge.map(|charge| What::Decided(line.id, charge)),
        (Some("done"), _) => Some(What::Done(line.id, charge)),
        (_, Some("log.opened")) => line.facts?.run.map(What::Opened),
        (_, Some("log.sealed")) => line.facts?.run.map(What::Sealed),
        (_, Some("budget.warning")) => told(line.facts?, 1),
        (_, Some("budget.exceeded")) => told(line.facts?, 2),
        (_, Some("budget.reset")) => {
            let facts = line.facts?;
            let cleared = facts.cleared()?;
            facts.agent.map(|agent| What::Reset(agent, cleared))
        }
        _ => None,
    }
}
