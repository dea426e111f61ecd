//! The kernel's account of one connection, as `getsockopt(SOL_IP, FLOW_OPTION)` answers it on a socket that
//! the gateway accepted from a run.

use std::net::Ipv4Addr;

mod sockopt;

pub use sockopt::of;

/// Level of the socket option that answers with a [`Flow`] (`SOL_IP`).
pub const FLOW_LEVEL: i32 = 0;
/// Name of that option: unused by Linux in `SOL_IP` for TCP (80 is netfilter's `SO_ORIGINAL_DST`, so not that).
pub const FLOW_OPTION: i32 = 0x5354;
/// Length of the answer, bytes.
pub const FLOW_LEN: usize = 56;

/// Who connected and where to, written by the kernel programs at `connect(2)`.
///
/// Layout on the wire (native endian but for the address, which is in network order):
/// `cookie u64, run u64, netns u64, addr u32, port u16, proto u8, family u8, tgid u32, uid u32, comm [u8; 16]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Socket cookie of the run's socket.
    pub cookie: u64,
    /// Kernel number of the run ([`crate::run::RunInfo::number`]).
    pub run: u64,
    /// Cookie of the network namespace of the caller.
    pub netns: u64,
    /// Original destination.
    pub addr: Ipv4Addr,
    /// Original destination port, host order.
    pub port: u16,
    /// IP protocol: 6 or 17.
    pub proto: u8,
    /// Thread group (process) that called `connect(2)`, in the host's pid namespace.
    pub tgid: u32,
    /// Its user id, in the host's user namespace.
    pub uid: u32,
    /// Its command name, NUL padded; whatever the process calls itself, so evidence and never identity.
    pub comm: [u8; 16],
}

impl Flow {
    /// Reads the kernel's answer; `None` if it hasn't exactly [`FLOW_LEN`] bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FLOW_LEN] = bytes.try_into().ok()?;
        let (cookie, rest) = bytes.split_first_chunk::<8>()?;
        let (run, rest) = rest.split_first_chunk::<8>()?;
        let (netns, rest) = rest.split_first_chunk::<8>()?;
        let (addr, rest) = rest.split_first_chunk::<4>()?;
        let (port, rest) = rest.split_first_chunk::<2>()?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let (tgid, rest) = rest.split_first_chunk::<4>()?;
        let (uid, rest) = rest.split_first_chunk::<4>()?;
        let (comm, _) = rest.split_first_chunk::<16>()?;
        Some(Self {
            cookie: u64::from_ne_bytes(*cookie),
            run: u64::from_ne_bytes(*run),
            netns: u64::from_ne_bytes(*netns),
            addr: Ipv4Addr::from(*addr),
            port: u16::from_ne_bytes(*port),
            proto: kind[0],
            tgid: u32::from_ne_bytes(*tgid),
            uid: u32::from_ne_bytes(*uid),
            comm: *comm,
        })
    }

    /// The command name up to its first NUL, with bytes that aren't UTF-8 replaced.
    pub fn comm(&self) -> String {
        let text: Vec<u8> = self.comm.iter().copied().take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&text).into_owned()
    }
}
