//! What lookups leave on record, and what happens when they can't.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use hickory_resolver::proto::{op::ResponseCode, rr::RecordType, serialize::binary::BinEncodable};
use strait_contract::{code::Code, message::Limits, record::Decision};

use super::{
    rig::{Rig, id, query},
    upstream::Upstream,
};

async fn rig(names: u32) -> Rig {
    let upstream = Upstream::start().await;
    Rig::start(upstream.addr, Limits { names_per_run: names, ..Limits::default() })
}

#[tokio::test]
async fn the_first_lookup_is_recorded_at_once_and_repeats_are_folded_with_their_exact_count() {
    let rig = rig(100).await;
    let begun = Instant::now();
    let client = rig.client();
    let ask = query("www.example.com.", RecordType::A);
    client.ask(&ask).await;
    assert_eq!(rig.counted("www.example.com", "A", 1).await, 1);
    for _ in 0..500 {
        client.ask(&ask).await;
    }
    let lines = rig.counted("www.example.com", "A", 501).await;
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    assert!(lines <= seconds + 3, "{lines} lines in {seconds} s");
    let record = rig.records().remove(0);
    assert_eq!((record.decision, record.proto.as_str()), (Decision::Allow, "udp"));
    assert_eq!(record.dns.unwrap().answer, "198.18.0.1");
}

#[tokio::test]
async fn a_storm_of_names_that_do_not_exist_is_counted_in_few_lines() {
    let rig = rig(100).await;
    let begun = Instant::now();
    let client = rig.client();
    for n in 0..2000 {
        client.ask(&query(&format!("n{n}.search.local."), RecordType::A)).await;
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let records = rig.records();
    assert_eq!(records.iter().map(|record| record.count).sum::<u64>(), 2000);
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap();
    assert!(records.len() <= 66 * (seconds + 2), "{} lines in {seconds} s", records.len());
    let rest = records.iter().find(|record| record.dns.as_ref().is_some_and(|dns| dns.name == "*"));
    assert_eq!(rest.unwrap().code, Some(Code::LimitExceeded));
}

#[tokio::test]
async fn at_the_cap_of_names_lookups_are_refused_and_known_names_go_on() {
    let rig = rig(3).await;
    for n in 0..3 {
        rig.address(&format!("n{n}.example.com.")).await;
    }
    assert_eq!(rig.code("n3.example.com.", RecordType::A).await, ResponseCode::Refused);
    rig.counted("n3.example.com", "A", 1).await;
    assert_eq!(rig.records().pop().unwrap().code, Some(Code::LimitExceeded));
    rig.address("n1.example.com.").await;
}

#[tokio::test]
async fn without_an_agent_lookups_fail_and_recover_by_themselves() {
    let rig = rig(100).await;
    rig.agent(false).await;
    for qtype in [RecordType::A, RecordType::TXT] {
        assert_eq!(rig.code("ok.test.example.", qtype).await, ResponseCode::ServFail);
    }
    rig.agent(true).await;
    for qtype in [RecordType::A, RecordType::TXT] {
        assert_eq!(rig.code("ok.test.example.", qtype).await, ResponseCode::NoError);
    }
}

#[tokio::test]
async fn a_decision_is_on_record_before_it_is_answered() {
    let rig = rig(100).await;
    rig.acknowledges.store(false, Ordering::Relaxed);
    let client = rig.client();
    for (name, qtype) in [("ok.test.example.", RecordType::TXT), ("no.example.", RecordType::TXT)] {
        let packet = query(name, qtype).to_bytes().unwrap();
        assert_eq!(client.ask_within(&packet, Duration::from_millis(200)).await, None, "{name}");
        rig.acknowledges.store(true, Ordering::Relaxed);
        assert!(client.receive(Duration::from_secs(5)).await.is_some(), "{name}");
        rig.acknowledges.store(false, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn what_is_held_back_is_written_when_the_run_ends() {
    let rig = rig(100).await;
    let client = rig.client();
    for _ in 0..10 {
        client.ask(&query("www.example.com.", RecordType::A)).await;
    }
    rig.gateway.runs.ended(&id(1));
    rig.counted("www.example.com", "A", 10).await;
    let packet = query("www.example.com.", RecordType::A).to_bytes().unwrap();
    assert_eq!(client.ask_within(&packet, Duration::from_millis(100)).await, None);
}
