//! With programs gone, any one or all: closed by what is left, at last by topology alone, and `doctor` says so.

use std::{fs, process::Command, thread, time::Duration};

use rustix::io::Errno;
use strait_agent::{doctor::examine, gate::hook::RUN_HOOKS, netns, preflight::Level};

use crate::{
    Test,
    rig::{Rig, Run, eventually},
};

pub(crate) const TESTS: &[Test] = &[
    ("principle_1_with_every_link_removed_nothing_leaves_and_doctor_fails", links_removed),
    ("m2_with_any_one_program_detached_nothing_leaves", one_detached),
];

/// Root's worst preparation, and every way out.
const ROUTE: &str = "sh ip route replace default via 10.203.0.1 dev eth0 onlink;";
const WAYS: &str = "tcp 192.0.2.1:443;udp-send 192.0.2.1:9999;tcp [2001:db8::1]:443;udp-send [2001:db8::1]:9999;\
                    tcp-mapped 192.0.2.1:443;udp-mapped 192.0.2.1:9999;tcp 10.203.0.1:80;socket 2 3 1";

/// Lets the `strait` namespace forward, which it never does.
fn forward(rig: &Rig, value: &str) {
    for name in ["ip_forward", "conf/all/forwarding"] {
        let write = || fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
        netns::within(&rig.instance.strait_netns(), write).unwrap().unwrap();
    }
}

fn remove_filter(rig: &Rig, run: &Run) {
    let veth = format!("st{}", run.index);
    let tc = || Command::new("tc").args(["filter", "del", "dev", &veth, "ingress"]).output().unwrap();
    assert!(netns::within(&rig.instance.strait_netns(), tc).unwrap().status.success());
}

/// Each program alone is detached, with forwarding on: what is left still holds everything back.
fn one_detached(rig: &Rig) {
    forward(rig, "1");
    let before = rig.canary();
    for hook in RUN_HOOKS.iter().filter(|hook| rig.has(hook.name)) {
        let run = rig.run();
        fs::remove_file(rig.instance.bpffs.join("run").join(run.id.as_str()).join(hook.name)).unwrap();
        // The kernel frees a link some time after its last pin is gone.
        thread::sleep(Duration::from_millis(100));
        let got = rig.act(&run, &format!("{ROUTE}{WAYS}"));
        let (tcp, raw, gateway) = (&got[1], &got[8], &got[7]);
        // That it's really gone shows where another layer has another answer.
        assert_eq!(tcp.is(Errno::PERM), hook.name != "connect4", "{}: {got:?}", hook.name);
        assert_eq!(raw.errno == 0, hook.name == "sock_create", "{}: {got:?}", hook.name);
        assert_eq!(gateway.errno, 0, "{}: {got:?}", hook.name);
        // A connection that nobody vouches for has no flow, and the gateway refuses it.
        let vouched = !["connect4", "connection"].contains(&hook.name);
        assert_eq!(gateway.text.contains("flow run="), vouched, "{}: {got:?}", hook.name);
        rig.nothing_left(before);
        rig.end(&run);
    }
    let run = rig.run();
    remove_filter(rig, &run);
    let got = rig.act(&run, &format!("{ROUTE}{WAYS}"));
    assert!(got[1].is(Errno::PERM) && got[2].is(Errno::PERM) && got[8].is(Errno::PERM), "no filter: {got:?}");
    rig.nothing_left(before);

    fs::remove_dir_all(rig.instance.bpffs.join("run").join(run.id.as_str())).unwrap();
    eventually("control: with all of them detached it leaves", || {
        rig.act(&run, WAYS);
        rig.canary() > before
    });
    forward(rig, "0");
    rig.end(&run);
}

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
    remove_filter(rig, &run);
    let attempt = &format!("{ROUTE}tcp 192.0.2.1:443;udp-send 192.0.2.1:9999;udp-send 8.8.8.8:53");
    rig.act(&run, attempt);
    rig.nothing_left(canary);
    forward(rig, "1");
    rig.act(&run, attempt);
    let seen = rig.canary();
    let forwarding = examine(&rig.instance, None);
    forward(rig, "0");
    assert!(seen > canary, "control: with forwarding on the same packets arrive");
    let named = forwarding.findings.iter().find(|finding| finding.name == "forwarding").unwrap();
    assert_eq!(named.level, Level::Failed, "{named:?}");
    rig.end(&run);
}
