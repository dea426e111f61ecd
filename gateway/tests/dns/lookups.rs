//! Address lookups and everything that is answered without asking anybody.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use hickory_resolver::proto::{
    op::ResponseCode,
    rr::{DNSClass, RecordType},
    serialize::binary::BinEncodable,
};
use strait_contract::{code::Code, message::Limits, names::SYNTHETIC};

use super::{
    rig::{Rig, query, with_edns},
    upstream::Upstream,
};

async fn rig() -> (Rig, Upstream) {
    let upstream = Upstream::start().await;
    (Rig::start(upstream.addr, Limits::default()), upstream)
}

#[tokio::test]
async fn a_public_name_gets_one_synthetic_address_for_this_run() {
    let (rig, upstream) = rig().await;
    let addr = rig.address("www.example.com.").await;
    assert!(SYNTHETIC.contains(addr));
    assert_eq!(rig.address("WWW.Example.COM.").await, addr);
    assert_ne!(rig.address("other.example.com.").await, addr);
    let run = rig.gateway.runs.by_addr(rig.run).unwrap();
    assert_eq!(run.names.name_of(addr).as_deref(), Some("www.example.com"));
    // The other run knows nothing of it.
    let other = rig.gateway.runs.by_addr(Ipv4Addr::new(127, 0, 0, 3)).unwrap();
    assert_eq!(other.names.name_of(addr), None);
    assert_eq!(upstream.asked(), 0);
}

#[tokio::test]
async fn there_are_no_ipv6_addresses_and_the_name_exists() {
    let (rig, _upstream) = rig().await;
    let answer = rig.answer("www.example.com.", RecordType::AAAA).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    assert!(answer.answers.is_empty());
}

#[tokio::test]
async fn the_question_comes_back_in_the_spelling_of_the_client() {
    let (rig, _upstream) = rig().await;
    let answer = rig.answer("wWw.ExAmple.Com.", RecordType::A).await;
    assert_eq!(answer.queries[0].name().to_ascii(), "wWw.ExAmple.Com.");
}

#[tokio::test]
async fn case_18_names_that_may_not_leave_the_host_are_nxdomain_at_once() {
    let (rig, upstream) = rig().await;
    let begun = Instant::now();
    let refused = [
        "localhost.",
        "db.",
        "printer.local.",
        "x.internal.",
        "metadata.google.internal.",
        "api.svc.",
        "a.cluster.local.",
        "1.2.3.4.",
        "0x7f.1.",
        "host.lan.",
        "x.onion.",
        "a_b.localhost.",
        ".",
    ];
    for name in refused {
        for qtype in [RecordType::A, RecordType::AAAA, RecordType::TXT] {
            assert_eq!(rig.code(name, qtype).await, ResponseCode::NXDomain, "{name} {qtype}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "denied answers take less than 50 ms each");
    assert_eq!(upstream.asked(), 0);
    rig.counted("localhost", "A", 1).await;
    let record =
        rig.records().into_iter().find(|r| r.dns.as_ref().is_some_and(|dns| dns.name == "localhost"));
    let record = record.unwrap();
    assert_eq!(record.code, Some(Code::NameRefused));
    assert_eq!(record.dns.unwrap().answer, "NXDOMAIN");
}

#[tokio::test]
async fn hosts_of_the_operator_are_names_like_others_and_the_gateway_has_its_own() {
    let (rig, _upstream) = rig().await;
    assert!(SYNTHETIC.contains(rig.address("db.corp.internal.").await));
    assert_eq!(rig.address("strait.internal.").await, Ipv4Addr::new(10, 203, 0, 1));
    assert!(rig.answer("strait.internal.", RecordType::AAAA).await.answers.is_empty());
    assert_eq!(rig.code("other.corp.internal.", RecordType::A).await, ResponseCode::NXDomain);
}

#[tokio::test]
async fn case_16_secrets_in_labels_never_leave_the_host() {
    let (rig, upstream) = rig().await;
    let name = "mfrggzdfmztwq2lknnwg23tpobyxe43u.x.evil.example.";
    assert!(SYNTHETIC.contains(rig.address(name).await));
    for qtype in [RecordType::TXT, RecordType::NULL, RecordType::ANY, RecordType::AXFR, RecordType::HTTPS] {
        assert_eq!(rig.code(name, qtype).await, ResponseCode::Refused, "{qtype}");
    }
    assert_eq!(upstream.asked(), 0);
    assert_eq!(rig.code("ok.test.example.", RecordType::TXT).await, ResponseCode::NoError);
    assert_eq!(upstream.asked(), 1, "the positive control");
    for record_type in ["A", "NULL", "ANY", "AXFR"] {
        assert_eq!(rig.counted(name.trim_end_matches('.'), record_type, 1).await, 1, "{record_type}");
    }
    // Policy's refusals are calls: a line for the decision and one for its end.
    assert_eq!(rig.counted(name.trim_end_matches('.'), "TXT", 2).await, 2);
}

#[tokio::test]
async fn a_synthetic_address_leads_back_to_its_name() {
    let (rig, _upstream) = rig().await;
    let [a, b, c, d] = rig.address("www.example.com.").await.octets();
    let answer = rig.answer(&format!("{d}.{c}.{b}.{a}.in-addr.arpa."), RecordType::PTR).await;
    assert_eq!(answer.answers[0].data.to_string(), "www.example.com.");
    assert_eq!(rig.code("9.9.18.198.in-addr.arpa.", RecordType::PTR).await, ResponseCode::NXDomain);
    assert_eq!(rig.code("8.8.8.8.in-addr.arpa.", RecordType::PTR).await, ResponseCode::Refused);
}

#[tokio::test]
async fn odd_queries_are_refused_and_nothing_breaks() {
    let (rig, _upstream) = rig().await;
    let mut chaos = query("version.bind.example.", RecordType::TXT);
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(rig.client().ask(&chaos).await.metadata.response_code, ResponseCode::Refused);
    let mut two = query("a.example.com.", RecordType::A);
    two.add_query(two.queries[0].clone());
    assert_eq!(rig.client().ask(&two).await.metadata.response_code, ResponseCode::FormErr);
    let good = query("a.example.com.", RecordType::A).to_bytes().unwrap();
    for cut in 0..good.len() {
        let time = Duration::from_millis(if cut < 12 { 20 } else { 5000 });
        let answer = rig.client().ask_within(&good[..cut], time).await;
        assert_eq!(answer.is_some(), cut >= 12, "{cut}");
        assert!(answer.is_none_or(|answer| answer[3] & 0xf == 1), "FORMERR: {cut}");
    }
    let answer = rig.client().ask(&with_edns(query("a.example.com.", RecordType::A), 4096)).await;
    assert_eq!(answer.edns.unwrap().max_payload(), 1232);
    assert_eq!(answer.answers.len(), 1, "the positive control");
}

#[tokio::test]
async fn a_stranger_gets_no_answer_and_a_host_record() {
    let (rig, _upstream) = rig().await;
    let packet = query("a.example.com.", RecordType::A).to_bytes().unwrap();
    let stranger = rig.client_at(Ipv4Addr::new(127, 0, 0, 99));
    for _ in 0..20 {
        stranger.send(&packet).await;
    }
    assert_eq!(stranger.receive(Duration::from_millis(200)).await, None);
    assert!(rig.client().ask_bytes(&packet).await.is_some(), "the positive control");
    assert!((1..=2).contains(&rig.host_records()), "at most one a second");
}
