//! What holds for any packet, for property tests and fuzzers.

use hickory_resolver::proto::{op::Message, serialize::binary::BinDecodable};

use super::{MAX_NAME, Query, Rcode, Unreadable};

/// Any packet is read without harm, what is answered is a message, and what is read is what hickory reads.
pub(in super::super) fn read_like_hickory(packet: &[u8]) {
    let mut out = Vec::new();
    let mut name = String::new();
    match Query::read(packet, &mut name) {
        Ok(query) => {
            query.empty(Rcode::Refused, &mut out);
            if query.plain {
                same_question(packet, &name, query.qtype);
            }
        }
        Err(Unreadable::Answer(head, code, _)) => head.bare(code, &mut out),
        Err(Unreadable::Silent(_)) => return,
    }
    assert!(Message::from_bytes(&out).is_ok(), "the answer is no message: {out:?}");
    assert!(name.len() <= 4 * MAX_NAME, "a name of {} bytes", name.len());
}

fn same_question(packet: &[u8], name: &str, qtype: u16) {
    let theirs = Message::from_bytes(packet);
    assert!(theirs.is_ok(), "hickory reads none: {theirs:?}");
    let queries = theirs.map(|theirs| theirs.queries).unwrap_or_default();
    assert_eq!(queries.len(), 1);
    for query in queries {
        // It escapes a hyphen that begins a label; a plain name holds no backslash of its own.
        let theirs = query.name().to_ascii().to_ascii_lowercase().replace("\\-", "-");
        assert_eq!(theirs.trim_end_matches('.'), name);
        assert_eq!(u16::from(query.query_type()), qtype);
    }
}
