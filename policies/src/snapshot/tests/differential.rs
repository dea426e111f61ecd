//! The index against Cedar's own evaluation of the whole set: decision, rules and failing rules are equal.

use std::collections::BTreeSet;

use cedar_policy::{Authorizer, Decision, PolicySet};
use proptest::prelude::*;
use strait_contract::run::Process;

use crate::{
    Ask, Question, ServerToolAsk, Snapshot, ToolAsk, Verdict,
    fixture::{NOON, arguments, file, get, pins, run, try_pinned},
    load,
    model::{Act, Model},
    names::Names,
    reads::Reads,
    request::Subject,
};

const PRINCIPALS: [&str; 8] = [
    "principal",
    "principal is Run",
    r#"principal in Agent::"coder""#,
    r#"principal in Agent::"other""#,
    r#"principal is Run in Agent::"coder""#,
    r#"principal in AgentVersion::"coder/3""#,
    r#"principal in AgentVersion::"coder/4""#,
    r#"principal == Run::"coder-1""#,
];
const ACTIONS: [&str; 12] = [
    r#"action == Action::"model/server_tool""#,
    "action",
    r#"action == Action::"http""#,
    r#"action == Action::"connect""#,
    r#"action in Action::"dns""#,
    r#"action in [Action::"http", Action::"connect"]"#,
    r#"action in [Action::"http", Action::"tools/call", Action::"dns"]"#,
    r#"action in Action::"tools/call""#,
    r#"action == Action::"bank/pay""#,
    r#"action in [Action::"github/create_issue", Action::"http", Action::"mcp/method"]"#,
    r#"action == Action::"tools/call/unpinned""#,
    r#"action in [Action::"bank/pay", Action::"tools/call"]"#,
];
const RESOURCES: [&str; 20] = [
    r#"resource == ServerTool::"bank/pay""#,
    r#"resource is ServerTool"#,
    "resource",
    r#"resource in Domain::"ok.test""#,
    r#"resource in Domain::"a.ok.test""#,
    r#"resource in Domain::"test""#,
    r#"resource in Host::"ok.test""#,
    r#"resource in Host::"a.ok.test""#,
    r#"resource in Endpoint::"ok.test:443""#,
    r#"resource in Endpoint::"a.ok.test:22""#,
    r#"resource in Net::"10.0.0.0/8""#,
    r#"resource in Net::"10.1.0.0/16""#,
    r#"resource is Url in Domain::"ok.test""#,
    r#"resource is Endpoint"#,
    r#"resource == Url::"https://ok.test/a""#,
    r#"resource in Tool::"github""#,
    r#"resource is Url in Tool::"web""#,
    r#"resource in Tool::"bank""#,
    r#"resource == Tool::"bank/pay""#,
    r#"resource is Tool"#,
];
/// The first five always fail, or fail for some calls.
const CONDITIONS: [&str; 26] = [
    "when { context has arguments.amount && context.arguments.amount * 92233720368547758 == 1 }",
    "when { context.time.epoch * 9223372036854775807 == 1 }",
    "unless { context.time.epoch + 9223372036854775807 == 1 }",
    "when { context has port && context.port * 922337203685477580 == 1 }",
    r#"when { context has method && context.method == "GET" && context.time.epoch * 9223372036854775807 == 1 }"#,
    "",
    r#"when { context has method && context.method == "POST" }"#,
    r#"when { context has path && context.path like "/a*" }"#,
    "when { context has port && context.port == 443 }",
    r#"unless { context has address && context.address.isInRange(ip("10.0.0.0/8")) }"#,
    r#"when { resource in Domain::"ok.test" }"#,
    r#"unless { resource in Host::"a.ok.test" }"#,
    r#"when { principal.labels.contains("team-a") }"#,
    r#"when { context has query && context.query.hasTag("q") && context.query.getTag("q").contains("1") }"#,
    r#"when { context has process && context.process.comm == "git" }"#,
    "when { context.time.hour < 13 } unless { context has recordType }",
    "when { context has arguments.amount && context.arguments.amount > 100 }",
    r#"when { context has arguments.labels && context.arguments.labels.contains("x") }"#,
    r#"when { context has arguments.rate && context.arguments.rate.lessThan(decimal("1.0")) }"#,
    r#"when { context has flat && context.flat.hasTag("to") && context.flat.getTag("to").contains("x") }"#,
    r#"unless { resource is Tool && resource.name == "pay" }"#,
    r#"when { action in Action::"tools/call" && resource is Tool && !(resource has readOnly && resource.readOnly) }"#,
    r#"when { resource is Tool && context has method && context.method == "resources/read" }"#,
    r#"when { context has kind && context.kind == "pay_1" && context has host }"#,
    r#"unless { resource is ServerTool && resource.provider == "bank" && context has model && context.model like "/a*" }"#,
    r#"when { if context has bodyBytes then context.bodyBytes > 10 else action == Action::"dns" }"#,
];

fn rule() -> impl Strategy<Value = String> {
    let pick = |list: &'static [&'static str]| prop::sample::select(list);
    // One in three always fails or may fail.
    let condition = prop_oneof![1 => pick(&CONDITIONS[..5]), 2 => pick(&CONDITIONS[5..])];
    let effect = pick(&["permit", "permit", "@approval(\"x\") permit", "forbid"]);
    (effect, pick(&PRINCIPALS), pick(&ACTIONS), pick(&RESOURCES), condition).prop_map(
        |(effect, principal, action, resource, condition)| {
            format!("{effect} ({principal}, {action}, {resource}) {condition};")
        },
    )
}

/// The rules of `texts` that are valid: some combinations can't match anything and are refused.
fn valid(texts: Vec<String>) -> String {
    let named =
        |(number, text): (usize, String)| (format!("r{number}"), format!("@id(\"r{number}\") {text}\n"));
    let mut rules: Vec<(String, String)> = texts.into_iter().enumerate().map(named).collect();
    loop {
        let text: String = rules.iter().map(|(_, text)| text.as_str()).collect();
        let Err(refused) = try_pinned(&text) else { return text };
        let bad: BTreeSet<_> = refused.problems.into_iter().filter_map(|problem| problem.rule).collect();
        assert!(!bad.is_empty(), "a problem of no rule");
        rules.retain(|(id, _)| !bad.contains(id));
    }
}

#[derive(Debug, Clone)]
struct Call {
    kind: u8,
    agent: &'static str,
    version: &'static str,
    host: &'static str,
    address: Option<&'static str>,
    port: u16,
    method: &'static str,
    path: &'static str,
    by: Option<&'static str>,
    query: Vec<(String, String)>,
    body_bytes: Option<u64>,
    comm: &'static str,
    tool: (&'static str, &'static str, &'static str),
}

/// Server, tool and arguments that fit.
const TOOLS: [(&str, &str, &str); 10] = [
    ("bank", "pay", r#"{"amount":1}"#),
    ("bank", "pay", r#"{"amount":101,"to":"x","rate":0.5}"#),
    ("bank", "pay", r#"{"amount":200,"to":"y","rate":1e3}"#),
    ("github", "create_issue", r#"{"repo":"a","title":"b","labels":["x"]}"#),
    ("github", "create_issue", r#"{"repo":"a","title":"b","milestone":null,"meta":{"to":1}}"#),
    ("github", "get_me", "{}"),
    ("github", "unknown", r#"{"to":["x",1]}"#),
    ("bank", "other", r#"{"amount":1000}"#),
    ("slack", "send", r#"{"to":"x"}"#),
    ("web", "pay", "{}"),
];

prop_compose! {
    fn call()(
        kind in 0..7u8,
        agent in prop::sample::select(&["coder", "other", "third"][..]),
        version in prop::sample::select(&["3", "4"][..]),
        host in prop::sample::select(&["ok.test", "a.ok.test", "b.a.ok.test", "evilok.test", "test"][..]),
        address in prop::option::weighted(
            0.2,
            prop::sample::select(&["10.1.2.3", "10.2.0.1", "::ffff:10.1.0.1", "2001:db8::1"][..]),
        ),
        port in prop::sample::select(&[443u16, 22, 80][..]),
        method in prop::sample::select(&["GET", "POST"][..]),
        path in prop::sample::select(&["/a", "/a/b", "/"][..]),
        tool in prop::sample::select(&TOOLS[..]),
        by in prop::option::of(prop::sample::select(&["github", "web", "other"][..])),
        query in prop::collection::vec(("[q-r]", "[0-1]"), 0..3),
        body_bytes in prop::option::of(0..20u64),
        comm in prop::sample::select(&["git", "curl"][..]),
    ) -> Call {
        Call { kind, agent, version, host, address, port, method, path, by, query, body_bytes, comm, tool }
    }
}

impl Call {
    fn ask(&self, check: impl FnOnce(Ask<'_>)) {
        let address = self.address.map(|address| address.parse().unwrap());
        let arguments = &arguments(self.tool.2);
        check(match self.kind {
            0 => {
                let mut http = get(self.host, self.path);
                (http.address, http.port, http.method) = (address, self.port, self.method);
                (http.query, http.body_bytes, http.tool) = (&self.query, self.body_bytes, self.by);
                Ask::Http(http)
            }
            1 => {
                let host = address.is_none().then_some(self.host);
                Ask::Connect { host, address, port: self.port }
            }
            2 => Ask::Dns { name: self.host, record_type: "TXT" },
            3 => Ask::McpMethod { server: self.tool.0, method: "resources/read", arguments },
            4 => Ask::ServerTool(ServerToolAsk {
                provider: self.tool.0,
                name: self.tool.1,
                kind: "pay_1",
                model: self.path,
                host: (self.port == 443).then_some(self.host),
            }),
            _ => Ask::Tool(ToolAsk { server: self.tool.0, tool: self.tool.1, arguments }),
        });
    }
}

/// All rules as one set.
struct Whole {
    loaded: load::Loaded,
    names: Names,
    set: PolicySet,
}

impl Whole {
    fn of(text: &str) -> Self {
        let files: Vec<_> = pins().into_iter().chain([file(text)]).collect();
        let loaded = load::load(Model::get().unwrap(), &files).unwrap();
        let names = Names::of(&loaded.rules);
        let set = PolicySet::from_policies(loaded.rules.iter().map(|rule| rule.policy.clone())).unwrap();
        Self { loaded, names, set }
    }
}

/// Decision, reasons and failing rules of Cedar's evaluation of all rules with the whole context.
fn whole(
    Whole { loaded, names, set }: &Whole,
    question: &Question<'_>,
) -> (bool, BTreeSet<String>, BTreeSet<String>) {
    let model = Model::get().unwrap();
    let act = Act::of(&loaded.vocabulary.pins, &question.ask);
    let arguments = match (act, &question.ask) {
        (Act::Pinned(tool), Ask::Tool(ask)) => Some(tool.shape.read(ask.arguments).unwrap()),
        _ => None,
    };
    let subject = Subject { act, lineage: names.lineage(&question.ask), arguments };
    let builder = crate::request::Builder::new(jiff::tz::TimeZone::UTC);
    let asked = builder.build(model, names, question, &subject, Reads::ALL, &|_| true).unwrap();
    // The schema is checked here too: what the builder makes is what rules were validated against.
    let schema = &loaded.vocabulary.schema;
    let request = &asked.request;
    let (principal, action, resource) =
        (request.principal().unwrap(), request.action().unwrap(), request.resource().unwrap());
    let context = request.context().unwrap().clone();
    cedar_policy::Request::new(principal.clone(), action.clone(), resource.clone(), context, Some(schema))
        .unwrap();
    let entities = asked.entities.iter().cloned();
    cedar_policy::Entities::from_entities(entities, Some(schema)).unwrap();
    let answer = Authorizer::new().is_authorized(request, set, &asked.entities);
    let reasons = answer.diagnostics().reason().map(ToString::to_string).collect();
    let errors = answer
        .diagnostics()
        .errors()
        .map(|cedar_policy::AuthorizationError::PolicyEvaluationError(error)| error.policy_id().to_string())
        .collect();
    (answer.decision() == Decision::Allow, reasons, errors)
}

fn agree(snapshot: &Snapshot, all: &Whole, text: &str, question: &Question<'_>) {
    let (allowed, reasons, errors) = whole(all, question);
    let tally = snapshot.slice(question).and_then(|slice| snapshot.tally(question, &slice)).unwrap();
    let ids = |rules: &[&cedar_policy::Policy]| -> BTreeSet<String> {
        rules.iter().map(|rule| rule.id().to_string()).collect()
    };
    let (forbids, permits) = (ids(&tally.forbids), ids(&tally.permits));
    let found: BTreeSet<String> = tally.errors.iter().map(|(rule, _)| rule.clone()).collect();
    assert_eq!(found, errors, "errors of {question:?} in {text}");
    if forbids.is_empty() {
        assert_eq!((allowed, &reasons), (!permits.is_empty(), &permits), "{question:?} in {text}");
    } else {
        assert_eq!((allowed, &reasons), (false, &forbids), "{question:?} in {text}");
    }
    let explanation = snapshot.explain(question);
    // Once to remember it, once remembered.
    assert_eq!(explanation.verdict, snapshot.decide(question));
    assert_eq!(explanation.verdict, snapshot.decide(question));
    let permitted = matches!(explanation.verdict, Verdict::Permit { .. } | Verdict::Hold { .. });
    assert_eq!(permitted, allowed && errors.is_empty());
    if let Ask::Tool(ToolAsk { server, tool, .. }) = &question.ask
        && permitted
    {
        // A7: nothing that some call gets is hidden.
        assert!(snapshot.visible(question.run, server, tool), "{server}/{tool} in {text}");
    }
    let matching = |effect: &str| -> BTreeSet<String> {
        let matches = |candidate: &&crate::Candidate| {
            candidate.effect == effect && candidate.outcome == crate::Outcome::Matches
        };
        explanation.candidates.iter().filter(matches).map(|candidate| candidate.rule.clone()).collect()
    };
    assert_eq!(matching(if forbids.is_empty() { "permit" } else { "forbid" }), reasons);
}

/// How many sets of rules are tried: 5,000 of them are 100,000 calls.
fn sets() -> u32 {
    std::env::var("STRAIT_RULE_SETS")
        .ok()
        .map_or(60, |sets| sets.parse().expect("STRAIT_RULE_SETS is a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: sets(), failure_persistence: None, ..ProptestConfig::default() })]

    /// Sets of up to 30 rules, 20 calls on each.
    #[test]
    fn case_84_the_index_answers_as_cedar_does_on_the_whole_set_and_explain_as_both(
        texts in prop::collection::vec(rule(), 1..30),
        calls in prop::collection::vec(call(), 20),
    ) {
        let text = valid(texts);
        let snapshot = try_pinned(&text).unwrap();
        let all = Whole::of(&text);
        for call in &calls {
            let mut info = run(call.agent);
            info.version = call.version.to_owned();
            info.id = format!("{}-1", call.agent).parse().unwrap();
            let process = Process {
                comm: call.comm.to_owned(),
                exe: Some("/x".into()),
                digest: Some("0".repeat(64)),
                ..Process::default()
            };
            call.ask(|ask| {
                let question = Question { run: &info, now_ms: NOON, ask, process: Some(&process) };
                agree(&snapshot, &all, &text, &question);
            });
        }
    }
}
