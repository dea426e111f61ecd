mod differential;
mod digest;

use strait_contract::{code::Code, run::Process};

use crate::{
    Ask, HttpAsk, Snapshot, Verdict,
    fixture::{NOON, compile, compile_files, file, get, guardrail, question, run},
};

fn permit(rules: &[&str]) -> Verdict {
    Verdict::Permit { rules: rules.iter().map(ToString::to_string).collect() }
}

fn ids(verdict: &Verdict) -> Vec<&str> {
    match verdict {
        Verdict::Permit { rules } | Verdict::Hold { rules, .. } | Verdict::Refuse { rules, .. } => {
            rules.iter().map(String::as_str).collect()
        }
    }
}

fn code(verdict: &Verdict) -> Option<Code> {
    match verdict {
        Verdict::Refuse { code, .. } => Some(*code),
        _ => None,
    }
}

const ALL: &str = r#"@id("all") permit (principal, action, resource);"#;

/// A20.
#[test]
fn case_81_no_rule_means_everything_is_refused() {
    let coder = run("coder");
    for snapshot in [Snapshot::empty(), compile(""), compile("// only a comment\n")] {
        for ask in [
            Ask::Http(get("ok.test", "/")),
            Ask::Connect { host: Some("ok.test"), address: None, port: 22 },
            Ask::Dns { name: "ok.test", record_type: "TXT" },
        ] {
            let verdict = snapshot.decide(&question(&coder, ask.clone()));
            assert!(verdict.is_unpermitted(), "{verdict}");
            // Positive control: the same question is permitted by a rule.
            assert_eq!(compile(ALL).decide(&question(&coder, ask)), permit(&["all"]));
        }
    }
    assert_eq!(Snapshot::empty().digest(), compile("").digest());
}

#[test]
fn a20_a_forbid_wins_over_every_permit_and_is_named() {
    let snapshot = compile(&format!(
        "{ALL} @id(\"no-evil\") @reason(\"not there\")
         forbid (principal, action, resource in Domain::\"evil.test\");"
    ));
    let coder = run("coder");
    let refused = snapshot.decide(&question(&coder, Ask::Http(get("a.evil.test", "/"))));
    let expected = Verdict::Refuse {
        code: Code::ToolCallDenied,
        rules: vec!["no-evil".to_owned()],
        reason: "not there".to_owned(),
    };
    assert_eq!(refused, expected);
    assert_eq!(snapshot.decide(&question(&coder, Ask::Http(get("ok.test", "/")))), permit(&["all"]));
}

#[test]
fn a20_a_forbid_that_fails_to_evaluate_refuses_instead_of_being_skipped() {
    // Overflow validates and fails for large ports only.
    let forbid = r#"@id("fails") forbid (principal, action == Action::"http", resource)
        when { context.port * 922337203685477580 == 7 };"#;
    let snapshot = compile(&format!("{ALL} {forbid}"));
    let coder = run("coder");
    let verdict = snapshot.decide(&question(&coder, Ask::Http(get("ok.test", "/"))));
    assert_eq!((code(&verdict), ids(&verdict)), (Some(Code::PolicyError), vec!["fails"]), "{verdict}");
    let mut small = get("ok.test", "/");
    small.port = 9;
    assert_eq!(snapshot.decide(&question(&coder, Ask::Http(small))), permit(&["all"]));
    // A forbid that matches is named even so.
    let both = compile(&format!("{ALL} {forbid} @id(\"no\") forbid (principal, action, resource);"));
    let verdict = both.decide(&question(&coder, Ask::Http(get("ok.test", "/"))));
    assert_eq!((code(&verdict), ids(&verdict)), (Some(Code::ToolCallDenied), vec!["no"]));
}

#[test]
fn a21_only_a_call_that_nothing_but_approval_rules_permit_is_held() {
    let approval = r#"@id("ask") @approval("writes to acme") permit (principal, action == Action::"http", resource in Domain::"ok.test");"#;
    let plain = r#"@id("plain") permit (principal, action == Action::"http", resource in Host::"ok.test");"#;
    let forbid = r#"@id("no") forbid (principal, action == Action::"http", resource);"#;
    let coder = run("coder");
    let decide = |text: String| compile(&text).decide(&question(&coder, Ask::Http(get("ok.test", "/"))));
    assert_eq!(decide(format!("{approval}{plain}")), permit(&["ask", "plain"]));
    let held = Verdict::Hold { rules: vec!["ask".to_owned()], why: "writes to acme".to_owned() };
    assert_eq!(decide(approval.to_owned()), held);
    assert_eq!(ids(&decide(format!("{approval}{forbid}"))), ["no"]);
    assert!(decide(String::new()).is_unpermitted());
    // Without a text it still holds.
    let bare = r#"@id("ask") @approval permit (principal, action, resource);"#;
    assert!(matches!(decide(bare.to_owned()), Verdict::Hold { why, .. } if why.is_empty()));
}

#[test]
fn a24_a_guardrail_beats_a_permit_and_its_id_says_so() {
    let files =
        [file(ALL), guardrail(r#"@id("no-dns") forbid (principal, action == Action::"dns", resource);"#)];
    let snapshot = compile_files(&files).unwrap();
    let coder = run("coder");
    let verdict = snapshot.decide(&question(&coder, Ask::Dns { name: "ok.test", record_type: "TXT" }));
    assert_eq!(ids(&verdict), ["guardrail:no-dns"]);
    assert_eq!(snapshot.decide(&question(&coder, Ask::Http(get("ok.test", "/")))), permit(&["all"]));
}

#[test]
fn a3_a_rule_for_an_agent_or_version_or_run_is_for_no_other() {
    let coder = run("coder");
    let other = run("other");
    for principal in [
        r#"principal in Agent::"coder""#,
        r#"principal is Run in Agent::"coder""#,
        r#"principal in AgentVersion::"coder/3""#,
    ] {
        let snapshot = compile(&format!("@id(\"a\") permit ({principal}, action, resource);"));
        let ask = || Ask::Http(get("ok.test", "/"));
        assert_eq!(snapshot.decide(&question(&coder, ask())), permit(&["a"]), "{principal}");
        assert!(snapshot.decide(&question(&other, ask())).is_unpermitted(), "{principal}");
        let mut newer = coder.clone();
        newer.version = "4".to_owned();
        let same = snapshot.decide(&question(&newer, ask())) == permit(&["a"]);
        assert_eq!(same, !principal.contains("Version"), "{principal}");
    }
    let snapshot = compile(r#"@id("a") permit (principal == Run::"coder-1", action, resource);"#);
    let mut second = coder.clone();
    second.id = "coder-2".parse().unwrap();
    assert_eq!(snapshot.decide(&question(&coder, Ask::Http(get("ok.test", "/")))), permit(&["a"]));
    // The same run number with other facts: nothing kept from before may answer for it.
    assert!(snapshot.decide(&question(&second, Ask::Http(get("ok.test", "/")))).is_unpermitted());
}

#[test]
fn case_29_a_domain_holds_itself_and_what_is_below_at_label_boundaries_only() {
    let coder = run("coder");
    for text in [
        r#"@id("d") permit (principal, action == Action::"http", resource in Domain::"ok.test");"#,
        r#"@id("d") permit (principal, action == Action::"http", resource) when { resource in Domain::"ok.test" };"#,
    ] {
        let snapshot = compile(text);
        let decide = |host| snapshot.decide(&question(&coder, Ask::Http(get(host, "/"))));
        for host in ["ok.test", "a.ok.test", "a.b.ok.test"] {
            assert_eq!(decide(host), permit(&["d"]), "{host}");
        }
        for host in ["evilok.test", "ok.test.evil.test", "test", "k.test", "ok.tes"] {
            assert!(decide(host).is_unpermitted(), "{host}");
        }
    }
}

#[test]
fn a9_a_request_to_a_tool_is_in_the_tool_and_in_its_host_and_egress_is_in_no_tool() {
    let coder = run("coder");
    let ask = |tool, path| Ask::Http(HttpAsk { tool, via: "tool", ..get("api.ok.test", path) });
    for scope in [
        r#"resource in Tool::"github") when { context.path like "/repos/*" }"#,
        r#"resource is Url in Tool::"github") when { context.path like "/repos/*" }"#,
        r#"resource) when { resource in Tool::"github" && context.path like "/repos/*" }"#,
        r#"resource in Domain::"ok.test") when { resource in Tool::"github" && context.path like "/repos/*" }"#,
    ] {
        let snapshot =
            compile(&format!("@id(\"t\") permit (principal, action == Action::\"http\", {scope};"));
        let decide = |ask: Ask<'_>| {
            let verdict = snapshot.decide(&question(&coder, ask.clone()));
            // Whatever was remembered from the other calls, and as explained.
            assert_eq!(verdict, snapshot.explain(&question(&coder, ask)).verdict, "{scope}");
            verdict
        };
        for _ in 0..2 {
            assert_eq!(decide(ask(Some("github"), "/repos/a")), permit(&["t"]), "{scope}");
            for other in [Some("github2"), Some("git"), None] {
                assert!(decide(ask(other, "/repos/a")).is_unpermitted(), "{scope} {other:?}");
            }
            assert!(decide(ask(Some("github"), "/user")).is_unpermitted(), "{scope}");
        }
    }
    // A host's rules hold for it too: a forbid can't be passed by going through a tool.
    let snapshot =
        compile(&format!("{ALL} @id(\"no\") forbid (principal, action, resource in Host::\"api.ok.test\");"));
    assert_eq!(ids(&snapshot.decide(&question(&coder, ask(Some("github"), "/")))), ["no"]);
    // A name that no config can have was not read from one.
    let odd = compile(ALL).decide(&question(&coder, ask(Some("Github"), "/")));
    assert_eq!(code(&odd), Some(Code::PolicyError), "{odd}");
}

#[test]
fn case_30_an_endpoint_opens_one_port() {
    let snapshot = compile(
        r#"@id("h") permit (principal, action == Action::"http", resource in Endpoint::"ok.test:443");
           @id("c") permit (principal, action == Action::"connect", resource == Endpoint::"ok.test:443");"#,
    );
    let coder = run("coder");
    for port in [443, 22, 25, 9999, 0, 4430] {
        let mut http = get("ok.test", "/");
        http.port = port;
        let stream = Ask::Connect { host: Some("ok.test"), address: None, port };
        let (http, stream) =
            (snapshot.decide(&question(&coder, Ask::Http(http))), snapshot.decide(&question(&coder, stream)));
        if port == 443 {
            assert_eq!((http, stream), (permit(&["h"]), permit(&["c"])));
        } else {
            assert!(http.is_unpermitted() && stream.is_unpermitted(), "{port}: {http} {stream}");
        }
    }
}

#[test]
fn a_literal_address_is_in_its_ranges_and_in_no_domain() {
    let snapshot = compile(
        r#"@id("ten") permit (principal, action, resource in Net::"10.0.0.0/8");
           @id("six") permit (principal, action == Action::"connect", resource) when { resource in Net::"2001:db8::/32" };
           @id("ip") permit (principal, action == Action::"http", resource)
             when { context has address && context.address.isInRange(ip("192.0.2.0/24")) };"#,
    );
    let coder = run("coder");
    let http = |address: &str| {
        let mut http = get("", "/");
        http.host = "ignored";
        http.address = Some(address.parse().unwrap());
        snapshot.decide(&question(&coder, Ask::Http(http)))
    };
    let connect = |address: &str| {
        let address = Some(address.parse().unwrap());
        snapshot.decide(&question(&coder, Ask::Connect { host: None, address, port: 5432 }))
    };
    assert_eq!(http("10.1.2.3"), permit(&["ten"]));
    assert_eq!(http("::ffff:10.1.2.3"), permit(&["ten"]));
    assert_eq!(connect("10.1.2.3"), permit(&["ten"]));
    assert_eq!(connect("2001:db8:7::1"), permit(&["six"]));
    assert_eq!(http("192.0.2.9"), permit(&["ip"]));
    assert!(http("11.1.2.3").is_unpermitted());
    assert!(connect("2001:db9::1").is_unpermitted());
    let named =
        snapshot.decide(&question(&coder, Ask::Connect { host: Some("10.test"), address: None, port: 1 }));
    assert!(named.is_unpermitted());
}

#[test]
fn a19_every_attribute_takes_effect() {
    let query =
        [("q".to_owned(), "x".to_owned()), ("q".to_owned(), "y".to_owned()), ("z".to_owned(), String::new())];
    let process = Process {
        pid: 9,
        uid: 1000,
        comm: "git".into(),
        exe: Some("/usr/bin/git".into()),
        digest: Some("ab".repeat(32)),
    };
    let coder = run("coder");
    let mut http = get("ok.test", "/a/b");
    http.query = &query;
    http.query_bytes = 11;
    http.body_bytes = Some(5);
    http.content_type = Some("application/json");
    let address: std::net::IpAddr = "192.0.2.9".parse().unwrap();
    let check = |action: &str, condition: &str, ask: &Ask<'_>, expected: bool| {
        let text = format!(
            "@id(\"x\") permit (principal, action == Action::\"{action}\", resource) when {{ {condition} }};"
        );
        let mut question = question(&coder, ask.clone());
        question.process = Some(&process);
        let verdict = compile(&text).decide(&question);
        assert_eq!(verdict == permit(&["x"]), expected, "{condition}: {verdict}");
    };
    let web = Ask::Http(http);
    for (good, bad) in [
        (r#"context.method == "GET""#, r#"context.method == "POST""#),
        (r#"context.scheme == "https""#, r#"context.scheme == "http""#),
        (r#"context.host == "ok.test""#, r#"context.host == "no.test""#),
        ("context.port == 443", "context.port == 80"),
        (r#"context.path like "/a/*""#, r#"context.path like "/b/*""#),
        (
            r#"context.query.hasTag("q") && context.query.getTag("q").containsAll(["x", "y"])"#,
            r#"context.query.hasTag("w")"#,
        ),
        ("context.queryBytes == 11", "context.queryBytes > 11"),
        ("context has bodyBytes && context.bodyBytes == 5", "context has bodyBytes && context.bodyBytes > 5"),
        (
            r#"context has contentType && context.contentType == "application/json""#,
            r#"context has contentType && context.contentType == "text/html""#,
        ),
        (r#"context.via == "egress""#, r#"context.via == "proxy""#),
        ("!(context has address)", "context has address"),
        (r#"context.time.weekday == "monday" && context.time.hour == 12"#, "context.time.hour == 13"),
        ("context.time.epoch == 1780317296", "context.time.epoch == 1"),
        (r#"context.time.at < datetime("2026-06-02")"#, r#"context.time.at < datetime("2026-06-01")"#),
        (
            r#"context has process.exe && context.process.exe == "/usr/bin/git""#,
            r#"context has process.exe && context.process.exe == "/usr/bin/python""#,
        ),
        (
            r#"context has process && context.process.comm == "git" && context.process.uid == 1000"#,
            r#"context has process && context.process.uid == 0"#,
        ),
        (r#"principal.startedBy == User::"alice""#, r#"principal.startedBy == User::"bob""#),
        (
            r#"principal.labels.contains("team-a") && principal.agent == "coder" && principal.version == "3""#,
            r#"principal.labels.contains("team-b")"#,
        ),
        (r#"resource == Url::"https://ok.test/a/b""#, r#"resource == Url::"http://ok.test/a/b""#),
    ] {
        check("http", good, &web, true);
        check("http", bad, &web, false);
    }
    let stream = Ask::Connect { host: Some("ok.test"), address: None, port: 5432 };
    check(
        "connect",
        r#"context has host && context.host == "ok.test" && context.port == 5432"#,
        &stream,
        true,
    );
    check("connect", "context has address", &stream, false);
    let literal = Ask::Connect { host: None, address: Some(address), port: 5432 };
    check(
        "connect",
        r#"context has address && context.address == ip("192.0.2.9") && !(context has host)"#,
        &literal,
        true,
    );
    let dns = Ask::Dns { name: "a.ok.test", record_type: "TXT" };
    check(
        "dns",
        r#"context.recordType == "TXT" && resource in Domain::"ok.test" && resource == Name::"a.ok.test""#,
        &dns,
        true,
    );
    check("dns", r#"context.recordType == "SRV""#, &dns, false);
}

#[test]
fn a_process_that_is_not_known_refuses_where_a_rule_reads_it_and_only_there() {
    let snapshot = compile(&format!(
        r#"{ALL} @id("no-python") forbid (principal, action, resource in Domain::"ok.test")
           when {{ context has process && context.process has exe && context.process.exe like "*python*" }};"#
    ));
    let coder = run("coder");
    let decide = |host, process: Option<Process>| {
        let mut question = question(&coder, Ask::Http(get(host, "/")));
        question.process = process.as_ref();
        (snapshot.reads_process(&question), snapshot.decide(&question))
    };
    let process = |exe: Option<&str>| Process { exe: exe.map(str::to_owned), ..Process::default() };
    let (reads, verdict) = decide("ok.test", None);
    assert!(reads);
    assert_eq!((code(&verdict), ids(&verdict)), (Some(Code::PolicyError), vec!["no-python"]));
    let (_, verdict) = decide("ok.test", Some(process(None)));
    assert_eq!(code(&verdict), Some(Code::PolicyError), "{verdict}");
    let (_, verdict) = decide("ok.test", Some(process(Some("/usr/bin/python3"))));
    assert_eq!((code(&verdict), ids(&verdict)), (Some(Code::ToolCallDenied), vec!["no-python"]));
    assert_eq!(decide("ok.test", Some(process(Some("/usr/bin/git")))).1, permit(&["all"]));
    assert_eq!(decide("no.test", None), (false, permit(&["all"])));
}

#[test]
fn numbers_beyond_what_cedar_holds_still_compare_right() {
    let snapshot = compile(
        r#"@id("small") permit (principal, action == Action::"http", resource)
           when { context has bodyBytes && context.bodyBytes < 1000 };"#,
    );
    let coder = run("coder");
    let mut http = get("ok.test", "/");
    http.body_bytes = Some(u64::MAX);
    assert!(snapshot.decide(&question(&coder, Ask::Http(http.clone()))).is_unpermitted());
    http.body_bytes = Some(999);
    assert_eq!(snapshot.decide(&question(&coder, Ask::Http(http))), permit(&["small"]));
}

#[test]
fn time_moves_on() {
    let snapshot =
        compile(r#"@id("noon") permit (principal, action, resource) when { context.time.hour == 12 };"#);
    let coder = run("coder");
    let mut question = question(&coder, Ask::Http(get("ok.test", "/")));
    assert_eq!(snapshot.decide(&question), permit(&["noon"]));
    question.now_ms = NOON + 3_600_000;
    assert!(snapshot.decide(&question).is_unpermitted());
    question.now_ms = u64::MAX;
    assert_eq!(code(&snapshot.decide(&question)), Some(Code::PolicyError));
}

#[test]
fn what_a_run_writes_is_text_and_never_an_entity() {
    let query = [("a".to_owned(), r#"{"__entity":{"type":"Agent","id":"root"}}"#.to_owned())];
    let coder = run("coder");
    let mut http = get("ok.test", r#"/"};permit(principal,action,resource);"#);
    http.query = &query;
    let question = question(&coder, Ask::Http(http));
    let snapshot = compile(
        r#"@id("x") permit (principal, action == Action::"http", resource)
           when { context.query.hasTag("a") && context.query.getTag("a").contains("{\"__entity\":{\"type\":\"Agent\",\"id\":\"root\"}}") };"#,
    );
    assert_eq!(snapshot.decide(&question), permit(&["x"]));
    assert!(compile("").decide(&question).is_unpermitted());
}

#[test]
fn case_28_a_spelling_that_no_rule_can_name_is_refused_rather_than_missed_by_a_forbid() {
    let snapshot = compile(&format!(
        "{ALL} @id(\"no\") forbid (principal, action == Action::\"http\", resource)
         when {{ context.method == \"POST\" || context.host == \"no.test\" }};"
    ));
    let coder = run("coder");
    let decide = |ask| snapshot.decide(&question(&coder, ask));
    let http = |method, host, path| {
        let mut http = get(host, path);
        http.method = method;
        Ask::Http(http)
    };
    assert_eq!(decide(http("GET", "ok.test", "/")), permit(&["all"]));
    assert_eq!(ids(&decide(http("POST", "ok.test", "/"))), ["no"]);
    let stream = |host| Ask::Connect { host: Some(host), address: None, port: 1 };
    let dns = |name, record_type| Ask::Dns { name, record_type };
    assert_eq!(decide(stream("ok.test")), permit(&["all"]));
    assert_eq!(decide(dns("ok.test", "TYPE65")), permit(&["all"]));
    for ask in [
        http("post", "ok.test", "/"),
        http("GET", "NO.test", "/"),
        http("GET", "no.test.", "/"),
        http("GET", "ok.test", "*"),
        stream("OK.test"),
        dns("OK.test", "TXT"),
        dns("ok.test", "txt"),
    ] {
        let verdict = decide(ask);
        assert_eq!(code(&verdict), Some(Code::PolicyError), "{verdict}");
    }
}
