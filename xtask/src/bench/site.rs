//! Everything that the rows measure, up and running: the origin, the peers, an instance of Strait.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::{
    measure, model,
    peers::{Ground, Peer},
};
use crate::{
    lab::{
        installation::{Installation, Policy},
        internet::{BENCH, Internet},
    },
    workspace,
};

/// Names that DNS loads ask for.
const NAMES: u32 = 1000;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Direct,
    Squid,
    Tinyproxy,
    Unbound,
    Dnsmasq,
    Runc,
    Nginx,
    LiteLlm,
    Portkey,
    Strait,
}

/// The whole of it; ends and removes itself when dropped, parts in this order.
#[derive(Debug)]
pub(super) struct Site {
    squid: Option<Peer>,
    tinyproxy: Option<Peer>,
    unbound: Option<Peer>,
    dnsmasq: Option<Peer>,
    nginx: Peer,
    litellm: Option<Peer>,
    portkey: Option<Peer>,
    _origin: [Peer; 3],
    pub(super) installation: Installation,
    pub(super) internet: Internet,
    pub(super) seconds: u32,
    peers: PathBuf,
    base: TempDir,
}

impl Site {
    pub(super) fn start(seconds: u32, others: bool) -> Result<Self> {
        let base =
            tempfile::Builder::new().prefix("strait-bench-").tempdir().context("no temporary folder")?;
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755))?;
        let name = format!("bench{}", std::process::id());
        let internet = Internet::start(&base.path().join("internet"), &name)?;
        let installation = Installation::start(&base.path().join("strait"), &name, &internet, &policies())?;
        let load = installation.workspace().join("strait-load");
        fs::copy(workspace::target().join("release/strait-load"), &load)
            .context("the load client isn't built")?;
        fs::write(installation.workspace().join("names"), names())?;
        fs::write(installation.workspace().join("forward.lua"), forward())?;
        fs::write(installation.workspace().join("tool.lua"), tool())?;
        fs::write(installation.workspace().join("model.lua"), model::script())?;
        let peers = base.path().join("peers");
        fs::create_dir_all(&peers)?;
        let ground = Ground { dir: &peers, internet: &internet };
        let (origin, squid, tinyproxy) = (ground.origin(&load)?, ground.squid()?, ground.tinyproxy()?);
        let (dnsmasq, unbound) = (ground.dnsmasq()?, ground.unbound()?);
        let nginx = ground.nginx()?;
        let litellm = others.then(|| ground.litellm()).transpose()?;
        let portkey = others.then(|| ground.portkey()).transpose()?;
        Ok(Self {
            squid,
            tinyproxy,
            unbound,
            dnsmasq,
            nginx,
            litellm,
            portkey,
            _origin: origin,
            installation,
            internet,
            seconds,
            peers,
            base,
        })
    }

    /// Whether a subject can be measured here.
    pub(super) fn has(&self, subject: Subject) -> bool {
        self.peer(subject).is_some() || matches!(subject, Subject::Direct | Subject::Runc | Subject::Strait)
    }

    /// The gateway's process.
    pub(super) fn gateway_pids(&self) -> Vec<u32> {
        measure::pids(&self.installation.gateway_binary())
    }

    /// Processes of a subject.
    pub(super) fn pids(&self, subject: Subject) -> Vec<u32> {
        if subject == Subject::Strait {
            return [self.installation.agent_binary(), self.installation.gateway_binary()]
                .iter()
                .flat_map(|binary| measure::pids(binary))
                .collect();
        }
        let Some(peer) = self.peer(subject) else { return Vec::new() };
        match subject {
            // Their executables run other things too.
            Subject::Nginx | Subject::LiteLlm | Subject::Portkey => vec![peer.pid()],
            _ => measure::pids(&peer.executable),
        }
    }

    /// A shell command where the load of a subject runs: in a run for Strait, at the uplink for the others.
    pub(super) fn shell(&self, subject: Subject, script: &str) -> Command {
        let mut command = if subject == Subject::Strait {
            let mut strait = self.installation.strait();
            strait
                .args(["run", "--agent", "bench", "--workspace"])
                .arg(self.installation.workspace())
                .arg("--");
            strait.arg("sh");
            strait
        } else {
            self.ground().uplink("sh")
        };
        command.arg("-c").arg(script).current_dir(self.installation.workspace());
        command
    }

    /// A file for what a load complains of.
    pub(super) fn log(&self, load: &str) -> PathBuf {
        self.peers.join(format!("{load}.log"))
    }

    /// A PEM file with what the client of a subject must trust, as the shell sees it.
    pub(super) fn anchor(&self, subject: Subject) -> String {
        match subject {
            Subject::Strait => "$SSL_CERT_FILE".to_owned(),
            Subject::Squid => self.ground().squid_anchor().display().to_string(),
            _ => self.internet.trust_anchor().display().to_string(),
        }
    }

    /// A second instance with the same policies: how long until it is ready.
    pub(super) fn start_another(&self) -> Result<Duration> {
        let name = format!("again{}", std::process::id());
        let base = tempfile::Builder::new().prefix("strait-bench-").tempdir()?;
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755))?;
        let started = Instant::now();
        let _again = Installation::start(base.path(), &name, &self.internet, &policies())?;
        Ok(started.elapsed())
    }

    /// A bundle for bare runc that holds what a run of Strait holds: the host's `/usr`, read-only.
    pub(super) fn bare_bundle(&self) -> Result<PathBuf> {
        let bundle = self.base.path().join("bundle");
        let root = bundle.join("rootfs");
        if root.exists() {
            return Ok(bundle);
        }
        fs::create_dir_all(root.join("usr"))?;
        for link in ["bin", "lib", "lib64", "sbin"] {
            std::os::unix::fs::symlink(Path::new("usr").join(link), root.join(link))?;
        }
        crate::exec::read(Command::new("runc").arg("spec").current_dir(&bundle))?;
        let path = bundle.join("config.json");
        let mut spec: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let process = spec.get_mut("process").context("runc's template has no process")?;
        *process.get_mut("terminal").context("no terminal")? = false.into();
        *process.get_mut("args").context("no args")? = serde_json::json!(["/bin/true"]);
        let mounts = spec.get_mut("mounts").and_then(serde_json::Value::as_array_mut).context("no mounts")?;
        mounts.push(serde_json::json!({
            "destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"],
        }));
        fs::write(&path, spec.to_string())?;
        Ok(bundle)
    }

    /// Requests of the newest run by phase: every one must have been decided and done.
    pub(super) fn newest_requests(&self, before: &[String]) -> Result<(usize, usize)> {
        self.newest(before, "\"kind\":\"request\"")
    }

    /// Calls of models of the newest run by phase, of which those done must say what they used.
    pub(super) fn newest_calls(&self, before: &[String]) -> Result<(usize, usize)> {
        let (decided, _) = self.newest(before, "\"type\":\"model\"")?;
        let (_, counted) = self.newest(before, "\"tokens\":{\"")?;
        Ok((decided, counted))
    }

    /// Records of the newest run that have this in them, by phase.
    fn newest(&self, before: &[String], has: &str) -> Result<(usize, usize)> {
        let runs = self.installation.runs()?;
        let Some(run) = runs.iter().find(|run| !before.contains(run)) else {
            bail!("the load left no records")
        };
        let records = self.installation.records(run)?;
        let count = |phase: &str| {
            let phase = format!("\"phase\":\"{phase}\"");
            records.lines().filter(|line| line.contains(&phase) && line.contains(has)).count()
        };
        Ok((count("decided"), count("done")))
    }

    fn ground(&self) -> Ground<'_> {
        Ground { dir: &self.peers, internet: &self.internet }
    }

    fn peer(&self, subject: Subject) -> Option<&Peer> {
        match subject {
            Subject::Squid => self.squid.as_ref(),
            Subject::Tinyproxy => self.tinyproxy.as_ref(),
            Subject::Unbound => self.unbound.as_ref(),
            Subject::Dnsmasq => self.dnsmasq.as_ref(),
            Subject::Nginx => Some(&self.nginx),
            Subject::LiteLlm => self.litellm.as_ref(),
            Subject::Portkey => self.portkey.as_ref(),
            Subject::Direct | Subject::Runc | Subject::Strait => None,
        }
    }
}

/// The rules that the loads need, among a thousand that they don't.
fn policies() -> Vec<Policy> {
    let host = BENCH.0;
    let mut text = format!(
        "@id(\"http\")\npermit (principal in Agent::\"bench\", action == Action::\"http\", resource in Host::\"{host}\")\n\
         when {{ context.method == \"GET\" }};\n\
         @id(\"bulk\")\npermit (principal in Agent::\"bench\", action == Action::\"connect\", resource == Endpoint::\"{host}:9000\");\n"
    );
    text.push_str(
        "@id(\"mcp\")\npermit (principal in Agent::\"bench\", action in Action::\"tools/call\", resource in Tool::\"bench\");\n",
    );
    for n in 0..1000 {
        text.push_str(&format!(
            "@id(\"other-{n}\")\npermit (principal in Agent::\"other\", action == Action::\"http\", \
             resource in Host::\"h{n}.example.net\") when {{ context.method == \"GET\" }};\n"
        ));
    }
    vec![("bench.cedar", text)]
}

fn names() -> String {
    (0..NAMES).map(|n| format!("n{n}.{} A\n", BENCH.0)).collect()
}

/// Makes wrk call a tool of an MCP server with 2 KB of arguments.
fn tool() -> String {
    let message = "x".repeat(1900);
    format!(
        "wrk.method = \"POST\"\nwrk.headers[\"Content-Type\"] = \"application/json\"\n\
         wrk.headers[\"Accept\"] = \"application/json, text/event-stream\"\n\
         wrk.headers[\"Authorization\"] = \"Bearer \" .. (os.getenv(\"STRAIT_TOKEN\") or \"none\")\n\
         wrk.body = '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"pay\",\
         \"arguments\":{{\"to\":\"ana\",\"amount\":7,\"note\":\"{message}\"}}}}}}'\n"
    )
}

/// Makes wrk speak to a forward proxy.
fn forward() -> String {
    let address = BENCH.1;
    format!(
        "request = function() return \"GET http://{address}/s HTTP/1.1\\r\\nHost: {address}\\r\\n\\r\\n\" end\n"
    )
}
