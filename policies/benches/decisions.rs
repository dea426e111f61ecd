//! Time of a decision and of a load, by number of rules (P1, P2): `cargo bench -p strait-policies`.
//!
//! `anew`: nothing is remembered. `first`: what is decided is remembered and never asked again. `again`: it was
//! remembered. Numbers as arguments are the numbers of rules, else 10 to 10,000; a name (`http`, `tools`) one of the two.
#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "a benchmark stops at the first surprise")]

use std::{
    fmt::Write,
    hint::black_box,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use strait_contract::run::RunInfo;
use strait_policies::{Arguments, Ask, HttpAsk, PolicyFile, Question, Snapshot, ToolAsk, Verdict};

const CALLS: u32 = 20_000;
/// As many as a large server has.
const TOOLS: usize = 117;

/// `count` rules for 100 agents and `count` hosts, four of which concern every call.
fn rules(count: usize) -> PolicyFile {
    let mut text = String::from(
        r#"@id("any-a") forbid (principal, action == Action::"http", resource) when { context.queryBytes > 2048 };
           @id("any-b") forbid (principal, action == Action::"http", resource) when { context.path like "*/git-receive-pack" };
           @id("coder-a") permit (principal in Agent::"coder", action == Action::"http", resource in Domain::"ok.test")
             when { ["GET", "HEAD"].contains(context.method) };
           @id("coder-b") permit (principal in Agent::"coder", action == Action::"http", resource in Endpoint::"api.ok.test:443")
             when { context.method == "POST" && context.path like "/v1/*" };"#,
    );
    for number in 0..count.saturating_sub(4) {
        let _ = writeln!(
            text,
            "@id(\"r{number}\") permit (principal in Agent::\"agent-{}\", action == Action::\"http\", resource in Host::\"h{number}.ok.test\")
             when {{ context.method == \"GET\" && context.path like \"/repos/{number}/*\" }};",
            number % 100,
        );
    }
    PolicyFile { name: "bench.cedar".to_owned(), guardrail: false, text }
}

/// A server of `TOOLS` tools, and `count` rules for 100 agents about them, four of which concern every call.
fn tool_rules(count: usize) -> Vec<PolicyFile> {
    let tools: Vec<String> = (0..TOOLS)
        .map(|number| {
            format!(
                r#"{{"name":"tool-{number}","inputSchema":{{"type":"object","required":["owner","repo","title"],"properties":{{
                    "owner":{{"type":"string"}},"repo":{{"type":"string"}},"title":{{"type":"string"}},"body":{{"type":"string"}},
                    "labels":{{"type":"array","items":{{"type":"string"}}}},"milestone":{{"type":"integer"}}}}}}}}"#
            )
        })
        .collect();
    let pin = format!("{{\"tools\":[{}]}}", tools.join(","));
    let mut text = String::from(
        r#"@id("any-a") forbid (principal, action in Action::"tools/call", resource)
             when { context has arguments.owner && context.arguments.owner == "evil" };
           @id("any-b") forbid (principal, action == Action::"github/tool-0", resource)
             when { context.arguments.title like "*password*" };
           @id("coder-a") permit (principal in Agent::"coder", action in [Action::"github/tool-0", Action::"github/tool-1"], resource)
             when { context.arguments.repo == "x" };
           @id("coder-b") permit (principal in Agent::"coder", action == Action::"github/tool-0", resource in Tool::"github")
             when { context.arguments has labels && context.arguments.labels.contains("bug") };"#,
    );
    for number in 0..count.saturating_sub(4) {
        let _ = writeln!(
            text,
            "@id(\"r{number}\") permit (principal in Agent::\"agent-{}\", action == Action::\"github/tool-{}\", resource)
             when {{ context.arguments.owner == \"o{number}\" && context.arguments.repo like \"r{number}-*\" }};",
            number % 100,
            number % TOOLS,
        );
    }
    let file = |name: &str, text: String| PolicyFile { name: name.to_owned(), guardrail: false, text };
    vec![file("tools/github.json", pin), file("bench.cedar", text)]
}

fn main() {
    let run = RunInfo {
        id: "coder-1".parse().expect("a run id"),
        number: 1,
        addr: Ipv4Addr::new(10, 203, 0, 2),
        agent: "coder".parse().expect("an agent name"),
        version: "1".to_owned(),
        started_by: "alice".to_owned(),
        labels: Vec::new(),
        addresses: Vec::new(),
        token: strait_contract::token::TokenHash::of("test"),
        exposed: Vec::new(),
    };
    type Decide = fn(&Snapshot, &RunInfo, u32, &dyn Fn(&Snapshot, &Question<'_>) -> Verdict) -> Duration;
    let http: (fn(usize) -> Vec<PolicyFile>, Decide) = (|count| vec![rules(count)], decide);
    let tools: (fn(usize) -> Vec<PolicyFile>, Decide) = (tool_rules, decide_tool);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut counts: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    if counts.is_empty() {
        counts = vec![10, 100, 1_000, 10_000];
    }
    let only = |name: &str| arguments.iter().any(|argument| argument == name);
    for (what, (files, decide)) in [("http", http), ("tools/call of 117 pinned tools", tools)] {
        if (only("http") && what != "http") || (only("tools") && what == "http") {
            continue;
        }
        println!(
            "{what}\n{:>8} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>12}",
            "rules", "load", "anew p50", "p99", "first p50", "p99", "again p50", "p99", "resident"
        );
        for count in counts.iter().copied() {
            let before = resident_kib();
            let files = files(count);
            let started = Instant::now();
            let snapshot = Snapshot::compile(&files, 1).expect("the rules load");
            let load = started.elapsed();
            let resident = resident_kib().saturating_sub(before);
            let anew = measure(|call| decide(&snapshot, &run, call, &Snapshot::decide_anew));
            // No two calls are equal, so nothing is ever remembered from an earlier one.
            let first = measure(|call| decide(&snapshot, &run, call, &Snapshot::decide));
            let again = measure(|call| decide(&snapshot, &run, call % 8, &Snapshot::decide));
            print!("{count:>8} {:>7.1} ms", load.as_secs_f64() * 1e3);
            for (p50, p99) in [anew, first, again] {
                print!(" {p50:>6.2} µs {p99:>6.2} µs");
            }
            println!(" {resident:>8} KiB");
        }
    }
}

/// Median and 99th percentile of what `once` says, µs.
fn measure(once: impl Fn(u32) -> Duration) -> (f64, f64) {
    let mut times: Vec<Duration> = (0..CALLS).map(once).collect();
    times.sort_unstable();
    let at = |share: usize| times[times.len() * share / 100].as_nanos() as f64 / 1000.0;
    (at(50), at(99))
}

/// Time of one decision about the call of that number.
fn decide(
    snapshot: &Snapshot,
    run: &RunInfo,
    call: u32,
    how: &dyn Fn(&Snapshot, &Question<'_>) -> Verdict,
) -> Duration {
    let path = format!("/v1/{call}");
    let ask = Ask::Http(HttpAsk {
        method: if call.is_multiple_of(2) { "GET" } else { "POST" },
        scheme: "https",
        host: "api.ok.test",
        port: 443,
        path: &path,
        tool: None,
        query: &[],
        query_bytes: 0,
        via: "egress",
        address: None,
        body_bytes: None,
        content_type: None,
    });
    time(snapshot, &Question { run, now_ms: 1_780_317_296_000 + u64::from(call), ask, process: None }, how)
}

/// The same for a call of a tool, whose arguments are read before.
fn decide_tool(
    snapshot: &Snapshot,
    run: &RunInfo,
    call: u32,
    how: &dyn Fn(&Snapshot, &Question<'_>) -> Verdict,
) -> Duration {
    let text = format!(
        r#"{{"owner":"acme","repo":"x","title":"number {call}","body":"Some words about it.","labels":["bug","p1"],"milestone":7}}"#
    );
    let arguments = Arguments::parse(text.as_bytes()).expect("the arguments are JSON");
    let ask = Ask::Tool(ToolAsk { server: "github", tool: "tool-0", arguments: &arguments });
    time(snapshot, &Question { run, now_ms: 1_780_317_296_000 + u64::from(call), ask, process: None }, how)
}

fn time(
    snapshot: &Snapshot,
    question: &Question<'_>,
    how: &dyn Fn(&Snapshot, &Question<'_>) -> Verdict,
) -> Duration {
    let started = Instant::now();
    let verdict = black_box(how(snapshot, black_box(question)));
    let time = started.elapsed();
    assert!(matches!(verdict, Verdict::Permit { .. }), "{verdict}");
    time
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}
