//! The agent's children, as real processes: the one that opens listeners, the one that becomes the gateway, the
//! one that compiles policies. Needs root, `ip` and cgroup v2 (`cargo xtask setup`).
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's own steps fail by panicking")]

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use strait_agent::{
    child::Program,
    config::Config,
    gate::cgroup,
    instance::Instance,
    listeners::Listeners,
    netns,
    policy_source::{PolicyError, PolicySource},
    run::process::ProcessName,
    supervise::{self, Supervisor},
};
use strait_contract::run::Range;
use tokio::sync::watch;

fn program() -> Program {
    Program::at(Path::new(env!("CARGO_BIN_EXE_strait-agent")))
}

/// An instance of its own that cleans up after itself.
struct Rig {
    dir: tempfile::TempDir,
    instance: Instance,
    root: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let name = format!("{name}-{}", std::process::id());
        let mut instance = Instance::standard(name.parse().unwrap());
        instance.run_dir = dir.path().join("run");
        instance.state_dir = dir.path().join("state");
        instance.lib_dir = dir.path().join("lib");
        instance.pool = Range { addr: Ipv4Addr::new(10, 211, 0, 0), prefix: 24 };
        fs::create_dir_all(instance.run_dir.join("netns")).unwrap();
        fs::create_dir_all(&instance.lib_dir).unwrap();
        let root = cgroup::v2_root().unwrap().expect("no cgroup v2 mount: see `strait doctor`");
        fs::create_dir_all(root.join(&instance.cgroup).join(".gateway")).unwrap();
        netns::ensure_strait(&instance).expect("making a network namespace needs root");
        Self { dir, instance, root }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = netns::remove_strait(&self.instance);
        let cgroup = self.root.join(&self.instance.cgroup);
        let _ = fs::remove_dir(cgroup.join(".gateway"));
        let _ = fs::remove_dir(cgroup);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_are_in_the_strait_netns_and_held_a_moment_after_the_gateway() {
    let rig = Rig::new("lst");
    let listeners = Listeners::new(&rig.instance, &rig.root, program());
    let sockets = listeners.get().await.unwrap();
    let gateway = rig.instance.gateway();
    let names: Vec<SocketAddr> = sockets
        .iter()
        .map(|socket| rustix::net::getsockname(&**socket).unwrap().try_into().unwrap())
        .collect();
    let expect = [15001, 80, 53, 53].map(|port| SocketAddr::from((gateway, port)));
    assert_eq!(names, expect);
    let dial = |path: PathBuf| {
        netns::within(&path, || {
            std::net::TcpStream::connect_timeout(&expect[1], Duration::from_secs(1)).is_ok()
        })
    };
    assert!(dial(rig.instance.strait_netns()).unwrap(), "dialled in the strait netns");
    // Address and port as `/proc/net/tcp` writes them, in state LISTEN.
    let entry = format!("{:08X}:0050 00000000:0000 0A", u32::from(gateway).swap_bytes());
    let listed = |path: PathBuf| {
        netns::within(&path, || fs::read_to_string("/proc/thread-self/net/tcp").unwrap().contains(&entry))
            .unwrap()
    };
    assert!(listed(rig.instance.strait_netns()), "positive control");
    assert!(!listed("/proc/self/ns/net".into()), "not in the host's");

    drop(sockets);
    listeners.gateway_gone();
    let again = listeners.get().await.unwrap();
    assert_eq!(again.len(), 4, "a gateway that is back in time gets the same ones");
    tokio::time::sleep(Duration::from_millis(2300)).await;
    assert!(dial(rig.instance.strait_netns()).unwrap(), "and the old timer doesn't close them");
    drop(again);
    listeners.gateway_gone();
    tokio::time::sleep(Duration::from_millis(2300)).await;
    assert!(!dial(rig.instance.strait_netns()).unwrap(), "closed when nobody came");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_listeners_from_being_opened_is_said() {
    let rig = Rig::new("lsf");
    let listeners = Listeners::new(&rig.instance, Path::new("/nonexistent"), program());
    let error = listeners.get().await.unwrap_err().to_string();
    assert!(error.contains("joining the cgroup"), "{error}");
}

/// A gateway that writes down what it is and waits. Made of a shell, since it must be another program.
fn stub(rig: &Rig) -> PathBuf {
    let out = rig.dir.path().join("out");
    fs::create_dir_all(&out).unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).unwrap();
    let path = rig.instance.lib_dir.join("strait-gateway");
    let report = out.join("report");
    let script = format!(
        "#!/bin/sh\nPATH=/usr/bin:/bin\n{{ env; grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs)' /proc/self/status; ulimit -c; ulimit -f; \
         readlink /proc/self/ns/net; ls -l /proc/self/fd; }} > {0}.new; echo \"$$\" >> {0}.pids; mv {0}.new {0}; \
         exec sleep 600\n",
        report.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    report
}

fn pids(report: &Path) -> Vec<i32> {
    let text = fs::read_to_string(report.with_extension("pids")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_runs_without_privilege_in_its_netns_and_is_back_within_a_second() {
    let mut rig = Rig::new("sup");
    rig.instance.dial_netns = Some(rig.instance.strait_netns());
    let report = stub(&rig);
    let (_connected, seen) = watch::channel(None);
    let supervisor = Supervisor::start(&rig.instance, program(), seen, None);
    until("the gateway starts", || report.exists()).await;
    let text = fs::read_to_string(&report).unwrap();
    let uid = rig.instance.gateway_uid;
    for line in [
        format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}"),
        format!("Gid:\t{uid}\t{uid}\t{uid}\t{uid}"),
        "CapInh:\t0000000000000000".into(),
        "CapPrm:\t0000000000000000".into(),
        "CapEff:\t0000000000000000".into(),
        "CapBnd:\t0000000000000000".into(),
        "CapAmb:\t0000000000000000".into(),
        "NoNewPrivs:\t1".into(),
        format!("STRAIT_LINK={}", rig.instance.link_socket().display()),
    ] {
        assert!(text.contains(&line), "{line:?} in {text}");
    }
    assert!(text.lines().any(|line| line == "0"), "no core dumps: {text}");
    // In blocks of 512 bytes: as much as the names of a run may take.
    assert!(text.lines().any(|line| line == "65535"), "no large files: {text}");
    let netns =
        netns::within(&rig.instance.strait_netns(), || fs::read_link("/proc/thread-self/ns/net").unwrap());
    assert!(text.contains(netns.unwrap().to_str().unwrap()), "{text}");
    // The shell adds PWD, OLDPWD, SHLVL, _ and the PATH of its own.
    let own = ["PWD", "OLDPWD", "SHLVL", "_", "PATH", "STRAIT_LINK", "RUST_LOG"];
    let foreign: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("Uid"))
        .filter(|line| !own.iter().any(|name| line.starts_with(&format!("{name}="))))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");

    let first = pids(&report)[0];
    let killed = Instant::now();
    kill(first, "KILL");
    until("the gateway is back", || pids(&report).len() == 2).await;
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    supervisor.stop().await;
    let last = *pids(&report).last().unwrap();
    assert!(!Path::new(&format!("/proc/{last}")).exists(), "ended with the supervisor");
}

fn kill(pid: i32, signal: &str) {
    let done = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap();
    assert!(done.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_of_an_earlier_agent_is_watched_and_not_doubled() {
    let rig = Rig::new("ado");
    let report = stub(&rig);
    assert!(supervise::left_behind(&rig.instance).is_none(), "nothing was noted yet");
    let mut earlier = Command::new("sleep").arg("30").stdout(Stdio::null()).spawn().unwrap();
    let name = ProcessName::of(i32::try_from(earlier.id()).unwrap()).unwrap();
    fs::write(rig.instance.run_dir.join("gateway.json"), serde_json::to_vec(&name).unwrap()).unwrap();
    let left = supervise::left_behind(&rig.instance).expect("it lives");
    let (connected, seen) = watch::channel(None);
    let supervisor = Supervisor::start(&rig.instance, program(), seen, Some(left));
    tokio::time::sleep(Duration::from_millis(300)).await;
    connected.send_replace(Some(earlier.id()));
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(pids(&report).is_empty(), "no second one");
    earlier.kill().unwrap();
    earlier.wait().unwrap();
    until("its successor starts", || pids(&report).len() == 1).await;
    let noted = supervise::left_behind(&rig.instance).expect("the next agent is told of the successor");
    assert_eq!(noted.name().pid, pids(&report)[0]);
    supervisor.stop().await;
    assert!(supervise::left_behind(&rig.instance).is_none(), "it ended with its supervisor");
}

fn source(dir: &Path, config: &str) -> PolicySource {
    PolicySource::new(&Config::parse(config, &dir.join("strait.toml")).unwrap(), program())
}

const GOOD: &str = r#"@id("a") permit(principal, action == Action::"http", resource in Domain::"ok.test");"#;

#[test]
fn policies_are_compiled_in_a_child_and_a_bad_or_deadly_set_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let policies = dir.path().join("policies");
    let none = source(dir.path(), "").check().unwrap();
    assert!(none.files.is_empty(), "no folder: nothing is permitted, and that is a set too");
    fs::create_dir_all(policies.join("guardrails")).unwrap();
    fs::write(policies.join("a.cedar"), GOOD).unwrap();
    let good = source(dir.path(), "").check().unwrap();
    assert_eq!(good.files.len(), 1);
    assert_ne!(good.digest, none.digest);

    fs::write(policies.join("b.cedar"), "permit(principal, action, resource").unwrap();
    let refused = source(dir.path(), "").check().unwrap_err();
    assert!(matches!(&refused, PolicyError::Refused(why) if why.contains("b.cedar")), "{refused}");

    // Nesting that overflows a parser's stack must not take the agent with it.
    let deep = format!(
        "@id(\"d\") permit(principal, action, resource) when {{ {}true{} }};",
        "(".repeat(200_000),
        ")".repeat(200_000)
    );
    fs::write(policies.join("b.cedar"), deep).unwrap();
    let refused = source(dir.path(), "").check().unwrap_err();
    assert!(matches!(refused, PolicyError::Refused(_) | PolicyError::Check(_)), "{refused}");
    fs::remove_file(policies.join("b.cedar")).unwrap();
    assert_eq!(source(dir.path(), "").check().unwrap().digest, good.digest);
}

/// Case 42: a rule about paths on a host that nobody reads would be believed to work.
#[test]
fn a_rule_about_requests_to_a_passthrough_host_is_refused_at_load() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("policies")).unwrap();
    let rule = r#"@id("paths") permit(principal, action == Action::"http", resource in Host::"pinned.ok.test")
        when { context.path like "/public/*" };"#;
    fs::write(dir.path().join("policies/a.cedar"), rule).unwrap();
    source(dir.path(), "").check().unwrap();
    let refused = source(dir.path(), "[network]\npassthrough = [\"Pinned.OK.test.\"]").check().unwrap_err();
    assert!(
        refused.to_string().contains("`paths`") && refused.to_string().contains("`pinned.ok.test`"),
        "{refused}"
    );
    source(dir.path(), "[network]\npassthrough = [\"other.test\"]").check().unwrap();
}
