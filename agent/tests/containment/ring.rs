//! `connect(2)` by io_uring, by hand: the smallest ring that submits one entry.
#![expect(unsafe_code, reason = "io_uring has no safe wrapper here")]

use std::{
    io,
    net::SocketAddrV4,
    os::fd::AsRawFd as _,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::libc;
use rustix::net::{AddressFamily, SocketType, socket};

/// `IORING_OP_CONNECT`.
const CONNECT: u8 = 16;
/// `IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP`.
const WAIT: u32 = 1 | 2;

fn word(bytes: &[u8], at: usize) -> usize {
    usize::try_from(u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())).unwrap()
}

fn map(fd: i32, offset: i64) -> io::Result<*mut u8> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh shared mapping of the ring, large enough for 4 entries.
    let at = unsafe { libc::mmap(ptr::null_mut(), 4096, protection, libc::MAP_SHARED, fd, offset) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

/// `flags`: 0, or 2 for a kernel thread that submits (`IORING_SETUP_SQPOLL`).
pub(crate) fn connect(flags: u32, to: SocketAddrV4) -> io::Result<String> {
    let mut params = [0_u8; 120];
    params[8..12].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: `params` is a `struct io_uring_params`.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, params.as_mut_ptr()) };
    if ring < 0 {
        return Err(io::Error::last_os_error());
    }
    let ring = i32::try_from(ring).unwrap();
    let (submit, complete, entries) = (map(ring, 0)?, map(ring, 0x800_0000)?, map(ring, 0x1000_0000)?);
    let tcp = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    let mut addr = [0_u8; 16];
    addr[..2].copy_from_slice(&2_u16.to_ne_bytes());
    addr[2..4].copy_from_slice(&to.port().to_be_bytes());
    addr[4..8].copy_from_slice(&to.ip().octets());
    let mut entry = [0_u8; 64];
    entry[0] = CONNECT;
    entry[4..8].copy_from_slice(&tcp.as_raw_fd().to_ne_bytes());
    entry[8..16].copy_from_slice(&16_u64.to_ne_bytes());
    entry[16..24].copy_from_slice(&(addr.as_ptr() as u64).to_ne_bytes());
    // SAFETY: offsets come from the kernel and lie in the mappings; nobody else uses this ring.
    unsafe {
        ptr::copy_nonoverlapping(entry.as_ptr(), entries, 64);
        submit.add(word(&params, 64)).cast::<u32>().write_volatile(0);
        AtomicU32::from_ptr(submit.add(word(&params, 44)).cast()).store(1, Ordering::Release);
        loop {
            let entered = libc::syscall(libc::SYS_io_uring_enter, ring, 1, 1, WAIT, 0_usize, 0_usize);
            if entered < 0 {
                return Err(io::Error::last_os_error());
            }
            let tail = AtomicU32::from_ptr(complete.add(word(&params, 84)).cast()).load(Ordering::Acquire);
            if tail != 0 {
                break;
            }
        }
        let result = complete.add(word(&params, 100) + 8).cast::<i32>().read_volatile();
        if result < 0 {
            Err(io::Error::from_raw_os_error(-result))
        } else {
            Ok(std::process::id().to_string())
        }
    }
}
