//! Enforcement outlives the agent, is renewed, replaced and removed without a gap; what it costs.

use std::{
    fs,
    net::SocketAddrV4,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::io::Errno;
use strait_agent::{
    gate::{Gate, object::Origin},
    instance::Instance,
    netns,
    selftest::{SelfTestError, prove},
};
use strait_contract::code::Code;

use crate::{
    Test,
    rig::{Rig, Shape, eventually},
};

pub(crate) const TESTS: &[Test] = &[
    ("24_the_gate_outlives_the_agent_and_is_adopted", adopted),
    ("a_gate_of_another_object_is_replaced_fail_closed", replaced),
    ("m1_a_hundred_of_a_hundred_runs_are_held_at_their_first_instruction", proven),
    ("m2_without_a_loadable_object_there_is_no_gate", no_object),
    ("m3_a_removed_pin_is_noticed_and_renewed", removed_pin),
    ("m4_what_dead_runs_left_is_collected", garbage),
    ("a_killed_run_is_silent_within_50_ms", killed),
    ("e1_costs", costs),
];

fn adopted(rig: &Rig) {
    let (run, admission) = rig.prepare(Shape::default());
    let first = Gate::open(&rig.instance).unwrap();
    first.admit(&admission).unwrap();
    netns::raise(&rig.instance, &run.netns, &admission.veth).unwrap();
    drop(first);
    let got = rig.act(&run, "tcp 192.0.2.1:443;tcp 10.203.0.1:80");
    assert!(got[0].is(Errno::PERM) && got[1].text.contains("flow run="), "with no agent: {got:?}");
    let next = Gate::open(&rig.instance).unwrap();
    assert_eq!(next.origin(), Origin::Adopted);
    next.admit(&admission).unwrap();
    assert!(next.verify(&run.id).unwrap().is_empty());
    assert_eq!(next.stats(&run.id).unwrap().total, 1, "its accounts went on");
    next.release(&run.id).unwrap();
    rig.end(&run);
}

/// An instance of its own, whose object can be changed.
fn replaced(rig: &Rig) {
    let lib = tempfile::tempdir().unwrap();
    let object = lib.path().join("gate.bpf.o");
    fs::copy(rig.instance.lib_dir.join("gate.bpf.o"), &object).unwrap();
    let name = format!("{}x", rig.instance.name);
    let instance = Instance { lib_dir: lib.path().to_owned(), ..Instance::standard(name.parse().unwrap()) };
    netns::ensure_strait(&instance).unwrap();
    let old = Gate::open(&instance).unwrap();
    assert_eq!(old.origin(), Origin::Loaded);
    let id = "replaced".parse().unwrap();
    let netns = netns::create_run(&instance, &id).unwrap();
    let veth = netns::plumb(&instance, &netns, "10.203.0.2".parse().unwrap(), 1).unwrap();
    let (_, mut admission) = rig.prepare(Shape::default());
    rig.gate.release(&admission.run).unwrap();
    netns::unplumb(&rig.instance, admission.veth.name.trim_start_matches("st").parse().unwrap()).unwrap();
    netns::remove_run(&rig.instance, &admission.run).unwrap();
    admission.run = id.clone();
    admission.netns_cookie = netns.cookie;
    admission.cgroup = old.cgroup_of(&id);
    admission.veth = veth.clone();
    old.admit(&admission).unwrap();
    netns::raise(&instance, &netns, &veth).unwrap();
    let act = |action| crate::rig::act(Some(&netns.path), Some(&admission.cgroup), action);
    assert!(act("tcp 10.203.0.1:80")[0].is(Errno::CONNREFUSED), "control: it passes, nobody listens");

    // Bytes behind the sections: another file, the same programs.
    let mut bytes = fs::read(&object).unwrap();
    bytes.extend(b"newer");
    fs::write(&object, bytes).unwrap();
    let new = Gate::open(&instance).unwrap();
    assert_eq!(new.origin(), Origin::Replaced);
    assert!(act("tcp 10.203.0.1:80")[0].is(Errno::PERM), "denied until admitted again");
    new.admit(&admission).unwrap();
    assert!(new.verify(&id).unwrap().is_empty());
    // The kernel frees the old links some time after their last pin is gone; until then they deny.
    eventually("the new set alone decides", || act("tcp 10.203.0.1:80")[0].is(Errno::CONNREFUSED));
    assert!(act("tcp 192.0.2.1:443")[0].is(Errno::PERM));

    new.release(&id).unwrap();
    let cgroup = admission.cgroup.clone();
    new.collect_garbage_of(cgroup.parent().unwrap());
    netns::remove_run(&instance, &id).unwrap();
    netns::remove_strait(&instance).unwrap();
    new.remove().unwrap();
    let _ = fs::remove_dir_all(&instance.run_dir);
}

fn proven(rig: &Rig) {
    let gateway = SocketAddrV4::new(rig.instance.gateway(), 80);
    let before = rig.canary();
    for _ in 0..100 {
        let run = rig.run();
        // Fails unless the very first connect is refused and its event arrives with this run's number.
        rig.runtime.block_on(prove(&rig.gate, &rig.witness, &run.id, Some(gateway))).unwrap();
        rig.end(&run);
    }
    rig.nothing_left(before);
    let run = rig.run();
    fs::remove_file(rig.instance.bpffs.join("run").join(run.id.as_str()).join("connect4")).unwrap();
    let refused = rig.runtime.block_on(prove(&rig.gate, &rig.witness, &run.id, None)).unwrap_err();
    assert!(matches!(&refused, SelfTestError::Missing(what) if what == "connect4"), "{refused}");
    rig.end(&run);
}

fn no_object(rig: &Rig) {
    let lib = tempfile::tempdir().unwrap();
    let name = format!("{}y", rig.instance.name);
    let instance = Instance { lib_dir: lib.path().to_owned(), ..Instance::standard(name.parse().unwrap()) };
    let missing = Gate::open(&instance).unwrap_err().to_string();
    assert!(missing.contains("cargo xtask build"), "{missing}");
    fs::write(lib.path().join("gate.bpf.o"), b"not an object").unwrap();
    assert!(Gate::open(&instance).is_err());
    assert!(Gate::adopt(&instance).is_err());
    let _ = fs::remove_dir_all(&instance.bpffs);
}

fn removed_pin(rig: &Rig) {
    let run = rig.run();
    let pins = rig.instance.bpffs.join("run").join(run.id.as_str());
    assert!(rig.gate.verify(&run.id).unwrap().is_empty(), "control");
    for hook in ["connect4", "sock_release", "skb_egress"] {
        fs::remove_file(pins.join(hook)).unwrap();
        assert_eq!(rig.gate.verify(&run.id).unwrap(), [hook]);
        rig.gate.reattach(&run.id).unwrap();
        assert!(rig.gate.verify(&run.id).unwrap().is_empty());
    }
    assert!(rig.act(&run, "tcp 192.0.2.1:443")[0].is(Errno::PERM));
    rig.end(&run);
}

fn garbage(rig: &Rig) {
    let (live, dead) = (rig.run(), rig.run());
    let pins = |id: &strait_contract::ids::RunId| rig.instance.bpffs.join("run").join(id.as_str());
    assert!(pins(&dead.id).exists());
    rig.gate.collect_garbage(std::slice::from_ref(&live.id)).unwrap();
    assert!(!pins(&dead.id).exists() && !dead.cgroup.exists());
    assert!(pins(&live.id).exists() && rig.gate.verify(&live.id).unwrap().is_empty());
    assert_eq!(rig.act(&live, "tcp 10.203.0.1:80")[0].errno, 0);
    for run in [live, dead] {
        rig.end(&run);
    }
}

fn killed(rig: &Rig) {
    let run = rig.run();
    let start = Instant::now();
    let (last, at) = std::thread::scope(|scope| {
        let stream = scope.spawn(|| rig.act(&run, "stream 10.203.0.1:80 3"));
        std::thread::sleep(Duration::from_millis(500));
        rig.gate.kill(&run.id).unwrap();
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        (stream.join().unwrap()[0].text.parse::<u64>().unwrap(), at)
    });
    assert!(start.elapsed() < Duration::from_secs(2), "it stopped early");
    let late = Duration::from_micros(last).saturating_sub(at);
    assert!(late < Duration::from_millis(50), "last echo {late:?} after the kill");
    let live = at.saturating_sub(Duration::from_micros(last));
    assert!(live < Duration::from_millis(200), "control: it echoed until then ({live:?})");
    let got = rig.act(&run, "tcp 10.203.0.1:80;tcp 127.0.0.1:9;udp-send 10.203.0.1:53");
    assert!(got.iter().all(|outcome| outcome.is(Errno::PERM)), "{got:?}");
    assert!(rig.events(&run).iter().any(|event| event.code == Some(Code::KernelKilled)));
    rig.end(&run);
}

/// Prints what the hooks and the start of a run cost; the bounds are loose, as the machine is shared.
fn costs(rig: &Rig) {
    let switch = "/proc/sys/kernel/bpf_stats_enabled";
    let run = rig.run();
    fs::write(switch, "1").unwrap();
    let phases = [
        ("allowed", "churn 198.18.0.3:443 2000"),
        ("allowed, without a packet", "udp-churn 10.203.0.1:53 20000"),
        ("refused again", "flood 192.0.2.1:443 20000"),
        ("refused first", "flood-ports 192.0.2.1:0 1000"),
    ];
    for (phase, action) in phases {
        let before = rig.gate.costs().unwrap();
        rig.act(&run, action);
        let after = rig.gate.costs().unwrap();
        for ((name, runs, time), (_, earlier_runs, earlier_time)) in after.into_iter().zip(before) {
            let runs = runs - earlier_runs;
            // A hook that hardly ran has measured the cold cache.
            if runs >= 1000 {
                let mean = (time - earlier_time) / runs;
                println!("  {phase}: {name}: {mean} ns over {runs} runs");
                assert!(mean < 4_000, "{name}: {mean} ns");
            }
        }
    }
    fs::write(switch, "0").unwrap();
    rig.end(&run);
    let mut steps = [Duration::ZERO; 3];
    const ROUNDS: u32 = 10;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let (run, admission) = rig.prepare(Shape::default());
        let prepared = start.elapsed();
        rig.gate.admit(&admission).unwrap();
        let admitted = start.elapsed();
        netns::raise(&rig.instance, &run.netns, &admission.veth).unwrap();
        steps[0] += prepared;
        steps[1] += admitted - prepared;
        steps[2] += start.elapsed() - admitted;
        rig.end(&run);
    }
    let [prepare, admit, raise] = steps.map(|sum| sum / ROUNDS);
    println!("  a run: namespace and veth {prepare:?}, admit {admit:?}, raise {raise:?}");
}
