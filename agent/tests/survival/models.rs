//! Official clients of models and coding agents in whole runs, unchanged and told nothing: what STRAIT presets, or their own
//! provider's address, is enough (A15, A16).
//!
//! Needs what `cargo xtask setup` puts into `target/clients`. The providers stand in a network namespace of the test's own.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicU8, Ordering},
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;

use super::site::Site;

const KEY: &str = "sk-of-the-operator-4C2f92E7710c8383";
const HOSTS: [&str; 3] = ["api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com"];
const CONFIG: &str = "\
\"api.openai.com\" = \"127.0.0.1\"\n\"api.anthropic.com\" = \"127.0.0.1\"\n\
\"generativelanguage.googleapis.com\" = \"127.0.0.1\"\n\
[credentials.key]\nfrom = \"file:BASE/secret\"\n\
[providers.openai]\napi = \"openai\"\ncredential = \"key\"\n\
[providers.anthropic]\napi = \"anthropic\"\ncredential = \"key\"\n\
[providers.gemini]\napi = \"gemini\"\ncredential = \"key\"\n";
/// What the mock answers, and what it says it used.
const ANSWER: &str = "A straight answer that takes more than one chunk";
const USED: (u64, u64) = (23, 19);

static NEXT: AtomicU8 = AtomicU8::new(0);

/// Three providers at the addresses that the real ones' names have here.
struct Providers {
    folder: tempfile::TempDir,
    netns: String,
    servers: Option<Child>,
}

impl Providers {
    fn new() -> Self {
        let netns = format!("md{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::Builder::new().prefix(&netns).tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut providers = Self { folder, netns, servers: None };
        providers.certify();
        for arguments in
            [vec!["netns", "add", &providers.netns], vec!["-n", &providers.netns, "link", "set", "lo", "up"]]
        {
            assert!(
                Command::new("ip").args(arguments).status().unwrap().success(),
                "needs root and iproute2"
            );
        }
        let at = |name: &str| providers.folder.path().join(name);
        let mut server = Command::new("nsenter");
        server.arg(format!("--net=/run/netns/{}", providers.netns)).args([
            "node",
            "--input-type=module",
            "-e",
        ]);
        server.arg(include_str!("models/upstream.mjs")).current_dir(parts("model"));
        server.env("CERT", at("leaf.pem")).env("KEY", at("leaf.key")).env("SEEN", at("seen.jsonl"));
        server.env("FIXTURES", source("../gateway/tests/gate/model/fixtures.json"));
        let mut server =
            server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cargo xtask setup");
        let mut said = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut said).unwrap();
        providers.servers = Some(server);
        assert_eq!(said.trim(), "ready");
        providers
    }

    /// A CA of its own, and a certificate for all three names.
    fn certify(&self) {
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = ca.self_signed(&ca_key).unwrap();
        let issuer = Issuer::from_params(&ca, &ca_key);
        let leaf_key = KeyPair::generate().unwrap();
        let leaf =
            CertificateParams::new(HOSTS.map(str::to_owned)).unwrap().signed_by(&leaf_key, &issuer).unwrap();
        let write = |name: &str, text: String| fs::write(self.folder.path().join(name), text).unwrap();
        write("ca.pem", root.pem());
        write("leaf.pem", leaf.pem());
        write("leaf.key", leaf_key.serialize_pem());
    }

    /// An installation that dials from where the providers are. No policy permits anything at their names.
    fn site(&self) -> Site {
        let instance = format!("dial_netns = \"/run/netns/{}\"\n[network]\n", self.netns);
        let network = format!(
            "[network]\ntrust = [\"{}\"]\nsystem_trust = false\n",
            self.folder.path().join("ca.pem").display()
        );
        let policy = "@id(\"none\")\nforbid (principal, action, resource);\n";
        let site = Site::changed(policy, CONFIG, |text| {
            text.replacen("[network]\n", &instance, 1).replacen("[network]\n", &network, 1)
        });
        let secret = site.work().parent().unwrap().join("secret");
        fs::write(&secret, format!("{KEY}\n")).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        site
    }

    /// What has reached them, one request a line.
    fn seen(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("seen.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    /// Asserts that every request came with the operator's key, where its API wants it, and with nothing of the run's.
    fn assert_saw_the_key_and_no_token(&self, token: &str) {
        let seen = self.seen();
        assert!(!seen.is_empty());
        for request in seen {
            let text = request.to_string();
            assert!(!text.contains(token) && !text.contains("strait_"), "{text}");
            assert_eq!(text.matches(KEY).count(), 1, "{text}");
            let headers: Vec<&str> =
                request["headers"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
            let with = headers.chunks(2).find(|field| field[1].contains(KEY)).unwrap()[0];
            let host = headers.chunks(2).find(|field| field[0].eq_ignore_ascii_case("host")).unwrap()[1];
            let expect = match host {
                "api.openai.com" => "authorization",
                "api.anthropic.com" => "x-api-key",
                _ => "x-goog-api-key",
            };
            assert_eq!(with.to_lowercase(), expect, "{text}");
        }
    }
}

impl Drop for Providers {
    fn drop(&mut self) {
        if let Some(mut servers) = self.servers.take() {
            let _ = servers.kill();
            let _ = servers.wait();
        }
        let _ = Command::new("ip").args(["netns", "delete", &self.netns]).status();
    }
}

/// Where `cargo xtask setup` has put the clients.
fn parts(folder: &str) -> PathBuf {
    let parts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/clients").join(folder);
    assert!(parts.join("ready").exists(), "the clients of models are missing: cargo xtask setup");
    parts.canonicalize().unwrap()
}

fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs a script in a run that sees the clients, and gives what it printed. First it tells what its processes know.
fn run(site: &Site, script: &str) -> Output {
    let home = fs::read_to_string(parts("model").join("py/pyvenv.cfg")).unwrap();
    let home = home.lines().find_map(|line| line.strip_prefix("home = ")).unwrap();
    let python = Path::new(home).parent().unwrap();
    let mut run = site.command(&["run", "--workspace"]);
    run.arg(site.work());
    for folder in [parts("model").as_path(), &parts("agents"), python] {
        // What is the system's is there anyhow.
        if !folder.starts_with("/usr") {
            run.arg("--ro").arg(folder);
        }
    }
    let told = "env > env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline > procs";
    run.args(["--", "sh", "-c", &format!("{told}; {script}")]).stdin(Stdio::null());
    let output = run.output().unwrap();
    let known = fs::read(site.work().join("procs")).unwrap();
    let known = String::from_utf8_lossy(&known).into_owned() + &site.lines("env").join("\n");
    assert!(known.contains(&token(site)), "the control");
    assert!(!known.contains(KEY));
    output
}

/// The run's token, by its own word.
fn token(site: &Site) -> String {
    let env = site.lines("env");
    env.iter().find_map(|line| line.strip_prefix("STRAIT_TOKEN=")).unwrap().to_owned()
}

/// The `done` lines of all calls of models.
fn steps(site: &Site) -> Vec<Value> {
    let records = site.records();
    let lines = records.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    lines.filter(|line| line["type"] == "model" && line["phase"] == "done").collect()
}

/// A15, A16: each official SDK with nothing but what the run's environment says.
#[test]
fn official_sdks_in_a_run_need_no_more_than_its_environment_a15_a16() {
    let providers = Providers::new();
    let site = providers.site();
    for script in [
        "../gateway/tests/gate/model/official.py",
        "../gateway/tests/gate/model/official.mjs",
        "tests/survival/models/side.py",
    ] {
        let script = source(script);
        fs::copy(&script, site.work().join(script.file_name().unwrap())).unwrap();
    }
    // Its own resolver knows the name.
    let script = format!(
        "work=$PWD; cd {} && export ADDRESS=strait.internal && py/bin/python $work/official.py && \
         py/bin/python $work/side.py && node --input-type=module - < $work/official.mjs",
        parts("model").display()
    );
    let output = run(&site, &script);
    let text = String::from_utf8_lossy(&output.stdout);
    let saw: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(saw.len(), 3, "{output:?}");
    let calls: Vec<&Value> = saw.iter().flat_map(|saw| saw.as_object().unwrap().values()).collect();
    for call in &calls {
        assert!(call.get("failed").is_none(), "{saw:#?}");
        let whole = call.to_string().contains(ANSWER) || call[0] == "get_weather" || **call == true;
        assert!(whole, "the answer is whole: {call}");
    }
    assert_eq!(providers.seen().len(), calls.len(), "nobody has tried anything twice");
    providers.assert_saw_the_key_and_no_token(&token(&site));
    site.until("every call is done", |site| steps(site).len() == calls.len());
    let records = site.records();
    assert!(!records.contains(KEY) && !records.contains(token(&site).trim_start_matches("strait_")));
    let mut known = std::collections::BTreeSet::new();
    for step in steps(&site) {
        let (model, tokens) = (&step["model"], &step["tokens"]);
        match model["operation"].as_str().unwrap() {
            "models" => continue,
            // The mock says that embedding took none.
            "embeddings" => assert_eq!(tokens["input"], 0, "{step:#}"),
            _ => {
                let used = (tokens["input"].as_u64().unwrap(), tokens["output"].as_u64().unwrap());
                assert!(used == USED || used == (31, 11), "{step:#}");
            }
        }
        known.insert(model["asked"].as_str().unwrap().to_owned());
    }
    assert_eq!(
        known.into_iter().collect::<Vec<_>>(),
        ["claude-sonnet-4-5", "gemini-2.5-pro", "gpt-5", "text-embedding-3-small"]
    );
    site.assert_whole(calls.len());
}

/// A15, A16: Claude Code by base URL; what it tells its maker besides goes nowhere.
#[test]
fn claude_code_does_a_turn_by_base_url_a15_a16() {
    let providers = Providers::new();
    let site = providers.site();
    let program = parts("agents").join("node_modules/@anthropic-ai/claude-code-linux-x64/claude");
    let output = run(&site, &format!("timeout 90 {} -p hello --model claude-sonnet-4-5", program.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(ANSWER), "{output:?}\n{}", site.records());
    providers.assert_saw_the_key_and_no_token(&token(&site));
    assert!(
        providers.seen().iter().all(|request| request["url"].as_str().unwrap().starts_with("/v1/messages"))
    );
    counted(&site, "claude-sonnet-4-5");
}

/// A15, A16: Codex knows nothing of a base URL; its calls of its own provider are recognised. It begins with a WebSocket, is
/// told that there is none (426), and asks again at once.
#[test]
fn codex_does_a_turn_by_interception_and_falls_back_from_websocket_a15_a16() {
    let providers = Providers::new();
    let site = providers.site();
    let program = parts("agents")
        .join("node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex");
    let turn = "exec --skip-git-repo-check -s danger-full-access -m gpt-5 hello";
    let output = run(&site, &format!("timeout 90 {} {turn}", program.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(ANSWER), "{output:?}\n{}", site.records());
    providers.assert_saw_the_key_and_no_token(&token(&site));
    for request in providers.seen() {
        assert!(!request["headers"].to_string().to_lowercase().contains("websocket"), "{request}");
    }
    let records = site.records();
    let refused = records.lines().filter(|line| line.contains("UPGRADE_REFUSED")).count();
    assert!(refused > 0, "{records}");
    counted(&site, "gpt-5");
}

/// Asserts that a turn's call was counted as the provider did.
fn counted(site: &Site, asked: &str) {
    let counted = |site: &Site| {
        steps(site).iter().any(|step| {
            let tokens = &step["tokens"];
            step["model"]["asked"] == asked && tokens["input"] == USED.0 && tokens["output"] == USED.1
        })
    };
    site.until("the turn is counted", |site| counted(site) || site.records().contains("run.ended"));
    assert!(counted(site), "{:#?}", steps(site));
    let records = site.records();
    assert!(!records.contains(KEY) && !records.contains(token(site).trim_start_matches("strait_")));
}
