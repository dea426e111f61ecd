//! Official MCP clients and servers, which tests of the gateway drive: from npm and PyPI, in the target folder.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{exec, workspace};

/// What is installed with npm.
const NPM: [&str; 2] =
    ["@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/server-everything@2026.8.31"];
/// What is installed with pip.
const PIP: [&str; 2] = ["mcp==2.3.0", "fastmcp==4.2.3"];

/// Where they are; tests look for them here too.
fn folder() -> PathBuf {
    workspace::root().join("target/clients/mcp")
}

fn versions() -> String {
    [NPM, PIP].concat().join("\n")
}

/// Whether these very versions are there.
pub(super) fn installed() -> bool {
    fs::read_to_string(folder().join("ready")).is_ok_and(|ready| ready == versions())
}

pub(super) fn say() {
    eprintln!("setup: {}: official MCP clients and servers", versions().replace('\n', ", "));
}

pub(super) fn install() -> Result<()> {
    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| format!("can't make `{}`", folder.display()))?;
    fs::write(folder.join("package.json"), r#"{"private":true,"type":"module"}"#)?;
    // Scripts of packages are not run: nobody has looked at them.
    let npm = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save"];
    exec::run(Command::new("npm").current_dir(&folder).args(npm).args(NPM))?;
    exec::run(Command::new("python3").current_dir(&folder).args(["-m", "venv", "py"]))?;
    let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
    exec::run(Command::new(folder.join("py/bin/python")).args(pip).args(PIP))?;
    fs::write(folder.join("ready"), versions())?;
    Ok(())
}
