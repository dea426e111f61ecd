//! `init` and `shim` under a real `runc`: needs root and `runc` (`cargo xtask setup`).

#[cfg(test)]
mod runs {
    pub(crate) mod bundle;
    mod init;
    mod shim;
    mod terminal;
}
