//! Kernel settings of the namespace that the calling thread is in: `/proc/sys/net` shows that of the reader.

use std::{fs, io::ErrorKind, path::Path};

use super::NetnsError;

/// No forwarding, strict reverse path filter, no IPv6, no redirects. What is sent here never leaves the host and is
/// never lost on the way, so the simplest congestion control is right; BBR's pacing would cost a timer a burst.
pub(super) fn closed() -> Result<(), NetnsError> {
    set("net/ipv4/ip_forward", "0")?;
    set("net/ipv4/conf/all/rp_filter", "1")?;
    set("net/ipv4/conf/default/rp_filter", "1")?;
    set("net/ipv4/conf/all/accept_redirects", "0")?;
    set("net/ipv4/conf/all/send_redirects", "0")?;
    set("net/ipv4/tcp_congestion_control", "reno")?;
    set_if_there("net/ipv6/conf/all/disable_ipv6", "1")?;
    set_if_there("net/ipv6/conf/default/disable_ipv6", "1")
}

/// What only a run's namespace needs: no MPTCP, no ping sockets.
pub(super) fn run() -> Result<(), NetnsError> {
    set_if_there("net/mptcp/enabled", "0")?;
    set("net/ipv4/ping_group_range", "1 0")
}

/// What has forwarding on.
pub(super) fn forwarding() -> Vec<String> {
    let on = |path: &Path| fs::read_to_string(path).map_or(true, |text| text.trim() != "0");
    let mut found = Vec::new();
    if on(Path::new("/proc/sys/net/ipv4/ip_forward")) {
        found.push("net.ipv4.ip_forward".to_owned());
    }
    for device in fs::read_dir("/proc/sys/net/ipv4/conf").into_iter().flatten().flatten() {
        if on(&device.path().join("forwarding")) {
            found.push(format!("net.ipv4.conf.{}.forwarding", device.file_name().to_string_lossy()));
        }
    }
    found
}

fn set(name: &str, value: &'static str) -> Result<(), NetnsError> {
    let path = Path::new("/proc/sys").join(name);
    fs::write(&path, value).map_err(|source| NetnsError::Sysctl { path, value, source })
}

/// For what a kernel may have been built without, which is as good as off.
fn set_if_there(name: &str, value: &'static str) -> Result<(), NetnsError> {
    match set(name, value) {
        Err(NetnsError::Sysctl { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
