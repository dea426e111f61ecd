use std::path::Path;

use serde_json::{Value, json};
use strait_contract::ids::{AgentName, RunId};

use super::*;
use crate::instance::Instance;

/// `config.json` of a run with a terminal, a workspace and a read-only mount inside it.
fn configured() -> Value {
    let place = tempfile::tempdir().unwrap();
    let trust = Trust::build(&place.path().join("trust"), "ROOT\n").unwrap();
    let instance = Instance::standard("strait".parse().unwrap());
    let (run, agent): (RunId, AgentName) = ("coder-aaaaaa".parse().unwrap(), "coder".parse().unwrap());
    let account = Account { uid: 1000, gid: 100, name: "ann".into(), home: "/home/ann".into(), admin: false };
    let bind =
        |source: &str, target: &str, access| Bind { source: source.into(), target: target.into(), access };
    let plan = Plan {
        run: &run,
        agent: &agent,
        account: &account,
        argv: &["claude".to_owned(), "-p".to_owned()],
        env: vec!["A=1".to_owned()],
        cwd: "/home/ann/src/app".into(),
        terminal: Some((33, 101)),
        gateway: instance.gateway(),
        netns: instance.run_netns("coder-aaaaaa"),
        cgroup: "/strait/coder-aaaaaa/box".into(),
        tool: "/usr/lib/strait/strait-tool".into(),
        home: "/var/lib/strait/homes/1000/coder".into(),
        trust: &trust,
        binds: vec![
            bind("/m/1", "/home/ann/src/app/vendor", Access::ReadOnly),
            bind("/m/0", "/home/ann/src/app", Access::ReadWrite),
        ],
    };
    let folder = Folder::of(&instance, "coder-aaaaaa");
    serde_json::to_value(config(&folder, &plan).unwrap()).unwrap()
}

fn mount<'a>(spec: &'a Value, destination: &str) -> &'a Value {
    let mounts = spec["mounts"].as_array().unwrap();
    mounts.iter().find(|mount| mount["destination"] == destination).unwrap_or_else(|| panic!("{destination}"))
}

#[test]
fn the_process_has_nothing_it_does_not_need() {
    let spec = configured();
    let table = [
        ("/process/args", json!(["/tools/bin/strait-tool", "init", "--wait", "--", "claude", "-p"])),
        ("/process/user/uid", json!(1000)),
        ("/process/user/gid", json!(100)),
        ("/process/noNewPrivileges", json!(true)),
        ("/process/terminal", json!(true)),
        ("/process/consoleSize/height", json!(33)),
        ("/process/capabilities/bounding", json!([])),
        ("/process/capabilities/effective", json!([])),
        ("/process/capabilities/inheritable", json!([])),
        ("/process/capabilities/permitted", json!([])),
        ("/process/capabilities/ambient", json!([])),
        ("/root/readonly", json!(true)),
        ("/linux/cgroupsPath", json!("/strait/coder-aaaaaa/box")),
        ("/linux/resources/devices/0/allow", json!(false)),
        ("/linux/resources/pids/limit", json!(PIDS_LIMIT)),
        ("/linux/seccomp/defaultAction", json!("SCMP_ACT_ALLOW")),
    ];
    for (path, expected) in table {
        assert_eq!(spec.pointer(path), Some(&expected), "{path}");
    }
    assert!(spec.get("hooks").is_none(), "nothing of ours runs between the netns and the workload");
}

#[test]
fn the_network_is_the_prepared_one_and_everything_else_is_new() {
    let spec = configured();
    let namespaces = spec.pointer("/linux/namespaces").unwrap().as_array().unwrap();
    let kinds: Vec<_> = namespaces.iter().map(|namespace| namespace["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["pid", "ipc", "uts", "mount", "cgroup", "network"]);
    for namespace in namespaces {
        let path = (namespace["type"] == "network").then(|| json!("/run/strait/netns/coder-aaaaaa"));
        assert_eq!(namespace.get("path"), path.as_ref(), "{namespace}");
    }
}

#[test]
fn mounts_are_read_only_unless_they_are_the_persons_and_parents_come_first() {
    let spec = configured();
    let writable = ["/home/ann", "/home/ann/src/app"];
    let at = |destination: &str| {
        let mounts = spec["mounts"].as_array().unwrap();
        mounts.iter().position(|mount| mount["destination"] == destination).unwrap()
    };
    for mount in spec["mounts"].as_array().unwrap().iter().filter(|mount| mount["type"] == "bind") {
        let options = mount["options"].as_array().unwrap();
        let destination = mount["destination"].as_str().unwrap();
        assert_eq!(options.contains(&json!("rro")), !writable.contains(&destination), "{mount}");
        assert!(options.contains(&json!("rnosuid")) && options.contains(&json!("rnodev")), "{mount}");
    }
    assert!(at("/home/ann") < at("/home/ann/src/app"));
    assert!(at("/home/ann/src/app") < at("/home/ann/src/app/vendor"));
    assert_eq!(mount(&spec, "/home/ann")["source"], "/var/lib/strait/homes/1000/coder", "a private home");
    assert_eq!(mount(&spec, "/home/ann/src/app")["source"], "/m/0", "the staged clone, not the path");
    assert_eq!(mount(&spec, "/run/strait")["source"], "/run/strait/runs/coder-aaaaaa/sockets");
    let sources: Vec<_> =
        spec["mounts"].as_array().unwrap().iter().filter_map(|mount| mount["source"].as_str()).collect();
    for hidden in ["/etc", "/home", "/root", "/var", "/run", "/", "/etc/ssh", "/etc/shadow"] {
        assert!(!sources.contains(&hidden), "{hidden}");
    }
}

#[test]
fn etc_says_who_and_where_one_is() {
    let place = tempfile::tempdir().unwrap();
    let trust = Trust::build(&place.path().join("trust"), "ROOT\n").unwrap();
    let (run, agent): (RunId, AgentName) = ("coder-aaaaaa".parse().unwrap(), "coder".parse().unwrap());
    let account = Account { uid: 1000, gid: 100, name: "ann".into(), home: "/home/ann".into(), admin: false };
    let plan = Plan {
        run: &run,
        agent: &agent,
        account: &account,
        argv: &[],
        env: Vec::new(),
        cwd: "/".into(),
        terminal: None,
        gateway: Ipv4Addr::new(10, 203, 0, 1),
        netns: PathBuf::new(),
        cgroup: PathBuf::new(),
        tool: PathBuf::new(),
        home: PathBuf::new(),
        trust: &trust,
        binds: Vec::new(),
    };
    let files = etc::files(&plan);
    let file =
        |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.as_str()).unwrap();
    assert!(file("/etc/passwd").contains("ann:x:1000:100::/home/ann:/bin/sh\n"));
    assert!(file("/etc/passwd").starts_with("root:x:0:0:"));
    assert!(file("/etc/hosts").contains("10.203.0.1 strait.internal\n"));
    assert!(file("/etc/resolv.conf").starts_with("nameserver 10.203.0.1\n"));
    assert!(!file("/etc/resolv.conf").contains("search"), "case 18: no storm of suffixes");
    assert!(etc::copied().iter().all(|(path, _)| Path::new(path).starts_with("/etc")));
    assert!(!etc::folders().iter().any(|path| path.ends_with("ssh") || path.ends_with("ssl")));
}
