use std::{collections::HashSet, thread};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;

fn memfd() -> OwnedFd {
    memfd_create("names", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap()
}

fn open(memfd: &OwnedFd, cap: u32) -> Names {
    Names::open(memfd.try_clone().unwrap(), cap).unwrap()
}

fn assign(names: &Names, name: &str) -> Ipv4Addr {
    names.assign(name, Lookup::A).unwrap().addr
}

#[test]
fn a_name_keeps_its_address_and_no_other_gets_it() {
    let names = open(&memfd(), 10);
    let first = assign(&names, "a.example.com");
    assert_eq!(first, Ipv4Addr::new(198, 18, 0, 1));
    assert_eq!(assign(&names, "b.example.com"), Ipv4Addr::new(198, 18, 0, 2));
    assert_eq!(assign(&names, "a.example.com"), first);
    assert_eq!(names.name_of(first).as_deref(), Some("a.example.com"));
    assert_eq!(names.name_of(Ipv4Addr::new(198, 18, 0, 3)), None);
    assert_eq!(names.name_of(Ipv4Addr::new(8, 8, 8, 8)), None);
}

#[test]
fn each_kind_of_lookup_of_a_name_is_the_first_once() {
    let names = open(&memfd(), 10);
    let firsts = [Lookup::Aaaa, Lookup::Aaaa, Lookup::A, Lookup::A, Lookup::Aaaa]
        .map(|lookup| names.assign("a.example.com", lookup).unwrap().first);
    assert_eq!(firsts, [true, false, true, false, false]);
}

#[test]
fn a_restarted_gateway_knows_every_name_and_goes_on_behind_them() {
    let memfd = memfd();
    let before = open(&memfd, 3000);
    let addrs: Vec<_> = (0..1000).map(|n| assign(&before, &format!("n{n}.example.com"))).collect();
    let after = open(&memfd, 3000);
    for (n, addr) in addrs.iter().enumerate() {
        assert_eq!(after.name_of(*addr).as_deref(), Some(format!("n{n}.example.com").as_str()));
        assert_eq!(assign(&after, &format!("n{n}.example.com")), *addr);
    }
    let new = assign(&after, "new.example.com");
    assert!(!addrs.contains(&new));
    assert_eq!(before.name_of(new), None, "the old gateway is gone in earnest; only the memfd is shared");
}

#[test]
fn at_the_cap_new_names_are_refused_and_old_ones_stay() {
    let memfd = memfd();
    let names = open(&memfd, 2);
    let a = assign(&names, "a.example.com");
    assign(&names, "b.example.com");
    assert!(matches!(names.assign("c.example.com", Lookup::A), Err(AssignError::Full(2))));
    assert_eq!(assign(&names, "a.example.com"), a);
    // A lower cap after a restart takes nothing away.
    let names = open(&memfd, 1);
    assert_eq!(assign(&names, "a.example.com"), a);
    assert!(matches!(names.assign("c.example.com", Lookup::A), Err(AssignError::Full(1))));
}

#[test]
fn a_name_that_cannot_be_written_down_gets_no_address() {
    let memfd = memfd();
    ftruncate(&memfd, SLOT as u64).unwrap();
    fcntl_add_seals(&memfd, SealFlags::GROW | SealFlags::SHRINK).unwrap();
    let names = open(&memfd, 10);
    let first = assign(&names, "a.example.com");
    assert!(matches!(names.assign("b.example.com", Lookup::A), Err(AssignError::Write(_))));
    assert_eq!(names.name_of(Ipv4Addr::new(198, 18, 0, 2)), None);
    assert_eq!(names.name_of(first).as_deref(), Some("a.example.com"), "the positive control");
}

#[test]
fn hostile_slots_stand_for_nothing_and_are_never_given_away() {
    let memfd = memfd();
    let file = File::from(memfd.try_clone().unwrap());
    let slot = |n: u64, bytes: &[u8]| file.write_all_at(bytes, n * SLOT as u64).unwrap();
    slot(0, b"\x0da.example.com");
    slot(1, b"\x02\xff\xfe");
    slot(2, b"\x0eA.EXAMPLE.COM");
    slot(3, b"\x0a../../etc/");
    slot(4, &[255; SLOT]);
    // Slot 5 is free before a taken one.
    slot(6, b"\x0db.example.com");
    slot(7, b"\x0da.example.com");
    // The last is cut short.
    slot(8, b"\x0dc.exam");
    let names = open(&memfd, 100);
    let name = |n: u32| names.name_of(address(n).unwrap());
    assert_eq!(name(0).as_deref(), Some("a.example.com"), "the positive control");
    for hostile in [1, 2, 3, 4, 5, 8] {
        assert_eq!(name(hostile), None, "slot {hostile}");
    }
    assert_eq!(name(6).as_deref(), Some("b.example.com"));
    assert_eq!(assign(&names, "a.example.com"), address(0).unwrap());
    assert_eq!(index(assign(&names, "new.example.com")), Some(9), "behind every slot that was taken");
}

#[test]
fn what_is_not_a_canonical_name_gets_no_address() {
    let names = open(&memfd(), 10);
    let long = format!("{}.com", "a".repeat(64));
    for bad in ["", ".", "a..b", "A.com", "a.com.", "a b.com", "ä.com", "a/b.com", "a\0.com", &long] {
        assert!(matches!(names.assign(bad, Lookup::A), Err(AssignError::NotCanonical(_))), "{bad}");
    }
    assert_eq!(assign(&names, "_x.a-b.com"), Ipv4Addr::new(198, 18, 0, 1), "the positive control");
}

#[test]
fn two_threads_that_ask_for_the_same_names_agree() {
    let names = open(&memfd(), 500);
    let ask = || (0..500).map(|n| assign(&names, &format!("n{n}.example.com"))).collect::<Vec<_>>();
    let (one, two) = thread::scope(|scope| {
        let (one, two) = (scope.spawn(ask), scope.spawn(ask));
        (one.join().unwrap(), two.join().unwrap())
    });
    assert_eq!(one, two);
    assert_eq!(one.iter().collect::<HashSet<_>>().len(), 500);
}

proptest! {
    #[test]
    fn any_content_is_read_without_harm(content in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let memfd = memfd();
        File::from(memfd.try_clone().unwrap()).write_all_at(&content, 0).unwrap();
        let names = open(&memfd, 100);
        let addr = assign(&names, "a.example.com");
        for names in [names, open(&memfd, 100)] {
            let name = names.name_of(addr);
            prop_assert_eq!(name.as_deref(), Some("a.example.com"));
        }
    }
}
