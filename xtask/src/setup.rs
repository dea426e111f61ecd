//! `cargo xtask setup`: what building, testing and the demo need, installed once.

mod clients;
mod packages;

use std::process::Command;

use anyhow::{Result, bail};

use self::{
    clients::{CLIENTS, Clients},
    packages::{Group, PACKAGES, Package},
};
use crate::{
    exec,
    toolchain::{self, BPF_LINKER, BpfToolchain, DEBIAN_LLVM},
};

/// Version of cargo-deny.
const CARGO_DENY: &str = "0.20.2";

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Also the peers and load generators of `cargo xtask bench`.
    #[arg(long)]
    bench: bool,
    /// Also QEMU for `cargo xtask vm-test`.
    #[arg(long)]
    vm: bool,
    /// Say what is missing and install nothing; fails if anything is.
    #[arg(long)]
    dry_run: bool,
}

/// What one verb needs before it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// To compile everything, the kernel programs included.
    Build,
    /// To run tests and the demo.
    Test,
    /// To run the tests that drive official clients.
    Clients,
    /// To check the tree.
    Check,
    /// To compare with peers.
    Bench,
    /// To boot kernels.
    Vm,
}

/// One thing to install.
#[derive(Debug)]
enum Step {
    Packages(Vec<&'static Package>),
    NightlyCompiler,
    BpfLinker,
    CargoDeny,
    Clients(&'static Clients),
}

pub(crate) fn run(args: Args) -> Result<()> {
    let mut needs = vec![Need::Build, Need::Test, Need::Clients, Need::Check];
    if args.bench {
        needs.push(Need::Bench);
    }
    let steps = missing(&needs, args.vm);
    if steps.is_empty() {
        eprintln!("setup: everything is there");
        return Ok(());
    }
    for step in &steps {
        say(step);
    }
    if args.dry_run {
        bail!("setup is incomplete; run `cargo xtask setup`");
    }
    steps.iter().try_for_each(install)
}

/// Installs what a verb needs and isn't there yet; silent if nothing is missing.
///
/// # Errors
/// If something can't be installed.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    for step in missing(needs, false) {
        say(&step);
        install(&step)?;
    }
    Ok(())
}

fn missing(needs: &[Need], vm: bool) -> Vec<Step> {
    let wanted = |group: Group| match group {
        Group::Build => needs.iter().any(|need| matches!(need, Need::Build)),
        // In containers of other distributions the packages have other names: say nothing about them there.
        Group::BpfBuild => {
            needs.iter().any(|need| matches!(need, Need::Build))
                && BpfToolchain::of_host() == BpfToolchain::Debian
        }
        Group::Run => needs.iter().any(|need| matches!(need, Need::Test | Need::Bench)),
        Group::Bench => needs.iter().any(|need| matches!(need, Need::Bench)),
        Group::Vm => vm || needs.iter().any(|need| matches!(need, Need::Vm)),
    };
    let packages: Vec<_> = PACKAGES.iter().filter(|p| wanted(p.group) && !p.provided()).collect();
    let mut steps = Vec::new();
    if !packages.is_empty() {
        steps.push(Step::Packages(packages));
    }
    if wanted(Group::Build) {
        if BpfToolchain::of_host() == BpfToolchain::Nightly && !BpfToolchain::Nightly.installed() {
            steps.push(Step::NightlyCompiler);
        }
        if !toolchain::linker_installed() {
            steps.push(Step::BpfLinker);
        }
    }
    if needs.iter().any(|need| matches!(need, Need::Clients)) {
        steps.extend(CLIENTS.iter().filter(|clients| !clients.installed()).map(Step::Clients));
    }
    if needs.iter().any(|need| matches!(need, Need::Check))
        && !exec::succeeds(exec::cargo().args(["deny", "--version"]))
    {
        steps.push(Step::CargoDeny);
    }
    steps
}

fn say(step: &Step) {
    match step {
        Step::Packages(packages) => {
            for package in packages {
                eprintln!("setup: package {}: {}", package.name, package.why);
            }
        }
        Step::NightlyCompiler => {
            eprintln!("setup: rustup nightly with rust-src: builds `core` for the kernel programs")
        }
        Step::BpfLinker => {
            eprintln!("setup: bpf-linker {BPF_LINKER}: links the kernel programs (about a minute)")
        }
        Step::Clients(clients) => clients.say(),
        Step::CargoDeny => {
            eprintln!("setup: cargo-deny {CARGO_DENY}: licences, sources and bans of dependencies")
        }
    }
}

fn install(step: &Step) -> Result<()> {
    match step {
        Step::Packages(packages) => install_packages(packages),
        Step::NightlyCompiler => exec::run(Command::new("rustup").args([
            "toolchain",
            "install",
            "nightly",
            "--profile",
            "minimal",
            "--component",
            "rust-src",
        ])),
        Step::BpfLinker => exec::run(&mut bpf_linker()),
        Step::Clients(clients) => clients.install(),
        Step::CargoDeny => {
            exec::run(exec::cargo().args(["install", "cargo-deny", "--locked", "--version", CARGO_DENY]))
        }
    }
}

fn install_packages(packages: &[&Package]) -> Result<()> {
    let names: Vec<_> = packages.iter().map(|package| package.name).collect();
    if exec::which("apt-get").is_none() {
        bail!("no apt-get here; install what Debian calls: {}", names.join(" "));
    }
    if !is_root() {
        bail!(
            "packages are missing and only root can install them; run as root: apt-get install {}",
            names.join(" ")
        );
    }
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-o", "Dpkg::Use-Pty=0"]);
        apt
    };
    exec::run(apt().arg("update"))?;
    exec::run(apt().args(["install", "-y", "--no-install-recommends"]).args(names))
}

fn bpf_linker() -> Command {
    let mut cargo = exec::cargo();
    cargo.args(["install", "bpf-linker", "--version", BPF_LINKER, "--locked", "--force"]);
    if BpfToolchain::of_host() == BpfToolchain::Debian {
        // Without the prefix its build script looks for LLVM where Debian doesn't put it.
        cargo.env("LLVM_PREFIX", DEBIAN_LLVM).env("LLVM_SYS_221_PREFIX", DEBIAN_LLVM);
        cargo.args(["--no-default-features", "--features", "llvm-22"]);
    }
    cargo
}

/// Whether we may install packages, make network namespaces and load kernel programs.
pub(crate) fn is_root() -> bool {
    exec::read(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0")
}
