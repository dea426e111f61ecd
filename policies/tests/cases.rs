//! The policy cases of `policies/cases` and the example policies.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use strait_contract::run::{Process, RunInfo};
use strait_policies::{
    Arguments, Ask, HttpAsk, PolicyFile, Question, Snapshot, ToolAsk, Verdict, read_dir, url::Target,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    call: String,
    #[serde(default = "coder")]
    agent: String,
    decision: String,
    #[serde(default)]
    rules: Vec<String>,
    body: Option<u64>,
    content_type: Option<String>,
    exe: Option<String>,
    at: Option<String>,
    arguments: Option<serde_json::Value>,
}

fn coder() -> String {
    "coder".to_owned()
}

fn dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn files_of(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == extension)).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no `.{extension}` in {folder}");
    paths
}

fn policy(path: &Path) -> PolicyFile {
    let name = path.file_name().unwrap().to_str().unwrap();
    let guardrail = name.starts_with("guardrail-");
    PolicyFile { name: name.to_owned(), guardrail, text: fs::read_to_string(path).unwrap() }
}

/// The tools that policies of the cases may speak of.
fn with_pins(files: &[PolicyFile]) -> Vec<PolicyFile> {
    let pins = files_of("cases/tools", "json").into_iter().map(|path| policy(&path));
    pins.chain(files.iter().cloned()).collect()
}

fn compile(files: &[PolicyFile]) -> Snapshot {
    Snapshot::compile_in(&with_pins(files), 1, jiff::tz::TimeZone::UTC)
        .unwrap_or_else(|refused| panic!("{refused}"))
}

impl Case {
    fn decide(&self, snapshot: &Snapshot) -> Verdict {
        let run = RunInfo {
            id: "coder-1".parse().unwrap(),
            number: 1,
            addr: Ipv4Addr::new(10, 203, 0, 2),
            agent: self.agent.parse().unwrap(),
            version: "1".to_owned(),
            started_by: "alice".to_owned(),
            labels: Vec::new(),
            addresses: Vec::new(),
            token: strait_contract::token::TokenHash::of("test"),
            exposed: Vec::new(),
        };
        let process = self.exe.clone().map(|exe| Process { exe: Some(exe), ..Process::default() });
        let at = self.at.as_deref().unwrap_or("2026-06-01T12:00:00Z");
        let at: jiff::Timestamp = at.parse().unwrap();
        let words: Vec<&str> = self.call.split(' ').collect();
        let decide = |ask| {
            snapshot.decide(&Question {
                run: &run,
                now_ms: u64::try_from(at.as_millisecond()).unwrap(),
                ask,
                process: process.as_ref(),
            })
        };
        match words[..] {
            ["http", method, url] => {
                let target = Target::from_absolute(url).unwrap();
                let query = target.query_pairs();
                decide(Ask::Http(HttpAsk {
                    body_bytes: self.body,
                    content_type: self.content_type.as_deref(),
                    ..HttpAsk::to(method, &target, &query, "egress")
                }))
            }
            ["connect", endpoint] => {
                let (host, port) = endpoint.rsplit_once(':').unwrap();
                let address = host.parse().ok();
                let host = address.is_none().then_some(host);
                decide(Ask::Connect { host, address, port: port.parse().unwrap() })
            }
            ["tool", tool] => {
                let (server, tool) = tool.split_once('/').unwrap();
                let arguments = self.arguments.clone().unwrap_or(serde_json::json!({}));
                let arguments = &Arguments::parse(arguments.to_string().as_bytes()).unwrap();
                decide(Ask::Tool(ToolAsk { server, tool, arguments }))
            }
            ["dns", record_type, name] => decide(Ask::Dns { name, record_type }),
            _ => panic!("`{}` is not a call", self.call),
        }
    }

    fn check(&self, snapshot: &Snapshot, source: &Path) {
        let verdict = self.decide(snapshot);
        let (decision, rules) = match &verdict {
            Verdict::Permit { rules } => ("permit", rules),
            Verdict::Hold { rules, .. } => ("hold", rules),
            Verdict::Refuse { rules, .. } => ("refuse", rules),
        };
        assert_eq!(
            (decision, rules),
            (&*self.decision, &self.rules),
            "{self:?} of {}: {verdict}",
            source.display()
        );
    }
}

fn check_calls(snapshot: &Snapshot, source: &Path) {
    let text = fs::read_to_string(source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let cases: Vec<Case> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    assert!(
        cases.iter().any(|case| case.decision != "refuse"),
        "{} has no positive control",
        source.display()
    );
    assert!(cases.iter().any(|case| case.decision == "refuse"), "{} refuses nothing", source.display());
    for case in &cases {
        case.check(snapshot, source);
    }
}

#[test]
fn good_policies_decide_as_their_calls_say() {
    for path in files_of("cases/good", "cedar") {
        let snapshot = compile(&[policy(&path)]);
        check_calls(&snapshot, &path.with_extension("json"));
    }
}

/// A19.
#[test]
fn bad_policies_are_refused_with_the_message_beside_them() {
    let bless = std::env::var_os("STRAIT_BLESS").is_some();
    let mut wrong = Vec::new();
    for path in files_of("cases/bad", "cedar") {
        let beside = path.with_extension("expected");
        let refused = match Snapshot::compile(&with_pins(&[policy(&path)]), 1) {
            Ok(_) => panic!("{} loads", path.display()),
            Err(refused) => format!("{refused}\n"),
        };
        if bless {
            fs::write(&beside, &refused).unwrap();
        } else if fs::read_to_string(&beside).ok().as_ref() != Some(&refused) {
            wrong.push(format!("{} is refused with:\n{refused}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Case 35 among others: fetching works, pushing doesn't.
#[test]
fn the_example_policies_decide_as_their_calls_say() {
    let files = read_dir(&dir("examples")).unwrap();
    assert_eq!(files.iter().filter(|file| file.guardrail).count(), 1);
    check_calls(&compile(&files), &dir("cases/examples.json"));
}

#[test]
fn case_81_one_bad_file_among_ten_refuses_all() {
    let good = |number: u32| PolicyFile {
        name: format!("{number}.cedar"),
        guardrail: false,
        text: format!("@id(\"r{number}\") permit (principal, action, resource);"),
    };
    let mut files: Vec<PolicyFile> = (0..10).map(good).collect();
    compile(&files);
    files[4].text.push_str("@id(\"x\") permit (principal, action, resource) when { context.typo };");
    let refused = Snapshot::compile(&files, 1).unwrap_err();
    assert_eq!(refused.problems[0].file, "4.cedar");
}

#[test]
fn examples_are_laid_out_as_fmt_does() {
    let files = read_dir(&dir("examples")).unwrap();
    assert!(!files.is_empty());
    for file in files {
        assert_eq!(strait_policies::format(&file).unwrap(), file.text, "{}", file.name);
    }
}
