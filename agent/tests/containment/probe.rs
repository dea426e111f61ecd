//! What a probe does, as a process of a run or outside: one action a line of `;`-separated words in
//! `STRAIT_PROBE`, one outcome a line on stdout.
#![expect(unsafe_code, reason = "raw sockets, io_uring and pre_exec have no safe wrapper")]

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpStream, UdpSocket},
    os::{
        fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use nix::libc;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, SendFlags, SocketType, connect, sendto, socket,
        sockopt::{Timeout, set_socket_timeout},
    },
};
use strait_contract::flow::{FLOW_LEN, FLOW_LEVEL, FLOW_OPTION, Flow};

/// What came of one action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// 0, or the error number.
    pub(crate) errno: i32,
    /// How long it took.
    pub(crate) took: Duration,
    /// What it saw.
    pub(crate) text: String,
}

impl Outcome {
    pub(crate) fn parse(line: &str) -> Self {
        let mut parts = line.splitn(3, ' ');
        let mut number = || parts.next().and_then(|part| part.parse::<i64>().ok());
        let (errno, micros) = (number(), number());
        let (Some(errno), Some(micros)) = (errno, micros) else { panic!("a probe said `{line}`") };
        let text = parts.next().unwrap_or("").to_owned();
        Self {
            errno: i32::try_from(errno).unwrap(),
            took: Duration::from_micros(u64::try_from(micros).unwrap()),
            text,
        }
    }

    pub(crate) fn is(&self, errno: Errno) -> bool {
        self.errno == errno.raw_os_error()
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.is(Errno::PERM) && self.took < Duration::from_millis(200)
    }
}

/// The action that this process was started for.
pub(crate) fn asked() -> Option<String> {
    std::env::var("STRAIT_PROBE").ok()
}

/// Runs `act` between fork and exec.
pub(crate) fn before_exec(
    command: &mut Command,
    act: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: the rig's closures make system calls only.
    unsafe { command.pre_exec(act) };
}

pub(crate) fn act(actions: &str) -> ExitCode {
    match actions {
        "gateway" => crate::server::gateway(),
        "internet" => crate::server::internet(),
        _ => {}
    }
    for action in actions.split(';') {
        let words: Vec<&str> = action.split_whitespace().collect();
        let start = Instant::now();
        let outcome = perform(&words);
        let took = start.elapsed().as_micros();
        let (errno, text) = match outcome {
            Ok(text) => (0, text),
            Err(error) => (error.raw_os_error().unwrap_or(-1), error.to_string()),
        };
        println!("{errno} {took} {}", text.replace('\n', " "));
    }
    ExitCode::SUCCESS
}

fn perform(words: &[&str]) -> io::Result<String> {
    match words {
        ["tcp", to] => tcp(to.parse().unwrap()),
        ["tcp-mapped", to] => tcp_mapped(to.parse().unwrap()),
        ["tfo", to] => tfo(to.parse().unwrap()),
        ["udp-connect", to] => udp_connect(to.parse().unwrap()),
        ["udp-send", to] => udp_send(to.parse().unwrap()),
        ["udp-mapped", to] => udp_mapped(to.parse().unwrap()),
        ["udp-sendmsg", to, count] => udp_sendmmsg(to.parse().unwrap(), count.parse().unwrap()),
        ["udp-after-connect", first, then] => {
            udp_after_connect(first.parse().unwrap(), then.parse().unwrap())
        }
        ["socket", family, kind, proto] => {
            raw_socket(family.parse().unwrap(), kind.parse().unwrap(), proto.parse().unwrap())
                .map(|_| String::new())
        }
        ["frame", rest @ ..] => frame(rest),
        ["nested", cgroup, to] => nested(cgroup, to.parse().unwrap()),
        ["unshare", to] => {
            // SAFETY: no descriptor table is unshared.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?;
            tcp(to.parse().unwrap())
        }
        ["setns", path, to] => {
            let file = std::fs::File::open(path)?;
            rustix::thread::move_into_link_name_space(file.as_fd(), None)?;
            tcp(to.parse().unwrap())
        }
        ["inherited", fd, to] => inherited(fd.parse().unwrap(), to.parse().unwrap()),
        ["io_uring", flags, to] => crate::ring::connect(flags.parse().unwrap(), to.parse().unwrap()),
        ["flood", to, count] => flood(to.parse().unwrap(), count.parse().unwrap()),
        ["flood-ports", to, count] => flood_ports(to.parse().unwrap(), count.parse().unwrap()),
        ["open-many", to, count] => open_many(to.parse().unwrap(), count.parse().unwrap()),
        ["churn", to, count] => {
            for _ in 0..count.parse::<u32>().unwrap() {
                tcp(to.parse().unwrap())?;
            }
            Ok(String::new())
        }
        ["udp-churn", to, count] => {
            for _ in 0..count.parse::<u32>().unwrap() {
                UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?.connect(to)?;
            }
            Ok(String::new())
        }
        ["stream", to, seconds] => stream(to.parse().unwrap(), seconds.parse().unwrap()),
        ["sh", rest @ ..] => {
            let output = Command::new("sh").arg("-c").arg(rest.join(" ")).output()?;
            Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
        }
        _ => panic!("no such action: {words:?}"),
    }
}

/// Connects and reads the greeting.
fn tcp(to: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&to, Duration::from_millis(700))?;
    greeting(&stream)
}

fn greeting(stream: &TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(Duration::from_millis(1500)))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(format!("peer={} local={} {}", stream.peer_addr()?, stream.local_addr()?, line.trim()))
}

fn mapped(to: SocketAddrV4) -> SocketAddrV6 {
    SocketAddrV6::new(to.ip().to_ipv6_mapped(), to.port(), 0, 0)
}

fn tcp_mapped(to: SocketAddrV4) -> io::Result<String> {
    let fd = socket(AddressFamily::INET6, SocketType::STREAM, None)?;
    set_socket_timeout(&fd, Timeout::Send, Some(Duration::from_millis(700)))?;
    connect(&fd, &mapped(to))?;
    greeting(&TcpStream::from(fd))
}

fn tfo(to: SocketAddrV4) -> io::Result<String> {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    let fastopen = SendFlags::from_bits_retain(libc::MSG_FASTOPEN.cast_unsigned());
    sendto(&fd, b"hello", fastopen, &to)?;
    Ok(String::new())
}

fn udp_connect(to: SocketAddr) -> io::Result<String> {
    let fd = UdpSocket::bind(any(to))?;
    fd.connect(to)?;
    fd.send(b"ping")?;
    fd.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut buffer = [0; 64];
    let len = fd.recv(&mut buffer)?;
    Ok(format!("peer={} {}", fd.peer_addr()?, String::from_utf8_lossy(&buffer[..len])))
}

fn any(to: SocketAddr) -> SocketAddr {
    if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() }
}

/// Sends unconnected and says where the answer came from.
fn udp_send(to: SocketAddr) -> io::Result<String> {
    let fd = UdpSocket::bind(any(to))?;
    if to.ip() == std::net::IpAddr::V4(Ipv4Addr::BROADCAST) {
        fd.set_broadcast(true)?;
    }
    fd.send_to(b"ping", to)?;
    fd.set_read_timeout(Some(Duration::from_millis(300)))?;
    let mut buffer = [0; 64];
    match fd.recv_from(&mut buffer) {
        Ok((_, from)) => Ok(format!("from={from}")),
        Err(_) => Ok("sent".to_owned()),
    }
}

fn udp_mapped(to: SocketAddrV4) -> io::Result<String> {
    let fd = socket(AddressFamily::INET6, SocketType::DGRAM, None)?;
    sendto(&fd, b"ping", SendFlags::empty(), &mapped(to))?;
    let fd = UdpSocket::from(fd);
    fd.set_read_timeout(Some(Duration::from_millis(300)))?;
    let mut buffer = [0; 64];
    match fd.recv_from(&mut buffer) {
        Ok((_, from)) => Ok(format!("from={from}")),
        Err(_) => Ok("sent".to_owned()),
    }
}

fn sockaddr(to: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: 2,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
        sin_zero: [0; 8],
    }
}

/// `sendmmsg(2)`: as many datagrams in one call.
fn udp_sendmmsg(to: SocketAddrV4, count: usize) -> io::Result<String> {
    let fd = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut addr = sockaddr(to);
    let mut iov = libc::iovec { iov_base: c"ping".as_ptr().cast_mut().cast(), iov_len: 4 };
    // SAFETY: zeroed headers are valid; their pointers outlive the call.
    let mut messages: Vec<libc::mmsghdr> = (0..count).map(|_| unsafe { std::mem::zeroed() }).collect();
    for message in &mut messages {
        message.msg_hdr.msg_name = (&raw mut addr).cast();
        message.msg_hdr.msg_namelen = 16;
        message.msg_hdr.msg_iov = &raw mut iov;
        message.msg_hdr.msg_iovlen = 1;
    }
    let len = u32::try_from(count).unwrap();
    // SAFETY: as above.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), len, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent.to_string()) }
}

fn udp_after_connect(first: SocketAddr, then: SocketAddr) -> io::Result<String> {
    let fd = UdpSocket::bind(any(first))?;
    fd.connect(first)?;
    fd.send(b"ping")?;
    let to = match then {
        SocketAddr::V4(then) => then,
        SocketAddr::V6(_) => panic!("IPv4 only"),
    };
    sendto(&fd, b"ping", SendFlags::empty(), &to)?;
    Ok(String::new())
}

pub(crate) fn raw_socket(family: i32, kind: i32, proto: i32) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is ours.
    let fd = unsafe { libc::socket(family, kind, proto) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a hand-made Ethernet frame from `eth0`: `key=value` words change a well-formed UDP datagram to the
/// gateway's DNS port.
fn frame(words: &[&str]) -> io::Result<String> {
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let src: Ipv4Addr = value("src").unwrap().parse().unwrap();
    let dst: Ipv4Addr = value("dst").map_or(crate::server::GATEWAY, |text| text.parse().unwrap());
    let port: u16 = value("port").map_or(53, |text| text.parse().unwrap());
    let own: Ipv4Addr = value("own").map_or(src, |text| text.parse().unwrap());
    let [a, b, c, d] = own.octets();
    let mut bytes = vec![0x02, 0x47, a, b, c, d, 0x02, 0x53, a, b, c, d];
    if value("mac").is_some() {
        bytes[6] = 0x06;
    }
    if value("vlan").is_some() {
        bytes.extend([0x81, 0x00, 0, 1]);
    }
    bytes.extend(if value("arp").is_some() { [0x08, 0x06] } else { [0x08, 0x00] });
    bytes.extend(datagram(src, dst, port, value("options").is_some(), value("fragment").is_some()));
    let fd = raw_socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(0x0003_u16.to_be()))?;
    let name = std::ffi::CString::new("eth0").unwrap();
    // SAFETY: a NUL-terminated name; a zeroed address is valid.
    let (index, mut addr): (u32, libc::sockaddr_ll) =
        unsafe { (libc::if_nametoindex(name.as_ptr()), std::mem::zeroed()) };
    addr.sll_family = 17;
    addr.sll_ifindex = i32::try_from(index).unwrap();
    addr.sll_halen = 6;
    // SAFETY: frame and address outlive the call.
    let sent = unsafe {
        libc::sendto(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0, (&raw const addr).cast(), 20)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent.to_string()) }
}

fn datagram(src: Ipv4Addr, dst: Ipv4Addr, port: u16, options: bool, fragment: bool) -> Vec<u8> {
    let header = if options { 24 } else { 20 };
    let len = u16::try_from(header + 8 + 4).unwrap();
    let mut ip = vec![if options { 0x46 } else { 0x45 }, 0];
    ip.extend(len.to_be_bytes());
    ip.extend([0, 1, if fragment { 0x20 } else { 0 }, 0, 64, 17, 0, 0]);
    ip.extend(src.octets());
    ip.extend(dst.octets());
    if options {
        ip.extend([1, 1, 1, 0]);
    }
    let sum = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    // Checksum 0: none.
    ip.extend([0x9c, 0x40]);
    ip.extend(port.to_be_bytes());
    ip.extend([0, 12, 0, 0]);
    ip.extend(b"ping");
    ip
}

fn nested(cgroup: &str, to: SocketAddr) -> io::Result<String> {
    let inner = std::path::Path::new(cgroup).join("inner");
    std::fs::create_dir_all(&inner)?;
    std::fs::write(inner.join("cgroup.procs"), "0")?;
    tcp(to)
}

/// Connects a socket that this process got from outside.
fn inherited(fd: i32, to: SocketAddrV4) -> io::Result<String> {
    // SAFETY: the rig passes an open socket under this number.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_socket_timeout(&fd, Timeout::Send, Some(Duration::from_millis(500)))?;
    connect(&fd, &to)?;
    greeting(&TcpStream::from(fd))
}

fn flood(to: SocketAddrV4, count: u64) -> io::Result<String> {
    let fd = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut refused = 0;
    for _ in 0..count {
        refused += u64::from(connect(&fd, &to) == Err(Errno::PERM));
    }
    Ok(refused.to_string())
}

fn flood_ports(to: SocketAddrV4, count: u32) -> io::Result<String> {
    let fd = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut refused = 0;
    for at in 0..count {
        let port = u16::try_from(1024 + at % 60_000).unwrap();
        refused += u32::from(connect(&fd, &SocketAddrV4::new(*to.ip(), port)) == Err(Errno::PERM));
    }
    Ok(refused.to_string())
}

/// Opens connections and keeps them until one is refused.
fn open_many(to: SocketAddrV4, count: u32) -> io::Result<String> {
    let mut kept = Vec::new();
    for _ in 0..count {
        match TcpStream::connect(SocketAddr::V4(to)) {
            Ok(stream) => kept.push(stream),
            Err(error) => return Ok(format!("{} {}", kept.len(), error.raw_os_error().unwrap_or(-1))),
        }
    }
    Ok(format!("{} 0", kept.len()))
}

/// Sends and expects echoes until something fails; says when the last echo came.
fn stream(to: SocketAddr, seconds: u64) -> io::Result<String> {
    use std::io::Read as _;
    let mut stream = TcpStream::connect(to)?;
    greeting(&stream)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let start = Instant::now();
    let mut last = start;
    let mut buffer = [0; 64];
    while start.elapsed() < Duration::from_secs(seconds) {
        if stream.write_all(b"tick").is_err() || !matches!(stream.read(&mut buffer), Ok(1..)) {
            break;
        }
        last = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
    }
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap() - last.elapsed();
    Ok(unix.as_micros().to_string())
}

/// What the gateway asks the kernel about a connection.
pub(crate) fn flow_of(stream: &TcpStream) -> Option<Flow> {
    let mut bytes = [0_u8; FLOW_LEN];
    let mut len = libc::socklen_t::try_from(FLOW_LEN).unwrap();
    // SAFETY: `bytes` has `len` bytes.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), FLOW_LEVEL, FLOW_OPTION, bytes.as_mut_ptr().cast(), &raw mut len)
    };
    if result < 0 { None } else { Flow::from_bytes(bytes.get(..usize::try_from(len).ok()?)?) }
}

/// A socket that sees every IPv4 packet of this namespace.
pub(crate) fn sniffer() -> OwnedFd {
    raw_socket(libc::AF_PACKET, libc::SOCK_DGRAM, i32::from(0x0800_u16.to_be())).unwrap()
}

/// Describes the next packet that isn't our own answer; `None` for those.
pub(crate) fn sniff(fd: &OwnedFd) -> Option<String> {
    let mut bytes = [0_u8; 2048];
    // SAFETY: a zeroed address is valid; buffers outlive the call.
    let (len, kind) = unsafe {
        let mut addr: libc::sockaddr_ll = std::mem::zeroed();
        let mut size: libc::socklen_t = 20;
        let len = libc::recvfrom(
            fd.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            0,
            (&raw mut addr).cast(),
            &raw mut size,
        );
        (len, addr.sll_pkttype)
    };
    const OUTGOING: u8 = 4;
    if len < 20 || kind == OUTGOING {
        return None;
    }
    let octets = |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
    let (from, to) = (octets(12), octets(16));
    // Loopback traffic of the internet itself.
    if from.octets()[0] == 127 || from == to {
        return None;
    }
    // The gateway's own answer to a run that has just ended: without its veth the rig's forbidden uplink is the
    // only route left. No packet of a run can have this destination and arrive here.
    if from == crate::server::GATEWAY && to.octets()[..2] == [10, 203] {
        return None;
    }
    Some(format!("{from} > {to} proto {}", bytes[9]))
}
