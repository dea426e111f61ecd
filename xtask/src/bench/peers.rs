//! The peers and the origin, each with the configuration under which it is fastest at the same job: one worker, no
//! cache, no access log. (Strait keeps its record on.)

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    exec, interrupt,
    lab::internet::{BENCH, Internet, MODEL, RESOLVER},
};

/// Ports of the peers on the uplink's loopback.
pub(super) const SQUID: u16 = 3128;
pub(super) const SQUID_BUMP: u16 = 3129;
pub(super) const TINYPROXY: u16 = 3130;
pub(super) const NGINX: u16 = 3131;
pub(super) const UNBOUND: u16 = 5301;
pub(super) const DNSMASQ: u16 = 5300;
/// Port of the bulk server at the origin.
pub(super) const BULK: u16 = 9000;

/// A peer's process; ended when dropped.
#[derive(Debug)]
pub(super) struct Peer {
    child: Child,
    pub(super) executable: PathBuf,
}

impl Peer {
    /// The process that was started; `nsenter` has become it.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = exec::succeeds(Command::new("kill").args(["-TERM", &self.child.id().to_string()]));
        thread::sleep(Duration::from_millis(100));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where peers run and what they are given.
#[derive(Debug)]
pub(super) struct Ground<'a> {
    pub(super) dir: &'a Path,
    pub(super) internet: &'a Internet,
}

impl Ground<'_> {
    /// nginx, the bulk server and the provider of models, in the internet's namespace.
    pub(super) fn origin(&self, load: &Path) -> Result<[Peer; 3]> {
        let address = BENCH.1;
        let certificates = self.internet.trust_anchor();
        let at = certificates.parent().unwrap_or(self.dir).display();
        let conf = format!(
            "daemon off; worker_processes 1; pid {dir}/nginx.pid; error_log {dir}/nginx.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_requests 100000000; server {{\n\
             listen {address}:80; listen {address}:443 ssl; ssl_certificate {at}/cert.pem; ssl_certificate_key {at}/key.pem;\n\
             location = /s {{ default_type application/json; return 200 '{{\"text\":\"{body}\"}}'; }}\n\
             location = /mcp {{ default_type application/json; return 200 '{answer}'; }} }} }}\n",
            dir = self.dir.display(),
            body = "x".repeat(108),
            answer = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"paid"}]}}"#,
        );
        let conf = self.write("nginx.conf", &conf)?;
        let mut nginx = self.internet.inside("nginx");
        nginx.arg("-c").arg(conf);
        let nginx = self.start(nginx, "nginx")?;
        let mut bulk = self.internet.inside(&load.display().to_string());
        bulk.args(["serve", &format!("{address}:{BULK}")]);
        let bulk = self.start(bulk, &load.display().to_string())?;
        let mut model = self.internet.inside(&load.display().to_string());
        model.args(["model", &format!("{address}:{MODEL}")]);
        let model = self.start(model, &load.display().to_string())?;
        Ok([nginx, bulk, model])
    }

    /// nginx before the provider of models, which passes on what comes as it comes.
    pub(super) fn nginx(&self) -> Result<Peer> {
        let conf = format!(
            "daemon off; master_process off; pid {dir}/proxy.pid; error_log {dir}/proxy.log;\n\
             events {{ worker_connections 8192; }}\n\
             http {{ access_log off; keepalive_requests 100000000;\n\
             upstream model {{ server {address}:{MODEL}; keepalive 2048; }}\n\
             server {{ listen 127.0.0.1:{NGINX}; location / {{ proxy_pass http://model; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; proxy_buffering off; }} }} }}\n",
            dir = self.dir.display(),
            address = BENCH.1,
        );
        let conf = self.write("proxy.conf", &conf)?;
        let mut nginx = self.uplink("nginx");
        nginx.arg("-c").arg(conf);
        let peer = self.start(nginx, "nginx")?;
        self.wait_for_port(NGINX)?;
        Ok(peer)
    }

    /// Squid with TLS interception; `None` if it isn't installed.
    pub(super) fn squid(&self) -> Result<Option<Peer>> {
        let Some(mut squid) = self.at_uplink("squid") else { return Ok(None) };
        let dir = self.dir.join("squid");
        fs::create_dir_all(&dir)?;
        let ca =
            ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
        let to = ["-subj", "/CN=squid", "-keyout", "ca.key", "-out", "ca.crt"];
        exec::read(Command::new("openssl").current_dir(&dir).args(ca).args(to))?;
        fs::write(
            dir.join("ca.pem"),
            fs::read_to_string(dir.join("ca.key"))? + &fs::read_to_string(dir.join("ca.crt"))?,
        )?;
        let mut certgen = Command::new("/usr/lib/squid/security_file_certgen");
        exec::read(certgen.args(["-c", "-s"]).arg(dir.join("ssl")).args(["-M", "4MB"]))?;
        exec::read(Command::new("chown").args(["-R", "proxy:proxy"]).arg(&dir))?;
        let (at, anchor) = (dir.display(), self.internet.trust_anchor());
        let conf = format!(
            "http_port 127.0.0.1:{SQUID}\n\
             http_port 127.0.0.1:{SQUID_BUMP} ssl-bump cert={at}/ca.pem generate-host-certificates=on\n\
             ssl_bump bump all\nsslcrtd_program /usr/lib/squid/security_file_certgen -s {at}/ssl -M 4MB\n\
             tls_outgoing_options cafile={}\ndns_nameservers {RESOLVER}\nworkers 1\ncache deny all\naccess_log none\n\
             cache_log {at}/cache.log\npid_filename {at}/squid.pid\nhttp_access allow all\ncoredump_dir {at}\n\
             shutdown_lifetime 0 seconds\n",
            anchor.display(),
        );
        let conf = self.write("squid.conf", &conf)?;
        squid.args(["-N", "-f"]).arg(conf);
        let peer = self.start(squid, "squid")?;
        self.wait_for_port(SQUID)?;
        Ok(Some(peer))
    }

    /// The trust anchor of squid's own CA.
    pub(super) fn squid_anchor(&self) -> PathBuf {
        self.dir.join("squid/ca.crt")
    }

    pub(super) fn tinyproxy(&self) -> Result<Option<Peer>> {
        let Some(mut tinyproxy) = self.at_uplink("tinyproxy") else { return Ok(None) };
        let conf = format!(
            "Port {TINYPROXY}\nListen 127.0.0.1\nMaxClients 500\nLogLevel Critical\nLogFile \"{}\"\nAllow 127.0.0.1\n",
            self.dir.join("tinyproxy.log").display()
        );
        let conf = self.write("tinyproxy.conf", &conf)?;
        tinyproxy.args(["-d", "-c"]).arg(conf);
        let peer = self.start(tinyproxy, "tinyproxy")?;
        self.wait_for_port(TINYPROXY)?;
        Ok(Some(peer))
    }

    pub(super) fn dnsmasq(&self) -> Result<Option<Peer>> {
        let Some(mut dnsmasq) = self.at_uplink("dnsmasq") else { return Ok(None) };
        let answer = format!("--address=/{}/{}", BENCH.0, BENCH.1);
        dnsmasq.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            "--bind-interfaces",
        ]);
        dnsmasq
            .args(["--listen-address=127.0.0.1", "--user=root", "--pid-file", &answer])
            .arg(format!("--port={DNSMASQ}"));
        let peer = self.start(dnsmasq, "dnsmasq")?;
        self.wait_for_port(DNSMASQ)?;
        Ok(Some(peer))
    }

    /// Unbound, which asks dnsmasq once for each name.
    pub(super) fn unbound(&self) -> Result<Option<Peer>> {
        let Some(mut unbound) = self.at_uplink("unbound") else { return Ok(None) };
        let conf = format!(
            "server:\n num-threads: 1\n interface: 127.0.0.1@{UNBOUND}\n do-daemonize: no\n chroot: \"\"\n username: \"\"\n\
             \x20pidfile: \"\"\n use-syslog: no\n logfile: \"{}\"\n access-control: 127.0.0.0/8 allow\n\
             \x20do-not-query-localhost: no\n module-config: \"iterator\"\n\
             remote-control:\n control-enable: no\n\
             forward-zone:\n name: \".\"\n forward-addr: 127.0.0.1@{DNSMASQ}\n",
            self.dir.join("unbound.log").display()
        );
        let conf = self.write("unbound.conf", &conf)?;
        unbound.arg("-d").arg("-c").arg(conf);
        let peer = self.start(unbound, "unbound")?;
        self.wait_for_port(UNBOUND)?;
        Ok(Some(peer))
    }

    /// A command in the namespace that the gateway dials from.
    pub(super) fn uplink(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.internet.uplink().display())).arg(program);
        command
    }

    fn at_uplink(&self, program: &str) -> Option<Command> {
        installed(program).map(|_| self.uplink(program))
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        fs::write(&path, text).with_context(|| format!("can't write `{}`", path.display()))?;
        Ok(path)
    }

    pub(super) fn start(&self, mut command: Command, program: &str) -> Result<Peer> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("`{program}` can't be started"))?;
        let executable = installed(program).unwrap_or_else(|| program.into());
        Ok(Peer { child, executable: fs::canonicalize(&executable).unwrap_or(executable) })
    }

    pub(super) fn wait_for_port(&self, port: u16) -> Result<()> {
        let started = Instant::now();
        while !exec::succeeds(self.uplink("nc").args([
            "-z",
            &Ipv4Addr::LOCALHOST.to_string(),
            &port.to_string(),
        ])) {
            interrupt::check()?;
            if started.elapsed() > Duration::from_secs(180) {
                bail!("nothing listens on port {port} after three minutes; see `{}`", self.dir.display());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

fn installed(program: &str) -> Option<PathBuf> {
    exec::which(program).or_else(|| Some(Path::new("/usr/sbin").join(program)).filter(|path| path.exists()))
}
