//! Official clients and third-party servers that tests of the gateway drive: from npm and PyPI, in the target folder.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{exec, workspace};

/// Packages that belong together.
#[derive(Debug)]
pub(super) struct Clients {
    /// Their folder in `target/clients`; tests look for them there.
    folder: &'static str,
    what: &'static str,
    npm: &'static [&'static str],
    pip: &'static [&'static str],
}

/// All of them.
pub(super) static CLIENTS: [Clients; 3] = [
    Clients {
        folder: "mcp",
        what: "official MCP clients and servers",
        npm: &["@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/server-everything@2026.8.31"],
        pip: &["mcp==2.3.0", "fastmcp==4.2.3"],
    },
    Clients {
        folder: "model",
        what: "official clients of model APIs, and mocks of these",
        npm: &[
            "openai@6.49.0",
            "@anthropic-ai/sdk@1.14.0",
            "@google/genai@2.32.0",
            "@copilotkit/aimock@1.43.0",
        ],
        pip: &["openai==3.57.0", "anthropic==2.14.0", "google-genai==3.6.1", "fakellm==0.3.5"],
    },
    Clients {
        folder: "agents",
        what: "coding agents (700 MB)",
        npm: &["@anthropic-ai/claude-code@2.1.332", "@openai/codex@0.171.0"],
        pip: &[],
    },
];

impl Clients {
    fn folder(&self) -> PathBuf {
        workspace::root().join("target/clients").join(self.folder)
    }

    fn versions(&self) -> String {
        [self.npm, self.pip].concat().join("\n")
    }

    /// Whether these very versions are there.
    pub(super) fn installed(&self) -> bool {
        fs::read_to_string(self.folder().join("ready")).is_ok_and(|ready| ready == self.versions())
    }

    pub(super) fn say(&self) {
        eprintln!("setup: {}: {}", self.versions().replace('\n', ", "), self.what);
    }

    pub(super) fn install(&self) -> Result<()> {
        let folder = self.folder();
        fs::create_dir_all(&folder).with_context(|| format!("can't make `{}`", folder.display()))?;
        fs::write(folder.join("package.json"), r#"{"private":true,"type":"module"}"#)?;
        // Scripts of packages are not run: nobody has looked at them.
        let npm = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save"];
        exec::run(Command::new("npm").current_dir(&folder).args(npm).args(self.npm))?;
        if !self.pip.is_empty() {
            exec::run(Command::new("python3").current_dir(&folder).args(["-m", "venv", "py"]))?;
            let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
            exec::run(Command::new(folder.join("py/bin/python")).args(pip).args(self.pip))?;
        }
        fs::write(folder.join("ready"), self.versions())?;
        Ok(())
    }
}
