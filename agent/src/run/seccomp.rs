//! The system-call filter of a run: which sockets it may make and which doors of the kernel stay shut.
//!
//! Default is allow: coding agents bring every language runtime there is, and a filter that breaks one of them
//! gets switched off. What is refused is what would go around the gate (socket families that cgroup hooks don't
//! see, new namespaces, io_uring, bpf) or is attack surface no agent needs.

use oci_spec::{
    OciSpecError,
    runtime::{
        LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
        LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
    },
};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Socket families a run may use: `AF_UNIX`, `AF_INET`, `AF_INET6`, `AF_NETLINK`.
pub const FAMILIES: [u64; 4] = [1, 2, 10, 16];

/// Calls refused with EPERM whatever their arguments.
pub const REFUSED: &[&str] = &[
    // Other namespaces: a new netns has no way out, but an old one (setns) might.
    "unshare",
    "setns",
    // Mounts, by either interface.
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "chroot",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "open_tree",
    "move_mount",
    "mount_setattr",
    // Work that no cgroup hook or tracer sees in the caller.
    "bpf",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "userfaultfd",
    "perf_event_open",
    // Reaching into other processes, or taking their descriptors.
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "pidfd_getfd",
    "kcmp",
    // Keyrings are not namespaced.
    "add_key",
    "request_key",
    "keyctl",
    // File handles open by inode number, past every mount.
    "open_by_handle_at",
    "name_to_handle_at",
    // The host itself.
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "quotactl_fd",
    "syslog",
    "settimeofday",
    "clock_settime",
    "clock_settime64",
    "clock_adjtime",
    "clock_adjtime64",
    "sethostname",
    "setdomainname",
    "iopl",
    "ioperm",
    "vhangup",
    "lookup_dcookie",
    "nfsservctl",
    "uselib",
    "ustat",
    "_sysctl",
];

/// `CLONE_NEW*` flags of `clone(2)`: NS, CGROUP, UTS, IPC, USER, PID, NET. `CLONE_NEWTIME` is a flag of clone3
/// and unshare only: in `clone` its bit belongs to the exit signal.
const CLONE_NEW: [u64; 7] =
    [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];

/// Terminal `ioctl`s that put bytes into another's input: `TIOCSTI`, `TIOCLINUX`.
const TERMINAL_INPUT: [u64; 2] = [0x5412, 0x541c];

/// The filter. No `architectures`: runc then takes the native one alone, and a call of another architecture
/// (i386, x32) kills the caller.
///
/// # Errors
/// Only if the OCI library refuses what is built here.
pub fn filter() -> Result<LinuxSeccomp, OciSpecError> {
    let mut calls = vec![
        refuse(REFUSED, EPERM, None)?,
        // clone3 passes its flags in memory, where no filter can look. ENOSYS makes libc fall back to clone.
        refuse(&["clone3"], ENOSYS, None)?,
    ];
    for argument in families_refused()? {
        calls.push(refuse(&["socket", "socketpair"], EPERM, Some(argument))?);
    }
    for flag in CLONE_NEW {
        calls.push(refuse(&["clone"], EPERM, Some(masked(0, flag, flag)?))?);
    }
    for request in TERMINAL_INPUT {
        // The kernel reads 32 bits of the request: a filter on all 64 would let a high bit through.
        calls.push(refuse(&["ioctl"], EPERM, Some(masked(1, 0xffff_ffff, request)?))?);
    }
    calls.extend(set_id_refused()?);
    LinuxSeccompBuilder::default().default_action(LinuxSeccompAction::ScmpActAllow).syscalls(calls).build()
}

/// Files that run as their owner or group: a run can make none, for a writable folder of it is the host's too, and
/// there such a file would lend its owner's rights to whoever executes it. `openat2` passes its mode in memory;
/// ENOSYS makes programs fall back to `openat`.
fn set_id_refused() -> Result<Vec<LinuxSyscall>, OciSpecError> {
    const CREATE: u64 = 0o100;
    let mut calls = vec![refuse(&["openat2"], ENOSYS, None)?];
    for bit in [0o4000, 0o2000] {
        for (names, mode) in [
            (["chmod", "fchmod", "creat", "mknod"].as_slice(), 1),
            (["fchmodat", "fchmodat2", "mknodat"].as_slice(), 2),
        ] {
            calls.push(refuse(names, EPERM, Some(masked(mode, bit, bit)?))?);
        }
        for (name, flags, mode) in [("open", 1, 2), ("openat", 2, 3)] {
            let both = vec![masked(flags, CREATE, CREATE)?, masked(mode, bit, bit)?];
            calls.push(refuse_if(&[name], EPERM, both)?);
        }
    }
    Ok(calls)
}

/// Conditions, one a rule, that together match every family outside [`FAMILIES`]. OCI runtimes join conditions on
/// the same argument by OR, so an allow-list has to be written as its gaps. The comparison is on 64 bits while
/// the kernel reads 32: a family with high bits set is greater than the last and so refused too.
fn families_refused() -> Result<Vec<LinuxSeccompArg>, OciSpecError> {
    let last = FAMILIES.iter().copied().max().unwrap_or(0);
    let mut conditions = vec![argument(0, last, None, LinuxSeccompOperator::ScmpCmpGt)?];
    for family in (0..last).filter(|family| !FAMILIES.contains(family)) {
        conditions.push(argument(0, family, None, LinuxSeccompOperator::ScmpCmpEq)?);
    }
    Ok(conditions)
}

fn masked(index: usize, mask: u64, value: u64) -> Result<LinuxSeccompArg, OciSpecError> {
    argument(index, mask, Some(value), LinuxSeccompOperator::ScmpCmpMaskedEq)
}

fn argument(
    index: usize,
    value: u64,
    second: Option<u64>,
    op: LinuxSeccompOperator,
) -> Result<LinuxSeccompArg, OciSpecError> {
    let builder = LinuxSeccompArgBuilder::default().index(index).value(value).op(op);
    match second {
        Some(second) => builder.value_two(second).build(),
        None => builder.build(),
    }
}

fn refuse(
    names: &[&str],
    errno: u32,
    argument: Option<LinuxSeccompArg>,
) -> Result<LinuxSyscall, OciSpecError> {
    refuse_if(names, errno, argument.into_iter().collect())
}

/// Refuses calls whose arguments meet all conditions, which are on different arguments.
fn refuse_if(
    names: &[&str],
    errno: u32,
    conditions: Vec<LinuxSeccompArg>,
) -> Result<LinuxSyscall, OciSpecError> {
    let builder = LinuxSyscallBuilder::default()
        .names(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        .action(LinuxSeccompAction::ScmpActErrno)
        .errno_ret(errno);
    if conditions.is_empty() { builder.build() } else { builder.args(conditions).build() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter answers, by the rules of OCI runtimes: the first matching rule's errno.
    fn verdict(name: &str, args: [u64; 2]) -> Option<u32> {
        let filter = filter().unwrap();
        filter.syscalls().as_ref().unwrap().iter().find_map(|rule| {
            let hit = rule.names().iter().any(|known| known == name)
                && rule.args().as_ref().is_none_or(|all| {
                    all.iter().any(|arg| {
                        let given = args[arg.index()];
                        match arg.op() {
                            LinuxSeccompOperator::ScmpCmpEq => given == arg.value(),
                            LinuxSeccompOperator::ScmpCmpGt => given > arg.value(),
                            LinuxSeccompOperator::ScmpCmpMaskedEq => {
                                given & arg.value() == arg.value_two().unwrap()
                            }
                            other => panic!("operator {other:?} is not in this filter"),
                        }
                    })
                });
            hit.then(|| rule.errno_ret().unwrap())
        })
    }

    #[test]
    fn only_four_socket_families_pass_and_high_bits_do_not_help() {
        for family in 0..=64 {
            let expected = if FAMILIES.contains(&family) { None } else { Some(EPERM) };
            assert_eq!(verdict("socket", [family, 1]), expected, "socket family {family}");
            assert_eq!(verdict("socketpair", [family, 1]), expected, "socketpair family {family}");
        }
        assert_eq!(verdict("socket", [0x1_0000_0011, 3]), Some(EPERM));
    }

    #[test]
    fn clone_makes_threads_and_processes_but_no_namespaces() {
        let thread = 0x003d_0f00;
        assert_eq!(verdict("clone", [thread, 0]), None);
        assert_eq!(verdict("clone", [17, 0]), None);
        for flag in CLONE_NEW {
            assert_eq!(verdict("clone", [flag | 17, 0]), Some(EPERM), "{flag:#x}");
        }
        assert_eq!(verdict("clone3", [0, 0]), Some(ENOSYS));
    }

    #[test]
    fn terminal_input_can_not_be_faked() {
        assert_eq!(verdict("ioctl", [0, 0x5412]), Some(EPERM));
        assert_eq!(verdict("ioctl", [0, 0xf_0000_5412]), Some(EPERM));
        assert_eq!(verdict("ioctl", [0, 0x5413]), None, "window size");
    }
}
