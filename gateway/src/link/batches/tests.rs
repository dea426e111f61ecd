use strait_contract::{
    ids::RecordId,
    record::{Body, Event},
};
use tokio::sync::oneshot::{self, Receiver, error::TryRecvError};

use super::*;

type Waiting = Receiver<Result<(), Lost>>;

fn entry(name: &str, lasting: bool) -> (Entry, Waiting) {
    let (waiter, waiting) = oneshot::channel();
    let body = Body::Event(Event { name: name.to_owned(), facts: Vec::new() });
    let first = Record { id: RecordId::now(), run: None, phase: None, ts_ms: 0, boot_ns: 0, body };
    (Entry { first, second: None, waiter: Some(waiter), lasting, alone: false, spooled: None }, waiting)
}

/// Sends everything that waits, and gives the batches' numbers and the names in them.
fn send(kept: &mut Kept) -> Vec<(u64, Vec<String>)> {
    let mut sent = Vec::new();
    while kept.has_more() {
        let mut entries = Vec::new();
        kept.take_again(&mut entries);
        sent.extend(pack(kept, entries));
    }
    sent
}

fn pack(kept: &mut Kept, entries: Vec<Entry>) -> Option<(u64, Vec<String>)> {
    let packet = kept.pack(entries).unwrap()?;
    let ToAgent::Records { batch, records } = postcard::from_bytes(&packet.0).unwrap() else { panic!() };
    let name = |record: Record| match record.body {
        Body::Event(event) => event.name,
        Body::Activity(_) | Body::Trace(_) => panic!(),
    };
    Some((batch, records.into_iter().map(name).collect()))
}

#[test]
fn a_bad_record_is_found_and_the_others_of_its_batch_are_written() {
    let mut kept = Kept::default();
    let (entries, mut waiting): (Vec<_>, Vec<_>) =
        ["a", "bad", "c"].map(|name| entry(name, false)).into_iter().unzip();
    let (batch, _) = pack(&mut kept, entries).unwrap();
    kept.answered(batch, Some(Unrecorded::Run), &Recorder::new().0);
    let alone = send(&mut kept);
    assert_eq!(alone.iter().map(|(_, names)| names.join(" ")).collect::<Vec<_>>(), ["a", "bad", "c"]);
    for (batch, names) in alone {
        kept.answered(batch, (names == ["bad"]).then_some(Unrecorded::Run), &Recorder::new().0);
    }
    assert_eq!(waiting[0].try_recv(), Ok(Ok(())));
    assert_eq!(waiting[1].try_recv(), Ok(Err(Lost { why: Unrecorded::Run, surely: true })));
    assert_eq!(waiting[2].try_recv(), Ok(Ok(())));
    assert!(!kept.has_more());
}

#[test]
fn a_full_log_refuses_decisions_and_keeps_what_has_happened() {
    let mut kept = Kept::default();
    let ((decision, mut asked), (outcome, mut told)) = (entry("decision", false), entry("outcome", true));
    let (batch, _) = pack(&mut kept, vec![decision, outcome]).unwrap();
    kept.answered(batch, Some(Unrecorded::Log), &Recorder::new().0);
    assert_eq!(asked.try_recv(), Ok(Err(Lost { why: Unrecorded::Log, surely: true })));
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    let again = send(&mut kept);
    assert_eq!(again[0].1, ["outcome"]);
    kept.answered(again[0].0, None, &Recorder::new().0);
    assert_eq!(told.try_recv(), Ok(Ok(())));
}

#[test]
fn what_was_under_way_when_the_link_broke_is_sent_again() {
    let mut kept = Kept::default();
    let ((decision, mut asked), (outcome, mut told)) = (entry("decision", false), entry("outcome", true));
    pack(&mut kept, vec![decision, outcome]).unwrap();
    kept.link_lost();
    // Whether it was written isn't known, so the caller is told no and the record stays.
    assert_eq!(asked.try_recv(), Ok(Err(Lost { why: Unrecorded::Agent, surely: false })));
    let (never, mut refused) = entry("never sent", false);
    kept.unsent(never);
    assert_eq!(refused.try_recv(), Ok(Err(Lost { why: Unrecorded::Agent, surely: true })));
    let again = send(&mut kept);
    assert_eq!(again[0].1, ["decision", "outcome"]);
    kept.answered(again[0].0, None, &Recorder::new().0);
    assert_eq!(told.try_recv(), Ok(Ok(())));
}

#[test]
fn a_batch_has_no_more_records_than_the_contract_allows_and_loses_none() {
    let mut kept = Kept::default();
    let entries: Vec<_> = (0..200)
        .map(|at| {
            let (mut one, _) = entry(&at.to_string(), true);
            one.second = Some(one.first.clone());
            one
        })
        .collect();
    let mut batches: Vec<_> = pack(&mut kept, entries).into_iter().collect();
    batches.extend(send(&mut kept));
    assert!(batches.iter().all(|(_, names)| names.len() <= MAX_BATCH));
    let names: Vec<_> = batches.into_iter().flat_map(|(_, names)| names).collect();
    let expected: Vec<_> = (0..200).flat_map(|at| [at.to_string(), at.to_string()]).collect();
    assert_eq!(names, expected);
}
