//! The one way to run a command: it is shown, its failure names it.

use std::{
    ffi::OsStr,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// Runs a command with our output, having shown it.
///
/// # Errors
/// If it can't be started or doesn't succeed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", shown(command));
    let status = command.status().with_context(|| not_started(command))?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs a command and gives what it printed; its standard error stands in the error.
///
/// # Errors
/// If it can't be started or doesn't succeed.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| not_started(command))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}: {}", shown(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a command can be started and succeeds; its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Path of a command as the shell would find it.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// `cargo`, the one that runs us.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::workspace::root());
    // Set for `cargo run` of this crate; build scripts of others would take them for their own.
    for (key, _) in std::env::vars_os() {
        if key.to_str().is_some_and(|key| key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(key);
        }
    }
    cargo
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let env = command
        .get_envs()
        .filter_map(|(key, value)| Some(format!("{}={}", key.to_string_lossy(), quoted(value?))));
    env.chain(words.map(quoted)).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if word.contains([' ', '"', '$', '\n']) { format!("'{word}'") } else { word.into_owned() }
}

fn not_started(command: &Command) -> String {
    format!("`{}` can't be started", command.get_program().to_string_lossy())
}
