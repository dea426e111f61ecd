//! Nothing is silent and nobody crowds out another: exact accounts, quotas, flows that go when they must.

use std::time::Duration;

use rustix::process::Signal;
use strait_agent::gate::{Quota, Stats};
use strait_contract::code::Code;

use crate::{
    Test,
    rig::{OTHER, Rig, Run, Shape, eventually},
};

pub(crate) const TESTS: &[Test] = &[
    // A29.
    ("25_a_flood_is_refused_and_counted_to_the_unit", flood),
    // A29.
    ("25_a_scan_beyond_every_quota_is_counted_to_the_unit", scan),
    ("flows_end_with_their_connections", flows_end),
    ("flows_that_no_gateway_accepted_are_swept_and_live_ones_are_not", orphans),
    ("a_run_over_its_quota_is_refused_and_others_are_not", quota),
];

fn exact(rig: &Rig, run: &Run) -> Stats {
    let stats = rig.gate.stats(&run.id).unwrap();
    assert_eq!(stats.delivered + stats.folded + stats.lost, stats.total, "{stats:?}");
    let told: u64 = rig.events(run).iter().map(|event| event.count).sum();
    assert_eq!(told + rig.lost(run), stats.total, "every event is told or its loss is: {stats:?}");
    assert_eq!(rig.lost(run), stats.lost);
    stats
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn flood(rig: &Rig) {
    const COUNT: u64 = 1_000_000;
    let (run, other) = (rig.run(), rig.run());
    let before = resident_kib();
    let got = rig.act(&run, &format!("flood {OTHER} {COUNT}"));
    assert_eq!(got[0].text, COUNT.to_string(), "every one refused");
    rig.act(&other, "tcp 192.0.2.1:443");
    assert_eq!(exact(rig, &run).total, COUNT + u64::from(OTHER.port() == 0));
    assert_eq!(exact(rig, &other).delivered, 1, "another run's event arrives");
    assert!(resident_kib() < before + 16 * 1024, "memory stays flat");
    for run in [run, other] {
        rig.end(&run);
    }
}

fn scan(rig: &Rig) {
    let quota = Quota { folds: 50, rate: 100, burst: 100, ..Quota::default() };
    let run = rig.run_with(Shape { quota, ..Shape::default() });
    let got = rig.act(&run, "flood-ports 192.0.2.1:0 20000;flood-ports 192.0.2.1:0 200");
    assert_eq!(got[0].text, "20000");
    let stats = exact(rig, &run);
    assert_eq!(stats.total, 20_200);
    assert!(stats.lost > 0 && stats.folded > 0 && stats.delivered > 0, "each way was taken: {stats:?}");
    rig.end(&run);
}

fn flows_end(rig: &Rig) {
    let run = rig.run();
    let got = rig.act(&run, "open-many 10.203.0.1:80 10;churn 198.18.0.3:443 200;udp-send 8.8.8.8:53");
    assert!(got.iter().all(|outcome| outcome.errno == 0), "{got:?}");
    assert_eq!(got[0].text, "10 0");
    eventually("every flow and origin is gone", || {
        let stats = rig.gate.stats(&run.id).unwrap();
        stats.flows == 0 && stats.origins == 0
    });
    rig.end(&run);
}

fn orphans(_: &Rig) {
    let mut rig = Rig::named("f");
    let run = rig.run();
    let flows = |rig: &Rig| rig.gate.stats(&run.id).unwrap().flows;
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| rig.act(&run, "stream 10.203.0.1:80 1"));
        eventually("it streams", || flows(&rig) == 1);
        assert_eq!(rig.gate.sweep_flows().unwrap(), 0, "control: a live one stays");
        assert_eq!(flows(&rig), 1);
        assert_eq!(stream.join().unwrap()[0].errno, 0);
    });
    eventually("it's over", || flows(&rig) == 0);

    rig.signal_gateway(Signal::STOP);
    assert_eq!(rig.act(&run, "open-many 10.203.0.1:80 5")[0].text, "5 0", "they wait to be accepted");
    rig.signal_gateway(Signal::KILL);
    assert_eq!(flows(&rig), 5, "control: nothing else deletes them");
    assert_eq!(rig.gate.sweep_flows().unwrap(), 5);
    assert_eq!(flows(&rig), 0);
    rig.end(&run);
}

fn quota(rig: &Rig) {
    let quota = Quota { flows: 16, ..Quota::default() };
    let (run, other) = (rig.run_with(Shape { quota, ..Shape::default() }), rig.run());
    let got = rig.act(&run, "open-many 10.203.0.1:80 40");
    assert_eq!(got[0].text, "16 1", "sixteen, then EPERM");
    assert!(rig.events(&run).iter().any(|event| event.code == Some(Code::KernelQuota)));
    assert_eq!(rig.act(&other, "open-many 10.203.0.1:80 40")[0].text, "40 0");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(rig.act(&run, "tcp 10.203.0.1:80")[0].errno, 0, "its places come back");
    for run in [run, other] {
        rig.end(&run);
    }
}
