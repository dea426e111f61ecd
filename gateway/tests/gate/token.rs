//! The workload token at the gateway's own endpoints (A2, A4), and that it is sent to nobody.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use strait_contract::{code::Code, message::ToGateway, tool::ToolName};

use crate::{
    client::ask,
    origin::Origin,
    tools::{http_tool, tools},
    world::{ALL_OK, OTHER_RUN, OTHER_TOKEN, Options, TOKEN, World, other_run},
};

const POLICY: &str = r#"@id("any") permit(principal, action == Action::"http", resource in Tool::"echo");"#;

async fn world(policy: &str) -> (World, Origin) {
    let origin = Origin::http().await;
    let echo = http_tool("echo", &format!("http://ok.test:{}/v1", origin.port()));
    let options = Options { policy: policy.to_owned(), tools: tools(vec![echo]), ..Options::default() };
    (World::new(options).await, origin)
}

/// Case 92.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_place_of_the_token_is_good_and_none_is_sent_on_a2() {
    let (world, origin) = world(POLICY).await;
    let fields = [
        format!("Authorization: Bearer {TOKEN}"),
        format!("authorization: bearer  {TOKEN}"),
        format!("x-api-key: {TOKEN}"),
        format!("api-key: {TOKEN}"),
        format!("x-goog-api-key: {TOKEN}"),
        format!("Authorization: Basic {}", STANDARD.encode(format!("any:{TOKEN}"))),
    ];
    for field in &fields {
        let got = world.curl("/http/echo/x", &["-H", field, "-H", &format!("Cookie: t={TOKEN}")]).await;
        assert_eq!((got.status, got.text().as_str()), (200, "hello from /v1/x"), "{field}: {got:?}");
    }
    let seen = origin.seen();
    assert_eq!(seen.len(), fields.len());
    for seen in seen {
        assert!(!format!("{seen:?}").contains("strait_"), "{seen:?}");
    }
    world.log.settled().await;
    world.log.check_steps();
}

/// Case 93.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_garbage_and_one_of_another_run_are_refused_and_on_record_a2_a4() {
    let (world, origin) = world(POLICY).await;
    let none = world.curl("/http/echo/x", &[]).await;
    assert_eq!(none.refused(), (401, "TOKEN_MISSING".to_owned()));
    let basic = format!("Authorization: Basic {}", STANDARD.encode("any:x"));
    for field in ["Authorization: Bearer x", "x-api-key: strait_x", "api-key: ", &basic] {
        let got = world.curl("/http/echo/x", &["-H", field]).await;
        let expect = if field.ends_with(' ') { "TOKEN_MISSING" } else { "TOKEN_UNKNOWN" };
        assert_eq!(got.refused(), (401, expect.to_owned()), "{field}");
        assert!(
            !got.head.to_ascii_lowercase().contains("www-authenticate"),
            "it would start a login: {got:?}"
        );
    }
    // The other run's token, from here: refused, and told to the agent for the logs of both.
    let other = format!("Authorization: Bearer {OTHER_TOKEN}");
    let got = world.curl("/http/echo/x", &["-H", &other]).await;
    assert_eq!(got.refused(), (403, "TOKEN_ADDRESS_MISMATCH".to_owned()));
    // Also if this run's own is beside it.
    let got = world.call("/http/echo/x", &["-H", &format!("x-api-key: {OTHER_TOKEN}")]).await;
    assert_eq!(got.refused(), (403, "TOKEN_ADDRESS_MISMATCH".to_owned()));
    assert_eq!(world.log.mismatches.lock().unwrap()[0], ("coder-1".to_owned(), "writer-1".to_owned()));
    // The web tool and unknown tools ask for it too.
    assert_eq!(world.curl("/web/https://a.test/", &[]).await.status, 401);
    assert_eq!(world.curl("/http/nothing/x", &[]).await.status, 401);
    assert_eq!(origin.seen().len(), 0);
    let codes: Vec<_> = world.log.codes().into_iter().flatten().collect();
    for code in [Code::TokenMissing, Code::TokenUnknown, Code::TokenAddressMismatch] {
        assert!(codes.contains(&code), "{codes:?}");
    }
    assert!(!world.log.text().contains(&OTHER_TOKEN[7..]));
    // From its own run it is good; when that has ended it is nobody's.
    assert_eq!(world.curl_from(OTHER_RUN, "/http/echo/x", &["-H", &other]).await.status, 200);
    world.agent.as_ref().unwrap().tell(ToGateway::RunEnded(other_run().id), Vec::new());
    for _ in 0..100 {
        if world.gateway.runs.by_id(&other_run().id).is_none() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let got = world.curl("/http/echo/x", &["-H", &other]).await;
    assert_eq!(got.refused(), (401, "TOKEN_UNKNOWN".to_owned()));
    world.log.settled().await;
}

/// A3: the same call by two runs, judged by the policy of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_run_is_judged_by_its_own_policy_a3() {
    let (world, origin) =
        world(r#"@id("w") permit(principal in Agent::"writer", action == Action::"http", resource in Tool::"echo");"#).await;
    assert_eq!(world.call("/http/echo/x", &[]).await.refused(), (403, "TOOL_CALL_DENIED".to_owned()));
    let other = format!("x-api-key: {OTHER_TOKEN}");
    assert_eq!(world.curl_from(OTHER_RUN, "/http/echo/x", &["-H", &other]).await.status, 200);
    assert_eq!(origin.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_sends_its_token_elsewhere_sends_nothing() {
    let (world, origin) = world(ALL_OK).await;
    let host = format!("ok.test:{}", origin.port());
    let mut stream = world.connect("ok.test", origin.port()).await;
    let request = format!(
        "GET /a HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nX-Api-Key: theirs\r\nX-Note: {TOKEN}\r\n\r\n"
    );
    assert_eq!(ask(&mut stream, &request).await.status, 200);
    let seen = origin.only();
    assert!(!format!("{seen:?}").contains("strait_"), "{seen:?}");
    assert_eq!(seen.headers["x-api-key"], "theirs");
    for path in [format!("/{TOKEN}"), format!("/?k={}", TOKEN.replace('_', "%5F"))] {
        let got = ask(&mut stream, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!((got.status, got.code().as_str()), (400, "MALFORMED_REQUEST"), "{path}");
    }
    assert_eq!(origin.seen().len(), 1);
    let chunked = format!(
        "POST /b HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum, x-note\r\n\r\n\
         2\r\nhi\r\n0\r\nx-sum: 1\r\nx-note: {TOKEN}\r\n\r\n"
    );
    assert_eq!(ask(&mut stream, &chunked).await.status, 200);
    let seen = origin.seen().pop().unwrap();
    assert!(seen.headers.contains_key("x-sum") && !seen.headers.contains_key("x-note"), "{seen:?}");
    assert!(!world.log.text().contains(&TOKEN[7..]));
    world.log.settled().await;
}

/// Case 62: a page in a browser of the run, or a name that leads here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_hosts_and_origins_are_refused_case_62() {
    let (world, origin) = world(POLICY).await;
    let own = [
        "Origin: http://strait.internal",
        "Host: strait.internal:80",
        "Host: 127.0.0.1",
        "Host: STRAIT.internal.",
    ];
    for field in own {
        assert_eq!(world.call("/http/echo/x", &["-H", field]).await.status, 200, "{field}");
    }
    for field in [
        "Origin: http://evil.test",
        "Origin: null",
        "Origin: https://strait.internal.evil.test",
        "Host: evil.test",
    ] {
        let got = world.call("/http/echo/x", &["-H", field]).await;
        assert_eq!(got.refused(), (403, "ORIGIN_REFUSED".to_owned()), "{field}");
    }
    let preflight =
        ["-X", "OPTIONS", "-H", "Origin: http://evil.test", "-H", "Access-Control-Request-Method: GET"];
    assert_eq!(world.call("/http/echo/x", &preflight).await.status, 403);
    assert_eq!(origin.seen().len(), own.len());
    assert!(origin.seen().iter().all(|seen| !seen.headers.contains_key("origin")));
    let _: ToolName = "echo".parse().unwrap();
}
