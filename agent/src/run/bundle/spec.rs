//! `config.json`, by the recipe tried on runc 1.1 (cgroup v2, v1 and hybrid).

use std::path::{Path, PathBuf};

use oci_spec::{
    OciSpecError,
    runtime::{
        BoxBuilder, LinuxBuilder, LinuxCapabilitiesBuilder, LinuxDeviceCgroupBuilder, LinuxNamespace,
        LinuxNamespaceBuilder, LinuxNamespaceType, LinuxPidsBuilder, LinuxResourcesBuilder, Mount,
        MountBuilder, PosixRlimitBuilder, PosixRlimitType, Process, ProcessBuilder, RootBuilder, Spec,
        SpecBuilder, UserBuilder,
    },
};

use super::{Plan, TOOL_INSIDE, etc};
use crate::run::{
    folder::{Folder, MERGED},
    mounts::Access,
    seccomp,
};

/// Most processes and threads of a run.
pub const PIDS_LIMIT: i64 = 4096;

/// Masked for every run: state of the host that no agent needs.
const MASKED: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/sys/fs",
    "/sys/kernel",
];
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"];

/// The configuration; a pure function of its arguments but for which folders the host has.
///
/// # Errors
/// Only if the OCI library refuses what is built here.
pub fn config(folder: &Folder, plan: &Plan<'_>) -> Result<Spec, OciSpecError> {
    let linux = LinuxBuilder::default()
        .cgroups_path(plan.cgroup.clone())
        .namespaces(namespaces(&plan.netns)?)
        .resources(
            LinuxResourcesBuilder::default()
                .devices(vec![LinuxDeviceCgroupBuilder::default().allow(false).access("rwm").build()?])
                .pids(LinuxPidsBuilder::default().limit(PIDS_LIMIT).build()?)
                .build()?,
        )
        .masked_paths(text(MASKED))
        .readonly_paths(text(READ_ONLY))
        .seccomp(seccomp::filter()?)
        .rootfs_propagation("private")
        .build()?;
    SpecBuilder::default()
        .version("1.0.2")
        .root(RootBuilder::default().path(folder.rootfs()).readonly(true).build()?)
        .hostname(plan.run.to_string())
        .process(process(plan)?)
        .mounts(mounts(folder, plan)?)
        .linux(linux)
        .build()
}

fn text(list: &[&str]) -> Vec<String> {
    list.iter().map(|item| (*item).to_owned()).collect()
}

fn namespaces(netns: &Path) -> Result<Vec<LinuxNamespace>, OciSpecError> {
    use LinuxNamespaceType::{Cgroup, Ipc, Mount, Network, Pid, Uts};
    let mut namespaces = Vec::new();
    for typ in [Pid, Ipc, Uts, Mount, Cgroup] {
        namespaces.push(LinuxNamespaceBuilder::default().typ(typ).build()?);
    }
    namespaces.push(LinuxNamespaceBuilder::default().typ(Network).path(netns).build()?);
    Ok(namespaces)
}

fn process(plan: &Plan<'_>) -> Result<Process, OciSpecError> {
    let none = std::collections::HashSet::new;
    // Init waits for the shim's word, which comes when the gate is proven.
    let mut args = text(&[TOOL_INSIDE, "init", "--wait", "--"]);
    args.extend(plan.argv.iter().cloned());
    let builder = ProcessBuilder::default()
        .terminal(plan.terminal.is_some())
        .user(
            UserBuilder::default()
                .uid(plan.account.uid)
                .gid(plan.account.gid)
                .additional_gids(Vec::new())
                .build()?,
        )
        .args(args)
        .env(plan.env.clone())
        .cwd(plan.cwd.clone())
        .no_new_privileges(true)
        // A core would land in the workspace with everything the process knew.
        .rlimits(vec![
            PosixRlimitBuilder::default().typ(PosixRlimitType::RlimitCore).soft(0u64).hard(0u64).build()?,
        ])
        .capabilities(
            LinuxCapabilitiesBuilder::default()
                .bounding(none())
                .effective(none())
                .inheritable(none())
                .permitted(none())
                .ambient(none())
                .build()?,
        );
    match plan.terminal {
        Some((rows, columns)) => builder
            .console_size(BoxBuilder::default().height(u64::from(rows)).width(u64::from(columns)).build()?)
            .build(),
        None => builder.build(),
    }
}

/// Mounts in the order they are made: the kernel's, the host's, the run's, the person's; a parent before what is in
/// it.
fn mounts(folder: &Folder, plan: &Plan<'_>) -> Result<Vec<Mount>, OciSpecError> {
    let mut mounts = kernel_mounts()?;
    mounts.push(bind(Path::new("/usr"), Path::new("/usr"), Access::ReadOnly)?);
    for name in MERGED {
        let path = Path::new("/").join(name);
        if path.is_dir() && !path.is_symlink() {
            mounts.push(bind(&path, &path, Access::ReadOnly)?);
        }
    }
    for path in etc::folders() {
        mounts.push(bind(&path, &path, Access::ReadOnly)?);
    }
    for (source, target) in plan.trust.mounts() {
        mounts.push(bind(&source, &target, Access::ReadOnly)?);
    }
    mounts.push(bind(&folder.sockets(), Path::new("/run/strait"), Access::ReadOnly)?);
    mounts.push(bind(&plan.tool, Path::new(TOOL_INSIDE), Access::ReadOnly)?);
    let mut own: Vec<(PathBuf, PathBuf, Access)> =
        vec![(plan.home.clone(), plan.account.home.clone(), Access::ReadWrite)];
    own.extend(plan.binds.iter().map(|bind| (bind.source.clone(), bind.target.clone(), bind.access)));
    own.sort_by_key(|(_, target, _)| target.components().count());
    for (source, target, access) in own {
        mounts.push(bind(&source, &target, access)?);
    }
    Ok(mounts)
}

fn kernel_mounts() -> Result<Vec<Mount>, OciSpecError> {
    const TABLE: &[(&str, &str, &[&str])] = &[
        ("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        ("/dev", "tmpfs", &["nosuid", "noexec", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        ("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777"]),
        // Read-only and without /sys/fs and /sys/kernel: processor topology is all that programs look for.
        ("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        ("/tmp", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
        ("/var/tmp", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
        ("/run", "tmpfs", &["nosuid", "nodev", "mode=1777", "size=64m"]),
    ];
    TABLE
        .iter()
        .map(|(path, kind, options)| {
            MountBuilder::default()
                .destination(*path)
                .typ(*kind)
                .source(*kind)
                .options(options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>())
                .build()
        })
        .collect()
}

/// `rro`, `rnosuid`, `rnodev` reach the mounts below the source too; plain `ro` would leave those writable.
fn bind(source: &Path, target: &Path, access: Access) -> Result<Mount, OciSpecError> {
    let mut options = vec!["rbind", "rprivate", "rnosuid", "rnodev"];
    if access == Access::ReadOnly {
        options.push("rro");
    }
    MountBuilder::default()
        .destination(target)
        .typ("bind")
        .source(source)
        .options(options.into_iter().map(str::to_owned).collect::<Vec<_>>())
        .build()
}
