//! Places of the checkout.

use std::path::{Path, PathBuf};

/// Root of the checkout: the folder above this crate.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Cargo's target folder.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// `gate.bpf.o`, `strait-tool`, `strait-gateway`: what an installation has in `/usr/lib/strait`.
pub(crate) fn lib() -> PathBuf {
    target().join("lib")
}

/// `strait`, `strait-agent`: what an installation has on the PATH.
pub(crate) fn bin() -> PathBuf {
    target().join("bin")
}
