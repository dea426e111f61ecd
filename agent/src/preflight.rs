//! What the host must offer before anything starts: what's missing refuses with its fix, what's degraded is
//! said.

use std::{fs, path::Path, process::Command};

use serde::Serialize;

use crate::{
    gate::{cgroup, object::OBJECT},
    instance::Instance,
};

/// Oldest kernel: `SO_NETNS_COOKIE` (5.14) and cgroup hooks that hold on hybrid hosts (5.15).
const KERNEL_FLOOR: (u32, u32) = (5, 15);

/// The security modules that are on (Documentation/admin-guide/LSM/index.rst).
const LSMS: &str = "/sys/kernel/security/lsm";

/// How a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    /// As it must be.
    Ok,
    /// Works, with less than the best.
    Degraded,
    /// Nothing may start.
    Failed,
}

/// One thing looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub name: String,
    /// How it stands.
    pub level: Level,
    /// What was seen.
    pub detail: String,
    /// What to do, if it isn't well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), level: Level::Ok, detail: detail.into(), fix: None }
    }

    /// Less than the best.
    pub fn degraded(name: &str, detail: impl Into<String>, fix: &str) -> Self {
        Self {
            name: name.to_owned(),
            level: Level::Degraded,
            detail: detail.into(),
            fix: Some(fix.to_owned()),
        }
    }

    /// Nothing may start.
    pub fn failed(name: &str, detail: impl Into<String>, fix: &str) -> Self {
        Self { name: name.to_owned(), level: Level::Failed, detail: detail.into(), fix: Some(fix.to_owned()) }
    }
}

/// Everything looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order in which they depend on each other.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst of the findings.
    pub fn level(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Failed)
    }
}

/// Looks at the host without changing anything.
pub fn check(instance: &Instance) -> Report {
    let mut report = enforcement(instance);
    report.findings.push(runtime());
    report
}

/// What enforcement needs; a matter of microseconds.
pub fn enforcement(instance: &Instance) -> Report {
    Report { findings: vec![root(), kernel(), cgroup_v2(), bpffs(), object(instance), lsm()] }
}

fn root() -> Finding {
    if rustix::process::geteuid().is_root() {
        Finding::ok("root", "running as root")
    } else {
        Finding::failed("root", "not running as root", "run it with `sudo`, or as the installed service")
    }
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let fix = "boot Linux 5.15 or later (6.1 or later is best)";
    match version(&release) {
        Some(version) if version >= KERNEL_FLOOR => Finding::ok("kernel", release),
        _ => Finding::failed("kernel", format!("Linux {release}"), fix),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn cgroup_v2() -> Finding {
    let fix = "mount it with `mount -t cgroup2 none /sys/fs/cgroup/unified`, or boot with systemd.unified_cgroup_hierarchy=1";
    match cgroup::v2_root() {
        Ok(Some(root)) => Finding::ok("cgroup v2", root.display().to_string()),
        Ok(None) => Finding::failed("cgroup v2", "not mounted", fix),
        Err(error) => Finding::failed("cgroup v2", error.to_string(), fix),
    }
}

/// False if the kernel says that programs at security hooks would never be called; true if it doesn't say.
pub(crate) fn may_have_bpf_lsm() -> bool {
    fs::read_to_string(LSMS).map_or(true, |list| has_bpf(&list))
}

fn has_bpf(lsms: &str) -> bool {
    lsms.split(',').any(|name| name.trim() == "bpf")
}

fn bpffs() -> Finding {
    let path = Path::new("/sys/fs/bpf");
    match crate::gate::object::on_bpffs(path) {
        Ok(true) => Finding::ok("bpffs", "mounted on /sys/fs/bpf"),
        Ok(false) => Finding::ok("bpffs", "will be mounted on /sys/fs/bpf"),
        Err(error) => {
            Finding::failed("bpffs", format!("/sys/fs/bpf: {error}"), "boot a kernel with CONFIG_BPF_SYSCALL")
        }
    }
}

fn object(instance: &Instance) -> Finding {
    let path = instance.lib_dir.join(OBJECT);
    match fs::metadata(&path) {
        Ok(_) => Finding::ok("kernel programs", path.display().to_string()),
        Err(error) => {
            let detail = format!("`{}`: {error}", path.display());
            Finding::failed("kernel programs", detail, "build them with `cargo xtask build`, or reinstall")
        }
    }
}

/// The list only says that the module is on; whether the hook loads shows when the gate opens.
fn lsm() -> Finding {
    let list = fs::read_to_string(LSMS).unwrap_or_default();
    if has_bpf(&list) {
        Finding::ok("bpf lsm", list.trim().to_owned())
    } else {
        let detail =
            "not in the list of security modules; foreign socket families are refused by seccomp alone";
        Finding::degraded("bpf lsm", detail, "boot with `lsm=...,bpf` to refuse them in the kernel too")
    }
}

/// Whether the OCI runtime is there and runs.
pub fn runtime() -> Finding {
    match Command::new("runc").arg("--version").output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Finding::ok("runc", text.lines().next().unwrap_or("present").to_owned())
        }
        Ok(output) => {
            Finding::failed("runc", output.status.to_string(), "reinstall it: `apt-get install runc`")
        }
        Err(error) => Finding::failed("runc", error.to_string(), "install it: `apt-get install runc`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_as_numbers() {
        assert_eq!(version("6.1.0-57-cloud-amd64"), Some((6, 1)));
        assert_eq!(version("5.15.0"), Some((5, 15)));
        assert!(version("5.4.2").unwrap() < KERNEL_FLOOR && version("6.18.44-fc").unwrap() > KERNEL_FLOOR);
        assert_eq!(version("weird"), None);
    }

    #[test]
    fn the_worst_finding_is_the_level_and_no_finding_is_a_failure() {
        let of = |findings| Report { findings }.level();
        assert_eq!(of(vec![Finding::ok("a", ""), Finding::degraded("b", "", "")]), Level::Degraded);
        assert_eq!(of(vec![Finding::failed("a", "", ""), Finding::ok("b", "")]), Level::Failed);
        assert_eq!(of(vec![]), Level::Failed);
    }
}
