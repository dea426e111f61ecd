use std::collections::VecDeque;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::{
    ids::RecordId,
    record::{Body, Event},
};

fn file() -> File {
    let file = memfd_create("spool", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, BYTES).unwrap();
    File::from(file)
}

fn record(name: &str) -> Record {
    let body = Body::Event(Event { name: name.to_owned(), facts: Vec::new() });
    Record { id: RecordId::now(), run: None, phase: None, ts_ms: 0, boot_ns: 0, body }
}

fn names(file: &File) -> Vec<String> {
    let left = left(file).unwrap();
    assert_eq!(left.unreadable, 0);
    let name = |record: Record| match record.body {
        Body::Event(event) => event.name,
        other => panic!("{other:?}"),
    };
    left.batches
        .into_iter()
        .map(|records| records.into_iter().map(name).collect::<Vec<_>>().join("+"))
        .collect()
}

#[test]
fn what_is_not_done_with_is_left_in_its_order() {
    let file = file();
    let spool = Spool::open(file.try_clone().unwrap()).unwrap();
    assert!(names(&file).is_empty());
    let tickets: Vec<_> =
        ["a", "b", "c", "d"].iter().map(|name| spool.append(&[&record(name)]).unwrap()).collect();
    spool.append(&[&record("e"), &record("f")]).unwrap();
    assert_eq!(names(&file), ["a", "b", "c", "d", "e+f"]);
    spool.done([tickets[1]]).unwrap();
    assert_eq!(names(&file), ["a", "c", "d", "e+f"], "out of order");
    spool.done([tickets[0], tickets[2]]).unwrap();
    assert_eq!(names(&file), ["d", "e+f"]);
    spool.done(tickets).unwrap();
    assert_eq!(names(&file), ["e+f"], "said twice is no matter");
}

#[test]
fn a_full_spool_takes_nothing_more_and_loses_nothing() {
    let file = file();
    let spool = Spool::open(file.try_clone().unwrap()).unwrap();
    let long = "x".repeat(9_000);
    let mut tickets = VecDeque::new();
    let full = loop {
        match spool.append(&[&record(&format!("{} {long}", tickets.len()))]) {
            Ok(ticket) => tickets.push_back(ticket),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, SpoolError::Full), "{full}");
    assert_eq!(names(&file).len(), tickets.len());
    spool.done(tickets.drain(..2)).unwrap();
    assert!(spool.append(&[&record("last")]).is_ok());
    let left = names(&file);
    assert!(left[0].starts_with("2 ") && left.last().unwrap() == "last", "{}", left.len());
    let endless = record(&"x".repeat(MAX_PACKET));
    assert!(matches!(spool.append(&[&endless]), Err(SpoolError::TooLong)));
}

#[test]
fn an_entry_cut_short_ends_the_spool_and_another_writer_goes_on_there() {
    let file = file();
    let spool = Spool::open(file.try_clone().unwrap()).unwrap();
    spool.append(&[&record("whole")]).unwrap();
    let at = spool.state().head;
    spool.append(&[&record("a longer one, that is cut")]).unwrap();
    file.write_all_at(&[0; 8], offset(at) + 40).unwrap();
    assert_eq!(names(&file), ["whole"]);
    let spool = Spool::open(file.try_clone().unwrap()).unwrap();
    spool.append(&[&record("next")]).unwrap();
    assert_eq!(names(&file), ["whole", "next"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Many laps with entries of every length, acknowledged in any order, against a list.
    #[test]
    fn it_holds_what_a_list_would(
        steps in prop::collection::vec((0_usize..30_000, any::<prop::sample::Index>(), 0_u8..4), 1..900)
    ) {
        let file = file();
        let mut spool = Spool::open(file.try_clone().unwrap()).unwrap();
        let mut model: Vec<(Ticket, String)> = Vec::new();
        for (count, (length, which, kind)) in steps.into_iter().enumerate() {
            if kind > 0 && !model.is_empty() {
                let (ticket, _) = model.remove(which.index(model.len()));
                spool.done([ticket]).unwrap();
            }
            let name = format!("{count} {}", "y".repeat(length));
            match spool.append(&[&record(&name)]) {
                Ok(ticket) => model.push((ticket, name)),
                // The oldest that isn't done with may be a whole lap old.
                Err(SpoolError::Full) => prop_assert!(!model.is_empty()),
                Err(error) => panic!("{error}"),
            }
        }
        let expected: Vec<_> = model.into_iter().map(|(_, name)| name).collect();
        prop_assert_eq!(&names(&file), &expected);
        spool = Spool::open(file.try_clone().unwrap()).unwrap();
        let _ = spool.append(&[&record("z")]);
        prop_assert!(names(&file).starts_with(&expected));
    }

    /// Whatever a gateway that was taken over writes there.
    #[test]
    fn no_content_does_harm(
        pieces in prop::collection::vec((0_u64..BYTES, prop::collection::vec(any::<u8>(), 1..64)), 0..40)
    ) {
        let file = file();
        let spool = Spool::open(file.try_clone().unwrap()).unwrap();
        for name in ["a", "b", "c"] {
            spool.append(&[&record(name)]).unwrap();
        }
        for (at, bytes) in pieces {
            let at = if at % 2 == 0 { at % 300 } else { at.min(BYTES - 64) };
            file.write_all_at(&bytes, at).unwrap();
        }
        let _ = left(&file).unwrap();
        Spool::open(file).unwrap();
    }
}

/// Only a gateway that was taken over makes it shorter; an agent that starts then must start all the same.
#[test]
fn a_spool_that_its_writer_made_shorter_is_read_as_far_as_it_goes() {
    let file = file();
    let spool = Spool::open(file.try_clone().unwrap()).unwrap();
    for name in ["a", "b", "c"] {
        spool.append(&[&record(name)]).unwrap();
    }
    let second =
        HEADER + room(u64::try_from(postcard::to_stdvec(&[&record("a")][..]).unwrap().len()).unwrap());
    for (bytes, left) in
        [(BYTES, &["a", "b", "c"][..]), (second + 7, &["a"]), (HEADER + 3, &[]), (3, &[]), (0, &[])]
    {
        ftruncate(&file, bytes).unwrap();
        assert_eq!(names(&file), left, "{bytes}");
    }
}
