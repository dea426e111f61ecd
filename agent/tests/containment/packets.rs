//! What the filter at the `strait` end of the veth drops: packets that no socket hook ever sees.

use std::os::fd::AsRawFd as _;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use strait_abi::verdict::Hook;
use strait_agent::{firewall::KernelEvent, netns};
use strait_contract::code::Code;

use crate::{Test, probe, rig::Rig};

pub(crate) const TESTS: &[Test] = &[
    ("14_hand_made_frames_pass_only_if_they_are_the_runs_own_to_an_offered_port", frames),
    // Case 93.
    ("17_a_socket_from_outside_the_cgroup_reaches_only_the_gateway_and_has_no_flow", foreign_socket),
    ("21_routes_and_addresses_added_by_root_lead_nowhere", tampering),
    ("23_options_and_fragments_pass_without_the_filter_and_not_with_it", malformed),
];

fn dropped(events: &[KernelEvent], code: Code) -> u64 {
    let packet = |event: &&KernelEvent| event.hook == Some(Hook::Packet) && event.code == Some(code);
    events.iter().filter(packet).map(|event| event.count).sum()
}

fn frames(rig: &Rig) {
    let run = rig.run();
    let (own, canary) = (run.addr, rig.canary());
    let before = rig.datagrams();
    let sent = rig.act(&run, &format!("frame src={own}"));
    assert_eq!(sent[0].errno, 0, "{sent:?}");
    assert_eq!(rig.datagrams(), before + 1, "control: a well-formed frame is answered");
    let sent = rig.act(
        &run,
        &format!(
            "frame src={own} dst=192.0.2.1;frame src={own} port=22;frame src={own} dst=10.203.0.99;\
             frame src=10.203.0.99 own={own};frame src=192.0.2.9 own={own};frame src={own} mac=1;\
             frame src={own} vlan=1;frame src={own} arp=1;frame src={own} options=1;frame src={own} fragment=1"
        ),
    );
    assert!(sent.iter().all(|outcome| outcome.errno == 0), "AF_PACKET is beyond the socket hooks: {sent:?}");
    assert_eq!(rig.datagrams(), before + 1);
    rig.nothing_left(canary);
    let events = rig.events(&run);
    // The run's kernel answers the control's echo with an ICMP error, which is a fourth.
    assert!((3..=4).contains(&dropped(&events, Code::PacketDestination)), "{events:?}");
    assert_eq!(dropped(&events, Code::PacketSource), 3, "{events:?}");
    assert_eq!(dropped(&events, Code::PacketMalformed), 4, "{events:?}");
    assert!(events.iter().all(|event| event.hook != Some(Hook::Packet) || event.caller.is_none()));
    rig.end(&run);
}

fn foreign_socket(rig: &Rig) {
    let run = rig.run();
    let canary = rig.canary();
    let outside = || probe::raw_socket(2, 1, 0).unwrap();
    let sockets = netns::within(&run.netns.path, || [outside(), outside()]).unwrap();
    for socket in &sockets {
        fcntl_setfd(socket, FdFlags::empty()).unwrap();
    }
    let [first, second] = sockets.each_ref().map(|socket| socket.as_raw_fd());
    let got = rig.act(
        &run,
        &format!(
            "sh ip route add default via 10.203.0.1 dev eth0 onlink;\
             inherited {first} 10.203.0.1:80;inherited {second} 192.0.2.1:443"
        ),
    );
    assert!(got[1].text.contains("noflow"), "control: it reaches the gateway, which has no flow: {got:?}");
    assert_ne!(got[2].errno, 0, "{got:?}");
    assert!(dropped(&rig.events(&run), Code::PacketDestination) >= 1);
    rig.nothing_left(canary);
    rig.end(&run);
}

fn tampering(rig: &Rig) {
    let run = rig.run();
    let canary = rig.canary();
    let tamper =
        "sh ip route add default via 10.203.0.1 dev eth0 onlink;sh ip addr add 203.0.113.99/32 dev eth0;";
    let got = rig.act(&run, &format!("{tamper}tcp 192.0.2.1:443"));
    assert!(got[0].text.is_empty() && got[1].text.is_empty(), "the commands work: {got:?}");
    assert!(got[2].is(Errno::PERM), "{got:?}");
    // The same from outside the cgroup, where no socket hook is: the packet leaves and is dropped.
    let got = rig.act_free(&run.netns.path, "tcp 192.0.2.1:443;udp-send 192.0.2.1:9999;tcp 10.203.0.1:80");
    assert_ne!(got[0].errno, 0, "{got:?}");
    assert!(got[2].text.contains("noflow"), "control: the gateway is reached: {got:?}");
    assert!(dropped(&rig.events(&run), Code::PacketDestination) >= 2);
    rig.nothing_left(canary);
    rig.end(&run);
}

fn malformed(rig: &Rig) {
    let run = rig.run();
    let frame = format!("frame src={} options=1", run.addr);
    let before = rig.datagrams();
    rig.act(&run, &frame);
    assert_eq!(rig.datagrams(), before);
    netns::within(&rig.instance.strait_netns(), || {
        let veth = format!("st{}", run.index);
        let output =
            std::process::Command::new("tc").args(["filter", "del", "dev", &veth, "ingress"]).output();
        assert!(output.unwrap().status.success());
    })
    .unwrap();
    assert_eq!(rig.gate.verify(&run.id).unwrap(), ["packet filter"]);
    rig.act(&run, &frame);
    assert_eq!(rig.datagrams(), before + 1, "control: without the filter it's answered");
    rig.gate.reattach(&run.id).unwrap();
    assert!(rig.gate.verify(&run.id).unwrap().is_empty());
    rig.act(&run, &frame);
    assert_eq!(rig.datagrams(), before + 1);
    rig.end(&run);
}
