//! PID 1 of a small VM: mounts what the kernel side needs, loads modules, checks every claim, says
//! `vm: N passed, M failed` and powers off.
//!
//! The claims use the agent's own code; nothing of the gate is written twice here.

mod claims;
mod contained;
mod probe;

use std::{fs, path::Path};

use anyhow::{Context, Result};
use rustix::{
    mount::{MountFlags, mount},
    system::{RebootCommand, finit_module, reboot, uname},
};

/// Where `cargo xtask vm-test` puts modules, with a list in the order to load them.
const MODULES: &str = "/modules";
const MOUNTS: [(&str, &str); 7] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("cgroup2", "/sys/fs/cgroup"),
    ("bpf", "/sys/fs/bpf"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
];

fn main() {
    if probe::asked() {
        return;
    }
    match prepare().and_then(|()| claims::check(std::env::args().nth(1).as_deref())) {
        Ok((passed, failed)) => println!("vm: {passed} passed, {failed} failed"),
        Err(error) => println!("vm: 0 passed, 1 failed\nvm: {error:#}"),
    }
    // The end of PID 1 would be a panic of the kernel; powering off can only fail without privilege.
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        println!("vm: can't power off: {error}");
    }
}

fn prepare() -> Result<()> {
    for (kind, at) in MOUNTS {
        fs::create_dir_all(at).with_context(|| format!("can't make {at}"))?;
        mount(kind, at, kind, MountFlags::empty(), None).with_context(|| format!("can't mount {at}"))?;
    }
    let order = fs::read_to_string(Path::new(MODULES).join("order")).context("no list of modules")?;
    for name in order.lines() {
        let file = fs::File::open(Path::new(MODULES).join(name)).with_context(|| format!("no {name}"))?;
        finit_module(&file, c"", 0).with_context(|| format!("can't load {name}"))?;
    }
    println!("vm: kernel {}", uname().release().to_string_lossy());
    Ok(())
}
