use std::cell::Cell;

use strait_contract::{code::Code, run::Process};

use super::*;
use crate::{
    Arguments, HttpAsk,
    fixture::{arguments, get, question, run},
    model::Model,
};

/// Whether an equal call is remembered: asks about `first`, then about `second`.
struct Pair<'a> {
    reads: Reads,
    first: Question<'a>,
    second: Question<'a>,
}

fn permit() -> Verdict {
    Verdict::Permit { rules: vec!["r".to_owned()] }
}

fn ask(set: u64, reads: Reads, nodes: &[u32], question: &Question<'_>, verdict: &Verdict) -> bool {
    let caller = Caller::of(Model::get().unwrap(), question.run).unwrap();
    let lineage = Lineage { nodes: nodes.to_vec() };
    let decided = Cell::new(false);
    let got = remembered(set, &caller, question, &lineage, reads, || {
        decided.set(true);
        verdict.clone()
    });
    assert_eq!(got, *verdict);
    !decided.get()
}

impl Pair<'_> {
    fn remembered(&self) -> bool {
        thread_local! { static SETS: Cell<u64> = const { Cell::new(1000) }; }
        let set = SETS.replace(SETS.get() + 1);
        assert!(!ask(set, self.reads, &[1], &self.first, &permit()), "remembered before it was asked");
        let other = ask(set, self.reads, &[1], &self.second, &permit());
        assert!(ask(set, self.reads, &[1], &self.first, &permit()), "the first one is forgotten");
        other
    }
}

fn process() -> Process {
    Process { comm: "git".to_owned(), uid: 1000, pid: 7, exe: Some("/x".to_owned()), digest: None }
}

/// Every attribute a rule reads tells decisions apart, and none that it doesn't read.
#[test]
fn only_what_rules_read_tells_calls_apart() {
    let info = run("coder");
    let query = [("a".to_owned(), "b".to_owned())];
    let other_query = [("a".to_owned(), "c".to_owned())];
    let base = || HttpAsk { query: &query, ..get("ok.test", "/a") };
    let changes: [(Reads, HttpAsk<'_>); 11] = [
        (Reads::METHOD, HttpAsk { method: "POST", ..base() }),
        (Reads::SCHEME, HttpAsk { scheme: "http", ..base() }),
        (Reads::HOST, HttpAsk { host: "no.test", ..base() }),
        (Reads::PORT, HttpAsk { port: 8443, ..base() }),
        (Reads::PATH, HttpAsk { path: "/b", ..base() }),
        (Reads::QUERY, HttpAsk { query: &other_query, ..base() }),
        (Reads::QUERY_BYTES, HttpAsk { query_bytes: 1, ..base() }),
        (Reads::BODY_BYTES, HttpAsk { body_bytes: Some(0), ..base() }),
        (Reads::CONTENT_TYPE, HttpAsk { content_type: Some(""), ..base() }),
        (Reads::VIA, HttpAsk { via: "proxy", ..base() }),
        (Reads::ADDRESS, HttpAsk { address: Some("192.0.2.1".parse().unwrap()), ..base() }),
    ];
    for (bit, changed) in changes {
        let pair = |reads| Pair {
            reads,
            first: question(&info, Ask::Http(base())),
            second: question(&info, Ask::Http(changed.clone())),
        };
        assert!(!pair(bit).remembered(), "{changed:?} is taken for another call");
        let all = (0..19).map(Reads::bit).filter(|other| *other != bit && *other != Reads::TIME);
        let others = all.fold(Reads::default(), Reads::with);
        assert!(pair(others).remembered(), "{changed:?} differs in nothing that is read");
    }
}

#[test]
fn tools_are_told_apart_by_name_always_and_by_arguments_if_they_are_read() {
    let info = run("coder");
    let (one, two) = (arguments("{\"a\":1}"), arguments("{\"a\":1.0}"));
    let pair = |reads, first: Ask<'_>, second: Ask<'_>| {
        Pair { reads, first: question(&info, first), second: question(&info, second) }.remembered()
    };
    fn tool<'a>(server: &'a str, tool: &'a str, arguments: &'a Arguments) -> Ask<'a> {
        Ask::Tool(ToolAsk { server, tool, arguments })
    }
    fn method<'a>(server: &'a str, method: &'a str, arguments: &'a Arguments) -> Ask<'a> {
        Ask::McpMethod { server, method, arguments }
    }
    let none = Reads::default();
    assert!(pair(none, tool("a", "x", &one), tool("a", "x", &two)));
    for reads in [Reads::FLAT, Reads::ARGUMENTS] {
        assert!(!pair(reads, tool("a", "x", &one), tool("a", "x", &two)));
    }
    assert!(!pair(none, tool("a", "x", &one), tool("a", "y", &one)));
    assert!(!pair(none, tool("a", "x", &one), tool("b", "x", &one)));
    assert!(!pair(none, tool("a", "bx", &one), tool("ab", "x", &one)));
    assert!(pair(none, method("a", "x", &one), method("a", "y", &two)));
    assert!(!pair(none, method("a", "x", &one), method("b", "x", &one)));
    assert!(!pair(Reads::METHOD, method("a", "x", &one), method("a", "y", &one)));
    assert!(!pair(Reads::FLAT, method("a", "x", &one), method("a", "x", &two)));
    fn served<'a>(provider: &'a str, name: &'a str, kind: &'a str, model: &'a str) -> Ask<'a> {
        Ask::ServerTool(ServerToolAsk { provider, name, kind, model, host: None })
    }
    assert!(pair(none, served("a", "x", "x_1", "m"), served("a", "x", "x_2", "n")));
    assert!(!pair(none, served("a", "x", "x_1", "m"), served("a", "y", "x_1", "m")));
    assert!(!pair(none, served("a", "x", "x_1", "m"), served("b", "x", "x_1", "m")));
    assert!(!pair(Reads::MODEL, served("a", "x", "x_1", "m"), served("a", "x", "x_1", "n")));
    assert!(!pair(Reads::KIND, served("a", "x", "x_1", "m"), served("a", "x", "x_2", "m")));
}

#[test]
fn who_calls_and_from_which_process_tells_calls_apart() {
    let (info, process) = (run("coder"), process());
    let labelled = strait_contract::run::RunInfo { labels: Vec::new(), ..run("coder") };
    fn asked<'a>(info: &'a strait_contract::run::RunInfo, process: Option<&'a Process>) -> Question<'a> {
        Question { process, ..question(info, Ask::Http(get("ok.test", "/"))) }
    }
    fn pair(reads: Reads, first: Question<'_>, second: Question<'_>) -> bool {
        Pair { reads, first, second }.remembered()
    }
    let none = Reads::default();
    assert!(pair(none, asked(&info, None), asked(&info, Some(&process))));
    assert!(!pair(Reads::PROCESS, asked(&info, None), asked(&info, Some(&process))));
    for other in [
        Process { comm: "curl".to_owned(), ..process.clone() },
        Process { uid: 0, ..process.clone() },
        Process { exe: None, ..process.clone() },
        Process { exe: Some(String::new()), ..process.clone() },
        Process { digest: Some("0".to_owned()), ..process.clone() },
    ] {
        assert!(!pair(Reads::PROCESS, asked(&info, Some(&process)), asked(&info, Some(&other))), "{other:?}");
    }
    // The same number with other labels is another run to every rule; the kept one goes, and so does its memory.
    assert!(!ask(1, none, &[], &asked(&info, None), &permit()));
    assert!(!ask(1, none, &[], &asked(&labelled, None), &permit()));
}

#[test]
fn another_set_or_resource_is_decided_anew_and_time_and_failures_always() {
    let info = run("coder");
    let asked = question(&info, Ask::Http(get("ok.test", "/")));
    let none = Reads::default();
    assert!(!ask(1, none, &[1], &asked, &permit()));
    assert!(ask(1, none, &[1], &asked, &permit()));
    assert!(!ask(1, none, &[1, 2], &asked, &permit()));
    assert!(!ask(2, none, &[1], &asked, &permit()));
    assert!(!ask(1, none, &[1], &asked, &permit()), "a set that came back remembers");
    assert!(!ask(1, Reads::TIME, &[1], &asked, &permit()));
    assert!(!ask(1, Reads::TIME, &[1], &asked, &permit()));
    let failure =
        Verdict::Refuse { code: Code::PolicyError, rules: Vec::new(), reason: "it failed".to_owned() };
    assert!(!ask(3, none, &[1], &asked, &failure));
    assert!(!ask(3, none, &[1], &asked, &failure));
    let refusal = Verdict::Refuse { code: Code::ToolCallDenied, rules: Vec::new(), reason: "no".to_owned() };
    assert!(!ask(4, none, &[1], &asked, &refusal));
    assert!(ask(4, none, &[1], &asked, &refusal));
}

#[test]
fn memory_is_bounded_and_keeps_what_is_asked_again() {
    let info = run("coder");
    let hot = question(&info, Ask::Http(get("ok.test", "/hot")));
    ask(9, Reads::PATH, &[], &hot, &permit());
    for number in 0..5_000 {
        let path = format!("/{number}");
        assert!(!ask(9, Reads::PATH, &[], &question(&info, Ask::Http(get("ok.test", &path))), &permit()));
        assert!(number % 100 != 0 || ask(9, Reads::PATH, &[], &hot, &permit()), "forgotten after {number}");
    }
    MEMO.with_borrow(|memo| assert!(memo.young.len() + memo.old.len() <= 2 * KEPT));
    let long = format!("/{}", "a".repeat(MAX_KEY));
    let long = question(&info, Ask::Http(get("ok.test", &long)));
    assert!(!ask(9, Reads::PATH, &[], &long, &permit()));
    assert!(!ask(9, Reads::PATH, &[], &long, &permit()));
}
