//! Which compiler builds the kernel programs: they need `core` built for `bpfel-unknown-none` and a linker of
//! the same LLVM.

use std::{path::Path, process::Command};

use crate::exec;

/// Version of bpf-linker; its LLVM must be that of the compiler.
pub(crate) const BPF_LINKER: &str = "0.13.0";
/// Compiler of Debian's `rustc-web`, which comes with the sources of its `core`.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
/// Where Debian's packages put that LLVM.
pub(crate) const DEBIAN_LLVM: &str = "/usr/lib/llvm-22";

/// A way to build the kernel programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BpfToolchain {
    /// Debian 12: the distribution's compiler and LLVM beside rustup's stable cargo.
    Debian,
    /// Elsewhere: a rustup nightly with `rust-src`; bpf-linker brings or finds its LLVM.
    Nightly,
}

impl BpfToolchain {
    /// The way this host offers.
    pub(crate) fn of_host() -> Self {
        if is_debian_12() { Self::Debian } else { Self::Nightly }
    }

    /// Whether compiler and sources are there.
    pub(crate) fn installed(self) -> bool {
        match self {
            Self::Debian => {
                Path::new(DEBIAN_RUSTC).exists()
                    && Path::new("/usr/lib/rustlib/src/rust/library/core").exists()
            }
            Self::Nightly => nightly_sources().is_some_and(|sources| Path::new(&sources).exists()),
        }
    }

    /// A cargo that compiles with it.
    pub(crate) fn cargo(self) -> Command {
        match self {
            Self::Debian => {
                // Cargo allows nightly features by the variable; the compiler is a release.
                let mut cargo = exec::cargo();
                cargo.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
            Self::Nightly => {
                // Through rustup: the cargo that runs us is of one toolchain and no proxy.
                let mut rustup = Command::new("rustup");
                rustup.current_dir(crate::workspace::root()).args(["run", "nightly", "cargo"]);
                rustup.env_remove("RUSTC");
                rustup
            }
        }
    }
}

/// Whether bpf-linker is there in the version we want.
pub(crate) fn linker_installed() -> bool {
    exec::read(Command::new("bpf-linker").arg("--version"))
        .is_ok_and(|version| version.trim().ends_with(BPF_LINKER))
}

/// Whether this is a Debian 12, by `/etc/os-release`.
pub(crate) fn is_debian_12() -> bool {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |key: &str| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .map(|value| value.trim_matches('"').to_owned())
    };
    field("ID=").as_deref() == Some("debian") && field("VERSION_ID=").as_deref() == Some("12")
}

fn nightly_sources() -> Option<String> {
    let mut rustc = Command::new("rustc");
    rustc.env("RUSTUP_TOOLCHAIN", "nightly").args(["--print", "sysroot"]);
    let sysroot = exec::read(&mut rustc).ok()?;
    Some(format!("{}/lib/rustlib/src/rust/library/core", sysroot.trim()))
}
