//! One kernel event as a record.

use strait_abi::verdict::{Hook, Verdict};
use strait_contract::{
    code::Code,
    ids::{RecordId, RunId},
    record::{Activity, Body, Decision, Destination, Kind, Record, Source},
    run::Process,
};

use super::Processes;
use crate::{firewall::KernelEvent, log};

/// Said of the canary that proves a run to be held.
const SELF_TEST: &str = "Strait's own self-test before the run's first process: refused, as it must be";

/// Events that found no room, as a record of their run.
pub fn lost(count: u64, run: Option<RunId>) -> Record {
    let reason = format!("{count} kernel events found no room on their way to the log");
    let activity =
        Activity { reason: Some(reason), count, ..Activity::new(Source::Kernel, Kind::Lost, Decision::Deny) };
    log::record(run, Body::Activity(Box::new(activity)))
}

/// What the kernel saw, as a record of the run it names; without a run it belongs to the host's chain.
/// Reads `/proc`: not for an async thread under load.
pub fn seen(event: KernelEvent, run: Option<RunId>, processes: &Processes) -> Record {
    let decision = match event.verdict {
        Verdict::Deny => Decision::Deny,
        _ => Decision::Allow,
    };
    let process = event.caller.as_ref().map(|caller| Process {
        pid: caller.tgid,
        uid: caller.uid,
        comm: caller.comm.clone(),
        exe: processes.exe(caller.tgid).map(|exe| exe.to_string()),
        digest: None,
    });
    let process = process.map(Process::for_record);
    let reason = if event.awaited { Some(SELF_TEST) } else { event.code.and_then(explain) };
    let activity = Activity {
        code: event.code,
        reason: reason.map(str::to_owned),
        dst: Destination {
            name: None,
            addr: event.dst.map(|dst| dst.ip()),
            port: event.dst.map(|dst| dst.port()),
        },
        proto: proto(event.proto),
        process,
        cookie: event.cookie,
        count: event.count,
        ..Activity::new(Source::Kernel, kind(event.hook), decision)
    };
    Record {
        id: RecordId::now(),
        run,
        phase: None,
        ts_ms: log::now_ms(),
        boot_ns: event.boot_ns,
        body: Body::Activity(Box::new(activity)),
    }
}

fn kind(hook: Option<Hook>) -> Kind {
    match hook {
        Some(Hook::SockCreate | Hook::LsmSocket) => Kind::Socket,
        Some(Hook::Packet | Hook::SkbEgress | Hook::SkbIngress) => Kind::Packet,
        _ => Kind::Connect,
    }
}

fn proto(number: u8) -> String {
    match number {
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        other => other.to_string(),
    }
}

/// What a kernel refusal means, for people.
fn explain(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::KernelDestination => {
            "a run reaches names, not addresses: look the name up, or list the range in `agents.NAME.addresses`"
        }
        Code::KernelPort => "the gateway offers this port to nobody",
        Code::KernelNamespace => "the network namespace isn't that of a live run",
        Code::KernelSocket => "runs have TCP and UDP over IPv4 and IPv6 only",
        Code::KernelQuic => "QUIC can't be read; clients fall back to TCP",
        Code::KernelQuota => "the run has too many flows open",
        Code::KernelKilled => "the run was killed",
        Code::PacketMalformed => "the packet isn't plain IPv4: a fragment, options or a VLAN tag",
        Code::PacketSource => "the packet's source isn't the run's",
        Code::PacketDestination => "the packet's destination isn't offered",
        _ => return None,
    })
}
