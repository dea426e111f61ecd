//! An instance of Strait: its own names, folders, config and policies, beside an installed one.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    internet::{BENCH, Internet, MODEL, RESOLVER},
    sweep,
};
use crate::{exec, interrupt, workspace};

/// How long the agent may take until it answers.
const START: Duration = Duration::from_secs(20);
/// How long it may take to end.
const END: Duration = Duration::from_secs(5);

/// A policy file: its path below the folder of policies, and its text.
pub(crate) type Policy = (&'static str, String);

/// A running instance; ended and removed when dropped.
#[derive(Debug)]
pub(crate) struct Installation {
    name: String,
    base: PathBuf,
    agent: Option<Child>,
}

impl Installation {
    /// Writes config and policies under `base`, starts the agent and waits until it answers.
    ///
    /// # Errors
    /// If it doesn't; what was made is removed.
    pub(crate) fn start(base: &Path, name: &str, internet: &Internet, policies: &[Policy]) -> Result<Self> {
        let mut installation = Self { name: name.to_owned(), base: base.to_owned(), agent: None };
        installation.lay_out(internet, policies)?;
        let log = File::create(installation.agent_log())?;
        let mut agent = Command::new(installation.agent_binary());
        agent.arg("--config").arg(installation.config()).stdin(Stdio::null());
        agent.stdout(log.try_clone()?).stderr(log);
        installation.agent = Some(agent.spawn().context("the agent can't be started")?);
        installation.wait_until_ready()?;
        Ok(installation)
    }

    /// The `strait` command for this instance.
    pub(crate) fn strait(&self) -> Command {
        let mut strait = Command::new(self.base.join("bin/strait"));
        strait.arg("--config").arg(self.config());
        strait
    }

    /// The agent's executable.
    pub(crate) fn agent_binary(&self) -> PathBuf {
        self.base.join("bin/strait-agent")
    }

    /// The gateway's executable.
    pub(crate) fn gateway_binary(&self) -> PathBuf {
        self.base.join("lib/strait-gateway")
    }

    /// Folder of the instance's pins.
    pub(crate) fn bpffs(&self) -> PathBuf {
        Path::new("/sys/fs/bpf").join(&self.name)
    }

    /// Folder that runs may write to.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.base.join("workspace")
    }

    /// The runs that have records, by name.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub(crate) fn runs(&self) -> Result<Vec<String>> {
        let folder = self.base.join("state/runs");
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    /// The file that a run's last records are in.
    pub(crate) fn record_file(&self, run: &str) -> PathBuf {
        self.base.join("state/runs").join(run).join("log.jsonl")
    }

    /// The records of a run, as they stand in its files.
    ///
    /// # Errors
    /// If they can't be read.
    pub(crate) fn records(&self, run: &str) -> Result<String> {
        let current = self.record_file(run);
        let folder = self.base.join("state/runs").join(run);
        let sealed = (1..).map(|number| folder.join(format!("log.{number:06}.jsonl")));
        let mut records = String::new();
        for file in sealed.take_while(|file| file.exists()).chain([current]) {
            let text = fs::read_to_string(&file);
            records += &text.with_context(|| format!("no records in `{}`", file.display()))?;
        }
        Ok(records)
    }

    fn config(&self) -> PathBuf {
        self.base.join("etc/strait.toml")
    }

    fn agent_log(&self) -> PathBuf {
        self.base.join("agent.log")
    }

    fn run_dir(&self) -> PathBuf {
        Path::new("/run").join(&self.name)
    }

    fn lay_out(&self, internet: &Internet, policies: &[Policy]) -> Result<()> {
        // The gateway's user must reach its binary, wherever the checkout is.
        for (from, to) in [(workspace::lib(), "lib"), (workspace::bin(), "bin")] {
            copy_folder(&from, &self.base.join(to))?;
        }
        fs::create_dir_all(self.base.join("etc/policies/guardrails"))?;
        fs::create_dir_all(self.workspace())?;
        fs::write(self.config(), self.config_text(internet)?)?;
        for (path, text) in policies {
            fs::write(self.base.join("etc/policies").join(path), text)?;
        }
        Ok(())
    }

    fn config_text(&self, internet: &Internet) -> Result<String> {
        let at = |path: &str| format!("{:?}", self.base.join(path).display().to_string());
        let (name, run_dir) = (&self.name, self.run_dir());
        let text = format!(
            r#"
[instance]
name = "{name}"
run_dir = "{}"
state_dir = {}
lib_dir = {}
bpffs = "/sys/fs/bpf/{name}"
cgroup = "{name}"
dial_netns = "{}"

[network]
pool = "10.219.0.0/16"
resolver = ["{RESOLVER}"]
trust = ["{}"]
system_trust = false

[agents.demo]
version = "1"

[agents.bench]
version = "1"

[tools.bench]
kind = "mcp"
url = "http://{}/mcp"

[providers.bench]
api = "openai"
url = "http://{}:{MODEL}"
"#,
            run_dir.display(),
            at("state"),
            at("lib"),
            internet.uplink().display(),
            internet.trust_anchor().display(),
            BENCH.0,
            BENCH.0,
        );
        Ok(text)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let started = Instant::now();
        loop {
            interrupt::check()?;
            let agent = self.agent.as_mut().context("no agent")?;
            if let Some(status) = agent.try_wait()? {
                bail!("the agent ended ({status}): {}", self.last_words());
            }
            if self.run_dir().join("control.sock").exists() && self.has_gateway() {
                return Ok(());
            }
            if started.elapsed() > START {
                bail!("the agent isn't ready after {} s: {}", START.as_secs(), self.last_words());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the agent says that a gateway is connected. (`strait status` also fails on a host that lacks an
    /// optional wall, which is no reason not to start.)
    fn has_gateway(&self) -> bool {
        let Ok(status) = self.strait().args(["status", "--json"]).output() else { return false };
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        status.get("gateway").and_then(serde_json::Value::as_bool) == Some(true)
    }

    /// The end of the agent's log.
    pub(crate) fn last_words(&self) -> String {
        let log = fs::read_to_string(self.agent_log()).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let from = lines.len().saturating_sub(30);
        lines.into_iter().skip(from).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if self.agent.is_some() {
            exec::succeeds(self.strait().args(["kill", "--all"]));
        }
        if let Some(agent) = &mut self.agent {
            end(agent);
        }
        sweep::instance(&self.name, &self.run_dir());
    }
}

/// Asks a process to end, then makes it.
fn end(child: &mut Child) {
    exec::succeeds(Command::new("kill").args(["-TERM", &child.id().to_string()]));
    let asked = Instant::now();
    while asked.elapsed() < END {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("`{}` isn't built", from.display()))? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        fs::copy(entry.path(), &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
