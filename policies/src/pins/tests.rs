use std::collections::HashMap;

use strait_contract::code::Code;

use super::{
    shape::{Field, Kind},
    *,
};
use crate::{
    Ask, Question, ToolAsk, Verdict,
    fixture::{NOON, arguments, compile_files, compile_pinned, file, pin, run, try_pinned},
    schema_with,
};

fn decide(snapshot: &crate::Snapshot, server: &str, tool: &str, text: &str) -> Verdict {
    let (run, arguments) = (run("coder"), arguments(text));
    let ask = Ask::Tool(ToolAsk { server, tool, arguments: &arguments });
    let question = Question { run: &run, now_ms: NOON, ask, process: None };
    let verdict = snapshot.decide(&question);
    assert_eq!(snapshot.explain(&question).verdict, verdict);
    verdict
}

fn reason(verdict: &Verdict) -> (Option<Code>, String) {
    match verdict {
        Verdict::Refuse { code, reason, .. } => (Some(*code), reason.clone()),
        other => (None, other.to_string()),
    }
}

fn kinds(schema: &str) -> HashMap<String, (Kind, bool, bool)> {
    let schema = Json::parse(schema.as_bytes(), &LIMITS).unwrap();
    let shape = Shape::of(&schema).unwrap();
    shape
        .fields
        .into_iter()
        .map(|field| (field.name.clone(), (field.kind.clone(), field.required, field.optional())))
        .collect()
}

#[test]
fn every_form_of_json_schema_gets_the_type_it_can_have() {
    let found = kinds(
        r##"{"type":"object","required":["s","n","maybe"],
        "$defs":{"point":{"type":"object","properties":{"x":{"type":"integer"}}},"loop":{"type":"array","items":{"$ref":"#/$defs/loop"}}},
        "properties":{
          "s":{"type":"string","format":"date-time"},"n":{"type":"number"},"i":{"type":"integer"},"b":{"type":"boolean"},
          "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"either":{"anyOf":[{"type":"string"},{"type":"integer"}]},
          "two":{"type":["string","integer"]},"one":{"type":["integer","null"]},
          "list":{"type":"array","items":{"type":"string"}},"any":{"type":"array"},"holes":{"type":"array","items":{"type":["string","null"]}},
          "pair":{"type":"array","prefixItems":[{"type":"string"}]},
          "at":{"$ref":"#/$defs/point"},"lost":{"$ref":"#/$defs/none"},"deep":{"$ref":"#/$defs/loop"},
          "enum":{"enum":["a","b"]},"numbers":{"enum":[1,2,null]},"mixed":{"enum":[1,"a"]},"is":{"const":"a"},
          "free":{"type":"object"},"map":{"type":"object","additionalProperties":{"type":"string"}},"true":true,"empty":{}}}"##,
    );
    let record = Kind::Record(Shape {
        fields: vec![Field { name: "x".to_owned(), kind: Kind::Long, required: false, nullable: false }],
        open: false,
    });
    for (name, kind, optional) in [
        ("s", Kind::Text, false),
        ("n", Kind::Decimal, true),
        ("i", Kind::Long, true),
        ("b", Kind::Bool, true),
        ("maybe", Kind::Text, true),
        ("either", Kind::Free, true),
        ("two", Kind::Free, true),
        ("one", Kind::Long, true),
        ("list", Kind::Set(Box::new(Kind::Text)), true),
        ("any", Kind::Free, true),
        ("holes", Kind::Free, true),
        ("pair", Kind::Free, true),
        ("at", record, true),
        ("lost", Kind::Free, true),
        // Without end, so without a type.
        ("deep", Kind::Free, true),
        ("enum", Kind::Text, true),
        ("numbers", Kind::Long, true),
        ("mixed", Kind::Free, true),
        ("is", Kind::Text, true),
        ("free", Kind::Free, true),
        ("map", Kind::Free, true),
        ("true", Kind::Free, true),
        ("empty", Kind::Free, true),
    ] {
        let (found, _, is_optional) = &found[name];
        assert_eq!((found, *is_optional), (&kind, optional), "{name}");
    }
    assert!(Shape::of(&Json::parse(br#"{"type":"string"}"#, &LIMITS).unwrap()).is_err());
    // References that multiply come to an end.
    let fields: Vec<String> = (0..200).map(|n| format!("\"f{n}\":{{\"$ref\":\"#\"}}")).collect();
    let wide = format!("{{\"type\":\"object\",\"properties\":{{{}}}}}", fields.join(","));
    assert_eq!(Shape::of(&Json::parse(wide.as_bytes(), &LIMITS).unwrap()).unwrap().fields.len(), 200);
}

#[test]
fn a20_arguments_that_do_not_fit_are_refused_before_a_rule_could_fail_on_them() {
    let permit = r#"@id("all") permit (principal, action, resource);"#;
    let forbid = r#"@id("much") forbid (principal, action == Action::"bank/pay", resource) when { context.arguments.amount > 100 };"#;
    let snapshot = compile_pinned(&format!("{permit}{forbid}"));
    assert_eq!(
        decide(&snapshot, "bank", "pay", r#"{"amount":100}"#),
        Verdict::Permit { rules: vec!["all".to_owned()] }
    );
    assert_eq!(reason(&decide(&snapshot, "bank", "pay", r#"{"amount":101}"#)).0, Some(Code::ToolCallDenied));
    for (arguments, why) in [
        (r#"{"amount":"x"}"#, "`amount` must be an integer without point or exponent, not text"),
        (r#"{"amount":1e2}"#, "not another number"),
        (r#"{"amount":82.0}"#, "not another number"),
        (r#"{"amount":null}"#, "not null"),
        (r#"{"amount":9223372036854775808}"#, "`amount` is an integer beyond 64 bits"),
        ("{}", "`amount` is missing"),
        (r#"{"amount":1,"Amount":1}"#, "no argument `Amount`"),
        (r#"{"amount":1,"rates":[1,"2"]}"#, "`rates` must be a number, not text"),
    ] {
        let (code, reason) = reason(&decide(&snapshot, "bank", "pay", arguments));
        assert_eq!(code, Some(Code::PolicyError), "{arguments}");
        assert!(reason.contains(why), "{arguments}: {reason}");
    }
    let create = |text: &str| reason(&decide(&snapshot, "github", "create_issue", text));
    for (arguments, why) in [
        (r#"{"repo":"a","title":"b","place":{}}"#, "`place.x` is missing"),
        (r#"{"repo":"a","title":"b","place":{"x":1,"y":2}}"#, "no argument `place.y`"),
        (r#"{"repo":"a","title":"b","items":[{"id":"x"}]}"#, "`items.id` must be"),
        (r#"{"repo":"a","title":"b","labels":"x"}"#, "`labels` must be an array, not text"),
    ] {
        let (code, reason) = create(arguments);
        assert_eq!(code, Some(Code::PolicyError), "{arguments}");
        assert!(reason.contains(why), "{arguments}: {reason}");
    }
    assert_eq!(
        create(r#"{"repo":"a","title":"b","milestone":null,"meta":{"any":[1,"x",{}]},"place":{"x":1}}"#).0,
        None
    );
}

#[test]
fn a19_every_type_of_argument_takes_effect_and_flat_has_them_all() {
    let text = r#"{"repo":"a/b","title":"t","labels":["x","y"],"milestone":7,"assignee-id":3,"meta":{"k":{"v":1e2}},"state":"open",
        "place":{"x":-1,"lat":52.5},"items":[{"price":1.25,"id":1},{"id":2}]}"#;
    for (condition, holds) in [
        (r#"context.arguments.repo == "a/b""#, true),
        (r#"context.arguments.repo == "a/c""#, false),
        (r#"context.arguments has labels && context.arguments.labels.contains("y")"#, true),
        (r#"context.arguments has labels && context.arguments.labels == ["y", "x"]"#, true),
        ("context.arguments has milestone && context.arguments.milestone > 6", true),
        (r#"context.arguments has "assignee-id" && context.arguments["assignee-id"] == 3"#, true),
        (r#"context.arguments has state && context.arguments.state == "closed""#, false),
        ("context has arguments.place.lat && context.arguments.place.lat.lessThan(decimal(\"52.6\"))", true),
        ("context has arguments.place && context.arguments.place.x == -1", true),
        (r#"context.flat.hasTag("meta.k.v") && context.flat.getTag("meta.k.v") == ["100"]"#, true),
        (
            r#"context.flat.hasTag("items.id") && context.flat.getTag("items.id").containsAll(["1", "2"])"#,
            true,
        ),
        (r#"context.flat.hasTag("place.lat") && context.flat.getTag("place.lat").contains("52.5")"#, true),
        (r#"resource.name == "create_issue" && resource has readOnly && !resource.readOnly"#, true),
        (r#"resource in Tool::"github" && resource == Tool::"github/create_issue""#, true),
        (r#"resource in Tool::"bank""#, false),
        (r#"action in Action::"tools/call" && action == Action::"github/create_issue""#, true),
    ] {
        let rule = format!(
            "@id(\"x\") permit (principal, action == Action::\"github/create_issue\", resource) when {{ {condition} }};"
        );
        let verdict = decide(&compile_pinned(&rule), "github", "create_issue", text);
        assert_eq!(matches!(verdict, Verdict::Permit { .. }), holds, "{condition}: {verdict}");
    }
}

#[test]
fn a_number_that_is_not_exact_refuses_where_a_rule_reads_it_and_only_there() {
    let all = r#"@id("all") permit (principal, action, resource);"#;
    let pay = |rule: &str, text: &str| {
        let rule = format!(
            "{all}@id(\"x\") forbid (principal, action == Action::\"bank/pay\", resource) when {{ {rule} }};"
        );
        let verdict = decide(&compile_pinned(&rule), "bank", "pay", text);
        match &verdict {
            Verdict::Refuse { code: Code::PolicyError, rules, .. } => format!("fails {}", rules.join(",")),
            Verdict::Refuse { .. } => "refuses".to_owned(),
            _ => "passes".to_owned(),
        }
    };
    let reads = r#"context.arguments has rate && context.arguments.rate.greaterThan(decimal("1.0"))"#;
    let path = r#"context has arguments.rate && context.arguments.rate.greaterThan(decimal("1.0"))"#;
    let whole = r#"context.arguments == {amount: 7}"#;
    for rule in [reads, path] {
        assert_eq!(pay(rule, r#"{"amount":1,"rate":1.00001}"#), "fails x");
        assert_eq!(pay(rule, r#"{"amount":1,"rate":1e300}"#), "fails x");
        assert_eq!(pay(rule, r#"{"amount":1,"rate":1.5}"#), "refuses");
        assert_eq!(pay(rule, r#"{"amount":1,"rate":1e0}"#), "passes");
        assert_eq!(pay(rule, r#"{"amount":1,"rates":[1.00001]}"#), "passes");
    }
    assert_eq!(pay("context.arguments.amount > 1", r#"{"amount":1,"rate":1.00001}"#), "passes");
    assert_eq!(
        pay(
            "context.arguments has rates && context.arguments.rates.isEmpty()",
            r#"{"amount":1,"rates":[1,1.00001]}"#
        ),
        "fails x"
    );
    let refused = try_pinned(&format!(
        "@id(\"x\") forbid (principal, action == Action::\"bank/pay\", resource) when {{ {whole} }};"
    ));
    if refused.is_ok() {
        assert_eq!(pay(whole, r#"{"amount":7,"rate":1.00001}"#), "fails x");
    }
    // Inside of a record of a set, by the path around it.
    let rule = r#"@id("x") forbid (principal, action == Action::"github/create_issue", resource)
        when { context.arguments has items && context.arguments.items.contains({id: 1}) };"#;
    if let Ok(snapshot) = try_pinned(&format!("{all}{rule}")) {
        let verdict = decide(
            &snapshot,
            "github",
            "create_issue",
            r#"{"repo":"a","title":"b","items":[{"id":1,"price":0.00001}]}"#,
        );
        assert_eq!(reason(&verdict).0, Some(Code::PolicyError), "{verdict}");
    }
}

#[test]
fn what_is_written_about_tools_is_checked_at_load() {
    let create = r#"principal, action == Action::"github/create_issue", resource"#;
    let group = r#"principal, action in Action::"tools/call", resource"#;
    for (rule, told) in [
        (format!("permit ({create}) when {{ context.arguments.rep == \"a\" }};"), "`arguments.rep`"),
        (format!("permit ({create}) when {{ context.arguments.repo > 100 }};"), "unexpected type"),
        (format!("permit ({create}) when {{ context.arguments.milestone > 100 }};"), "optional attribute"),
        (format!("permit ({create}) when {{ context.arguments.meta == \"a\" }};"), "`arguments.meta`"),
        (
            r#"permit (principal, action == Action::"github/create_isue", resource);"#.to_owned(),
            "create_issue",
        ),
        (r#"permit (principal, action == Action::"slack/send", resource);"#.to_owned(), "aren't pinned"),
        (format!("permit ({group}) when {{ context.arguments.repo == \"a\" }};"), "arguments"),
        (
            format!(
                "forbid ({create}) when {{ (context.arguments has rpo && true) || context.time.hour < 6 }};"
            ),
            "did you mean `repo`",
        ),
        (
            format!("forbid ({create}) when {{ context has arguments.place.lon || context.time.hour < 6 }};"),
            "there is no `lon`",
        ),
        (format!("forbid ({create}) when {{ context.flat.hasTag(\"rpo\") }};"), "did you mean `repo`"),
        (format!("forbid ({create}) when {{ context.flat.hasTag(\"place.y\") }};"), "never true"),
        (
            r#"permit (principal, action, resource == Tool::"github/create_isue");"#.to_owned(),
            "did you mean `Tool::\"github/create_issue\"`",
        ),
        (
            r#"permit (principal, action in Action::"tools/call", resource == Tool::"github");"#.to_owned(),
            "write `resource in Tool::\"github\"`",
        ),
        (r#"permit (principal, action == Action::"tools/call", resource);"#.to_owned(), "action in"),
        (r#"permit (principal, action == Action::"bank/pay", resource is Url);"#.to_owned(), "never matches"),
    ] {
        let refused = try_pinned(&format!("@id(\"x\") {rule}")).map(drop).unwrap_err().to_string();
        assert!(refused.contains(told), "{rule}: {refused}");
    }
    for rule in [
        format!("permit ({group}) when {{ context has arguments.repo && context.arguments.repo == \"a\" }};"),
        format!("permit ({create}) when {{ context.arguments.repo == \"a\" }};"),
        format!("forbid ({create}) when {{ context.flat.hasTag(\"meta.any.thing\") || context.flat.hasTag(\"items.id\") }};"),
        format!("forbid ({group}) when {{ context.flat.hasTag(\"anything\") }};"),
        r#"permit (principal, action, resource == Tool::"slack/send");"#.to_owned(),
        r#"permit (principal, action == Action::"mcp/method", resource == Tool::"github") when { context.method == "resources/read" };"#.to_owned(),
        r#"permit (principal, action in [Action::"http", Action::"bank/pay"], resource in Tool::"bank");"#.to_owned(),
    ] {
        try_pinned(&format!("@id(\"x\") {rule}")).unwrap_or_else(|refused| panic!("{rule}: {refused}"));
    }
}

#[test]
fn case_82_a_pinned_file_is_used_whole_or_the_set_is_refused() {
    let tool = |name: &str| format!("{{\"name\":\"{name}\",\"inputSchema\":{{\"type\":\"object\"}}}}");
    compile_files(&[pin("a", &tool("x")), pin("b", &tool("x"))]).unwrap();
    let bad = |name: &str, text: String| PolicyFile { name: name.to_owned(), guardrail: false, text };
    for (file, told) in [
        (pin("a", &format!("{},{}", tool("x"), tool("x"))), "stands twice"),
        (pin("a", r#"{"name":"x","name":"y","inputSchema":{}}"#), "the key `name` stands twice"),
        (pin("a", r#"{"name":"x"}"#), "no `inputSchema`"),
        (pin("a", r#"{"name":"","inputSchema":{"type":"object"}}"#), "no `name`"),
        (pin("a", r#"{"name":"x\u0000y","inputSchema":{"type":"object"}}"#), "no `name`"),
        (pin("a", r#"{"name":"x","inputSchema":{"type":"array"}}"#), "can't be used"),
        (pin("a", ""), "no tools"),
        (pin("A", &tool("x")), "can't be the name"),
        (bad("tools/a.json", "[]".to_owned()), "an object"),
        (bad("tools/a.json", "{\"tools\":[],".to_owned()), "isn't JSON"),
        (bad("tools/a.json", format!("{{\"tools\":[{}],\"nextCursor\":\"x\"}}", tool("x"))), "one page"),
    ] {
        let refused = compile_files(std::slice::from_ref(&file)).map(drop).unwrap_err();
        assert!(refused.to_string().contains(told), "{}: {refused}", file.text);
        assert_eq!(refused.problems[0].file, file.name);
    }
    let twice =
        compile_files(&[pin("a", &tool("x")), bad("other/a.json", format!("{{\"tools\":[{}]}}", tool("x")))]);
    assert!(twice.map(drop).unwrap_err().to_string().contains("pinned twice"));
    let line = compile_files(&[pin("a", "\n{\"name\":\"x\",\n\"name\":\"y\"}")]).map(drop).unwrap_err();
    assert_eq!((line.problems[0].line, line.problems[0].column), (3, 1));
}

#[test]
fn odd_names_of_tools_and_arguments_are_names_and_nothing_else() {
    let odd = r#"{"name":"Get/Me é \"x\"","inputSchema":{"type":"object","required":["a\"b"],"properties":{
        "a\"b":{"type":"string"},"__entity":{"type":"string"},"if":{"type":"integer"},"é ü":{"type":"boolean"},"":{"type":"integer"}}}}"#;
    let rule = r#"@id("x") permit (principal, action == Action::"srv/Get/Me é \"x\"", resource == Tool::"srv/Get/Me é \"x\"")
        when { context.arguments["a\"b"] == "1" && context.arguments has "if" && context.arguments["if"] == 2 };"#;
    let snapshot = compile_files(&[pin("srv", odd), file(rule)]).unwrap();
    let tool = "Get/Me é \"x\"";
    let good = r#"{"a\"b":"1","if":2,"__entity":"x","é ü":true,"":1}"#;
    assert!(matches!(decide(&snapshot, "srv", tool, good), Verdict::Permit { .. }));
    assert!(decide(&snapshot, "srv", tool, r#"{"a\"b":"2","if":2}"#).is_unpermitted());
    let entity = r#"{"a\"b":{"__entity":{"type":"Agent","id":"root"}},"if":2}"#;
    assert_eq!(reason(&decide(&snapshot, "srv", tool, entity)).0, Some(Code::PolicyError));
}

#[test]
fn case_59_a_change_of_a_pinned_tool_changes_the_digest_and_is_told_of_a_live_one() {
    let text = |description: &str, kind: &str| {
        format!(
            "{{\"name\":\"x\",\"description\":\"{description}\",\"inputSchema\":{{\"type\":\"object\",\"properties\":{{\"a\":{{\"type\":\"{kind}\"}}}}}}}}"
        )
    };
    let rules = || file(r#"@id("x") permit (principal, action, resource);"#);
    let digest = |text: &str| compile_files(&[pin("a", text), rules()]).unwrap().digest().to_owned();
    let first = digest(&text("d", "string"));
    let reordered = r#"{"inputSchema":{"properties":{"a":{"type":"string"}},"type":"object"},"name":"x","description":"d"}"#;
    assert_eq!(digest(reordered), first);
    for other in [
        digest(&text("e", "string")),
        digest(&text("d", "integer")),
        compile_files(&[rules()]).unwrap().digest().to_owned(),
    ] {
        assert_ne!(other, first);
    }
    assert_ne!(compile_files(&[pin("b", &text("d", "string")), rules()]).unwrap().digest(), first);
    let pinned = Pin::parse(&pin("a", &text("d", "string"))).unwrap();
    let drift = |text: &str| pinned.tools[0].drift(&Json::parse(text.as_bytes(), &LIMITS).unwrap());
    assert_eq!(drift(reordered), Vec::<&str>::new());
    assert_eq!(drift(&text("d\u{200b}", "string")), ["description"]);
    assert_eq!(drift(&text("d", "integer")), ["inputSchema"]);
    assert_eq!(
        drift(r#"{"name":"x","annotations":{"readOnlyHint":true}}"#),
        ["description", "inputSchema", "annotations"]
    );
}

#[test]
fn the_schema_with_pins_is_one_that_cedar_reads() {
    let pins: Vec<Pin> = crate::fixture::pins().iter().map(|file| Pin::parse(file).unwrap()).collect();
    let text = schema_with(&pins).unwrap();
    let (schema, _) =
        cedar_policy::Schema::from_cedarschema_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert!(schema.actions().any(|action| action.to_string() == "Action::\"bank/pay\""));
    assert_eq!(schema_with(&[]).unwrap(), crate::schema_text());
}

#[test]
fn a_group_rule_holds_for_pinned_and_unpinned_tools_and_for_nothing_else() {
    let all = r#"@id("all") permit (principal, action, resource);"#;
    for rule in [
        r#"forbid (principal, action in Action::"tools/call", resource);"#,
        r#"forbid (principal, action, resource) when { action in Action::"tools/call" };"#,
        r#"forbid (principal, action in [Action::"dns", Action::"tools/call"], resource);"#,
    ] {
        let snapshot = compile_pinned(&format!("{all}@id(\"no\") {rule}"));
        for (server, tool, text) in
            [("bank", "pay", "{\"amount\":1}"), ("bank", "other", "{}"), ("slack", "send", "{}")]
        {
            let verdict = decide(&snapshot, server, tool, text);
            assert_eq!(reason(&verdict).0, Some(Code::ToolCallDenied), "{rule} {server}/{tool}: {verdict}");
        }
        let (run, none) = (run("coder"), arguments("{}"));
        let ask = Ask::McpMethod { server: "bank", method: "resources/read", arguments: &none };
        let method = snapshot.decide(&Question { run: &run, now_ms: NOON, ask, process: None });
        assert!(matches!(method, Verdict::Permit { .. }), "{rule}: {method}");
    }
}

#[test]
fn a8_another_method_is_its_own_action_with_flat_parameters() {
    let snapshot = compile_pinned(
        r#"@id("r") permit (principal, action == Action::"mcp/method", resource in Tool::"github")
           when { context.method == "resources/read" && context.flat.hasTag("uri") && context.flat.getTag("uri") == ["repo://a"] };"#,
    );
    let run = run("coder");
    let ask = |server, method, text: &str| {
        let arguments = arguments(text);
        let ask = Ask::McpMethod { server, method, arguments: &arguments };
        let question = Question { run: &run, now_ms: NOON, ask, process: None };
        let verdict = snapshot.decide(&question);
        assert_eq!(verdict, snapshot.explain(&question).verdict);
        matches!(verdict, Verdict::Permit { .. })
    };
    assert!(ask("github", "resources/read", r#"{"uri":"repo://a"}"#));
    assert!(!ask("github", "resources/read", r#"{"uri":"repo://b"}"#));
    assert!(!ask("github", "prompts/get", r#"{"uri":"repo://a"}"#));
    assert!(!ask("bank", "resources/read", r#"{"uri":"repo://a"}"#));
}
