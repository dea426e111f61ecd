//! Lints of the tree that clippy has no words for: names, sizes, where `unsafe` may stand, and that the code map
//! of the README is true.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{exec, workspace};

/// Files in which `unsafe` may stand, each with its reason. Everything below a folder if it ends with `/`.
const UNSAFE_FILES: &[(&str, &str)] = &[
    ("agent-ebpf/src/", "kernel programs: contexts and map values are raw pointers"),
    ("agent/src/gate/sys.rs", "bpf(2) calls that aya doesn't offer"),
    ("agent/src/run/shim.rs", "descriptors passed to the shim"),
    ("agent/src/selftest.rs", "a fork that enters the run's namespace"),
    ("agent/contract/src/flow/sockopt.rs", "getsockopt of a flow, which no crate offers"),
    ("agent/tests/containment/", "probes that make raw system calls a library wouldn't"),
    ("agent/tool/src/descriptors.rs", "descriptors that came with the process"),
    ("agent/tool/src/spawn.rs", "signal masks between fork and exec"),
];

/// Names that hide the idea of a file.
const VAGUE_NAMES: &[&str] =
    &["util", "utils", "helper", "helpers", "common", "types", "manager", "misc", "mod"];

/// Lines of a source file beyond which it holds two ideas; tests may be longer.
const MAX_LINES: usize = 700;
const MAX_TEST_LINES: usize = 1_500;

/// Crates of the code map.
const CRATES: &[&str] = &[
    "agent-ebpf",
    "agent-ebpf/abi",
    "agent",
    "agent/contract",
    "agent/tool",
    "gateway",
    "gateway/model",
    "policies",
    "xtask",
    "xtask/load",
];

pub(crate) fn run() -> Result<()> {
    let root = workspace::root();
    let mut problems = Vec::new();
    for path in sources(root)? {
        let text = fs::read_to_string(root.join(&path)).with_context(|| format!("can't read `{path}`"))?;
        problems.extend(source_problems(&path, &text));
    }
    let readme = fs::read_to_string(root.join("README.md")).context("can't read `README.md`")?;
    for krate in CRATES {
        problems.extend(map_problems(&readme, krate, &modules(&root.join(krate).join("src"))?));
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    if !problems.is_empty() {
        bail!("{} problems in the tree", problems.len());
    }
    Ok(())
}

/// Rust files that are tracked or about to be.
fn sources(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"]);
    let listed = exec::read(&mut git)?;
    Ok(listed.lines().filter(|path| root.join(path).is_file()).map(str::to_owned).collect())
}

fn source_problems(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let stem = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    if VAGUE_NAMES.contains(&stem) {
        problems.push(format!("{path}: `{stem}` names no idea; name the file for what it holds"));
    }
    let tests = stem == "tests" || path.contains("/tests/");
    let (lines, most) = (text.lines().count(), if tests { MAX_TEST_LINES } else { MAX_LINES });
    if lines > most {
        problems.push(format!("{path}: {lines} lines; look for the second idea (at most {most})"));
    }
    if uses_unsafe(text) && !allows_unsafe(path) {
        problems.push(format!("{path}: `unsafe` stands only in the files that xtask/src/tidy.rs lists"));
    }
    problems
}

/// Whether a block, function, implementation or extern block is `unsafe`; comments don't count.
fn uses_unsafe(text: &str) -> bool {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.into_iter().any(|line| {
        let words = line.split_whitespace();
        words.clone().zip(words.skip(1)).any(|(word, next)| {
            word.trim_start_matches(['=', '(', '|', '{']) == "unsafe"
                && ["{", "fn", "impl", "extern"].iter().any(|kind| next.starts_with(kind))
        })
    })
}

fn allows_unsafe(path: &str) -> bool {
    UNSAFE_FILES
        .iter()
        .any(|(allowed, _)| if allowed.ends_with('/') { path.starts_with(allowed) } else { path == *allowed })
}

/// Modules of a crate: files and folders of its `src`.
fn modules(src: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(src).with_context(|| format!("can't list `{}`", src.display()))? {
        let path: PathBuf = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let source = path.is_dir() || path.extension().is_some_and(|extension| extension == "rs");
        if source && !["main", "lib", "bin", "tests"].contains(&stem.as_str()) {
            names.insert(stem);
        }
    }
    Ok(names)
}

/// Compares the row of a crate, "| `gateway/src` | `accept`: …; `identify`: … |", with its modules.
fn map_problems(readme: &str, krate: &str, modules: &BTreeSet<String>) -> Vec<String> {
    let head = format!("| `{krate}/src` |");
    let Some(row) = readme.lines().find_map(|line| line.strip_prefix(&head)) else {
        return vec![format!("README.md: the code map has no row for `{krate}/src`")];
    };
    let named: BTreeSet<String> = row.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let missing = modules
        .difference(&named)
        .map(|name| format!("README.md: the code map lacks `{name}` of {krate}/src"));
    let gone = named
        .difference(modules)
        .map(|name| format!("README.md: the code map names `{name}`, not in {krate}/src"));
    missing.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, expect: &[&str]) {
        let problems = source_problems(path, text);
        assert_eq!(problems.len(), expect.len(), "{problems:?}");
        for (problem, expect) in problems.iter().zip(expect) {
            assert!(problem.contains(expect), "{problem}");
        }
    }

    #[test]
    fn names_sizes_and_unsafe_are_found() {
        let block = ["let a = unsafe", "{ b() };"].join(" ");
        check("gateway/src/accept.rs", &format!("fn a() {{}}\n// {block}\n"), &[]);
        check("gateway/src/utils.rs", "", &["names no idea"]);
        check("gateway/src/accept.rs", &"\n".repeat(MAX_LINES + 1), &["second idea"]);
        check("gateway/src/accept/tests.rs", &"\n".repeat(MAX_LINES + 1), &[]);
        check("gateway/src/accept.rs", &block, &["`unsafe` stands only"]);
        check("agent-ebpf/src/connect.rs", &block, &[]);
    }

    #[test]
    fn the_code_map_names_every_module_and_no_other() {
        let modules = BTreeSet::from(["accept".to_owned(), "identify".to_owned()]);
        let map = |row: &str| map_problems(&format!("# x\n{row}\n"), "gateway", &modules);
        assert!(map("| `gateway/src` | `accept`, `identify` |").is_empty());
        assert_eq!(map("| `gateway/src` | `accept`, `hold` |").len(), 2);
        assert_eq!(map("").len(), 1);
    }
}
