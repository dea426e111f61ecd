//! `cargo xtask build`: binaries, the static helper and the kernel object, laid out as an installation has them.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    exec,
    setup::{self, Need},
    toolchain::BpfToolchain,
    workspace,
};

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Optimise as for an installation.
    #[arg(long)]
    release: bool,
}

impl Args {
    /// An optimised build.
    pub(crate) const RELEASE: Self = Self { release: true };

    fn folder(self) -> &'static str {
        if self.release { "release" } else { "debug" }
    }

    fn apply(self, cargo: &mut Command) {
        if self.release {
            cargo.arg("--release");
        }
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    setup::ensure(&[Need::Build])?;
    kernel_object()?;
    static_helper(args)?;
    let mut cargo = exec::cargo();
    cargo.args(["build", "--package", "strait-agent", "--package", "strait-gateway", "--bins"]);
    args.apply(&mut cargo);
    exec::run(&mut cargo)?;
    lay_out(args)
}

/// Builds the load client of the benchmarks, optimised.
pub(crate) fn load_client() -> Result<()> {
    exec::run(exec::cargo().args(["build", "--release", "--package", "strait-load"]))
}

/// Builds the kernel programs: always optimised, since the verifier counts instructions.
fn kernel_object() -> Result<()> {
    let toolchain = BpfToolchain::of_host();
    if !toolchain.installed() {
        bail!("the compiler of the kernel programs is missing; run `cargo xtask setup`");
    }
    let mut cargo = toolchain.cargo();
    cargo
        .env("RUSTFLAGS", "-Cdebuginfo=2 -Clink-arg=--btf")
        .args(["build", "--release", "-Zbuild-std=core", "--target", "bpfel-unknown-none"])
        .args(["--manifest-path", "agent-ebpf/Cargo.toml", "--target-dir"])
        .arg(ebpf_target());
    exec::run(&mut cargo)
}

/// Builds the helper that works in any root file system: no dynamic loader, no library of the host.
fn static_helper(args: Args) -> Result<()> {
    let mut cargo = exec::cargo();
    cargo.args(["rustc", "--package", "strait-tool", "--bin", "strait-tool", "--target", &host_triple()?]);
    args.apply(&mut cargo);
    cargo.args(["--", "-C", "target-feature=+crt-static"]);
    exec::run(&mut cargo)
}

/// Puts what was built where an installation would have it.
pub(crate) fn lay_out(args: Args) -> Result<()> {
    let target = workspace::target();
    let (lib, bin) = (workspace::lib(), workspace::bin());
    let built = target.join(args.folder());
    let helper = target.join(host_triple()?).join(args.folder()).join("strait-tool");
    place(&ebpf_target().join("bpfel-unknown-none/release/strait-ebpf"), &lib, "gate.bpf.o")?;
    place(&helper, &lib, "strait-tool")?;
    place(&built.join("strait-gateway"), &lib, "strait-gateway")?;
    place(&built.join("strait"), &bin, "strait")?;
    place(&built.join("strait-agent"), &bin, "strait-agent")
}

/// Copies a file into place by renaming, so that a running binary keeps its own; nothing if it's the same.
fn place(from: &Path, folder: &Path, name: &str) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("can't make `{}`", folder.display()))?;
    let to = folder.join(name);
    if same(from, &to) {
        return Ok(());
    }
    let fresh = folder.join(format!(".{name}.new"));
    fs::copy(from, &fresh).with_context(|| format!("can't copy `{}`", from.display()))?;
    fs::rename(&fresh, &to).with_context(|| format!("can't place `{}`", to.display()))
}

fn same(from: &Path, to: &Path) -> bool {
    let (Ok(from), Ok(to)) = (fs::metadata(from), fs::metadata(to)) else { return false };
    let newer = matches!((from.modified(), to.modified()), (Ok(from), Ok(to)) if to >= from);
    newer && from.len() == to.len()
}

fn ebpf_target() -> std::path::PathBuf {
    workspace::target().join("ebpf")
}

fn host_triple() -> Result<String> {
    let version = exec::read(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}
