//! `strait policy test`: calls in files, each with the decision that it must get.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};
use clap::ValueHint;
use serde::{Deserialize, Serialize};
use strait_contract::ids::AgentName;
use strait_policies::{
    Snapshot, Verdict,
    json::{Json, Limits},
    url::Names,
};

use super::call::{CallArgs, Misread, ProcessArgs, Via, run_info};
use crate::instance::Instance;

/// Most of a test file.
const LIMITS: Limits = Limits { bytes: 16 << 20, depth: 64, nodes: 1 << 20 };

/// Check that calls are decided as files say
///
/// A file holds `[{"name": "…", "call": {…}, "decision": "allow", "rules": ["id"]}]`. A call has `agent` and one of `http`,
/// `tool` with `arguments`, `connect` and `dns`, written as for `strait policy explain`; `version`, `user`, `labels`, `at`
/// (RFC 3339), `exe`, `exeDigest`, `uid`, `via`, `method`, `bodyBytes` and `contentType` are optional. `decision` is allow,
/// deny or hold; `rules`, if there, must be exactly those that decided.
///
/// Exit status: 0 if every call is decided as it says, 1 if not.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  strait policy test tests/*.json
  strait policy test --policies ./policies --json tests/github.json")]
pub(super) struct Test {
    /// Files with calls
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Policy folder [default: policies of the instance]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    policies: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One call and what it must get.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    call: Written,
    decision: Decision,
    rules: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Decision {
    Allow,
    Deny,
    Hold,
}

/// A call as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    agent: AgentName,
    #[serde(default = "one")]
    version: String,
    #[serde(default = "root")]
    user: String,
    #[serde(default)]
    labels: Vec<String>,
    at: Option<String>,
    exe: Option<String>,
    exe_digest: Option<String>,
    #[serde(default = "person")]
    uid: u32,
    http: Option<String>,
    connect: Option<String>,
    dns: Option<String>,
    tool: Option<String>,
    method: Option<String>,
    server_tool: Option<String>,
    model: Option<String>,
    via: Option<Via>,
    body_bytes: Option<u64>,
    content_type: Option<String>,
    /// Only whether it is there: what is in it is taken from the text as it was written.
    arguments: Option<serde::de::IgnoredAny>,
}

fn one() -> String {
    "1".to_owned()
}

fn root() -> String {
    "root".to_owned()
}

fn person() -> u32 {
    1000
}

/// What became of a case.
#[derive(Debug, Serialize)]
struct Tested {
    file: String,
    name: String,
    passed: bool,
    expected: Decision,
    decision: Decision,
    /// Those that decided.
    rules: Vec<String>,
    #[serde(skip)]
    expected_rules: Option<Vec<String>>,
    /// The verdict in words.
    verdict: String,
}

pub(super) fn run(test: &Test, instance: &Instance, names: &Names) -> Result<ExitCode> {
    let files = super::read(&super::folder(test.policies.as_ref(), instance))?;
    let snapshot = match Snapshot::compile(&files, 0) {
        Ok(snapshot) => snapshot,
        Err(refused) => {
            writeln!(std::io::stderr(), "{refused}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let tested = test_files(&snapshot, &test.files, names)?;
    report(&tested, test.json)?;
    Ok(if tested.iter().all(|tested| tested.passed) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn test_files(snapshot: &Snapshot, files: &[PathBuf], names: &Names) -> Result<Vec<Tested>> {
    let mut tested = Vec::new();
    for file in files {
        for (case, arguments) in read(file)? {
            let name = case.name.clone();
            let result = case.run(snapshot, arguments, names, file);
            tested.push(result.with_context(|| format!("`{}`, test `{name}`", file.display()))?);
        }
    }
    Ok(tested)
}

/// The cases of a file, each with its arguments as written. A file without any would test nothing and pass.
fn read(file: &Path) -> Result<Vec<(Case, Option<String>)>> {
    let shown = file.display();
    let text = std::fs::read(file).with_context(|| format!("`{shown}` can't be read"))?;
    let json = Json::parse(&text, &LIMITS).with_context(|| format!("`{shown}`"))?;
    let cases: Vec<Case> = serde_json::from_slice(&text).with_context(|| format!("`{shown}`"))?;
    if cases.is_empty() {
        bail!("`{shown}` has no tests");
    }
    let arguments = json
        .as_list()
        .unwrap_or_default()
        .iter()
        .map(|case| case.get("call").and_then(|call| call.get("arguments")).map(ToString::to_string));
    Ok(cases.into_iter().zip(arguments).collect())
}

impl Case {
    fn run(
        self,
        snapshot: &Snapshot,
        arguments: Option<String>,
        names: &Names,
        file: &Path,
    ) -> Result<Tested> {
        let Self { name, call: written, decision: expected, rules: expected_rules } = self;
        let now_ms = match &written.at {
            Some(at) => at
                .parse::<jiff::Timestamp>()
                .with_context(|| format!("`{at}`"))?
                .as_millisecond()
                .try_into()?,
            None => SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis().try_into()?,
        };
        let run = run_info(&written.agent, &written.version, &written.user, &written.labels)?;
        let process =
            ProcessArgs { exe: written.exe, exe_digest: written.exe_digest, uid: written.uid }.read();
        let call = CallArgs {
            http: written.http,
            connect: written.connect,
            dns: written.dns,
            tool: written.tool,
            arguments: written.arguments.and(arguments),
            method: written.method,
            server_tool: written.server_tool,
            model: written.model,
            via: written.via,
            body_bytes: written.body_bytes,
            content_type: written.content_type,
        };
        let verdict = match call.read(names) {
            Ok(call) => snapshot.decide(&call.question(&run, now_ms, process.as_ref())),
            Err(Misread::Refused(verdict)) => verdict,
            Err(Misread::Usage(why)) => bail!("{}", why.replace("--", "")),
        };
        let text = verdict.to_string();
        let (decision, mut rules) = match verdict {
            Verdict::Permit { rules } => (Decision::Allow, rules),
            Verdict::Hold { rules, .. } => (Decision::Hold, rules),
            Verdict::Refuse { rules, .. } => (Decision::Deny, rules),
        };
        rules.sort();
        let same_rules = expected_rules.as_ref().is_none_or(|expected| {
            let mut expected = expected.clone();
            expected.sort();
            expected == rules
        });
        Ok(Tested {
            file: file.display().to_string(),
            name,
            passed: decision == expected && same_rules,
            expected,
            decision,
            rules,
            expected_rules,
            verdict: text,
        })
    }
}

fn report(tested: &[Tested], json: bool) -> Result<()> {
    let mut out = std::io::stdout();
    let failed = tested.iter().filter(|tested| !tested.passed).count();
    let passed = tested.len().saturating_sub(failed);
    if json {
        writeln!(out, "{}", serde_json::json!({"passed": passed, "failed": failed, "tests": tested}))?;
        return Ok(());
    }
    for Tested { file, name, expected, expected_rules, verdict, .. } in
        tested.iter().filter(|tested| !tested.passed)
    {
        let word = match expected {
            Decision::Allow => "allowed",
            Decision::Deny => "denied",
            Decision::Hold => "held",
        };
        let by = expected_rules.as_ref().map_or_else(String::new, |rules| match rules.as_slice() {
            [] => " by no rule".to_owned(),
            rules => format!(" by `{}`", rules.join("`, `")),
        });
        writeln!(out, "FAILED {file}: {name}\n  must be {word}{by}\n  but is {verdict}")?;
    }
    writeln!(out, "{passed} passed, {failed} failed")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use strait_policies::PolicyFile;

    use super::*;

    fn snapshot() -> Snapshot {
        let file = |name: &str, text: &str| PolicyFile {
            name: name.to_owned(),
            guardrail: false,
            text: text.to_owned(),
        };
        let pin = r#"{"tools":[{"name":"pay","inputSchema":{"type":"object","properties":{"amount":{"type":"integer"}}}}]}"#;
        let rules = r#"
            @id("pay") permit (principal in Agent::"coder", action == Action::"bank/pay", resource)
                when { context.arguments has amount && context.arguments.amount <= 100 };
            @id("ask") @approval("much") permit (principal, action == Action::"bank/pay", resource)
                when { context.arguments has amount && context.arguments.amount > 100 };
            @id("git") permit (principal, action == Action::"http", resource in Tool::"github")
                when { context has process.exe && context.process.exe == "/usr/bin/git" && context.via == "tool" };
            @id("day") permit (principal, action == Action::"dns", resource) when { context.time.epoch == 1780272000 };"#;
        Snapshot::compile(&[file("tools/bank.json", pin), file("a.cedar", rules)], 0)
            .unwrap_or_else(|refused| panic!("{refused}"))
    }

    fn test(cases: &str) -> Result<Vec<Tested>> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.json");
        std::fs::write(&file, cases).unwrap();
        test_files(&snapshot(), &[file], &Names::default())
    }

    fn one(call: &str, rest: &str) -> bool {
        let text = format!("[{{\"name\":\"x\",\"call\":{{{call}}},{rest}}}]");
        test(&text).unwrap_or_else(|error| panic!("{call}: {error:#}"))[0].passed
    }

    #[test]
    fn a_case_passes_if_the_decision_and_the_rules_are_those_it_names() {
        let pay = |amount: &str| {
            format!("\"agent\":\"coder\",\"tool\":\"bank/pay\",\"arguments\":{{\"amount\":{amount}}}")
        };
        for (call, rest, passes) in [
            (pay("100"), r#""decision":"allow""#, true),
            (pay("100"), r#""decision":"allow","rules":["pay"]"#, true),
            (pay("100"), r#""decision":"allow","rules":["ask"]"#, false),
            (pay("100"), r#""decision":"allow","rules":[]"#, false),
            (pay("100"), r#""decision":"deny""#, false),
            (pay("101"), r#""decision":"hold","rules":["ask"]"#, true),
            (pay("101"), r#""decision":"allow""#, false),
            // As written: a number that is spelled otherwise is another call (case 61).
            (pay("1e2"), r#""decision":"deny","rules":[]"#, true),
            (pay("1e2"), r#""decision":"allow""#, false),
            (r#""agent":"other","tool":"bank/pay","arguments":{"amount":1}"#.to_owned(), r#""decision":"deny""#, true),
            (
                r#""agent":"coder","http":"GET https://api.github.com/","tool":"github","exe":"/usr/bin/git""#.to_owned(),
                r#""decision":"allow","rules":["git"]"#,
                true,
            ),
            (
                r#""agent":"coder","http":"GET https://api.github.com/","tool":"github","exe":"/usr/bin/curl""#.to_owned(),
                r#""decision":"deny","rules":[]"#,
                true,
            ),
            (
                r#""agent":"coder","http":"GET https://api.github.com/","exe":"/usr/bin/git""#.to_owned(),
                r#""decision":"deny""#,
                true,
            ),
            (
                r#""agent":"coder","dns":"TXT a.ok.test","at":"2026-06-01T00:00:00Z""#.to_owned(),
                r#""decision":"allow","rules":["day"]"#,
                true,
            ),
            (r#""agent":"coder","connect":"db.ok.test:1""#.to_owned(), r#""decision":"deny","rules":[]"#, true),
            // Refused by the gateway as it reads it.
            (r#""agent":"coder","http":"GET https://single/""#.to_owned(), r#""decision":"deny","rules":[]"#, true),
        ] {
            assert_eq!(one(&call, rest), passes, "{call} {rest}");
        }
    }

    #[test]
    fn case_82_what_is_not_understood_is_an_error_and_no_passed_test() {
        let good = r#"{"name":"x","call":{"agent":"coder","tool":"bank/pay"},"decision":"deny"}"#;
        assert!(test(&format!("[{good},{good}]")).is_ok_and(|tested| tested.len() == 2));
        for (from, to) in [
            ("\"decision\"", "\"decison\""),
            ("\"deny\"", "\"refuse\""),
            ("\"agent\":\"coder\"", "\"agent\":\"coder\",\"agent\":\"other\""),
            ("\"agent\":\"coder\"", "\"agent\":\"coder\",\"argments\":{}"),
            ("\"agent\":\"coder\"", "\"agent\":\"coder\",\"arguments\":{\"a\":1,\"a\":2}"),
            ("\"agent\":\"coder\"", "\"agent\":\"coder\",\"at\":\"yesterday\""),
            ("\"agent\":\"coder\"", "\"agent\":\"coder\",\"dns\":\"TXT a.test\""),
            ("\"tool\":\"bank/pay\"", "\"tool\":\"bank\""),
        ] {
            assert!(good.contains(from));
            let wrong = test(&format!("[{}]", good.replacen(from, to, 1)));
            assert!(wrong.is_err(), "{to}: {wrong:?}");
        }
        for text in ["[]", "{}", "", "[{}]"] {
            assert!(test(text).is_err(), "{text}");
        }
    }
}
