//! `cargo xtask fuzz`: builds the targets of `gateway/fuzz/` with coverage and runs them for a while.
//!
//! Coverage comes from flags that a stable compiler has, so no nightly is needed. AddressSanitizer would need one and
//! would find little: no target reaches `unsafe` code of ours. cargo-fuzz can run the same targets.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::{
    exec,
    setup::{self, Need},
    workspace,
};

/// Counters at each edge and comparisons as hints, as libFuzzer reads them.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Longest input, bytes.
const MAX_INPUT: u32 = 8192;
const MAX_MIB: u32 = 2048;

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these targets (files of `gateway/fuzz/fuzz_targets`).
    targets: Vec<String>,
    /// How long each one runs.
    #[arg(long, default_value_t = 30)]
    seconds: u32,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    setup::ensure(&[Need::Build])?;
    let known = targets()?;
    for target in &args.targets {
        if !known.contains(target) {
            bail!("no fuzz target is called `{target}`: there are `{}`", known.join("`, `"));
        }
    }
    let chosen: Vec<&String> =
        known.iter().filter(|name| args.targets.is_empty() || args.targets.contains(name)).collect();
    let host = host()?;
    let out = workspace::target().join("fuzz");
    let mut cargo = exec::cargo();
    // Named, so that build scripts and macros are not instrumented.
    cargo.args(["build", "--release", "--manifest-path", "gateway/fuzz/Cargo.toml", "--target", &host]);
    cargo.arg("--target-dir").arg(&out).env("RUSTFLAGS", COVERAGE);
    for target in &chosen {
        cargo.args(["--bin", target]);
    }
    exec::run(&mut cargo)?;
    let mut failed = Vec::new();
    for target in chosen {
        let (corpus, artifacts) = (out.join("corpus").join(target), out.join("artifacts").join(target));
        for folder in [&corpus, &artifacts] {
            fs::create_dir_all(folder).with_context(|| format!("can't make `{}`", folder.display()))?;
        }
        let mut fuzzer = std::process::Command::new(out.join(&host).join("release").join(target));
        fuzzer.arg(corpus).arg(format!("-artifact_prefix={}/", artifacts.display()));
        fuzzer.arg(format!("-max_total_time={}", args.seconds));
        fuzzer.arg(format!("-max_len={MAX_INPUT}")).arg(format!("-rss_limit_mb={MAX_MIB}"));
        fuzzer.args(["-timeout=10", "-print_final_stats=1"]);
        if let Err(error) = exec::run(&mut fuzzer) {
            eprintln!("fuzz: {error:#}");
            failed.push(target.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("`{}` failed; the inputs are in `{}`", failed.join("`, `"), out.join("artifacts").display());
    }
    Ok(())
}

/// Names of the targets, sorted.
fn targets() -> Result<Vec<String>> {
    let folder = workspace::root().join("gateway/fuzz/fuzz_targets");
    let files = fs::read_dir(&folder).with_context(|| format!("can't read `{}`", folder.display()))?;
    let mut names = Vec::new();
    for file in files {
        names.extend(file?.path().file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// The compiler's own target.
fn host() -> Result<String> {
    let said = exec::read(std::process::Command::new("rustc").arg("-vV"))?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}
