//! What the socket hooks refuse, redirect and let pass.

use std::{net::Ipv4Addr, time::Duration};

use rustix::io::Errno;
use strait_abi::verdict::{Hook, Verdict};
use strait_agent::firewall::KernelEvent;
use strait_contract::{code::Code, run::Range};

use crate::{
    Test,
    rig::{OTHER, Rig, Run, Shape},
};

pub(crate) const TESTS: &[Test] = &[
    ("01_a_connection_to_the_gateway_carries_its_flow", gateway_is_reached),
    // A29.
    ("02_tcp_to_another_address_is_refused_at_once_and_told", other_tcp),
    ("03_tcp_to_a_listed_range_or_a_synthetic_address_is_redirected_and_hidden", redirect),
    ("04_tcp_over_ipv6_and_to_mapped_addresses_is_refused", tcp6),
    ("05_fast_open_carries_no_data_out", fast_open),
    ("06_every_way_to_send_a_datagram_is_refused", udp_sends),
    ("07_a_mapped_datagram_is_refused", udp_mapped),
    ("08_broadcast_and_multicast_are_refused", multicast),
    ("09_quic_is_refused_so_that_tcp_is_tried", quic),
    ("10_dns_goes_to_the_gateway_whatever_server_is_asked", dns),
    // A29.
    ("11_io_uring_is_refused_and_told_with_the_right_process", io_uring),
    ("12_mptcp_sctp_and_udplite_sockets_are_refused", protocols),
    ("13_raw_and_ping_sockets_are_refused_to_root", raw),
    ("19_a_nested_cgroup_is_still_the_run", nested),
    ("20_another_namespace_is_denied", namespaces),
    ("22_loopback_is_the_runs_own_and_other_ports_of_the_gateway_are_refused", services),
];

fn denied(events: &[KernelEvent], hook: Hook, code: Code) -> u64 {
    events
        .iter()
        .filter(|event| {
            event.hook == Some(hook) && event.code == Some(code) && event.verdict == Verdict::Deny
        })
        .map(|event| event.count)
        .sum()
}

/// The same action works where Strait isn't.
fn works_outside(rig: &Rig, action: &str) {
    let outcomes = rig.act_free(&rig.internet_netns(), action);
    assert!(outcomes.iter().all(|outcome| outcome.errno == 0), "control `{action}`: {outcomes:?}");
}

fn gateway_is_reached(rig: &Rig) {
    let run = rig.run();
    let got = rig.act(&run, "tcp 10.203.0.1:80;tcp 10.203.0.1:53");
    for (outcome, port) in got.iter().zip([80, 53]) {
        assert_eq!(outcome.errno, 0, "{outcome:?}");
        let flow = format!("flow run={} dst=10.203.0.1:{port}", run.number);
        assert!(outcome.text.contains(&flow), "{outcome:?}");
    }
    rig.end(&run);
}

fn other_tcp(rig: &Rig) {
    works_outside(rig, "tcp 192.0.2.1:443");
    let run = rig.run();
    let before = rig.canary();
    let got = rig.act(&run, "tcp 192.0.2.1:443;tcp 8.8.8.8:80;tcp 169.254.169.254:80;tcp 10.203.0.9:80");
    assert!(got.iter().all(super::probe::Outcome::is_refused), "{got:?}");
    assert!(got[0].took < Duration::from_millis(5) || got[1].took < Duration::from_millis(5), "{got:?}");
    let events = rig.events(&run);
    assert_eq!(denied(&events, Hook::Connect4, Code::KernelDestination), 4, "{events:?}");
    let told = events.iter().find(|event| event.dst == Some(OTHER.into())).unwrap();
    assert!(told.caller.as_ref().unwrap().comm.starts_with("containment"), "{told:?}");
    assert!(told.cookie.is_some() && told.netns == Some(run.netns.cookie), "{told:?}");
    rig.nothing_left(before);
    rig.end(&run);
}

fn redirect(rig: &Rig) {
    let range = Range { addr: Ipv4Addr::new(192, 0, 2, 0), prefix: 24 };
    let run = rig.run_with(Shape { ranges: vec![range], ..Shape::default() });
    let got =
        rig.act(&run, "tcp 192.0.2.1:443;tcp-mapped 192.0.2.1:8443;tcp 198.18.0.7:22;tcp 192.0.3.1:443");
    for (outcome, dst) in got.iter().zip(["192.0.2.1:443", "192.0.2.1:8443", "198.18.0.7:22"]) {
        assert!(outcome.text.contains(&format!("flow run={} dst={dst} ", run.number)), "{outcome:?}");
        let port = dst.split(':').next_back().unwrap();
        assert!(
            outcome.text.contains("peer=") && outcome.text.contains(&format!(":{port} local=")),
            "{outcome:?}"
        );
        assert!(!outcome.text.contains("15001"), "the redirect shows: {outcome:?}");
    }
    assert!(got[3].is_refused(), "{got:?}");
    let events = rig.events(&run);
    assert_eq!(events.iter().filter(|event| event.verdict == Verdict::Redirect).count(), 3, "{events:?}");
    // Another run of the same host without the range, and one with redirection off.
    let other = rig.run();
    assert!(rig.act(&other, "tcp 192.0.2.1:443")[0].is_refused());
    let opaque = rig.run_with(Shape { transparent: false, ..Shape::default() });
    assert!(rig.act(&opaque, "tcp 198.18.0.7:443")[0].is_refused());
    for run in [run, other, opaque] {
        rig.end(&run);
    }
}

fn tcp6(rig: &Rig) {
    works_outside(rig, "tcp-mapped 192.0.2.1:443");
    let run = rig.run();
    let got = rig.act(&run, "tcp [2001:db8::1]:443;tcp-mapped 192.0.2.1:443");
    assert!(got.iter().all(super::probe::Outcome::is_refused), "{got:?}");
    let events = rig.events(&run);
    assert_eq!(denied(&events, Hook::Connect6, Code::KernelDestination), 2, "{events:?}");
    assert!(events.iter().any(|event| event.dst == Some(OTHER.into())), "mapped shows as IPv4: {events:?}");
    rig.end(&run);
}

fn fast_open(rig: &Rig) {
    let run = rig.run();
    let before = rig.canary();
    let got = rig.act(&run, "tfo 192.0.2.1:443");
    assert!(got[0].is_refused(), "{got:?}");
    assert_eq!(denied(&rig.events(&run), Hook::Connect4, Code::KernelDestination), 1);
    rig.nothing_left(before);
    rig.end(&run);
}

fn udp_sends(rig: &Rig) {
    works_outside(rig, "udp-send 192.0.2.1:9999;udp-sendmsg 192.0.2.1:9999 3;udp-connect 192.0.2.1:9999");
    let run = rig.run();
    let before = rig.canary();
    let got = rig.act(
        &run,
        "udp-send 192.0.2.1:9999;udp-sendmsg 192.0.2.1:9999 3;udp-connect 192.0.2.1:9999;\
         udp-after-connect 10.203.0.1:53 192.0.2.1:9999",
    );
    assert!(got.iter().all(|outcome| outcome.is(Errno::PERM)), "{got:?}");
    let events = rig.events(&run);
    assert_eq!(denied(&events, Hook::Sendmsg4, Code::KernelDestination), 3, "{events:?}");
    assert_eq!(denied(&events, Hook::Connect4, Code::KernelDestination), 1, "{events:?}");
    rig.nothing_left(before);
    rig.end(&run);
}

fn udp_mapped(rig: &Rig) {
    works_outside(rig, "udp-mapped 192.0.2.1:9999");
    let run = rig.run();
    let got = rig.act(&run, "udp-mapped 192.0.2.1:9999;udp-send [2001:db8::1]:9999");
    assert!(got.iter().all(|outcome| outcome.is(Errno::PERM)), "{got:?}");
    let events = rig.events(&run);
    let told = events.iter().find(|event| event.hook == Some(Hook::Sendmsg4)).unwrap();
    assert_eq!((told.family, told.code), (10, Some(Code::KernelDestination)), "{told:?}");
    assert_eq!(denied(&events, Hook::Sendmsg6, Code::KernelDestination), 1, "{events:?}");
    rig.end(&run);
}

fn multicast(rig: &Rig) {
    let run = rig.run();
    let got =
        rig.act(&run, "udp-send 255.255.255.255:9999;udp-send 224.0.0.251:5353;udp-send [ff02::fb]:5353");
    assert!(got.iter().all(|outcome| outcome.is(Errno::PERM)), "{got:?}");
    let events = rig.events(&run);
    let count = events.iter().filter(|event| event.code == Some(Code::KernelDestination)).count();
    assert_eq!(count, 3, "{events:?}");
    rig.end(&run);
}

fn quic(rig: &Rig) {
    works_outside(rig, "udp-connect 192.0.2.1:443");
    let run = rig.run();
    let got = rig.act(&run, "udp-connect 198.18.0.5:443;udp-send 192.0.2.1:443;tcp 198.18.0.5:443");
    assert!(got[0].is_refused() && got[1].is(Errno::PERM) && got[2].errno == 0, "{got:?}");
    let events = rig.events(&run);
    assert_eq!(denied(&events, Hook::Connect4, Code::KernelQuic), 1, "{events:?}");
    assert_eq!(denied(&events, Hook::Sendmsg4, Code::KernelQuic), 1, "{events:?}");
    rig.end(&run);
}

fn dns(rig: &Rig) {
    let run = rig.run();
    let before = rig.canary();
    let got = rig.act(
        &run,
        "udp-send 8.8.8.8:53;udp-connect 8.8.8.8:53;udp-mapped 8.8.8.8:53;udp-send 10.203.0.1:53;tcp 8.8.8.8:53",
    );
    for (outcome, text) in
        got.iter().zip(["from=8.8.8.8:53", "peer=8.8.8.8:53 ping", "from=[::ffff:8.8.8.8]:53"])
    {
        assert_eq!((outcome.errno, outcome.text.as_str()), (0, text), "{outcome:?}");
    }
    assert_eq!(got[3].text, "from=10.203.0.1:53", "{got:?}");
    assert!(got[4].text.contains("dst=8.8.8.8:53"), "{got:?}");
    rig.nothing_left(before);
    rig.end(&run);
}

fn io_uring(rig: &Rig) {
    works_outside(rig, "io_uring 0 192.0.2.1:443;io_uring 2 192.0.2.1:443");
    let run = rig.run();
    let got = rig.act(&run, "io_uring 0 192.0.2.1:443;io_uring 2 192.0.2.1:80");
    assert!(got.iter().all(|outcome| outcome.is(Errno::PERM)), "{got:?}");
    let events = rig.events(&run);
    assert_eq!(denied(&events, Hook::Connect4, Code::KernelDestination), 2, "{events:?}");
    let callers: Vec<_> = events.iter().filter_map(|event| event.caller.clone()).collect();
    assert_eq!(callers[0].tgid, callers[1].tgid, "{callers:?}");
    assert!(callers[1].comm.starts_with("iou-sqp"), "comm is what a thread calls itself: {callers:?}");
    rig.end(&run);
}

fn protocols(rig: &Rig) {
    works_outside(rig, "socket 2 2 136");
    let run = rig.run();
    let got = rig.act(&run, "socket 2 1 262;socket 2 1 132;socket 2 2 136;socket 2 1 0;socket 10 2 0");
    // A kernel may have been built without SCTP, and MPTCP is off in the namespace too.
    for outcome in &got[..2] {
        let absent = outcome.is(Errno::PROTONOSUPPORT) || outcome.is(Errno::NOPROTOOPT);
        assert!(outcome.is(Errno::PERM) || absent, "{got:?}");
    }
    assert!(got[2].is(Errno::PERM), "{got:?}");
    assert!(got[3].errno == 0 && got[4].errno == 0, "TCP and UDP are there: {got:?}");
    assert!(denied(&rig.events(&run), Hook::SockCreate, Code::KernelSocket) >= 1);
    rig.end(&run);
}

fn raw(rig: &Rig) {
    works_outside(rig, "socket 2 3 1;socket 2 3 255");
    let run = rig.run();
    let got = rig.act(&run, "socket 2 3 1;socket 2 3 255;socket 10 3 58");
    assert!(got.iter().all(|outcome| outcome.is(Errno::PERM)), "{got:?}");
    let events = rig.events(&run);
    assert_eq!(denied(&events, Hook::SockCreate, Code::KernelSocket), 3, "{events:?}");
    // A ping socket: the namespace's own setting refuses it first, the hook if that's undone.
    let got = rig.act(&run, "sh echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range;socket 2 2 1");
    assert!(got[1].is(Errno::PERM), "{got:?}");
    assert_eq!(denied(&rig.events(&run), Hook::SockCreate, Code::KernelSocket), 4);
    rig.end(&run);
}

fn nested(rig: &Rig) {
    let run = rig.run();
    let got = rig.act(&run, &format!("nested {} 192.0.2.1:443", run.cgroup.display()));
    assert!(got[0].is_refused(), "{got:?}");
    let events = rig.events(&run);
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&run.cgroup).unwrap());
    assert!(events.iter().any(|event| event.cgroup.is_some_and(|id| id != inode)), "{events:?}");
    rig.end(&run);
}

fn namespaces(rig: &Rig) {
    let run = rig.run();
    let inet = rig.internet_netns();
    works_outside(rig, "tcp 192.0.2.1:443");
    let got = rig.act(&run, "unshare 192.0.2.1:443");
    assert!(got[0].is(Errno::PERM), "{got:?}");
    // Even in a namespace that does have a way out: the socket's cgroup counts.
    let got = rig.act(&run, &format!("setns {} 192.0.2.1:443", inet.display()));
    assert!(got[0].is(Errno::PERM), "{got:?}");
    let unknown = rig.events_of(0);
    assert!(denied(&unknown, Hook::SockCreate, Code::KernelNamespace) >= 2, "{unknown:?}");
    rig.end(&run);
}

fn services(rig: &Rig) {
    let run: Run = rig.run();
    let control = rig.act_free(&rig.instance.strait_netns(), "tcp 10.203.0.1:22;tcp 10.203.0.1:15001");
    assert!(control.iter().all(|outcome| outcome.errno == 0), "{control:?}");
    let got = rig.act(
        &run,
        &format!(
            "tcp 10.203.0.1:22;tcp 10.203.0.1:15001;udp-send 10.203.0.1:80;tcp 127.0.0.1:22;tcp {}:22",
            run.addr
        ),
    );
    assert!(got[..3].iter().all(|outcome| outcome.is(Errno::PERM)), "{got:?}");
    assert!(got[3].is(Errno::CONNREFUSED) && got[4].is(Errno::CONNREFUSED), "{got:?}");
    let events = rig.events(&run);
    assert_eq!(denied(&events, Hook::Connect4, Code::KernelPort), 2, "{events:?}");
    rig.end(&run);
}
