//! Removes what an instance owns in the kernel, whatever state it was left in. Only for instances that a verb of
//! xtask made itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use crate::exec;

/// Ends the processes of the instance `name`, and removes its cgroups, namespaces, pins and run folder.
pub(super) fn instance(name: &str, run_dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let cgroups: Vec<_> = cgroup_mounts(&mounts).into_iter().map(|mount| mount.join(name)).collect();
    for cgroup in &cgroups {
        kill(cgroup);
    }
    for cgroup in &cgroups {
        remove_empty(cgroup);
    }
    let mut below: Vec<_> = mount_points(&mounts).filter(|mount| mount.starts_with(run_dir)).collect();
    below.reverse();
    for mount in below {
        exec::succeeds(Command::new("umount").arg("--lazy").arg(mount));
    }
    for folder in [run_dir.to_owned(), Path::new("/sys/fs/bpf").join(name)] {
        let _ = fs::remove_dir_all(folder);
    }
}

/// Kills every process of a cgroup and its descendants.
fn kill(cgroup: &Path) {
    let _ = fs::write(cgroup.join("cgroup.kill"), "1");
    for _ in 0..100 {
        let events = fs::read_to_string(cgroup.join("cgroup.events")).unwrap_or_default();
        if !events.contains("populated 1") {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Removes a cgroup and its descendants; one with processes stays.
fn remove_empty(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(cgroup);
}

/// Mount points of cgroup hierarchies, v2 and v1: runc makes a cgroup in each.
fn cgroup_mounts(mountinfo: &str) -> Vec<PathBuf> {
    let lines = mountinfo.lines().filter(|line| line.contains(" - cgroup ") || line.contains(" - cgroup2 "));
    lines.filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

fn mount_points(mountinfo: &str) -> impl Iterator<Item = &Path> {
    mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cgroup_versions_are_found() {
        let mountinfo = "24 1 0:22 / /sys rw - sysfs sysfs rw\n\
            30 24 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw\n\
            31 24 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let expect = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"].map(PathBuf::from);
        assert_eq!(cgroup_mounts(mountinfo), expect);
    }
}
