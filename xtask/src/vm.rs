//! `cargo xtask vm-test`: boots each kernel of the matrix under QEMU with an initramfs that holds one program,
//! and reads from the console how it went.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    build, exec,
    setup::{self, Need},
    workspace,
};

/// How long a VM may take, from power on to power off: emulation is slow.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long KVM may take to show that it works.
const PROBE: Duration = Duration::from_secs(5);
/// Modules that the gate needs where they aren't built in, in the order to load them.
const MODULES: [&str; 3] = ["drivers/net/veth.ko", "net/sched/sch_ingress.ko", "net/sched/cls_bpf.ko"];

/// Programs of the host that the claims use to break things, as root could.
const TOOLS: [&str; 2] = ["ip", "tc"];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check only claims whose names contain this.
    filter: Option<String>,
}

/// A kernel that was fetched.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(&[Need::Build, Need::Test, Need::Vm])?;
    build::run(build::Args::default())?;
    // The features of the whole workspace, so that what the tests compiled is used.
    exec::run(exec::cargo().args(["build", "--workspace", "--bin", "strait-vm-tests"]))?;
    let folder = workspace::root().join("target/vm");
    fs::create_dir_all(&folder)?;
    let mut failed = Vec::new();
    for (package, why) in matrix()? {
        eprintln!("vm: {package}: {why}");
        let kernel = fetch(&folder, &package)?;
        let initramfs = folder.join("initramfs");
        fs::write(&initramfs, initramfs_of(&kernel)?)?;
        if !boot(&kernel, &initramfs, args.filter.as_deref())? {
            failed.push(package);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("claims failed on {}", failed.join(", ")) }
}

/// Package and reason of each line.
fn matrix() -> Result<Vec<(String, String)>> {
    let file = workspace::root().join("vm-tests/kernels.txt");
    let text = fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let (package, why) = line.split_once(' ').context("a kernel without a reason")?;
            Ok((package.to_owned(), why.trim().to_owned()))
        })
        .collect()
}

/// Downloads and unpacks a kernel package, once; it is not installed.
fn fetch(folder: &Path, package: &str) -> Result<Kernel> {
    let unpacked = folder.join(package);
    if !unpacked.join("boot").is_dir() {
        if !exec::succeeds(Command::new("apt-cache").args(["show", "--quiet", package])) {
            exec::run(Command::new("apt-get").args(["-q", "update"]))?;
        }
        let depends = exec::read(Command::new("apt-cache").args(["depends", "--important", package]))?;
        let versioned = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let image = versioned.into_iter().find(|name| name.starts_with("linux-image-")).unwrap_or(package);
        exec::run(Command::new("apt-get").args(["download", image]).current_dir(folder))?;
        let deb = files(folder)?
            .into_iter()
            .find(|file| name(file).starts_with(&format!("{image}_")) && name(file).ends_with(".deb"));
        let deb = deb.with_context(|| format!("apt-get left no package of {image}"))?;
        exec::run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&unpacked))?;
        fs::remove_file(deb)?;
    }
    let image = files(&unpacked.join("boot"))?.into_iter().find(|file| name(file).starts_with("vmlinuz-"));
    let modules = files(&unpacked.join("lib/modules"))?.into_iter().next();
    match (image, modules) {
        (Some(image), Some(modules)) => Ok(Kernel { image, modules: modules.join("kernel") }),
        _ => bail!("{package} holds no kernel: remove {} and try again", unpacked.display()),
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn name(file: &Path) -> &str {
    file.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The program and the tools with the libraries that they were linked to, the object, the modules.
fn initramfs_of(kernel: &Kernel) -> Result<Vec<u8>> {
    let root = workspace::root();
    let program = root.join("target/debug/strait-vm-tests");
    let mut archive = Archive::default();
    archive.file("init", &program, 0o755)?;
    archive.file("lib/strait/gate.bpf.o", &root.join("target/lib/gate.bpf.o"), 0o644)?;
    let mut programs = vec![program];
    for tool in TOOLS {
        let file =
            exec::which(tool).with_context(|| format!("`{tool}` is missing: run `cargo xtask setup`"))?;
        archive.file(&format!("bin/{tool}"), &file, 0o755)?;
        programs.push(file);
    }
    let mut libraries = std::collections::BTreeSet::new();
    for program in &programs {
        let listed = exec::read(Command::new("ldd").arg(program))?;
        libraries.extend(listed.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned));
    }
    for library in &libraries {
        archive.file(library.trim_start_matches('/'), Path::new(library), 0o755)?;
    }
    let mut order = String::new();
    for module in MODULES {
        let file = kernel.modules.join(module);
        // Built in where there's no such file.
        if file.is_file() {
            archive.file(&format!("modules/{}", name(&file)), &file, 0o644)?;
            order.push_str(name(&file));
            order.push('\n');
        }
    }
    archive.entry("modules/order", 0o100_644, order.as_bytes());
    Ok(archive.finish())
}

/// A cpio archive in the format `newc` (Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`).
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    folders: std::collections::BTreeSet<String>,
    inode: u32,
}

impl Archive {
    fn file(&mut self, at: &str, from: &Path, mode: u32) -> Result<()> {
        let content = fs::read(from).with_context(|| format!("can't read {}", from.display()))?;
        self.entry(at, 0o100_000 | mode, &content);
        Ok(())
    }

    fn entry(&mut self, at: &str, mode: u32, content: &[u8]) {
        for (end, _) in at.match_indices('/') {
            let folder = at.get(..end).unwrap_or_default().to_owned();
            if self.folders.insert(folder.clone()) {
                self.raw(&folder, 0o040_755, &[]);
            }
        }
        self.raw(at, mode, content);
    }

    fn raw(&mut self, at: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let (size, name_size) = (content.len(), at.len() + 1);
        let header = format!(
            "070701{:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{size:08x}{:08x}{:08x}{:08x}{:08x}{name_size:08x}{:08x}",
            self.inode, 0, 0, 1, 0, 0, 0, 0, 0, 0
        );
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(at.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.raw("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// Boots and waits for the end; whether every claim held.
fn boot(kernel: &Kernel, initramfs: &Path, filter: Option<&str>) -> Result<bool> {
    let accelerator = if kvm_works(kernel) { "kvm" } else { "tcg" };
    eprintln!("vm: {} with {accelerator}", name(&kernel.image));
    let append = format!("console=ttyS0 quiet panic=-1 lsm=bpf -- {}", filter.unwrap_or_default());
    let mut command = qemu(kernel, accelerator);
    command.arg("-initrd").arg(initramfs).arg("-append").arg(append.trim_end());
    let console = read_for(&mut command, PATIENCE)?;
    std::io::stdout().write_all(console.as_bytes())?;
    let Some(summary) = console.lines().find(|line| line.starts_with("vm: ") && line.contains(" passed, "))
    else {
        bail!("the VM said nothing of its claims within {PATIENCE:?}");
    };
    Ok(summary.trim_end().ends_with(", 0 failed") && !summary.starts_with("vm: 0 passed"))
}

fn qemu(kernel: &Kernel, accelerator: &str) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command.args([
        "-accel",
        accelerator,
        "-m",
        "512",
        "-smp",
        "2",
        "-nographic",
        "-no-reboot",
        "-nodefaults",
    ]);
    command.args(["-serial", "stdio"]).arg("-kernel").arg(&kernel.image);
    command
}

/// On some hosts `/dev/kvm` opens and a guest hangs: a guest without init that panics and ends shows that it
/// works.
fn kvm_works(kernel: &Kernel) -> bool {
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return false;
    }
    let mut command = qemu(kernel, "kvm");
    command.args(["-append", "console=ttyS0 panic=-1"]);
    read_for(&mut command, PROBE).is_ok_and(|console| console.contains("Kernel panic"))
}

/// What a command prints until it ends, or until it is stopped because its time is up.
fn read_for(command: &mut Command, time: Duration) -> Result<String> {
    let output = tempfile::tempfile()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(Stdio::inherit())
        .spawn()
        .context("`qemu-system-x86_64` can't be started: run `cargo xtask setup`")?;
    let end = Instant::now() + time;
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut console = Vec::new();
    let mut output = output;
    std::io::Seek::rewind(&mut output)?;
    std::io::Read::read_to_end(&mut output, &mut console)?;
    Ok(String::from_utf8_lossy(&console).replace('\r', ""))
}
