use std::net::Ipv4Addr;

use strait_abi::map::{FLOW_LEVEL, FLOW_OPTION, FlowRecord, GATEWAY_PORT, TRANSPARENT_PORT};
use strait_contract::{flow, message};

use super::{peer, tables::network_order};

#[test]
fn the_kernels_flow_record_is_what_the_contract_reads() {
    let record = FlowRecord {
        cookie: 0x1122_3344_5566_7788,
        run: 7,
        netns: 4_026_532_000,
        addr: network_order(Ipv4Addr::new(198, 18, 0, 9)),
        port: 443,
        proto: 6,
        family: 10,
        tgid: 4711,
        uid: 1000,
        comm: strait_abi::event::comm(*b"curl\0\0\0\0\0\0\0\0\0\0\0\0"),
    };
    let flow = flow::Flow::from_bytes(&record.to_bytes()).unwrap();
    assert_eq!((flow.cookie, flow.run, flow.netns), (record.cookie, 7, 4_026_532_000));
    assert_eq!((flow.addr, flow.port, flow.proto), (Ipv4Addr::new(198, 18, 0, 9), 443, 6));
    assert_eq!((flow.tgid, flow.uid, flow.comm().as_str()), (4711, 1000, "curl"));
}

#[test]
fn kernel_and_contract_agree_on_option_and_ports() {
    assert_eq!(
        (FLOW_LEVEL, FLOW_OPTION, FlowRecord::LEN),
        (flow::FLOW_LEVEL, flow::FLOW_OPTION, flow::FLOW_LEN)
    );
    assert_eq!((TRANSPARENT_PORT, GATEWAY_PORT), (message::TRANSPARENT_PORT, message::GATEWAY_PORT));
}

#[test]
fn a_line_of_proc_net_tcp_gives_the_peer_as_flow_keys_have_it() {
    let line =
        "   1: 0100CB0A:3A99 0203CB0A:D431 01 00000000:00000000 00:00000000 00000000     0        0 1 1";
    assert_eq!(peer(line), Some((network_order(Ipv4Addr::new(10, 203, 3, 2)), 0xd431)));
    assert_eq!(peer("  sl  local_address"), None);
}
