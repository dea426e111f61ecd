//! Digest of this crate's sources: both ends of the link compare it in their hello, so two builds that would
//! read each other's packets differently refuse to speak.

use std::{env, fs, path::Path};

use sha2::{Digest, Sha256};

fn main() {
    println!("cargo::rerun-if-changed=src");
    let mut names: Vec<_> = fs::read_dir("src")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .collect();
    names.sort();
    let mut digest = Sha256::new();
    for name in names {
        digest.update(fs::read(&name).unwrap_or_default());
    }
    let hex: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let out = env::var("OUT_DIR").unwrap_or_default();
    let _ = fs::write(Path::new(&out).join("contract.txt"), hex);
}
