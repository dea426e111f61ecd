//! Debian packages, each with its reason: the only list of them.

use std::{path::Path, process::Command};

use crate::exec;

/// What a package is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    /// Compiling the workspace.
    Build,
    /// Compiling the kernel programs with Debian's compiler.
    BpfBuild,
    /// Runs, tests and the demo with its clients.
    Run,
    /// Peers and load generators.
    Bench,
    /// The virtual machine.
    Vm,
}

/// What shows that a package isn't needed any more.
#[derive(Clone, Copy, Debug)]
enum Proof {
    /// It is installed.
    Installed,
    /// The command is there, wherever from; looked for where a run can see it.
    Command(&'static str),
}

/// A Debian package.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) group: Group,
    proof: Proof,
    pub(super) why: &'static str,
}

impl Package {
    const fn installed(name: &'static str, group: Group, why: &'static str) -> Self {
        Self { name, group, proof: Proof::Installed, why }
    }

    const fn command(name: &'static str, command: &'static str, group: Group, why: &'static str) -> Self {
        Self { name, group, proof: Proof::Command(command), why }
    }

    /// Whether what it gives is there.
    pub(super) fn provided(&self) -> bool {
        match self.proof {
            Proof::Command(command) => {
                // Not the PATH: a client in someone's home is invisible in a run.
                ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
                    .iter()
                    .any(|dir| Path::new(dir).join(command).exists())
            }
            Proof::Installed => {
                let mut query = Command::new("dpkg-query");
                query.args(["-W", "-f=${db:Status-Status}", self.name]);
                exec::read(&mut query).is_ok_and(|status| status.trim() == "installed")
            }
        }
    }
}

pub(super) const PACKAGES: &[Package] = &[
    Package::command("gcc", "cc", Group::Build, "the linker, and the C part of ring"),
    Package::installed("libc6-dev", Group::Build, "static C library of the helper in the sandbox"),
    Package::installed("rustc-web", Group::BpfBuild, "compiler of the kernel programs (LLVM 22)"),
    Package::installed("rust-web-src", Group::BpfBuild, "sources of `core`, built for the kernel"),
    Package::installed("llvm-22-dev", Group::BpfBuild, "LLVM that bpf-linker links with"),
    Package::installed("libpolly-22-dev", Group::BpfBuild, "part of that LLVM"),
    Package::installed("zlib1g-dev", Group::BpfBuild, "needed by that LLVM"),
    Package::installed("libzstd-dev", Group::BpfBuild, "needed by that LLVM"),
    Package::command("g++", "g++", Group::BpfBuild, "bpf-linker links with the C++ library"),
    Package::command("runc", "runc", Group::Run, "starts the containers of runs"),
    Package::command("iproute2", "ip", Group::Run, "the demo's own internet is a network namespace"),
    Package::command("openssl", "openssl", Group::Run, "certificates of the demo's internet"),
    Package::installed("ca-certificates", Group::Run, "the system bundle that runs see"),
    Package::command("curl", "curl", Group::Run, "client: OpenSSL, HTTP/2"),
    Package::command("wget", "wget", Group::Run, "client: GnuTLS, obeys only the system bundle"),
    Package::command("git", "git", Group::Run, "client and, as git http-backend, server"),
    Package::command("dnsutils", "dig", Group::Run, "client: DNS"),
    Package::command("netcat-openbsd", "nc", Group::Run, "client: plain TCP and UDP"),
    Package::command("python3", "python3", Group::Run, "client, and the servers of the demo's internet"),
    Package::command("python3-pip", "pip3", Group::Run, "client: pip"),
    Package::installed("python3-venv", Group::Run, "a folder for the MCP clients of PyPI"),
    Package::command("nodejs", "node", Group::Run, "client: node fetch"),
    Package::command("npm", "npm", Group::Run, "client: npm"),
    Package::installed("squid-openssl", Group::Bench, "peer: forward proxy with TLS interception"),
    Package::command("tinyproxy", "tinyproxy", Group::Bench, "peer: forward proxy"),
    Package::command("unbound", "unbound", Group::Bench, "peer: DNS"),
    Package::command("dnsmasq-base", "dnsmasq", Group::Bench, "peer and upstream: DNS"),
    Package::command("nginx", "nginx", Group::Bench, "origin of the loads"),
    Package::command("wrk", "wrk", Group::Bench, "load: HTTP"),
    Package::command("dnsperf", "dnsperf", Group::Bench, "load: DNS"),
    Package::command("bpftool", "bpftool", Group::Bench, "cost of the kernel programs"),
    Package::command("qemu-system-x86", "qemu-system-x86_64", Group::Vm, "boots the kernels of the matrix"),
];
