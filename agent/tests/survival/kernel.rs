//! What the kernel programs counted and kept, across the end of a run and of a gateway.

use std::fs;

use aya::maps::{HashMap, MapData};

use super::site::Site;

/// Refusals that differ in their port, each of them several times: first events and folded repeats.
const REFUSALS: &str = "import socket\nfor n in range(3000):\n  s = socket.socket()\n  try: s.connect(('192.0.2.1', 1000 + n % 20))\n  except PermissionError: pass\n  s.close()\n";

/// A29.
#[test]
fn a_runs_last_repeats_are_on_its_own_record_to_the_unit() {
    let mut site = Site::new();
    fs::write(site.work().join("refusals.py"), REFUSALS).unwrap();
    // The last refusal is microseconds before the end: nothing but the end of the run makes anyone count.
    site.start_run("exec python3 refusals.py");
    site.until("the run has ended", |site| site.records().contains("run.ended"));
    let mut seen = 0;
    for line in site.records().lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let port = find(&record, "port").and_then(serde_json::Value::as_u64);
        if port.is_some_and(|port| (1000..1020).contains(&port)) {
            seen += find(&record, "count").and_then(serde_json::Value::as_u64).unwrap_or(1);
        }
        if line.contains("run.ended") {
            assert_eq!(seen, 3000, "before the end: {}", site.records());
            // The self-test's canary is one more.
            assert!(line.contains("\"3001\""), "{line}");
        }
    }
    assert_eq!(seen, 3000, "none after the end: {}", site.records());
}

/// The value of this key, however deep.
fn find<'a>(value: &'a serde_json::Value, key: &str) -> Option<&'a serde_json::Value> {
    match value {
        serde_json::Value::Object(fields) => {
            fields.get(key).or_else(|| fields.values().find_map(|field| find(field, key)))
        }
        _ => None,
    }
}

/// Connects to the gateway, whose address is the name server's, and says so.
const CONNECTIONS: &str = "import re, socket, time\nname = re.search(r'nameserver (\\S+)', open('/etc/resolv.conf').read()).group(1)\nfor n in range(5): socket.create_connection((name, 80)).close()\nopen('connected', 'w').write('yes')\ntime.sleep(60)\n";

#[test]
fn flows_that_a_dead_gateway_never_accepted_are_deleted() {
    let mut site = Site::new();
    fs::write(site.work().join("connections.py"), CONNECTIONS).unwrap();
    let gateway = site.gateway().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(gateway).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    site.start_run("exec python3 connections.py");
    site.until("it has connected", |site| site.lines("connected") == ["yes"]);
    // The start's own call of the gateway is the sixth.
    assert_eq!(flows(&site), 6, "control: connections that nobody accepted");
    site.kill_gateway();
    site.until("their flows are gone", |site| flows(site) == 0);
}

fn flows(site: &Site) -> usize {
    let map = MapData::from_pin(site.bpffs().join("map/FLOW")).unwrap();
    let map = aya::maps::Map::from_map_data(map).unwrap();
    HashMap::<_, [u8; 8], [u8; 56]>::try_from(map).unwrap().keys().flatten().count()
}
