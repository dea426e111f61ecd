use hickory_resolver::proto::{
    op::{Edns, Message, MessageType, OpCode, Query as Asked},
    rr::{Name, RecordType},
    serialize::binary::{BinDecodable, BinEncodable},
};
use proptest::prelude::*;

use super::*;

fn message(name: &str, qtype: RecordType) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Asked::query(Name::from_ascii(name).unwrap(), qtype));
    message
}

fn bytes(message: &Message) -> Vec<u8> {
    message.to_bytes().unwrap()
}

fn edns(size: u16, version: u8) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(size);
    edns.set_version(version);
    edns
}

/// Reads a packet; its name and type, or how it is answered.
fn read(packet: &[u8]) -> Result<(String, u16, bool), Unreadable> {
    let mut name = String::from("left over");
    Query::read(packet, &mut name).map(|query| (name.clone(), query.qtype, query.plain))
}

fn formerr(packet: &[u8]) -> &'static str {
    match read(packet) {
        Err(Unreadable::Answer(_, Rcode::FormErr, why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_query_is_read_in_lower_case_and_answered_in_its_own_spelling() {
    let packet = bytes(&message("WwW.ExAmPle.com.", RecordType::A));
    assert_eq!(read(&packet), Ok(("www.example.com".to_owned(), 1, true)));
    let mut out = Vec::new();
    Query::read(&packet, &mut String::new()).unwrap().address(Ipv4Addr::new(198, 18, 0, 1), &mut out);
    let answer = Message::from_bytes(&out).unwrap();
    assert_eq!(answer.queries[0].name().to_ascii(), "WwW.ExAmPle.com.");
    assert_eq!(answer.answers[0].data.to_string(), "198.18.0.1");
    assert_eq!(answer.answers[0].ttl, TTL);
    assert!(answer.edns.is_none());
    assert!(answer.metadata.recursion_desired && answer.metadata.recursion_available);
}

#[test]
fn edns_is_echoed_with_our_size_and_without_options() {
    for (size, most) in [(0, 512), (512, 512), (1232, 1232), (4096, 1232)] {
        let mut message = message("a.example.com.", RecordType::A);
        message.edns = Some(edns(size, 0));
        let packet = bytes(&message);
        let mut name = String::new();
        let query = Query::read(&packet, &mut name).unwrap();
        assert_eq!(query.udp_size(), most);
        let mut out = Vec::new();
        query.empty(Rcode::NxDomain, &mut out);
        let edns = Message::from_bytes(&out).unwrap().edns.unwrap();
        assert_eq!((edns.max_payload(), edns.version(), edns.options().as_ref().len()), (MAX_UDP, 0, 0));
    }
    let plain = bytes(&message("a.example.com.", RecordType::A));
    assert_eq!(Query::read(&plain, &mut String::new()).unwrap().udp_size(), 512);
}

#[test]
fn an_unknown_edns_version_is_named_in_the_answer() {
    let mut message = message("a.example.com.", RecordType::A);
    message.edns = Some(edns(1232, 3));
    let mut out = Vec::new();
    let Err(Unreadable::Answer(head, code, _)) = read(&bytes(&message)) else { panic!("it was read") };
    head.bare(code, &mut out);
    let answer = Message::from_bytes(&out).unwrap();
    assert_eq!(u16::from(answer.metadata.response_code), 16);
}

#[test]
fn unusual_bytes_in_a_name_are_escaped_and_cannot_pass_for_dots() {
    let mut packet = bytes(&message("aXb.example.com.", RecordType::TXT));
    packet[14] = b'.';
    assert_eq!(read(&packet), Ok(("a\\046b.example.com".to_owned(), 16, false)));
}

#[test]
fn what_is_no_query_is_answered_with_formerr_or_not_at_all() {
    let good = bytes(&message("a.example.com.", RecordType::A));
    assert!(read(&good).is_ok(), "the positive control");
    let changed = |at: usize, to: &[u8]| {
        let mut packet = good.clone();
        packet[at..at + to.len()].copy_from_slice(to);
        packet
    };
    for cut in 0..12 {
        assert!(matches!(read(&good[..cut]), Err(Unreadable::Silent(_))), "{cut}");
    }
    for cut in 12..good.len() {
        assert!(formerr(&good[..cut]).contains("cut short"), "{cut}");
    }
    assert!(matches!(read(&changed(2, &[0x80])), Err(Unreadable::Silent(_))), "an answer");
    assert!(matches!(read(&changed(2, &[0x28])), Err(Unreadable::Answer(_, Rcode::NotImp, _))), "an update");
    assert!(formerr(&changed(4, &[0, 0])).contains("exactly one question"));
    assert!(formerr(&changed(4, &[0, 2])).contains("exactly one question"));
    assert!(formerr(&changed(6, &[0, 1])).contains("don't belong"));
    assert!(formerr(&changed(8, &[0, 1])).contains("don't belong"));
    assert!(formerr(&changed(10, &[0, 1])).contains("can't be read"));
    assert!(formerr(&changed(12, &[0xc0, 12])).contains("compressed"), "a name that points to itself");
    assert!(formerr(&changed(12, &[0x40])).contains("unknown kind"));
    assert!(formerr(&[good.as_slice(), b"tail"].concat()).contains("behind the end"));
}

#[test]
fn two_edns_records_are_one_too_many() {
    let mut message = message("a.example.com.", RecordType::A);
    message.edns = Some(edns(1232, 0));
    let mut packet = bytes(&message);
    let opt = packet[packet.len() - 11..].to_vec();
    packet.extend(opt);
    packet[11] = 2;
    assert_eq!(formerr(&packet), "two EDNS records");
}

#[test]
fn a_name_of_255_bytes_is_read_and_a_longer_one_is_not() {
    let build = |last: u8| {
        let mut packet = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for len in [63, 63, 63, last] {
            packet.push(len);
            packet.extend(vec![b'a'; usize::from(len)]);
        }
        packet.extend([0, 0, 1, 0, 1]);
        packet
    };
    assert_eq!(read(&build(61)).unwrap().0.len(), 253);
    assert!(formerr(&build(62)).contains("longer than 255"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm_and_answers_to_them_are_messages(
        packet in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        properties::read_like_hickory(&packet);
    }

    #[test]
    fn what_is_read_is_what_hickory_reads(
        labels in proptest::collection::vec("[a-zA-Z0-9_]([a-zA-Z0-9-]{0,18}[a-zA-Z0-9])?", 1..8),
        qtype in any::<u16>(),
        flip in proptest::option::of((0_usize..80, any::<u8>())),
    ) {
        let name = format!("{}.", labels.join("."));
        let mut packet = bytes(&message(&name, RecordType::from(qtype)));
        if let Some((at, to)) = flip
            && let Some(byte) = packet.get_mut(at)
        {
            *byte = to;
        }
        properties::read_like_hickory(&packet);
    }
}
