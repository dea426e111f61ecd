//! The system calls that no library wraps: `bpf(2)` for links of any cgroup hook, the cookie of a network
//! namespace, `unshare(2)` on a thread.
#![expect(unsafe_code, reason = "bpf(2), getsockopt(SO_NETNS_COOKIE) and unshare(2) have no safe wrapper")]

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use nix::libc;
use rustix::{
    net::{AddressFamily, SocketType, socket},
    thread::UnshareFlags,
};
use tokio::io::{Interest, unix::AsyncFd};

const BPF_OBJ_PIN: i32 = 6;
const BPF_OBJ_GET: i32 = 7;
const BPF_OBJ_GET_INFO_BY_FD: i32 = 15;
const BPF_LINK_CREATE: i32 = 28;
/// `SO_NETNS_COOKIE` (asm-generic/socket.h), Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;

/// `union bpf_attr` of the commands used here, which need 16 bytes at most; the kernel takes the rest as zero.
#[repr(C, align(8))]
#[derive(Default)]
struct Attr {
    words: [u32; 4],
}

impl Attr {
    /// A pointer in the first eight bytes.
    fn with_pointer(pointer: *const u8, third: u32) -> Self {
        let [a, b, c, d, e, f, g, h] = (pointer as u64).to_ne_bytes();
        Self { words: [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]), third, 0] }
    }
}

fn bpf(command: i32, attr: &mut Attr) -> io::Result<i32> {
    // SAFETY: `attr` is a valid, initialised attribute block of the length passed; pointers in it outlive the
    // call (see each caller).
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<Attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(result).map_err(io::Error::other) }
}

fn bits(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: a descriptor that the kernel has just made for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Opens a pinned program, map or link.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attr = Attr::with_pointer(path.as_ptr().cast(), 0);
    bpf(BPF_OBJ_GET, &mut attr).map(owned)
}

/// Pins a program, map or link.
pub(crate) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attr = Attr::with_pointer(path.as_ptr().cast(), bits(fd));
    bpf(BPF_OBJ_PIN, &mut attr).map(drop)
}

/// Attaches a program to a cgroup as a link (`BPF_LINK_CREATE`, Linux 5.7), beside whatever is attached.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    let mut attr = Attr { words: [bits(program), bits(cgroup), attach_type, 0] };
    bpf(BPF_LINK_CREATE, &mut attr).map(owned)
}

fn info<const N: usize>(fd: BorrowedFd<'_>) -> io::Result<[u8; N]> {
    #[repr(C, align(8))]
    struct Aligned<const N: usize>([u8; N]);
    let mut buffer = Aligned([0; N]);
    let [a, b, c, d, e, f, g, h] = (buffer.0.as_mut_ptr() as u64).to_ne_bytes();
    let mut attr = Attr {
        words: [
            bits(fd),
            u32::try_from(N).map_err(io::Error::other)?,
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, g, h]),
        ],
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(buffer.0)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}

/// A cgroup link, as the kernel describes it (`struct bpf_link_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    pub(crate) program: u32,
    /// Id of the cgroup: the inode of its folder; 0 once the cgroup is gone.
    pub(crate) cgroup: u64,
    pub(crate) attach_type: u32,
}

pub(crate) fn link_info(fd: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let bytes: [u8; 64] = info(fd)?;
    let cgroup = u64::from(word(&bytes, 16)) | (u64::from(word(&bytes, 20)) << 32);
    Ok(LinkInfo { program: word(&bytes, 8), cgroup, attach_type: word(&bytes, 24) })
}

/// Id of a program (`struct bpf_prog_info`).
pub(crate) fn program_id(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(word(&info::<40>(fd)?, 4))
}

/// Runs of a program and their time, if `kernel.bpf_stats_enabled` is on (`struct bpf_prog_info`).
pub(crate) fn program_cost(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let bytes: [u8; 216] = info(fd)?;
    let long = |at| u64::from(word(&bytes, at)) | (u64::from(word(&bytes, at + 4)) << 32);
    Ok((long(192), long(200)))
}

/// Shape of a map (`struct bpf_map_info`): type, key size, value size, entries.
pub(crate) fn map_shape(fd: BorrowedFd<'_>) -> io::Result<[u32; 4]> {
    let bytes: [u8; 40] = info(fd)?;
    Ok([word(&bytes, 0), word(&bytes, 8), word(&bytes, 12), word(&bytes, 16)])
}

/// Cookie of the calling thread's network namespace.
pub(crate) fn netns_cookie() -> io::Result<u64> {
    let probe = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut cookie = 0_u64;
    let mut len: libc::socklen_t = 8;
    // SAFETY: `cookie` has the eight bytes that `len` says.
    let result = unsafe {
        libc::getsockopt(
            probe.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// Moves the calling thread into new namespaces.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the flags used here (NEWNET) don't unshare the file table, so no descriptor is left dangling.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Something to wait on until `fd` is readable, through a descriptor of its own.
pub(crate) fn readable(fd: impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.as_fd().try_clone_to_owned()?;
    // SAFETY: the registration owns the descriptor, so it stays open and the same until it's dropped.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
