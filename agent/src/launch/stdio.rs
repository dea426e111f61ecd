//! What a run may get as stdin, stdout and stderr: regular files, pipes and the harmless devices.
//!
//! Architecture invariant: both ends check. The command line replaces what isn't fit by a pipe that it copies; the
//! agent refuses what isn't fit, whoever sent it. A socket made outside passes every hook and filter of a run, a
//! folder is a door to the host's file system, and the person's own terminal takes what is typed into it.

use std::os::fd::AsFd;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs, major, minor};

/// `null`, `zero`, `full`, `random`, `urandom` (Documentation/admin-guide/devices.txt).
const DEVICES: [(u32, u32); 5] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)];

/// What a descriptor is, as far as a run is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fitness {
    /// May be a run's stdio as it is.
    Fit,
    /// Its bytes may, by a pipe: a socket, a terminal, another device.
    ByPipe,
    /// No stream of bytes: a folder, an `O_PATH` descriptor, something without a name.
    Unfit,
}

/// File systems whose files are doors into the kernel (`linux/magic.h`): proc, sysfs, cgroup, cgroup2, bpf, nsfs,
/// tracefs, debugfs, securityfs, configfs, efivarfs.
const OF_KERNEL: [u64; 11] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0xcafe_4a11,
    0x6e73_6673,
    0x7472_6163,
    0x6462_6720,
    0x7363_6673,
    0x6265_6570,
    0xde5e_81e4,
];

fn is_of_kernel(fd: impl AsFd) -> rustix::io::Result<bool> {
    let magic = fstatfs(fd)?.f_type;
    Ok(OF_KERNEL.iter().any(|known| i64::try_from(*known).is_ok_and(|known| known == magic)))
}

/// Looks at a descriptor.
///
/// # Errors
/// If it isn't open.
pub fn fitness(fd: impl AsFd) -> rustix::io::Result<Fitness> {
    let flags = fcntl_getfl(&fd)?;
    if flags.contains(OFlags::PATH) {
        return Ok(Fitness::Unfit);
    }
    let stat = fstat(&fd)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        // A descriptor can be opened again by `/proc/self/fd` with more than it was given for: only one that may
        // do everything already is handed over as it is.
        FileType::RegularFile if is_of_kernel(&fd)? => Fitness::ByPipe,
        FileType::RegularFile if !flags.contains(OFlags::RDWR) => Fitness::ByPipe,
        FileType::RegularFile | FileType::Fifo => Fitness::Fit,
        FileType::CharacterDevice if DEVICES.contains(&(major(stat.st_rdev), minor(stat.st_rdev))) => {
            Fitness::Fit
        }
        FileType::CharacterDevice | FileType::Socket => Fitness::ByPipe,
        _ => Fitness::Unfit,
    })
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn files_pipes_and_null_are_fit_and_nothing_else() {
        let (read, write) = std::io::pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        let null = File::open("/dev/null").unwrap();
        for fit in [read.as_fd(), write.as_fd(), file.as_fd(), null.as_fd()] {
            assert_eq!(fitness(fit).unwrap(), Fitness::Fit);
        }
        let (socket, _peer) = UnixStream::pair().unwrap();
        let terminal = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR).unwrap();
        for by_pipe in [socket.as_fd(), terminal.as_fd()] {
            assert_eq!(fitness(by_pipe).unwrap(), Fitness::ByPipe);
        }
        for doors in ["/proc/self/mem", "/proc/self/ns/net", "/etc/passwd"] {
            assert_eq!(fitness(File::open(doors).unwrap()).unwrap(), Fitness::ByPipe, "{doors}");
        }
        let folder = File::open("/").unwrap();
        let path = rustix::fs::open("/etc/passwd", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let nameless = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        for unfit in [folder.as_fd(), path.as_fd(), nameless.as_fd()] {
            assert_eq!(fitness(unfit).unwrap(), Fitness::Unfit);
        }
    }
}
