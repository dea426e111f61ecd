//! A process of the run, or of a namespace without Strait: does one thing and says what came of it.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    num::NonZeroU32,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, Protocol, SendFlags, SocketType, connect, sendto, socket,
        sockopt::{Timeout, set_socket_timeout},
    },
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

/// What a probe is to do.
const ACTION: &str = "STRAIT_PROBE";
/// Where it is to be: namespace, then cgroup or nothing.
const PLACE: &str = "STRAIT_PROBE_PLACE";
/// `IPPROTO_RAW`: the sender writes the IP header.
const RAW: u32 = 255;
const PATIENCE: Duration = Duration::from_millis(700);

/// What came of an action: what it saw, or the error.
pub(crate) type Outcome = Result<String, Errno>;

/// Acts in a namespace, as a member of a cgroup if there is one.
///
/// # Errors
/// If the probe doesn't get there.
pub(crate) fn act(netns: &Path, cgroup: Option<&Path>, action: &str) -> Result<Outcome> {
    let place = format!("{} {}", netns.display(), cgroup.unwrap_or_else(|| Path::new("")).display());
    let mut probe = Command::new("/proc/self/exe");
    let output = probe.env(ACTION, action).env(PLACE, place).output().context("no probe")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let (errno, text) = said.trim_end().split_once(' ').with_context(|| {
        format!("the probe `{action}` said `{said}`{}", String::from_utf8_lossy(&output.stderr))
    })?;
    Ok(match errno.parse()? {
        0 => Ok(text.to_owned()),
        errno => Err(Errno::from_raw_os_error(errno)),
    })
}

/// Does what this process was started for; false if it isn't a probe.
pub(crate) fn asked() -> bool {
    let (Ok(action), Ok(place)) = (std::env::var(ACTION), std::env::var(PLACE)) else { return false };
    match enter(&place).and_then(|()| perform(&action)) {
        Ok(Ok(text)) => println!("0 {text}."),
        Ok(Err(errno)) => println!("{} {errno}", errno.raw_os_error()),
        Err(error) => println!("{error:#}"),
    }
    true
}

fn enter(place: &str) -> Result<()> {
    let (netns, cgroup) = place.split_once(' ').context("no place")?;
    if !cgroup.is_empty() {
        fs::write(Path::new(cgroup).join("cgroup.procs"), "0").context("entering the cgroup")?;
    }
    let netns = fs::File::open(netns).context("opening the namespace")?;
    Ok(move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn perform(action: &str) -> Result<Outcome> {
    let words: Vec<&str> = action.split_whitespace().collect();
    Ok(match words.as_slice() {
        ["tcp", to] => tcp(to.parse()?),
        ["udp", to] => udp(to.parse()?),
        ["socket", family, kind, proto] => {
            create(family.parse()?, kind.parse()?, proto.parse()?).map(|_| String::new())
        }
        ["loopback"] => loopback(),
        ["datagram", src, to] => datagram(src.parse()?, to.parse()?),
        _ => bail!("no such action: {action}"),
    })
}

fn tcp(to: SocketAddr) -> Outcome {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let tcp = socket(family, SocketType::STREAM, None)?;
    set_socket_timeout(&tcp, Timeout::Send, Some(PATIENCE))?;
    connect(&tcp, &to)?;
    Ok(String::new())
}

/// Sends and says who answered.
fn udp(to: SocketAddr) -> Outcome {
    let any: SocketAddr = if to.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let exchange = || {
        let udp = UdpSocket::bind(any)?;
        udp.send_to(b"ping", to)?;
        udp.set_read_timeout(Some(PATIENCE))?;
        udp.recv_from(&mut [0; 16]).map(|(_, from)| from.to_string())
    };
    exchange().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn create(family: u16, kind: u32, proto: u32) -> Result<OwnedFd, Errno> {
    let proto = NonZeroU32::new(proto).map(Protocol::from_raw);
    socket(AddressFamily::from_raw(family), SocketType::from_raw(kind), proto)
}

fn loopback() -> Outcome {
    let call = || TcpListener::bind("127.0.0.1:0")?.local_addr().and_then(TcpStream::connect).map(drop);
    call().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(String::new())
}

/// A datagram whose source is whatever the sender says.
fn datagram(src: Ipv4Addr, to: SocketAddrV4) -> Outcome {
    let raw = create(2, 3, RAW)?;
    // Version and length of the header; the kernel writes its other lengths and the checksum. 17 is UDP.
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend(src.octets());
    packet.extend(to.ip().octets());
    packet.extend(40_000_u16.to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(12_u16.to_be_bytes());
    // Checksum 0: none.
    packet.extend([0, 0]);
    packet.extend(b"ping");
    sendto(&raw, &packet, SendFlags::empty(), &to)?;
    Ok(String::new())
}
