//! An internet of invented public addresses: two network namespaces and the servers in one of them.
//!
//! The gateway dials from the `uplink` namespace, where none of those addresses is the host's own, so its vetting
//! of addresses is tried for real.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::exec;

/// Names of the zone with their addresses. The last one points into a private network.
pub(crate) const ZONE: &[(&str, &str)] = &[
    ("ns.example.com", "93.184.215.53"),
    ("www.example.com", "93.184.215.10"),
    ("api.example.com", "93.184.215.11"),
    ("git.example.com", "93.184.215.12"),
    ("pypi.example.com", "93.184.215.13"),
    ("npm.example.com", "93.184.215.14"),
    ("echo.example.com", "93.184.215.15"),
    ("files.example.org", "93.184.216.20"),
    ("inside.example.com", "10.11.12.13"),
    (BENCH.0, BENCH.1),
];
/// The benchmarks' origin: it has an address and a name, and no server until they start theirs.
pub(crate) const BENCH: (&str, &str) = ("bench.example.com", "93.184.215.80");
/// Port at the benchmarks' origin where models are asked.
pub(crate) const MODEL: u16 = 9001;
/// The resolver that the gateway asks.
pub(crate) const RESOLVER: &str = "93.184.215.53";
/// Ends of the link between the two namespaces.
const UPLINK: &str = "81.2.69.141/30";
const EXCHANGE: &str = "81.2.69.142/30";
const EXCHANGE_ROUTE: &str = "81.2.69.142";

/// The namespaces and the servers; gone when dropped.
#[derive(Debug)]
pub(crate) struct Internet {
    dir: PathBuf,
    uplink: String,
    far: String,
    servers: Option<Child>,
}

/// Something that reached a server.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Seen {
    /// `http`, `dns`, `echo` or `udp`.
    pub(crate) server: String,
    /// Name asked for or of.
    pub(crate) name: String,
    /// HTTP method.
    #[serde(default)]
    pub(crate) method: String,
    /// HTTP path with its query.
    #[serde(default)]
    pub(crate) path: String,
}

impl Internet {
    /// Makes it, with files under `dir` and namespaces named after `name`.
    ///
    /// # Errors
    /// If a step fails; what was made is removed.
    pub(crate) fn start(dir: &Path, name: &str) -> Result<Self> {
        fs::create_dir_all(dir).context("can't make the folder of the demo's internet")?;
        let (uplink, far) = (format!("{name}-uplink"), format!("{name}-internet"));
        let mut internet = Self { dir: dir.to_owned(), uplink, far, servers: None };
        internet.plumb()?;
        certificates(dir)?;
        repository(dir)?;
        internet.serve()?;
        Ok(internet)
    }

    /// The namespace that the gateway dials from.
    pub(crate) fn uplink(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.uplink)
    }

    /// Certificate of the CA that signed the servers' certificate.
    pub(crate) fn trust_anchor(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// What has reached the servers so far, in order.
    ///
    /// # Errors
    /// If the servers' notes can't be read.
    pub(crate) fn seen(&self) -> Result<Vec<Seen>> {
        let notes =
            fs::read_to_string(self.dir.join("seen.jsonl")).context("the servers' notes can't be read")?;
        notes
            .lines()
            .map(|line| serde_json::from_str(line).context("the servers' notes are garbled"))
            .collect()
    }

    /// A command that runs in the servers' namespace.
    pub(crate) fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.far)).arg(program);
        command
    }

    fn plumb(&self) -> Result<()> {
        for netns in [&self.uplink, &self.far] {
            ip(&["netns", "add", netns])?;
            ip(&["-n", netns, "link", "set", "lo", "up"])?;
        }
        ip(&[
            "-n",
            &self.uplink,
            "link",
            "add",
            "uplink",
            "type",
            "veth",
            "peer",
            "name",
            "exchange",
            "netns",
            &self.far,
        ])?;
        for (netns, link, address) in [(&self.uplink, "uplink", UPLINK), (&self.far, "exchange", EXCHANGE)] {
            ip(&["-n", netns, "address", "add", address, "dev", link])?;
            ip(&["-n", netns, "link", "set", link, "up"])?;
        }
        ip(&["-n", &self.uplink, "route", "add", "default", "via", EXCHANGE_ROUTE])?;
        for address in public() {
            ip(&["-n", &self.far, "address", "add", &format!("{address}/32"), "dev", "lo"])?;
        }
        Ok(())
    }

    fn serve(&mut self) -> Result<()> {
        let zone: serde_json::Map<_, _> =
            ZONE.iter().map(|(name, address)| ((*name).to_owned(), (*address).into())).collect();
        let served: Vec<_> = public().filter(|address| *address != BENCH.1).collect();
        let told = serde_json::json!({ "names": zone, "served": served });
        fs::write(self.dir.join("zone.json"), told.to_string())?;
        fs::write(self.dir.join("seen.jsonl"), "")?;
        let script = self.dir.join("internet.py");
        fs::write(&script, include_str!("internet.py"))?;
        let mut python = self.inside("python3");
        python.arg(script).arg(&self.dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let servers = self.servers.insert(python.spawn().context("the servers can't be started")?);
        let mut line = String::new();
        let out = servers.stdout.take().context("the servers have no output")?;
        BufReader::new(out).read_line(&mut line)?;
        if line.trim() != "ready" {
            bail!("the servers of the demo's internet did not start");
        }
        Ok(())
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        if let Some(servers) = &mut self.servers {
            let _ = servers.kill();
            let _ = servers.wait();
        }
        for netns in [&self.uplink, &self.far] {
            exec::succeeds(Command::new("ip").args(["netns", "delete", netns]));
        }
    }
}

/// Addresses that the internet has.
fn public() -> impl Iterator<Item = &'static str> {
    ZONE.iter().map(|(_, address)| *address).filter(|address| !address.starts_with("10."))
}

fn ip(args: &[&str]) -> Result<()> {
    exec::read(Command::new("ip").args(args)).map(drop)
}

/// A CA of its own and one certificate for every name of the zone.
fn certificates(dir: &Path) -> Result<()> {
    let names: Vec<_> = ZONE.iter().map(|(name, _)| format!("DNS:{name}")).collect();
    let openssl = |args: &[&str]| exec::read(Command::new("openssl").current_dir(dir).args(args));
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    let root = ["req", "-x509", "-subj", "/CN=Demo internet CA", "-keyout", "ca.key", "-out", "ca.pem"];
    openssl(&[&root[..], &key[..]].concat())?;
    let san = format!("subjectAltName={}", names.join(","));
    let leaf = ["req", "-x509", "-subj", "/CN=demo", "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", &san];
    let leaf_only =
        ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"];
    openssl(&[&leaf[..], &leaf_only[..], &key[..]].concat()).map(drop)
}

/// A bare repository with one commit.
fn repository(dir: &Path) -> Result<()> {
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        git.args([
            "-c",
            "user.name=demo",
            "-c",
            "user.email=demo@example.com",
            "-c",
            "init.defaultBranch=main",
        ]);
        exec::read(git.args(args))
    };
    git(&["init", "--quiet", "work"])?;
    fs::write(dir.join("work/README"), "a repository that came through the gate\n")?;
    git(&["-C", "work", "add", "README"])?;
    git(&["-C", "work", "commit", "--quiet", "--message", "First"])?;
    git(&["clone", "--quiet", "--bare", "work", "git/demo.git"])?;
    git(&["-C", "git/demo.git", "config", "http.receivepack", "true"]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The demo's expectations rest on these servers: each is asked by the client that the demo uses, from the
    /// namespace that the gateway dials from.
    #[test]
    fn every_server_answers_its_client() {
        let dir = tempfile::tempdir().unwrap();
        let name = format!("xtask-test-{}", std::process::id());
        let internet = Internet::start(&dir.path().join("internet"), &name).unwrap();
        let ask = |script: &str| {
            let mut shell = Command::new("nsenter");
            shell.arg(format!("--net={}", internet.uplink().display())).args(["sh", "-c", script]);
            exec::read(shell.current_dir(dir.path()).env("CA", internet.trust_anchor())).unwrap()
        };
        let at = |host: &str| ZONE.iter().find(|(name, _)| *name == host).unwrap().1;
        let curl = |host: &str, path: &str| {
            ask(&format!(
                "curl -sS --max-time 5 --cacert $CA --resolve {host}:443:{} https://{host}{path}",
                at(host)
            ))
        };
        assert_eq!(ask("dig +short @93.184.215.53 www.example.com").trim(), "93.184.215.10");
        assert_eq!(ask("dig +short @93.184.215.53 TXT www.example.com").trim(), "");
        assert!(curl("www.example.com", "/a").contains("hello from www.example.com/a"));
        assert!(curl("api.example.com", "/v1/items").contains("[1, 2, 3]"));
        assert!(curl("pypi.example.com", "/simple/strait-demo/").contains("strait_demo-1.0"));
        assert!(curl("npm.example.com", "/strait-demo").contains("sha512-"));
        assert!(
            curl("git.example.com", "/demo.git/info/refs?service=git-upload-pack")
                .contains("refs/heads/main")
        );
        assert_eq!(ask("echo ping | nc -N -w 2 93.184.215.15 7").trim(), "ping");
        let seen = internet.seen().unwrap();
        assert!(seen.iter().any(|seen| seen.server == "http" && seen.name == "git.example.com"));
        assert!(seen.iter().any(|seen| seen.server == "dns" && seen.name == "www.example.com"));
        assert!(seen.iter().any(|seen| seen.server == "echo"));
        drop(internet);
        assert!(!Path::new(&format!("/run/netns/{name}-internet")).exists());
    }
}
