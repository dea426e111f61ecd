//! What a gateway that is gone has left in its spool.

use super::*;
use crate::run::process::ProcessName;

/// A process of its own, which a test can end.
fn process() -> (std::process::Child, ProcessName) {
    let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let name = ProcessName::of(i32::try_from(child.id()).unwrap()).unwrap();
    (child, name)
}

fn done(of: &Record) -> Record {
    Record { phase: Some(Phase::Done), ..of.clone() }
}

fn lines_of(rig: &Rig, run: &str) -> Vec<String> {
    let text = fs::read_to_string(rig.dir.path().join("state/runs").join(run).join("log.jsonl"));
    text.unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Two calls in the spool of a gateway that dies: one ended, one not. Both are on record, once, each with its end.
#[tokio::test]
async fn what_a_gateway_that_died_had_spooled_is_written_once() {
    let rig = Rig::new(0);
    rig.start_run("r1").await;
    let (mut child, name) = process();
    let spool = Spool::of(&rig.instance.run_dir.join("spool"), name).unwrap();
    let gateway = strait_contract::spool::Spool::open(spool.fd().try_clone().unwrap().into()).unwrap();
    let (ended, open) = (activity(Some("r1"), Source::Gateway), activity(Some("r1"), Source::Gateway));
    let forged = activity(Some("r1"), Source::Kernel);
    gateway.append(&[&ended]).unwrap();
    gateway.append(&[&done(&ended)]).unwrap();
    gateway.append(&[&forged]).unwrap();
    gateway.append(&[&open]).unwrap();
    // The agent had written the first before the gateway was told.
    rig.log.append(vec![ended.clone()]).await.unwrap();
    rig.link.left(child.id(), Calls::default(), spool);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(lines_of(&rig, "r1").len(), 1, "it lives and will send them itself");
    child.kill().unwrap();
    child.wait().unwrap();
    while lines_of(&rig, "r1").len() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lines = lines_of(&rig, "r1");
    for (id, code) in [(ended.id, None), (open.id, Some("GATEWAY_GONE"))] {
        let own: Vec<_> = lines.iter().filter(|line| line.contains(&id.to_string())).collect();
        assert_eq!(own.len(), 2, "{lines:#?}");
        assert_eq!(code.is_some_and(|code| own[1].contains(code)), code.is_some(), "{lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains(&forged.id.to_string())));
    while fs::read_dir(rig.instance.run_dir.join("spool")).unwrap().count() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Agent and gateway are both dead: the next agent finds the spool, gives each run its own, and no more.
#[tokio::test]
async fn an_agent_finds_what_a_gateway_of_an_earlier_one_had_spooled() {
    let rig = Rig::new(0);
    let (mut child, name) = process();
    let spool = Spool::of(&rig.instance.run_dir.join("spool"), name).unwrap();
    let gateway = strait_contract::spool::Spool::open(spool.fd().try_clone().unwrap().into()).unwrap();
    let (first, other) = (activity(Some("r1"), Source::Gateway), activity(Some("r2"), Source::Gateway));
    gateway.append(&[&first, &done(&first)]).unwrap();
    gateway.append(&[&other]).unwrap();
    gateway.append(&[&activity(None, Source::Gateway)]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    rig.link.find_spooled().unwrap();
    rig.start_run("r1").await;
    rig.start_run("r2").await;
    let left = rig.link.take_spooled(Some(&"r1".parse().unwrap()), Calls::default()).await;
    assert_eq!((left.last_lines().len(), lines_of(&rig, "r1").len()), (0, 2));
    let left = rig.link.take_spooled(Some(&"r2".parse().unwrap()), Calls::default()).await;
    assert_eq!((left.last_lines().len(), lines_of(&rig, "r2").len()), (1, 1));
    rig.link.spooled_taken().await;
    assert!(rig.host_log().contains("\"source\":\"gateway\""));
    assert_eq!(fs::read_dir(rig.instance.run_dir.join("spool")).unwrap().count(), 0);
}

/// More than a log usually keeps in mind waits in the spool of a gateway that lives when the next agent starts: the agent
/// writes it, the gateway sends it again, and each record is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_gateway_that_lives_sends_again_is_written_once_however_much_it_is() {
    const MANY: usize = 6_000;
    let rig = Rig::new(0);
    let own = ProcessName::of(i32::try_from(std::process::id()).unwrap()).unwrap();
    let spool = Spool::of(&rig.instance.run_dir.join("spool"), own).unwrap();
    let gateway = strait_contract::spool::Spool::open(spool.fd().try_clone().unwrap().into()).unwrap();
    let records: Vec<_> = (0..MANY).map(|_| activity(Some("r1"), Source::Gateway)).collect();
    for batch in records.chunks(2) {
        gateway.append(&batch.iter().collect::<Vec<_>>()).unwrap();
    }
    // An agent before had written the first of them, long before its last lines.
    rig.start_run("r1").await;
    for batch in records.chunks(50).take(MANY / 50 - 2) {
        rig.log.append(batch.to_vec()).await.unwrap();
    }
    rig.link.find_spooled().unwrap();
    let left = rig.link.take_spooled(Some(&"r1".parse().unwrap()), Calls::default()).await;
    assert_eq!((left.last_lines().len(), lines_of(&rig, "r1").len()), (MANY, MANY));
    let mut again = rig.greeted().await;
    again.next().await.unwrap();
    for (number, batch) in (1..).zip(records.chunks(50)) {
        assert_eq!(again.recorded(number, batch.to_vec()).await, None);
    }
    assert_eq!(lines_of(&rig, "r1").len(), MANY, "written twice");
    let new = activity(Some("r1"), Source::Gateway);
    assert_eq!(again.recorded(0, vec![new]).await, None);
    assert_eq!(lines_of(&rig, "r1").len(), MANY + 1);
}

/// A gateway that dies while the next agent takes runs up: what it wrote after its spool was read waits for their chains.
#[tokio::test]
async fn what_a_dying_gateway_spooled_last_is_written_once_the_chains_are_open() {
    let rig = Rig::new(0);
    let (mut child, name) = process();
    let spool = Spool::of(&rig.instance.run_dir.join("spool"), name).unwrap();
    let gateway = strait_contract::spool::Spool::open(spool.fd().try_clone().unwrap().into()).unwrap();
    let (first, last) = (activity(Some("r1"), Source::Gateway), activity(Some("r1"), Source::Gateway));
    gateway.append(&[&first, &done(&first)]).unwrap();
    rig.link.find_spooled().unwrap();
    gateway.append(&[&last, &done(&last)]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    rig.start_run("r1").await;
    rig.link.take_spooled(Some(&"r1".parse().unwrap()), Calls::default()).await;
    assert_eq!(lines_of(&rig, "r1").len(), 2);
    rig.link.spooled_taken().await;
    while fs::read_dir(rig.instance.run_dir.join("spool")).unwrap().count() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lines = lines_of(&rig, "r1");
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains(&last.id.to_string())).count(), 2);
}
