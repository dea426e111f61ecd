//! Live diagnosis: really tries to leak, from a run of its own and from inside each running one.
//!
//! Works beside a running agent: it adopts the gate that's there and loads or replaces nothing. A run that
//! can't reach anything but has lost its kernel programs is held by topology alone; that's a failure here all
//! the same.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
};

use rustix::io::Errno;
use strait_contract::{ids::RunId, message::GATEWAY_PORT};

use crate::{
    gate::{Admission, Gate, GateError, Quota},
    instance::Instance,
    netns,
    preflight::{self, Finding, Report},
    selftest::{CANARY, Place, SelfTestError},
};

/// Looks at everything. `log` is a folder that records must be writable in.
pub fn examine(instance: &Instance, log: Option<&Path>) -> Report {
    let mut report = preflight::check(instance);
    let findings = &mut report.findings;
    findings.push(forwarding(instance));
    findings.push(listeners(instance));
    if let Some(log) = log {
        findings.push(writable(log));
    }
    match Gate::adopt(instance) {
        Ok(gate) => {
            findings.push(Finding::ok("gate", "the kernel programs are loaded and pinned"));
            let missing = gate.verify_listeners(&gate.listeners_cgroup());
            findings.push(links("listeners", &missing));
            findings.push(own_run(instance, &gate));
            for run in runs(instance) {
                findings.extend(running(instance, &gate, &run));
            }
        }
        Err(error) => {
            findings.push(Finding::failed("gate", error.to_string(), "restart the agent"));
            for run in runs(instance) {
                let fix = "stop the run, or restart the agent";
                findings.push(Finding::failed(&format!("run {run}"), "its kernel programs are gone", fix));
            }
        }
    }
    report
}

fn forwarding(instance: &Instance) -> Finding {
    let fix = "set it to 0 in the strait namespace, or restart the agent";
    match netns::forwarding(instance) {
        Ok(on) if on.is_empty() => Finding::ok("forwarding", "off in the strait namespace"),
        Ok(on) => Finding::failed("forwarding", format!("on: {}", on.join(", ")), fix),
        Err(error) => Finding::failed("forwarding", error.to_string(), "start the agent"),
    }
}

/// Whether the gateway listens: state 0A of the local port in `/proc/net/tcp`.
fn listeners(instance: &Instance) -> Finding {
    let text = netns::within(&instance.strait_netns(), || fs::read_to_string("/proc/thread-self/net/tcp"));
    let fix = "start the gateway";
    match text {
        Ok(Ok(text)) => {
            let missing: Vec<String> = [80_u16, 53, 15001]
                .iter()
                .filter(|port| !text.lines().any(|line| listens(line, **port)))
                .map(u16::to_string)
                .collect();
            if missing.is_empty() {
                Finding::ok("listeners", "the gateway listens")
            } else {
                Finding::failed("listeners", format!("nobody listens on port {}", missing.join(", ")), fix)
            }
        }
        Ok(Err(error)) => Finding::failed("listeners", error.to_string(), fix),
        Err(error) => Finding::failed("listeners", error.to_string(), fix),
    }
}

fn listens(line: &str, port: u16) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let local = words.next().unwrap_or("");
    local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some("0A")
}

fn writable(folder: &Path) -> Finding {
    let probe = folder.join(".doctor");
    let result = fs::write(&probe, "probe").and_then(|()| fs::remove_file(&probe));
    match result {
        Ok(()) => Finding::ok("log", format!("`{}` can be written", folder.display())),
        Err(error) => {
            let detail = format!("`{}`: {error}", folder.display());
            Finding::failed("log", detail, "free space or make it writable; until then every call is refused")
        }
    }
}

fn links(name: &str, missing: &[&str]) -> Finding {
    if missing.is_empty() {
        Finding::ok(name, "every hook is attached")
    } else {
        let detail = format!("missing: {}; held by topology alone", missing.join(", "));
        Finding::failed(name, detail, "restart the agent, which attaches them again")
    }
}

/// Names of the namespaces that are pinned for runs.
fn runs(instance: &Instance) -> Vec<RunId> {
    let strait = instance.strait_netns();
    let folder = strait.parent().unwrap_or(&instance.run_dir).to_owned();
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    names
        .filter(|entry| entry.path() != strait)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// A running run: its links, and what it can reach.
fn running(instance: &Instance, gate: &Gate, run: &RunId) -> Vec<Finding> {
    let name = format!("run {run}");
    let place = Place { number: 0, cgroup: gate.cgroup_of(run), netns: instance.run_netns(run.as_str()) };
    vec![links(&name, &gate.verify_pins(run)), reach(&format!("{name}: leak"), &place, instance.gateway())]
}

/// Tries to leak from where a run lives.
fn reach(name: &str, place: &Place, gateway: Ipv4Addr) -> Finding {
    // The transparent port dialled by hand, and an address outside.
    let by_hand = SocketAddrV4::new(gateway, 22);
    match (place.dial(CANARY), place.dial(by_hand)) {
        (Ok(Err(Errno::PERM)), Ok(Err(Errno::PERM))) => Finding::ok(name, "refused by the kernel programs"),
        (Ok(Err(first)), Ok(Err(_))) => {
            let detail = format!("nothing left ({first}), but not by the kernel programs");
            Finding::failed(name, detail, "restart the agent, which attaches them again")
        }
        (Err(error), _) | (_, Err(error)) => {
            Finding::failed(name, error.to_string(), "restart the agent; if it stays, stop the run")
        }
        _ => Finding::failed(name, "A CONNECTION GOT OUT", "stop every run, then reinstall"),
    }
}

/// A run made for the purpose: plumbed, admitted, probed, removed.
fn own_run(instance: &Instance, gate: &Gate) -> Finding {
    const NAME: &str = "probe run";
    let fix = "see the service's log; no run can start before this is well";
    let process = std::process::id();
    let Ok(run) = format!("doctor-{process}").parse::<RunId>() else {
        return Finding::failed(NAME, "its name isn't valid", fix);
    };
    let index = 900_000 + process % 100_000;
    let result = probe(instance, gate, &run, index);
    let cgroup = gate.cgroup_of(&run);
    let cleaned = gate
        .release(&run)
        .map(drop)
        .and_then(|()| netns::unplumb(instance, index).map_err(GateError::from))
        .and_then(|()| netns::remove_run(instance, &run).map_err(GateError::from));
    gate.collect_garbage_of(&cgroup);
    match (result, cleaned) {
        (Ok(()), Ok(())) => {
            Finding::ok(NAME, "made, refused by the kernel programs, reached the gateway, removed")
        }
        (Err(error), _) => Finding::failed(NAME, error.to_string(), fix),
        (Ok(()), Err(error)) => Finding::failed(NAME, error.to_string(), fix),
    }
}

fn probe(instance: &Instance, gate: &Gate, run: &RunId, index: u32) -> Result<(), SelfTestError> {
    let netns = netns::create_run(instance, run).map_err(GateError::from)?;
    let addr = spare_address(instance);
    let veth = netns::plumb(instance, &netns, addr, index).map_err(GateError::from)?;
    gate.admit(&Admission {
        run: run.clone(),
        number: u64::MAX - u64::from(index),
        netns_cookie: netns.cookie,
        veth: veth.clone(),
        ranges: Vec::new(),
        cgroup: gate.cgroup_of(run),
        transparent: true,
        quota: Quota::default(),
    })?;
    netns::raise(instance, &netns, &veth).map_err(GateError::from)?;
    let place = gate.place_of(run)?;
    match place.dial(CANARY)? {
        Err(Errno::PERM) => {}
        Err(errno) => return Err(SelfTestError::NotRefused { got: io::Error::from(errno).to_string() }),
        Ok(()) => return Err(SelfTestError::NotRefused { got: "success".to_owned() }),
    }
    if gate.stats(run)?.delivered == 0 {
        return Err(SelfTestError::Untold);
    }
    let gateway = SocketAddrV4::new(instance.gateway(), GATEWAY_PORT);
    place.dial(gateway)?.map_err(|errno| SelfTestError::Gateway { gateway, source: errno.into() })
}

/// The last address of the pool but the broadcast one, which runs are given last.
fn spare_address(instance: &Instance) -> Ipv4Addr {
    let host_bits = u32::MAX.checked_shr(u32::from(instance.pool.prefix)).unwrap_or(0);
    Ipv4Addr::from((u32::from(instance.pool.addr) | host_bits).wrapping_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_line_is_told_from_a_connected_one() {
        let listening = "   0: 0100CB0A:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1";
        let connected = "   1: 0100CB0A:0050 0203CB0A:D431 01 00000000:00000000 00:00000000 00000000 0 0 1";
        assert!(listens(listening, 80) && !listens(listening, 53) && !listens(connected, 80));
    }

    #[test]
    fn the_spare_address_is_the_pools_last() {
        let instance = Instance::standard("strait".parse().unwrap());
        assert_eq!(spare_address(&instance), Ipv4Addr::new(10, 203, 255, 254));
    }
}
