//! HTTP tools: what is judged is what is sent, credentials go where they belong, steps are on record.

use strait_contract::{
    approval::{Answer, Settled},
    code::Code,
    message::{PolicyFile, ToGateway},
    record::{Decision, Phase, ToolKind},
    tool::{Bound, Kind, Placement, Tool, ToolName, Tools},
};

use crate::{
    client::ask,
    origin::Origin,
    world::{Options, World},
};

pub const ANY: &str = r#"@id("any") permit(principal, action == Action::"http", resource);"#;
pub const KEY: &str = "gh/p+x16C7e42F292c6912E7710c8383";

pub fn tools(tools: Vec<Tool>) -> Tools {
    Tools { tools, agents: Vec::new() }
}

pub fn http_tool(name: &str, url: &str) -> Tool {
    let kind = Kind::Http { url: url.to_owned() };
    Tool { name: name.parse().unwrap(), kind, credential: None, headers: Vec::new() }
}

pub fn bound(name: &str, send: Placement) -> Option<Bound> {
    Some(Bound { name: name.parse().unwrap(), send, ttl_seconds: 1 })
}

pub fn bearer() -> Placement {
    Placement::Header { name: "authorization".to_owned(), format: "Bearer {}".to_owned() }
}

/// A tool `api` at `/v1` of an origin, with a credential.
pub async fn world(policy: &str, send: Placement) -> (World, Origin) {
    let origin = Origin::http().await;
    let url = format!("http://ok.test:{}/v1", origin.port());
    let api = Tool {
        credential: bound("key", send),
        headers: vec![("x-version".to_owned(), "2026".to_owned())],
        ..http_tool("api", &url)
    };
    let bare = http_tool("bare", &format!("http://ok.test:{}/", origin.port()));
    let options = Options { policy: policy.to_owned(), tools: tools(vec![api, bare]), ..Options::default() };
    let world = World::new(options).await;
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![Ok(KEY.to_owned())]);
    (world, origin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_url_that_is_judged_is_the_one_that_is_sent_a9_case_26() {
    let policy = r#"
        @id("acme") permit(principal, action == Action::"http", resource in Tool::"api")
        when { context.method == "GET" && context.via == "tool" && context.path like "/v1/repos/acme/*" };
    "#;
    let (world, origin) = world(policy, bearer()).await;
    for (path, sent) in [
        ("/http/api/repos/acme/x?state=open&a=b%20c", "/v1/repos/acme/x?state=open&a=b%20c"),
        ("/http/api/repos/evil/../acme/x", "/v1/repos/acme/x"),
        ("/http/api/repos/acme/@scope%2fname", "/v1/repos/acme/@scope%2Fname"),
        ("/http/api/repos/acme/%252e%252e/x", "/v1/repos/acme/%252e%252e/x"),
    ] {
        let got = world.call(path, &[]).await;
        assert_eq!(got.status, 200, "{path}: {got:?}");
        let seen = origin.seen().pop().unwrap();
        assert_eq!(seen.target, sent, "{path}");
        assert_eq!(seen.headers["host"], format!("ok.test:{}", origin.port()).as_str());
    }
    let forwarded = origin.seen().len();
    for path in
        ["/http/api/repos/acme/../evil/x", "/http/api/repos/acme/%2e%2e/evil", "/http/api/", "/http/api"]
    {
        let got = world.call(path, &[]).await;
        assert_eq!(got.refused(), (403, "TOOL_CALL_DENIED".to_owned()), "{path}");
    }
    for path in [
        "/http/api/../../etc",
        "/http/api/..",
        "/http/api//evil.test/",
        "/http/api/repos/acme/..%2f..%2fevil",
        "/http/api/repos/acme/..;/evil",
        "/http/api/repos/acme/\\..\\evil",
        "/http/api/repos/acme/%00",
    ] {
        let got = world.call(path, &[]).await;
        assert_eq!(got.refused(), (400, "MALFORMED_REQUEST".to_owned()), "{path}");
    }
    let denied = world.call("/http/api/repos/acme/x", &["-X", "DELETE"]).await;
    assert_eq!(denied.refused(), (403, "TOOL_CALL_DENIED".to_owned()));
    let overridden = ["-H", "X-HTTP-Method-Override: DELETE"];
    assert_eq!(world.call("/http/api/repos/acme/x", &overridden).await.status, 400);
    assert_eq!(origin.seen().len(), forwarded);
    world.log.settled().await;
    world.log.check_steps();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_names_the_rule_that_would_permit_it_a23() {
    let (world, _origin) = world("", bearer()).await;
    let got = world.call("/http/api/x", &[]).await;
    let error = got.error();
    let hint = error["hint"].as_str().unwrap();
    assert!(hint.contains("Tool::\"api\""), "{hint}");
    let rule = &hint[hint.find("@id").unwrap()..];
    let (world, origin) = self::world(rule, bearer()).await;
    // The rule names the URL, with the port of the other origin: the tool alone is what is compared here.
    let permitted = world.call("/http/api/x", &[]).await;
    assert!(permitted.status == 200 || permitted.status == 403, "{permitted:?}");
    drop(origin);
    let refused = world.log.steps();
    assert_eq!(refused[0].2.tool, "api");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_is_not_there_or_not_the_agents_is_refused_with_the_reason() {
    let (mut world, origin) = world(ANY, bearer()).await;
    for path in ["/http/nothing/x", "/http//x", "/http/API/x", "/http/api%2fx", "/http/..%2fapi/x"] {
        let got = world.call(path, &[]).await;
        assert_eq!(got.refused(), (404, "TOOL_UNKNOWN".to_owned()), "{path}");
    }
    assert_eq!(
        world.call("/web/https://example.com/", &[]).await.refused(),
        (404, "TOOL_UNKNOWN".to_owned())
    );
    assert_eq!(world.call("/http/api/x", &[]).await.status, 200, "positive control");
    // A reload: `coder` may address `bare` alone.
    let mut told = world.options().tools.clone();
    told.agents.push(("coder".parse().unwrap(), vec!["bare".parse::<ToolName>().unwrap()]));
    world.tell_tools(told).await;
    let got = world.call("/http/api/x", &[]).await;
    assert_eq!(got.refused(), (403, "TOOL_CALL_DENIED".to_owned()));
    assert!(got.error()["reason"].as_str().unwrap().contains("agents.coder.tools"), "{got:?}");
    assert_eq!(world.call("/http/bare/x", &[]).await.status, 200);
    let step = world.log.steps().into_iter().find(|(.., step)| step.decision == Decision::Deny).unwrap().2;
    assert_eq!((step.tool.as_str(), step.code, step.status), ("api", Some(Code::ToolCallDenied), None));
    assert_eq!(origin.seen().len(), 2);
    world.log.settled().await;
    world.log.check_steps();
}

/// A25.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callers_own_fields_never_take_the_credentials_place_case_90() {
    let (world, origin) = world(ANY, bearer()).await;
    let tricks: [&[&str]; 5] = [
        &[],
        &["-H", "Connection: authorization, x-version"],
        &["-H", "Connection: close, Authorization"],
        &["-H", "X_Version: mine", "-H", "x-version: mine"],
        &["-H", "Cookie: session=mine", "-H", "Range: bytes=0-9", "-H", "Accept-Encoding: br"],
    ];
    for trick in tricks {
        let got = world.call("/http/api/x", trick).await;
        assert_eq!(got.status, 200, "{trick:?}: {got:?}");
        let seen = origin.seen().pop().unwrap();
        let all = |name: &str| {
            seen.headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(all("authorization"), [format!("Bearer {KEY}")], "{trick:?}");
        assert_eq!(all("x-version"), ["2026"], "{trick:?}");
        assert_eq!(all("accept-encoding"), ["identity"]);
        for gone in ["x_version", "cookie", "range"] {
            assert!(!seen.headers.contains_key(gone), "{trick:?}: {gone}");
        }
    }
    // Twice, the token among them; and an own one with the token elsewhere.
    let own = ["-H", "Authorization: Bearer evil"];
    assert_eq!(world.call("/http/api/x", &own).await.status, 200);
    assert_eq!(origin.seen().pop().unwrap().headers.get_all("authorization").iter().count(), 1);
    // A tool without a credential gets what the caller sends, but for the token.
    let mine = ["-H", &format!("x-api-key: {}", crate::world::TOKEN), "-H", "Authorization: Bearer mine"];
    assert_eq!(world.curl("/http/bare/x", &mine).await.status, 200);
    assert_eq!(origin.seen().pop().unwrap().headers["authorization"], "Bearer mine");
    assert!(!origin.seen().pop().unwrap().headers.contains_key("x-api-key"));
}

/// A25.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_goes_into_a_field_a_query_or_basic_authentication() {
    let header = Placement::Header { name: "x-key".to_owned(), format: "token {}".to_owned() };
    let (world, origin) = world(ANY, header).await;
    assert_eq!(world.call("/http/api/x", &["-H", "X_Key: mine"]).await.status, 200);
    let seen = origin.only();
    assert_eq!(seen.headers["x-key"], format!("token {KEY}").as_str());
    assert!(!seen.headers.contains_key("x_key") && !seen.headers.contains_key("authorization"));

    let (world, origin) = self::world(ANY, Placement::Basic { user: "bot".to_owned() }).await;
    assert_eq!(world.call("/http/api/x", &[]).await.status, 200);
    let basic = origin.only().headers["authorization"].to_str().unwrap().to_owned();
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    assert_eq!(basic, format!("Basic {}", STANDARD.encode(format!("bot:{KEY}"))));

    let (world, origin) = self::world(ANY, Placement::Query { name: "key".to_owned() }).await;
    assert_eq!(world.call("/http/api/x?key=mine&a=b", &[]).await.status, 200);
    assert_eq!(world.call("/http/api/y", &[]).await.status, 200);
    let encoded = "gh%2Fp%2Bx16C7e42F292c6912E7710c8383";
    let targets: Vec<_> = origin.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets, [format!("/v1/x?a=b&key={encoded}"), format!("/v1/y?key={encoded}")]);
    let records = world.log.text();
    assert!(!records.contains(KEY) && !records.contains(encoded), "{records}");
}

/// A25: what the gateway signs is what curl signs with the same key and time. The caller's own signature goes, its token is
/// sent to nobody, and a body whose digest the caller hasn't said is read and signed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_to_aws_is_signed_as_curl_signs_it_a25() {
    let (id, secret) = ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY");
    for service in ["s3", "execute-api"] {
        let place = Placement::Aws { region: "eu-central-1".to_owned(), service: service.to_owned() };
        let (world, origin) = world(ANY, place).await;
        let value = vec![Ok(format!("{id}:{secret}"))];
        world.log.credentials.lock().unwrap().insert("key".to_owned(), value);
        let post = ["-d", "{\"a\":1}", "-H", "Content-Type: application/json", "-H", "X-Amz-Meta-A: b"];
        let own = ["-H", "X-Amz-Date: 19990101T000000Z", "-H", "X-Amz-Security-Token: mine"];
        for (path, more) in [("/bucket?list-type=2&prefix=ab", &[][..]), ("/bucket/key", &post[..])] {
            let got = world.call(&format!("/http/api{path}"), &[more, &own].concat()).await;
            assert_eq!(got.status, 200, "{got:?}");
            let sent = origin.seen().pop().unwrap();
            let field = |seen: &crate::origin::Seen, name: &str| {
                seen.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
            };
            assert_eq!(field(&sent, "x-amz-security-token"), None, "{sent:?}");
            let date = format!("X-Amz-Date: {}", field(&sent, "x-amz-date").unwrap());
            let digest =
                field(&sent, "x-amz-content-sha256").map(|text| format!("x-amz-content-sha256: {text}"));
            assert_eq!(digest.is_some(), service == "s3");
            // The real client, straight to the same origin.
            let port = origin.port();
            let mut curl = std::process::Command::new("curl");
            curl.args(["-sS", "-m", "5", "--aws-sigv4", &format!("aws:amz:eu-central-1:{service}")]);
            curl.args(["-u", &format!("{id}:{secret}"), "-H", &date]);
            curl.args(["--connect-to", &format!("ok.test:{port}:127.0.0.1:{port}")]);
            curl.args(digest.iter().flat_map(|digest| ["-H", digest.as_str()])).args(more);
            curl.arg(format!("http://ok.test:{port}/v1{path}"));
            let output = tokio::task::spawn_blocking(move || curl.output().unwrap()).await.unwrap();
            assert!(output.status.success(), "{output:?}");
            let theirs = origin.seen().pop().unwrap();
            assert_eq!(field(&sent, "authorization"), field(&theirs, "authorization"), "{path} {theirs:?}");
            assert!(field(&sent, "authorization").is_some());
        }
        // What was signed by somebody else, chunk by chunk, can't be signed here.
        let chunks = ["-d", "x", "-H", "x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD"];
        assert_eq!(world.call("/http/api/b", &chunks).await.refused(), (400, "MALFORMED_REQUEST".to_owned()));
        // A digest that the caller says lets a large body stream.
        let large = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(large.path(), vec![b'x'; 3 << 20]).unwrap();
        let data = format!("@{}", large.path().display());
        let upload = ["--data-binary", &data, "-H", "Content-Type: text/plain", "-H", "Expect:"];
        assert_eq!(world.call("/http/api/b", &upload).await.refused().1, "MALFORMED_REQUEST");
        let said = "x-amz-content-sha256: ".to_owned() + &"ab".repeat(32);
        assert_eq!(world.call("/http/api/b", &[&upload[..], &["-H", &said]].concat()).await.status, 200);
        assert_eq!(origin.seen().pop().unwrap().body, 3 << 20);
        let records = world.log.text();
        assert!(!records.contains(secret) && !records.contains("Signature="), "{records}");
        world.log.settled().await;
    }
}

/// A25, case 48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_are_returned_and_the_credential_stays_where_it_was_a12_case_90() {
    let (world, origin) = world(ANY, bearer()).await;
    let bare = http_tool("bare", &format!("http://ok.test:{}/", origin.port()));
    let keyed = Tool { credential: bound("key", bearer()), ..bare };
    let mut world = world;
    world.tell_tools(tools(vec![keyed])).await;
    let got = world.call("/http/bare/moved", &[]).await;
    assert_eq!(got.status, 302);
    assert!(got.head.contains("http://no.test/elsewhere"), "{got:?}");
    let got = world.call("/http/bare/moved-by-name", &[]).await;
    assert_eq!(got.status, 307);
    assert_eq!(origin.seen().len(), 2, "nothing was followed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_is_asked_for_once_and_again_after_its_time_a33() {
    let (world, origin) = world(ANY, bearer()).await;
    let values = vec![Ok("first-key".to_owned()), Ok("second-key".to_owned())];
    world.log.credentials.lock().unwrap().insert("key".to_owned(), values);
    let calls = (0..20).map(|_| world.call("/http/api/x", &[]));
    for got in futures_util::future::join_all(calls).await {
        assert_eq!(got.status, 200, "{got:?}");
    }
    assert_eq!(world.log.handed.lock().unwrap().len(), 1, "many calls at once ask once");
    assert!(origin.seen().iter().all(|seen| seen.headers["authorization"] == "Bearer first-key"));
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    assert_eq!(world.call("/http/api/x", &[]).await.status, 200);
    assert_eq!(origin.seen().pop().unwrap().headers["authorization"], "Bearer second-key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_credential_a_call_goes_nowhere_case_89() {
    let (world, origin) = world(ANY, bearer()).await;
    let down = Err("`/etc/strait/secrets/key` can't be read".to_owned());
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![down, Ok(KEY.to_owned())]);
    let got = world.call("/http/api/x", &[]).await;
    assert_eq!(got.refused(), (503, "CREDENTIAL_UNAVAILABLE".to_owned()));
    assert!(got.error()["reason"].as_str().unwrap().contains("can't be read"), "{got:?}");
    assert_eq!(origin.seen().len(), 0);
    let step = world.log.steps_done(1).await.remove(0);
    assert_eq!((step.decision, step.code), (Decision::Deny, Some(Code::CredentialUnavailable)));
    // A run that goes on asking doesn't have the agent look each time.
    assert_eq!(world.call("/http/api/x", &[]).await.status, 503);
    assert_eq!(world.log.handed.lock().unwrap().len(), 1);
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    assert_eq!(world.call("/http/api/x", &[]).await.status, 200, "it is there again");
    world.log.settled().await;
}

/// Case 97: a keyed URL to a dead host, a wrong token, the key in a query.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_failure_shows_a_key_case_97() {
    let (mut world, origin) = world(ANY, Placement::Query { name: "key".to_owned() }).await;
    let dead = http_tool("dead", "http://ok.test:1/v1");
    let gone = http_tool("gone", "http://evil.test/v1");
    let keyed =
        |tool: Tool| Tool { credential: bound("key", Placement::Query { name: "key".to_owned() }), ..tool };
    world.tell_tools(tools(vec![keyed(dead), keyed(gone)])).await;
    let mut said = String::new();
    for path in
        ["/http/dead/x?q=1", "/http/gone/x", "/http/dead/x?api_key=ghp_16C7e42F292c6912E7710c838347Ae178B4a"]
    {
        let got = world.call(path, &[]).await;
        assert!([502, 504].contains(&got.status), "{got:?}");
        said += &format!("{got:?}");
    }
    let records = world.log.text();
    for secret in [KEY, "gh%2Fp%2Bx16C7", "16C7e42F292c6912E7710c8383", "838347Ae178B4a"] {
        assert!(!said.contains(secret) && !records.contains(secret), "{secret}");
    }
    assert_eq!(origin.seen().len(), 0);
    world.log.settled().await;
}

/// A27, A28: a step has its two lines before its answer's end, and what left the host bears its id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_a_step_of_the_trace_and_its_leg_is_activity_a27() {
    let (world, origin) = world(ANY, bearer()).await;
    let got = world.call("/http/api/repos?state=open&token=abcdefgh12345678", &["-d", "hello"]).await;
    assert_eq!(got.status, 200);
    let steps = world.log.steps();
    assert_eq!(
        steps.iter().map(|step| step.1).collect::<Vec<_>>(),
        [Some(Phase::Decided), Some(Phase::Done)]
    );
    let (id, _, done) = steps[1].clone();
    assert_eq!((done.tool.as_str(), done.kind, done.decision), ("api", ToolKind::Http, Decision::Allow));
    assert_eq!(done.target, format!("POST http://ok.test:{}/v1/repos", origin.port()));
    let args = done.args.unwrap();
    assert!(args.starts_with("state=open&token=[hidden:") && !args.contains("12345678"), "{args}");
    assert_eq!(done.rules, ["any"]);
    assert_eq!((done.status, done.bytes_out, done.bytes_in), (Some(200), Some(5), Some(20)));
    assert!(done.duration_us.is_some() && !done.truncated);
    assert_eq!(done.process.unwrap().comm, "curl");
    let legs: Vec<_> = world.log.activities();
    assert_eq!(legs.len(), 2);
    for (leg, _, activity) in &legs {
        assert_ne!(*leg, id);
        assert_eq!(activity.step, Some(id));
        assert_eq!(activity.via, "tool");
    }
    assert_eq!(legs[1].2.dst.addr, Some("127.0.0.1".parse().unwrap()));
    world.log.check_steps();
}

/// Permitted, refused by nobody's permit, forbidden, held and approved: `decided` and `done` of each, with its rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_outcome_is_a_step_with_the_rules_that_decided_a27() {
    let policy = r#"
        @id("reads") permit(principal, action == Action::"http", resource in Tool::"api") when { context.method == "GET" };
        @id("asks") @approval("posts") permit(principal, action == Action::"http", resource in Tool::"api")
        when { context.method == "POST" };
        @id("secret") forbid(principal, action == Action::"http", resource in Tool::"api")
        when { context.path like "/v1/secret*" };
    "#;
    let (world, origin) = world(policy, bearer()).await;
    assert_eq!(world.call("/http/api/x", &[]).await.status, 200);
    assert_eq!(world.call("/http/api/x", &["-X", "DELETE"]).await.status, 403);
    assert_eq!(world.call("/http/api/secret", &[]).await.status, 403);
    let approve = async {
        let held = world.log.held(1).await.remove(0).0;
        let by = Settled { id: "k7m2x9qd".parse().unwrap(), by: Some("ana".to_owned()), waited_ms: 5 };
        let told = ToGateway::Answer { call: held.call, answer: Answer::Granted(by) };
        world.agent.as_ref().unwrap().tell(told, Vec::new());
    };
    let (got, ()) = tokio::join!(world.call("/http/api/x", &["-d", "a=b"]), approve);
    assert_eq!(got.status, 200, "{got:?}");
    let steps = world.log.steps_done(4).await;
    let told: Vec<_> = steps
        .iter()
        .map(|step| (step.decision, step.code, step.rules.join(" "), step.status, step.approval.is_some()))
        .collect();
    let denied = Some(Code::ToolCallDenied);
    assert_eq!(
        told,
        [
            (Decision::Allow, None, "reads".to_owned(), Some(200), false),
            (Decision::Deny, denied, String::new(), Some(403), false),
            (Decision::Deny, denied, "secret".to_owned(), Some(403), false),
            (Decision::Allow, None, "asks".to_owned(), Some(200), true),
        ]
    );
    assert_eq!(world.log.steps().len(), 8, "two lines each");
    assert_eq!(origin.seen().len(), 2);
    world.log.settled().await;
    world.log.check_steps();
}

/// Whatever a run's own rules permit, and on record as the guardrail's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guardrail_beats_a_permit_and_is_named_a24() {
    let (world, origin) = world(ANY, bearer()).await;
    assert_eq!(world.call("/http/api/x", &["-X", "DELETE"]).await.status, 200, "positive control");
    let file =
        |guardrail, text: &str| PolicyFile { name: "a.cedar".to_owned(), guardrail, text: text.to_owned() };
    let forbid = r#"@id("no-delete") forbid(principal, action == Action::"http", resource) when { context.method == "DELETE" };"#;
    world.agent.as_ref().unwrap().policies(2, &[file(false, ANY), file(true, forbid)]).await;
    let got = world.call("/http/api/x", &["-X", "DELETE"]).await;
    assert_eq!(got.refused(), (403, "TOOL_CALL_DENIED".to_owned()));
    assert_eq!(got.error()["rule"], "guardrail:no-delete");
    let step = world.log.steps_done(2).await.remove(1);
    assert_eq!((step.decision, step.rules), (Decision::Deny, vec!["guardrail:no-delete".to_owned()]));
    assert_eq!(origin.seen().len(), 1);
    world.log.settled().await;
}

/// Servers that add trailers to the head would take a caller's for the tool's own, and one that overrides the method for
/// what was judged. (A9.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_add_nothing_to_what_was_judged() {
    let (world, origin) = world(ANY, bearer()).await;
    let host = format!("ok.test:{}", origin.port());
    let chunked = |line: &str, host: &str, field: &str| {
        format!(
            "POST {line} HTTP/1.1\r\nHost: {host}\r\n{field}Transfer-Encoding: chunked\r\n\
             Trailer: x-version, x-sum, x-http-method-override, x_original_url\r\n\r\n2\r\nhi\r\n0\r\n\
             x-version: 1\r\nx-sum: 1\r\nX-HTTP-Method-Override: DELETE\r\n\
             X_Original_URL: /admin\r\n\r\n"
        )
    };
    let mut stream = world.connect_to_proxy().await;
    let field = format!("x-api-key: {}\r\n", crate::world::TOKEN);
    let got = ask(&mut stream, &chunked("/http/api/b", "strait.internal", &field)).await;
    assert_eq!(got.status, 200, "{}", got.text());
    let seen = origin.seen().pop().unwrap();
    let all = |name: &str| {
        seen.headers.get_all(name).iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(all("x-version"), ["2026"], "{seen:?}");
    assert_eq!(all("authorization"), [format!("Bearer {KEY}")], "{seen:?}");
    assert!(!seen.headers.contains_key("x-sum") && !seen.headers.contains_key("trailer"), "{seen:?}");
    // Plain calls have their trailers, but for those.
    let mut stream = world.connect("ok.test", origin.port()).await;
    assert_eq!(ask(&mut stream, &chunked("/b", &host, "")).await.status, 200);
    let seen = origin.seen().pop().unwrap();
    assert!(seen.headers.contains_key("x-sum"), "{seen:?}");
    assert!(
        !seen.headers.contains_key("x-http-method-override") && !seen.headers.contains_key("x_original_url")
    );
    world.log.settled().await;
}
