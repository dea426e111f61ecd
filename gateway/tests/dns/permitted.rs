//! Record types that policy permits: asked upstream and passed on.

use std::time::{Duration, Instant};

use hickory_resolver::proto::{
    op::{Message, ResponseCode},
    rr::RecordType,
    serialize::binary::{BinDecodable, BinEncodable},
};
use strait_contract::{message::Limits, record::Decision};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use super::{
    rig::{Rig, query, with_edns},
    upstream::Upstream,
};

async fn rig() -> (Rig, Upstream) {
    let upstream = Upstream::start().await;
    (Rig::start(upstream.addr, Limits::default()), upstream)
}

async fn tcp(rig: &Rig) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((rig.run, 0).into()).unwrap();
    socket.connect(rig.server).await.unwrap()
}

async fn ask(stream: &mut TcpStream, message: &Message) -> Message {
    let packet = message.to_bytes().unwrap();
    stream.write_u16(u16::try_from(packet.len()).unwrap()).await.unwrap();
    stream.write_all(&packet).await.unwrap();
    let mut answer = vec![0; usize::from(stream.read_u16().await.unwrap())];
    stream.read_exact(&mut answer).await.unwrap();
    Message::from_bytes(&answer).unwrap()
}

#[tokio::test]
async fn a_permitted_type_is_answered_from_upstream_and_on_record_twice() {
    let (rig, _upstream) = rig().await;
    let answer = rig.answer("ok.test.example.", RecordType::TXT).await;
    assert_eq!(answer.answers[0].data.to_string(), "hello");
    let records = rig.records();
    assert_eq!(records.len(), 2, "decided and done");
    assert!(records.iter().all(|record| record.decision == Decision::Allow));
    assert_eq!(records[0].rules, ["txt"]);
    assert_eq!(records[1].dns.as_ref().unwrap().answer, "1 records: TXT");
    // The rule names one name.
    assert_eq!(rig.code("no.test.example.", RecordType::TXT).await, ResponseCode::Refused);
    assert_eq!(rig.code("ok.test.example.", RecordType::MX).await, ResponseCode::Refused);
}

#[tokio::test]
async fn case_19_a_long_answer_is_truncated_over_udp_and_whole_over_tcp() {
    let (rig, _upstream) = rig().await;
    let long = query("long.permitted.example.", RecordType::TXT);
    for message in [long.clone(), with_edns(long.clone(), 1232), with_edns(long.clone(), 65_000)] {
        let answer = rig.client().ask(&message).await;
        assert!(answer.metadata.truncation && answer.answers.is_empty(), "nothing half used");
    }
    let answer = ask(&mut tcp(&rig).await, &long).await;
    assert!(!answer.metadata.truncation);
    assert_eq!(answer.answers.len(), 20);
    let short = rig.answer("short.permitted.example.", RecordType::TXT).await;
    assert!(!short.metadata.truncation && short.answers.len() == 1, "the positive control");
}

#[tokio::test]
async fn case_20_a_chain_is_passed_on_and_loops_end_in_servfail_within_a_second() {
    let (rig, _upstream) = rig().await;
    let answer = rig.answer("chain.permitted.example.", RecordType::TXT).await;
    let types: Vec<_> = answer.answers.iter().map(|record| record.record_type()).collect();
    assert_eq!(types, [RecordType::CNAME, RecordType::TXT]);
    let done = rig.records().pop().unwrap();
    assert_eq!(done.dns.unwrap().answer, "2 records: CNAME TXT");
    for name in ["self.permitted.example.", "a.permitted.example."] {
        let begun = Instant::now();
        assert_eq!(rig.code(name, RecordType::TXT).await, ResponseCode::ServFail, "{name}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{name}");
    }
}

#[tokio::test]
async fn a_name_without_such_records_has_no_data() {
    let (rig, _upstream) = rig().await;
    let answer = rig.answer("none.permitted.example.", RecordType::TXT).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    assert!(answer.answers.is_empty());
}

#[tokio::test]
async fn one_tcp_connection_carries_many_queries_and_nonsense_closes_it() {
    let (rig, _upstream) = rig().await;
    let mut stream = tcp(&rig).await;
    for name in ["a.example.com.", "b.example.com."] {
        assert_eq!(ask(&mut stream, &query(name, RecordType::A)).await.answers.len(), 1);
    }
    stream.write_all(&[0, 3, 1, 2, 3]).await.unwrap();
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or_default(), 0);
    assert_eq!(ask(&mut tcp(&rig).await, &query("c.example.com.", RecordType::A)).await.answers.len(), 1);
}
