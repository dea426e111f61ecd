//! Calls of models: routed, credentialed, passed on byte for byte, counted, on record (A14 to A18).

use std::time::Duration;

use strait_contract::{
    code::Code,
    provider::{Content, Dialect, Provider as Told, Providers},
    record::{Decision, ModelStep, ToolKind},
    tool::Bound,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use self::provider::{Provider, Reply};
use crate::world::{OTHER_TOKEN, Options, TOKEN, World};

#[path = "model/counted.rs"]
mod counted;
#[path = "model/official.rs"]
mod official;
#[path = "model/provider.rs"]
pub mod provider;
#[path = "model/routed.rs"]
mod routed;

const KEY: &str = "sk-live-16C7e42F292c6912E7710c8383";
const CHAT: &str = r#"{"model":"gpt-5","messages":[{"role":"user","content":"hi"}]}"#;
const CHAT_ANSWER: &str = r#"{"id":"c1","object":"chat.completion","model":"gpt-5-2025-08-07","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#;

pub fn told(dialect: Dialect, port: u16) -> Told {
    let name = dialect.as_str();
    Told {
        name: name.parse().unwrap(),
        dialect,
        url: format!("http://ok.test:{port}"),
        credential: Some(Bound { name: "key".parse().unwrap(), send: dialect.placement(), ttl_seconds: 60 }),
        intercept: true,
        allow: Vec::new(),
        content: Content::None,
    }
}

/// A world without a single permit, with one provider that answers so.
pub async fn world(dialect: Dialect, reply: Reply) -> (World, Provider) {
    world_with(dialect, reply, |_| {}).await
}

pub async fn world_with(
    dialect: Dialect,
    reply: Reply,
    change: impl FnOnce(&mut Providers),
) -> (World, Provider) {
    let provider = Provider::new(reply).await;
    let mut providers = Providers { providers: vec![told(dialect, provider.port())], ..Providers::default() };
    change(&mut providers);
    let world = World::new(Options { providers, ..Options::default() }).await;
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![Ok(KEY.to_owned())]);
    (world, provider)
}

/// The `done` line of the only model call.
async fn step(world: &World) -> (ModelStep, strait_contract::record::Step) {
    let step = world.log.steps_done(1).await.pop().unwrap();
    (*step.model.clone().unwrap(), step)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_needs_no_permit_and_gets_the_providers_key_a15_a18() {
    let answers = [
        (
            Dialect::OpenAi,
            "/model/openai/v1/chat/completions",
            CHAT,
            "authorization",
            format!("Bearer {KEY}"),
        ),
        (Dialect::Anthropic, "/model/anthropic/v1/messages", CHAT, "x-api-key", KEY.to_owned()),
        (
            Dialect::Gemini,
            "/model/gemini/v1beta/models/gemini-2.5-pro:generateContent?key=dummy&alt=json",
            r#"{"contents":[{"parts":[{"text":"hi"}]}]}"#,
            "x-goog-api-key",
            KEY.to_owned(),
        ),
    ];
    for (dialect, path, body, field, key) in answers {
        let (world, provider) = world(dialect, Reply::json(CHAT_ANSWER)).await;
        let extra = ["openai-organization: org-evil", "x-api-key: mine", "api-key: other", "cookie: a=b"];
        let mut arguments = vec!["-d", body, "-H", "content-type: application/json"];
        arguments.extend(extra.iter().flat_map(|field| ["-H", field]));
        let got = world.call(path, &arguments).await;
        assert_eq!((got.status, got.body.as_slice()), (200, CHAT_ANSWER.as_bytes()), "{got:?}");
        let seen = provider.last();
        assert_eq!(seen.body, body.as_bytes());
        assert_eq!(seen.header(field), Some(key.as_str()), "{seen:?}");
        for other in
            ["authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "openai-organization"]
        {
            assert!(other == field || seen.header(other).is_none(), "{other}: {seen:?}");
        }
        assert!(!seen.line.contains("key=") && !format!("{seen:?}").contains(TOKEN), "{seen:?}");
        let (model, step) = step(&world).await;
        assert_eq!((step.kind, step.decision, step.status), (ToolKind::Model, Decision::Allow, Some(200)));
        assert_eq!((model.provider.as_str(), model.attempts), (dialect.as_str(), 1));
        let asked = if dialect == Dialect::Gemini { "gemini-2.5-pro" } else { "gpt-5" };
        assert_eq!((model.asked.as_str(), model.stream), (asked, false));
        assert!(!world.log.text().contains(KEY) && !world.log.text().contains(TOKEN));
        world.log.settled().await;
        world.log.check_steps();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_passed_on_as_it_comes_and_unchanged_case_77() {
    let reply =
        Reply::events(&["{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}", "{\"choices\":[]}", "[DONE]"]);
    let (world, provider) = world(Dialect::OpenAi, reply.clone().gated()).await;
    let mut stream = world.connect_to_proxy().await;
    let body = r#"{"stream":true,"model":"gpt-5","stream_options":{"include_usage":true},"messages":[]}"#;
    let request = format!(
        "POST /model/openai/v1/chat/completions HTTP/1.1\r\nhost: strait.internal\r\nauthorization: Bearer {TOKEN}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut came = Vec::new();
    let mut expect = String::new();
    for (at, chunk) in reply.chunks.iter().enumerate() {
        expect.push_str(std::str::from_utf8(chunk).unwrap());
        // The next isn't sent before this has arrived here.
        while !String::from_utf8_lossy(&came).contains(std::str::from_utf8(chunk).unwrap()) {
            let mut some = [0; 4096];
            let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut some)).await;
            let read = read.expect("the gateway holds an event back").unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&came));
            came.extend_from_slice(&some[..read]);
        }
        if at + 1 < reply.chunks.len() {
            provider.go.add_permits(1);
        }
    }
    let text = String::from_utf8(came).unwrap();
    assert!(text.contains("text/event-stream"), "{text}");
    let (model, _) = step(&world).await;
    assert!(model.stream && model.first_token_us.is_some());
    assert_eq!(provider.last().body, body.as_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_isnt_a_known_endpoint_is_refused_in_the_apis_shape_a15_case_74() {
    let (world, provider) = world_with(Dialect::OpenAi, Reply::json("{}"), |all| {
        all.providers[0].allow.push("files".to_owned());
        all.agents.push(("coder".parse().unwrap(), vec!["openai/gpt-5*".to_owned()]));
    })
    .await;
    let post = ["-d", CHAT];
    for (path, arguments, status, code) in [
        ("/model/openai/v1/organization/costs", &[][..], 404, Code::NotFound),
        ("/model/openai/v1/batches", &post[..], 403, Code::ToolCallDenied),
        ("/model/openai/v1/responses/resp_1", &[][..], 403, Code::ToolCallDenied),
        ("/model/openai/v1/chat/completions", &["-X", "PUT"][..], 404, Code::NotFound),
        (
            "/model/openai/v1/responses",
            &["-H", "upgrade: websocket", "-H", "connection: upgrade"][..],
            426,
            Code::UpgradeRefused,
        ),
        ("/model/openai/../../etc", &[][..], 400, Code::MalformedRequest),
        ("/model/nobody/v1/chat/completions", &post[..], 404, Code::ToolUnknown),
        ("/model/openai/v1/chat/completions", &["-d", "{}"][..], 400, Code::MalformedRequest),
        ("/model/openai/v1/chat/completions", &["-d", "[1"][..], 400, Code::MalformedRequest),
        (
            "/model/openai/v1/chat/completions",
            &["-d", r#"{"model":"gpt-4o"}"#][..],
            403,
            Code::ToolCallDenied,
        ),
        (
            "/model/openai/v1/chat/completions",
            &["-d", CHAT, "-H", "content-encoding: br"][..],
            400,
            Code::MalformedRequest,
        ),
    ] {
        let got = world.call(path, arguments).await;
        let error = got.error();
        assert_eq!((got.status, error["strait"].as_str()), (status, Some(code.as_str())), "{path}: {got:?}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(code.as_str()) && message.contains(error["record"].as_str().unwrap()),
            "{message}"
        );
        assert!(error["type"].is_string());
    }
    assert_eq!(world.curl("/model/openai/v1/models", &[]).await.status, 401);
    let other = format!("authorization: Bearer {OTHER_TOKEN}");
    assert_eq!(world.curl("/model/openai/v1/models", &["-H", &other]).await.status, 403);
    assert!(provider.seen().is_empty(), "{:?}", provider.seen());
    // Positive controls.
    assert_eq!(world.call("/model/openai/v1/chat/completions", &post).await.status, 200);
    assert_eq!(world.call("/model/openai/v1/models", &[]).await.status, 200);
    assert_eq!(world.call("/model/openai/v1/files", &["-d", "anything"]).await.status, 200);
    assert_eq!(world.call("/model/openai", &["-I"]).await.status, 200);
    assert_eq!(provider.seen().len(), 3);
    assert!(
        provider.seen().iter().all(|seen| seen.header("authorization") == Some(&format!("Bearer {KEY}")))
    );
    world.log.settled().await;
    world.log.check_steps();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_request_is_read_and_one_without_end_isnt() {
    let (world, provider) = world(Dialect::OpenAi, Reply::json(CHAT_ANSWER)).await;
    let gzip = |text: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, text).unwrap();
        encoder.finish().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("body");
    let data = format!("@{}", file.display());
    let arguments = ["--data-binary", &data, "-H", "content-encoding: gzip"];
    std::fs::write(&file, gzip(CHAT.as_bytes())).unwrap();
    let got = world.call("/model/openai/v1/chat/completions", &arguments).await;
    assert_eq!(got.status, 200, "{got:?}");
    let seen = provider.last();
    assert_eq!((seen.body.as_slice(), seen.header("content-encoding")), (CHAT.as_bytes(), None));
    // A bomb: 64 MiB of spaces.
    std::fs::write(&file, gzip(&vec![b' '; 64 << 20])).unwrap();
    let got = world.call("/model/openai/v1/chat/completions", &arguments).await;
    assert_eq!(got.status, 400, "{got:?}");
    let chunked = ["--data-binary", &data, "-H", "transfer-encoding: chunked"];
    std::fs::write(&file, CHAT).unwrap();
    assert_eq!(world.call("/model/openai/v1/chat/completions", &chunked).await.status, 200);
    assert_eq!(provider.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_at_the_providers_own_origin_take_the_same_way() {
    let (world, provider) = world(Dialect::Anthropic, Reply::json(CHAT_ANSWER)).await;
    let mut stream = world.connect("ok.test", provider.port()).await;
    let ask = |line: &str, fields: &str, body: &str| {
        format!(
            "{line} HTTP/1.1\r\nhost: ok.test:{}\r\n{fields}content-length: {}\r\n\r\n{body}",
            provider.port(),
            body.len()
        )
    };
    let key = format!("x-api-key: {TOKEN}\r\n");
    let got = crate::client::ask(&mut stream, &ask("POST /v1/messages?beta=true", &key, CHAT)).await;
    assert_eq!((got.status, got.text().as_str()), (200, CHAT_ANSWER));
    let seen = provider.last();
    assert_eq!(seen.header("x-api-key"), Some(KEY));
    assert_eq!(seen.line, "POST /v1/messages?beta=true HTTP/1.1");
    let (model, step) = step(&world).await;
    assert_eq!((model.operation.as_str(), step.status), ("messages", Some(200)));
    // Another run's token is told of, a dummy isn't.
    let other = format!("x-api-key: {OTHER_TOKEN}\r\n");
    let got = crate::client::ask(&mut stream, &ask("POST /v1/messages", &other, CHAT)).await;
    assert_eq!(got.status, 403, "{got:?}");
    let got = crate::client::ask(&mut stream, &ask("POST /v1/messages", "x-api-key: dummy\r\n", CHAT)).await;
    assert_eq!(got.status, 200, "{got:?}");
    let websocket = "upgrade: websocket\r\nconnection: upgrade\r\n";
    let got = crate::client::ask(&mut stream, &ask("GET /v1/messages", websocket, "")).await;
    assert_eq!(got.status, 426, "{got:?}");
    assert_eq!(provider.seen().len(), 2);
    // Telemetry at the same host is egress: refused without a permit.
    let got = crate::client::ask(&mut stream, &ask("POST /api/event_logging/batch", &key, "{}")).await;
    assert_eq!((got.status, got.code()), (403, "TOOL_CALL_DENIED".to_owned()), "{got:?}");
    assert_eq!(provider.seen().len(), 2);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn telemetry_at_a_providers_host_gets_neither_key_nor_token() {
    let provider = Provider::new(Reply::json("{}")).await;
    let providers =
        Providers { providers: vec![told(Dialect::Anthropic, provider.port())], ..Providers::default() };
    let world =
        World::new(Options { providers, policy: crate::world::ALL_OK.to_owned(), ..Options::default() })
            .await;
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![Ok(KEY.to_owned())]);
    let mut stream = world.connect("ok.test", provider.port()).await;
    let request = format!(
        "POST /api/event_logging/batch HTTP/1.1\r\nhost: ok.test:{}\r\nx-api-key: {TOKEN}\r\ncontent-length: 2\r\n\r\n{{}}",
        provider.port()
    );
    let got = crate::client::ask(&mut stream, &request).await;
    assert_eq!(got.status, 200, "{got:?}");
    let seen = provider.last();
    assert!(!format!("{seen:?}").contains(TOKEN) && !format!("{seen:?}").contains(KEY), "{seen:?}");
    assert!(world.log.handed.lock().unwrap().is_empty(), "the credential isn't even asked for");
}

/// A server of the operator's own asks for no key, so it gets none: not the caller's, and not the token (A17).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_without_a_key_gets_neither_the_callers_nor_the_token_a17() {
    let (world, provider) = world_with(Dialect::OpenAi, Reply::json(CHAT_ANSWER), |providers| {
        providers.providers[0].name = "eos".parse().unwrap();
        providers.providers[0].credential = None;
    })
    .await;
    let got = world.call("/model/eos/v1/chat/completions", &["-d", CHAT, "-H", "x-api-key: mine"]).await;
    assert_eq!((got.status, got.body.as_slice()), (200, CHAT_ANSWER.as_bytes()));
    let seen = provider.last();
    for field in ["authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"] {
        assert!(seen.header(field).is_none(), "{field}: {seen:?}");
    }
    assert!(!format!("{seen:?}").contains(TOKEN) && !format!("{seen:?}").contains(KEY), "{seen:?}");
    let (model, _) = step(&world).await;
    assert_eq!(model.tokens.unwrap().input, 9);
}
