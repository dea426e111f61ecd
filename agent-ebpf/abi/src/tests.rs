use crate::{
    event::{Event, comm, comm_bytes, mapped, octets},
    map::FlowRecord,
    verdict::{Hook, Reason, Verdict},
};

#[test]
fn bytes_come_back_as_the_same_value() {
    let bytes = core::array::from_fn(|at| u8::try_from(at).unwrap());
    assert_eq!(Event::from_bytes(&bytes).to_bytes(), bytes);
    let bytes: [u8; FlowRecord::LEN] = core::array::from_fn(|at| 200 - u8::try_from(at).unwrap());
    assert_eq!(FlowRecord::from_bytes(&bytes).to_bytes(), bytes);
}

#[test]
fn the_event_has_the_documented_offsets() {
    let event =
        Event { dport: 0x1234, comm: comm(*b"curl\0\0\0\0\0\0\0\0\0\0\0\0"), hook: 7, ..Event::default() };
    let bytes = event.to_bytes();
    assert_eq!(bytes[96..98], 0x1234u16.to_ne_bytes());
    assert_eq!(bytes[103], 7);
    assert_eq!(bytes[112..116], *b"curl");
}

#[test]
fn words_are_octets_in_their_order() {
    let addr = octets(mapped(u32::from_ne_bytes([192, 0, 2, 1])));
    assert_eq!(addr, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
    assert_eq!(comm_bytes(comm(*b"0123456789abcdef")), *b"0123456789abcdef");
}

#[test]
fn every_code_reads_back_and_a_foreign_one_is_none() {
    for hook in Hook::ALL {
        assert_eq!(Hook::from_byte(*hook as u8), Some(*hook));
    }
    for reason in Reason::ALL {
        assert_eq!(Reason::from_byte(*reason as u8), Some(*reason));
    }
    assert_eq!(Verdict::from_byte(0), None);
    assert_eq!(Reason::from_byte(200), None);
}
