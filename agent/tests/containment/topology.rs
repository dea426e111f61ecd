//! With every program gone: closed by topology alone, and `doctor` says so.

use std::fs;

use rustix::io::Errno;
use strait_agent::{doctor::examine, netns, preflight::Level};

use crate::{
    Test,
    rig::{Rig, eventually},
};

pub(crate) const TESTS: &[Test] =
    &[("principle_1_with_every_link_removed_nothing_leaves_and_doctor_fails", links_removed)];

fn links_removed(rig: &Rig) {
    let run = rig.run();
    let well = examine(&rig.instance, Some(&rig.instance.run_dir));
    assert_ne!(well.level(), Level::Failed, "control: {well:#?}");
    let canary = rig.canary();

    fs::remove_dir_all(rig.instance.bpffs.join("run").join(run.id.as_str())).unwrap();
    // The kernel frees a link some time after its last pin is gone; until then it decides.
    let gone = |action: &str| rig.act(&run, action)[0].is(Errno::NETUNREACH);
    eventually("the links are gone", || gone("tcp 192.0.2.1:443") && gone("udp-send 8.8.8.8:53"));
    let got =
        rig.act(&run, "tcp 192.0.2.1:443;udp-send 192.0.2.1:9999;udp-send 8.8.8.8:53;tcp 10.203.0.1:80");
    assert!(got[..3].iter().all(|outcome| outcome.is(Errno::NETUNREACH)), "no route: {got:?}");
    assert!(got[3].text.contains("noflow"), "the gateway can tell that nobody vouches: {got:?}");
    let ill = examine(&rig.instance, None);
    assert_eq!(ill.level(), Level::Failed, "{ill:#?}");
    let named = ill.findings.iter().find(|finding| finding.name == format!("run {}", run.id)).unwrap();
    assert!(named.detail.contains("connect4") && named.fix.is_some(), "{named:?}");

    // The filter too, and root adds what a run could add.
    let strait = rig.instance.strait_netns();
    let veth = format!("st{}", run.index);
    let forward = |value: &str| {
        for name in ["ip_forward", "conf/all/forwarding"] {
            netns::within(&strait, || fs::write(format!("/proc/sys/net/ipv4/{name}"), value))
                .unwrap()
                .unwrap();
        }
    };
    netns::within(&strait, || {
        std::process::Command::new("tc").args(["filter", "del", "dev", &veth, "ingress"]).output().unwrap()
    })
    .unwrap();
    let attempt = "sh ip route replace default via 10.203.0.1 dev eth0 onlink;tcp 192.0.2.1:443;\
                   udp-send 192.0.2.1:9999;udp-send 8.8.8.8:53";
    rig.act(&run, attempt);
    rig.nothing_left(canary);
    forward("1");
    rig.act(&run, attempt);
    let seen = rig.canary();
    let forwarding = examine(&rig.instance, None);
    forward("0");
    assert!(seen > canary, "control: with forwarding on the same packets arrive");
    let named = forwarding.findings.iter().find(|finding| finding.name == "forwarding").unwrap();
    assert_eq!(named.level, Level::Failed, "{named:?}");
    rig.end(&run);
}
