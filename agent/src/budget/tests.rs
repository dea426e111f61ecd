use std::{fs, path::Path, time::Duration};

use strait_contract::{
    model::Usd,
    record::{Decision, Step},
};

use super::*;
use crate::log::{self, Log, Options, RunMeta};

fn options(state_dir: &Path) -> Options {
    let instance = crate::instance::Instance::standard("t".parse().unwrap());
    Options {
        state_dir: state_dir.to_owned(),
        group: None,
        segment_bytes: 4096,
        closing: Duration::ZERO,
        ..Options::for_instance(&instance)
    }
}

/// A state folder as it would be found if the agent died at this moment.
fn killed(state_dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let status =
        std::process::Command::new("cp").arg("-a").arg(state_dir.join(".")).arg(copy.path()).status();
    assert!(status.unwrap().success());
    copy
}

async fn open(log: &Log, run: &str, agent: &str) {
    let meta = RunMeta { id: run.parse().unwrap(), agent: agent.parse().unwrap(), version: "1".into() };
    log.open_run(meta).await.unwrap();
}

fn amount(calls: u64, tokens: u64) -> Amount {
    Amount { calls, tokens, usd: Usd(tokens * 7) }
}

fn line(run: &str, id: RecordId, phase: Phase, charge: Option<Charge>) -> Record {
    let step = Step { charge, ..Step::new("openai".into(), ToolKind::Model, Decision::Allow) };
    let record = log::record(Some(run.parse().unwrap()), Body::Trace(Box::new(step)));
    Record { id, phase: Some(phase), ..record }
}

async fn decided(log: &Log, run: &str, day: u32, tokens: u64) -> (RecordId, Charge) {
    let (id, charge) = (RecordId::now(), Charge { day: Day(day), amount: amount(1, tokens) });
    log.append(vec![line(run, id, Phase::Decided, Some(charge))]).await.unwrap();
    (id, charge)
}

async fn done(log: &Log, run: &str, call: (RecordId, Charge), tokens: Option<u64>) {
    let charge = tokens.map(|tokens| Charge { amount: amount(1, tokens), ..call.1 });
    log.append(vec![line(run, call.0, Phase::Done, charge)]).await.unwrap();
}

type Counts = (BTreeMap<AgentName, Account>, BTreeMap<RunId, (Used, usize)>);

async fn counts(log: &Log) -> Counts {
    let counts = |ledger: &mut Ledger| {
        let agents = ledger.agents.iter().map(|(agent, state)| (agent.clone(), state.account));
        // Of a run without a line nothing can be known, nor need be.
        let runs = ledger.runs.iter().filter(|(_, state)| state.used != Used::default());
        let runs = runs.map(|(run, state)| (run.clone(), (state.used, state.open.len())));
        (agents.collect(), runs.collect())
    };
    log.with_ledger(counts).await.unwrap()
}

async fn account(log: &Log) -> Account {
    counts(log).await.0.get(&"coder".parse().unwrap()).copied().unwrap_or_default()
}

fn events(state_dir: &Path, run: &str, name: &str) -> usize {
    let folder = state_dir.join("runs").join(run);
    let text: String =
        log::segments(&folder).unwrap().iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    text.matches(&format!("\"event\":\"{name}\"")).count()
}

/// What a kill at any moment leaves is counted as the agent that was killed had counted it, however long ago the last
/// snapshot was, and also if that is lost.
#[tokio::test]
async fn after_a_kill_at_any_moment_the_ledger_is_what_it_was_a18_case73() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    let mut open_calls: Vec<(String, (RecordId, Charge))> = Vec::new();
    let mut runs: Vec<String> = Vec::new();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for step in 0..160_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = seed >> 33;
        let pick = |length: usize| usize::try_from(dice >> 8).unwrap() % length;
        match dice % 12 {
            0 if runs.len() < 6 => {
                let run = format!("r{step}");
                open(&log, &run, if dice & 64 == 0 { "coder" } else { "other" }).await;
                runs.push(run);
            }
            1 if runs.len() > 2 => {
                let run = runs.remove(pick(runs.len()));
                open_calls.retain(|(of, _)| *of != run);
                log.close_run(run.parse().unwrap()).await;
            }
            2 => log.save_ledger().await.unwrap(),
            3 if step % 3 == 0 => {
                log.reset_budget("coder".parse().unwrap(), "ann".into()).await.unwrap();
            }
            4..8 if !runs.is_empty() => {
                let run = runs[pick(runs.len())].clone();
                let call = decided(&log, &run, 20_000 + u32::try_from(step / 50).unwrap(), dice % 1000).await;
                open_calls.push((run, call));
            }
            8.. if !open_calls.is_empty() => {
                let (run, call) = open_calls.remove(pick(open_calls.len()));
                done(&log, &run, call, (!dice.is_multiple_of(5)).then_some(dice % 700)).await;
            }
            _ => {}
        }
        if step % 4 == 0 {
            let left = killed(dir.path());
            let again = Log::open(options(left.path())).unwrap();
            assert_eq!(counts(&again).await, counts(&log).await, "step {step}");
        }
    }
    let left = killed(dir.path());
    fs::write(left.path().join("budget.json"), "{").unwrap();
    let again = Log::open(options(left.path())).unwrap();
    let (found, known) = (counts(&again).await, counts(&log).await);
    assert_eq!(found, known, "counted anew");
    assert!(known.0.values().any(|account| account.total.spent.tokens > 0 && account.cleared.tokens > 0));
    assert!(known.1.values().any(|(_, open)| *open > 0), "positive control: calls are open");
}

/// What is read at a start is what was written since the snapshot, however much is in the log.
#[tokio::test]
async fn a_start_reads_what_was_written_since_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    open(&log, "r", "coder").await;
    for _ in 0..100 {
        let call = decided(&log, "r", 20_000, 10).await;
        done(&log, "r", call, Some(5)).await;
    }
    log.save_ledger().await.unwrap();
    let call = decided(&log, "r", 20_000, 10).await;
    done(&log, "r", call, Some(7)).await;
    let left = killed(dir.path());
    // Nothing before the snapshot's place is looked at: there, any line could stand.
    let first = left.path().join("runs/r/log.000001.jsonl");
    let junk = fs::read_to_string(&first).unwrap().replace("\"tokens\":5,", "\"tokens\":6,");
    fs::write(&first, junk).unwrap();
    let again = Log::open(options(left.path())).unwrap();
    assert_eq!(account(&again).await.total.spent.tokens, 100 * 5 + 7);
    // Positive control: counted anew, the change shows.
    let left = killed(left.path());
    fs::remove_file(left.path().join("budget.json")).unwrap();
    let anew = Log::open(options(left.path())).unwrap();
    assert!(account(&anew).await.total.spent.tokens > 100 * 5 + 7);
}

#[tokio::test]
async fn a_call_that_nobody_ended_counts_what_was_reserved_and_a_refused_one_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    open(&log, "r", "coder").await;
    let call = decided(&log, "r", 20_000, 100).await;
    assert_eq!(account(&log).await.total.held, amount(1, 100));
    // As the link writes it for a gateway that died: no charge.
    done(&log, "r", call, None).await;
    let id = RecordId::now();
    log.append(vec![line("r", id, Phase::Decided, None), line("r", id, Phase::Done, None)]).await.unwrap();
    let never = decided(&log, "r", 20_000, 30).await;
    log.append(vec![line("r", never.0, Phase::Done, Some(Charge { amount: Amount::default(), ..never.1 }))])
        .await
        .unwrap();
    // Its run ends before it does.
    decided(&log, "r", 20_000, 50).await;
    log.close_run("r".parse().unwrap()).await;
    let spent = Used { spent: amount(2, 150), held: Amount::default() };
    assert_eq!((account(&log).await.total, account(&log).await.today), (spent, spent));
    assert!(counts(&log).await.1.is_empty(), "a run's own counters die with it");
}

/// One warning and one word that it is used up in each window, also if the agent dies in between (A18).
#[tokio::test]
async fn each_window_is_warned_of_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(options(dir.path())).unwrap();
    let day = Limits { tokens: Some(1000), ..Limits::default() };
    let budgets = BTreeMap::from([("coder".parse().unwrap(), Budget { day, ..Budget::default() })]);
    log.set_budgets(budgets.clone()).await;
    open(&log, "r", "coder").await;
    let spend = async |log: &Log, day, tokens| {
        let call = decided(log, "r", day, tokens).await;
        done(log, "r", call, Some(tokens)).await;
    };
    let seen = |dir: &Path| (events(dir, "r", "budget.warning"), events(dir, "r", "budget.exceeded"));
    spend(&log, 20_000, 799).await;
    assert_eq!(seen(dir.path()), (0, 0));
    spend(&log, 20_000, 1).await;
    spend(&log, 20_000, 1).await;
    assert_eq!(seen(dir.path()), (1, 0));
    let left = killed(dir.path());
    let again = Log::open(options(left.path())).unwrap();
    again.set_budgets(budgets).await;
    open(&again, "r", "coder").await;
    spend(&again, 20_000, 1).await;
    assert_eq!(seen(left.path()), (1, 0));
    spend(&again, 20_000, 500).await;
    spend(&again, 20_000, 500).await;
    assert_eq!(seen(left.path()), (1, 1));
    spend(&again, 20_001, 900).await;
    assert_eq!(seen(left.path()), (2, 1));
    let text = fs::read_to_string(left.path().join("runs/r/log.jsonl")).unwrap();
    assert!(
        text.contains(r#""facts":{"agent":"coder","scope":"day","unit":"tokens","used":"900 tokens","limit":"1000 tokens"}"#),
        "{text}"
    );
}
