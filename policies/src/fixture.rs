//! Questions for tests.

use std::net::Ipv4Addr;

use strait_contract::run::RunInfo;

use crate::{Arguments, Ask, HttpAsk, PolicyFile, Question, Refused, Snapshot};

/// Monday 2026-06-01 12:34:56 UTC.
pub(crate) const NOON: u64 = 1_780_317_296_000;

pub(crate) fn run(agent: &str) -> RunInfo {
    RunInfo {
        id: "coder-1".parse().unwrap(),
        number: 7,
        addr: Ipv4Addr::new(10, 203, 0, 2),
        agent: agent.parse().unwrap(),
        version: "3".to_owned(),
        started_by: "alice".to_owned(),
        labels: vec!["team-a".to_owned()],
        addresses: Vec::new(),
        token: strait_contract::token::TokenHash::of("test"),
    }
}

pub(crate) fn file(text: &str) -> PolicyFile {
    PolicyFile { name: "test.cedar".to_owned(), guardrail: false, text: text.to_owned() }
}

pub(crate) fn guardrail(text: &str) -> PolicyFile {
    PolicyFile { name: "guardrails/test.cedar".to_owned(), guardrail: true, text: text.to_owned() }
}

pub(crate) fn compile(text: &str) -> Snapshot {
    compile_files(&[file(text)]).unwrap_or_else(|refused| panic!("{refused}"))
}

pub(crate) fn compile_files(files: &[PolicyFile]) -> Result<Snapshot, Refused> {
    Snapshot::compile_in(files, 1, jiff::tz::TimeZone::UTC)
}

/// `GET https://HOST/PATH` with nothing else.
pub(crate) fn get<'a>(host: &'a str, path: &'a str) -> HttpAsk<'a> {
    HttpAsk {
        method: "GET",
        scheme: "https",
        host,
        port: 443,
        path,
        tool: None,
        query: &[],
        query_bytes: 0,
        via: "egress",
        address: None,
        body_bytes: None,
        content_type: None,
    }
}

pub(crate) fn question<'a>(run: &'a RunInfo, ask: Ask<'a>) -> Question<'a> {
    Question { run, now_ms: NOON, ask, process: None }
}

/// A pinned file `tools/NAME.json` with these tools.
pub(crate) fn pin(server: &str, tools: &str) -> PolicyFile {
    PolicyFile {
        name: format!("../tools/{server}.json"),
        guardrail: false,
        text: format!("{{\"tools\":[{tools}]}}"),
    }
}

/// Two servers: `github` with `create_issue` and `get_me`, `bank` with `pay`.
pub(crate) fn pins() -> Vec<PolicyFile> {
    let create = r#"{"name":"create_issue","description":"Creates an issue","annotations":{"readOnlyHint":false},
        "inputSchema":{"type":"object","required":["repo","title"],"properties":{
            "repo":{"type":"string"},"title":{"type":"string"},
            "labels":{"type":"array","items":{"type":"string"}},
            "milestone":{"type":["integer","null"]},
            "assignee-id":{"type":"integer"},
            "meta":{"type":"object"},
            "state":{"enum":["open","closed"]},
            "place":{"type":"object","required":["x"],"properties":{"x":{"type":"integer"},"lat":{"type":"number"}}},
            "items":{"type":"array","items":{"type":"object","properties":{"price":{"type":"number"},"id":{"type":"integer"}}}}}}}"#;
    let me = r#"{"name":"get_me","annotations":{"readOnlyHint":true},"inputSchema":{"type":"object","properties":{}}}"#;
    let pay = r#"{"name":"pay","inputSchema":{"type":"object","required":["amount"],"properties":{
        "amount":{"type":"integer"},"rate":{"type":"number"},"to":{"type":"string"},"rates":{"type":"array","items":{"type":"number"}}}}}"#;
    vec![pin("github", &format!("{create},{me}")), pin("bank", pay)]
}

/// A set of `text` and [`pins`].
pub(crate) fn compile_pinned(text: &str) -> Snapshot {
    try_pinned(text).unwrap_or_else(|refused| panic!("{refused}"))
}

pub(crate) fn try_pinned(text: &str) -> Result<Snapshot, Refused> {
    let mut files = pins();
    files.push(file(text));
    compile_files(&files)
}

pub(crate) fn arguments(text: &str) -> Arguments {
    Arguments::parse(text.as_bytes()).unwrap()
}
