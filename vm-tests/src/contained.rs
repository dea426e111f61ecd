//! Containment on this kernel: what the full tests claim of the newest one, in short. Numbers are those of the
//! containment tests.
//!
//! The canary's address belongs to the `strait` namespace itself, which a real one never has: whatever passes the
//! programs and the filter arrives, without a router that would have to forward it.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use strait_abi::verdict::Hook;
use strait_agent::{instance::Instance, netns};
use strait_contract::code::Code;

use crate::{
    claims::{ADDR, Claim, Rig},
    probe::{self, Outcome},
};

pub(crate) const CLAIMS: &[Claim] = &[
    ("02_tcp_to_another_address_is_refused_and_told", tcp),
    ("04_tcp_over_ipv6_is_refused_and_told", tcp6),
    ("06_a_datagram_is_refused_and_told", datagram),
    ("10_dns_goes_to_the_gateway_whatever_server_is_asked", dns),
    ("13_raw_sockets_are_refused_to_root", raw),
    ("16_every_other_family_is_refused_to_root", families),
    ("22_loopback_is_the_runs_own", loopback),
    ("14_a_forged_source_is_dropped_by_the_filter", forged),
    // Last: it takes the links away.
    ("with_every_link_detached_nothing_leaves", detached),
];

const CANARY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Connections and datagrams that the canary has got.
static ARRIVED: AtomicU32 = AtomicU32::new(0);
/// Datagrams that the gateway's DNS port has got.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// Puts up the canary, and a name server that sends back what it gets.
///
/// # Errors
/// If an address or port can't be had.
pub(crate) fn serve(instance: &Instance) -> Result<()> {
    let gateway = instance.gateway();
    let (tcp, udp, dns) = netns::within(&instance.strait_netns(), || {
        run("/bin/ip addr add 192.0.2.1/32 dev lo")?;
        let sockets = (
            TcpListener::bind((CANARY, 443))?,
            UdpSocket::bind((CANARY, 9999))?,
            UdpSocket::bind((gateway, 53))?,
        );
        anyhow::Ok(sockets)
    })??;
    thread::spawn(move || {
        for _ in tcp.incoming().flatten() {
            ARRIVED.fetch_add(1, Ordering::SeqCst);
        }
    });
    thread::spawn(move || echo(&udp, &ARRIVED));
    thread::spawn(move || echo(&dns, &ASKED));
    Ok(())
}

fn echo(socket: &UdpSocket, count: &AtomicU32) {
    let mut buffer = [0; 64];
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        count.fetch_add(1, Ordering::SeqCst);
        // Whoever asked may be gone.
        let _ = socket.send_to(buffer.get(..len).unwrap_or_default(), from);
    }
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let output = Command::new(words.next().context("no program")?).args(words).output()?;
    ensure!(output.status.success(), "`{line}`: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

impl Rig {
    /// As a process of the run.
    fn inside(&self, action: &str) -> Result<Outcome> {
        probe::act(&self.netns.path, Some(&self.gate.cgroup_of(&self.run)), action)
    }

    /// In the run's namespace, beyond its cgroup.
    fn beside(&self, action: &str) -> Result<Outcome> {
        probe::act(&self.netns.path, None, action)
    }

    /// In the canary's namespace, where Strait refuses nothing: the positive control.
    fn outside(&self, action: &str) -> Result<Outcome> {
        probe::act(&self.instance.strait_netns(), None, action)
    }

    fn refused(&self, action: &str, hook: Hook, code: Code) -> Result<()> {
        let arrived = ARRIVED.load(Ordering::SeqCst);
        // What was told before isn't of this action.
        self.told();
        let outcome = self.inside(action)?;
        ensure!(outcome == Err(Errno::PERM), "`{action}` ended with {outcome:?}");
        self.saw(action, |event| event.hook == Some(hook) && event.code == Some(code))?;
        ensure!(ARRIVED.load(Ordering::SeqCst) == arrived, "`{action}` arrived");
        Ok(())
    }
}

/// The control: the same action arrives where nothing refuses it.
fn arrives(rig: &Rig, action: &str) -> Result<()> {
    let before = ARRIVED.load(Ordering::SeqCst);
    let outcome = rig.outside(action)?;
    ensure!(outcome.is_ok(), "control: `{action}` ended with {outcome:?}");
    thread::sleep(Duration::from_millis(50));
    ensure!(ARRIVED.load(Ordering::SeqCst) > before, "control: `{action}` didn't arrive");
    Ok(())
}

fn tcp(rig: &Rig) -> Result<()> {
    arrives(rig, "tcp 192.0.2.1:443")?;
    rig.refused("tcp 192.0.2.1:443", Hook::Connect4, Code::KernelDestination)
}

fn tcp6(rig: &Rig) -> Result<()> {
    let control = rig.beside("tcp [2001:db8::1]:443")?;
    ensure!(control != Err(Errno::PERM), "control: without the programs it isn't EPERM");
    rig.refused("tcp [2001:db8::1]:443", Hook::Connect6, Code::KernelDestination)?;
    rig.refused("tcp [::ffff:192.0.2.1]:443", Hook::Connect6, Code::KernelDestination)
}

fn datagram(rig: &Rig) -> Result<()> {
    arrives(rig, "udp 192.0.2.1:9999")?;
    rig.refused("udp 192.0.2.1:9999", Hook::Sendmsg4, Code::KernelDestination)?;
    rig.refused("udp [2001:db8::1]:9999", Hook::Sendmsg6, Code::KernelDestination)
}

fn dns(rig: &Rig) -> Result<()> {
    let control = rig.beside("udp 8.8.8.8:53")?;
    ensure!(control == Err(Errno::NETUNREACH), "control: without the programs there is no way: {control:?}");
    let outcome = rig.inside("udp 8.8.8.8:53")?;
    ensure!(outcome == Ok("8.8.8.8:53.".to_owned()), "it ended with {outcome:?}");
    Ok(())
}

fn raw(rig: &Rig) -> Result<()> {
    ensure!(rig.beside("socket 2 3 1")?.is_ok(), "control: root may have one where the programs aren't");
    rig.refused("socket 2 3 1", Hook::SockCreate, Code::KernelSocket)?;
    ensure!(rig.inside("socket 2 1 6")?.is_ok(), "control: TCP is there");
    Ok(())
}

/// `lsm_cgroup`: key, packet, RDS, CAN, TIPC, Bluetooth, alg, vsock, KCM, qipcrtr, SMC, XDP, in their numbers.
const FAMILIES: [u16; 12] = [15, 17, 21, 29, 30, 31, 38, 40, 41, 42, 43, 44];

fn families(rig: &Rig) -> Result<()> {
    ensure!(rig.gate.has_lsm(), "this kernel was booted with `lsm=bpf` and yet has no BPF LSM");
    ensure!(rig.beside("socket 17 3 0")?.is_ok(), "control: root may have a packet socket beside the run");
    for family in FAMILIES {
        rig.refused(&format!("socket {family} 3 0"), Hook::LsmSocket, Code::KernelSocket)?;
    }
    for open in ["socket 1 1 0", "socket 16 3 0"] {
        ensure!(rig.inside(open)?.is_ok(), "control: `{open}` is for everyone");
    }
    Ok(())
}

fn loopback(rig: &Rig) -> Result<()> {
    let outcome = rig.inside("loopback")?;
    ensure!(outcome.is_ok(), "it ended with {outcome:?}");
    Ok(())
}

fn forged(rig: &Rig) -> Result<()> {
    let to = format!("{}:53", rig.instance.gateway());
    let before = ASKED.load(Ordering::SeqCst);
    let sent = rig.beside(&format!("datagram {ADDR} {to}"))?;
    ensure!(sent.is_ok(), "control: {sent:?}");
    thread::sleep(Duration::from_millis(200));
    ensure!(ASKED.load(Ordering::SeqCst) == before + 1, "control: the run's own source passes");
    rig.told();
    let sent = rig.beside(&format!("datagram 10.203.0.99 {to}"))?;
    ensure!(sent.is_ok(), "{sent:?}");
    rig.saw("a forged source", |event| {
        event.hook == Some(Hook::Packet) && event.code == Some(Code::PacketSource)
    })?;
    ensure!(ASKED.load(Ordering::SeqCst) == before + 1, "a forged source arrived");
    Ok(())
}

fn detached(rig: &Rig) -> Result<()> {
    fs::remove_dir_all(rig.instance.bpffs.join("run").join(rig.run.as_str()))?;
    // The kernel frees a link some time after its last pin is gone; until then it refuses.
    let mut tries = 0;
    while rig.inside("tcp 192.0.2.1:443")? == Err(Errno::PERM) {
        tries += 1;
        ensure!(tries < 100, "the links are still there");
        thread::sleep(Duration::from_millis(50));
    }
    let arrived = ARRIVED.load(Ordering::SeqCst);
    let outcome = rig.inside("tcp 192.0.2.1:443")?;
    ensure!(outcome == Err(Errno::NETUNREACH), "there is no route: {outcome:?}");
    netns::within(&rig.netns.path, || run("/bin/ip route add default via 10.203.0.1 dev eth0 onlink"))??;
    for action in ["tcp 192.0.2.1:443", "udp 192.0.2.1:9999"] {
        let outcome = rig.inside(action)?;
        ensure!(outcome.is_err(), "`{action}` was answered past the filter");
    }
    ensure!(ARRIVED.load(Ordering::SeqCst) == arrived, "something passed the filter");
    let remove = || run("/bin/tc filter del dev st1 ingress");
    netns::within(&rig.instance.strait_netns(), remove)??;
    let outcome = rig.inside("tcp 192.0.2.1:443")?;
    ensure!(outcome.is_ok(), "control: without the filter it arrives: {outcome:?}");
    Ok(())
}
