//! What calls of models used, whatever becomes of them, and what they may not offer.

use std::time::Duration;

use strait_contract::{
    budget::{Budget, Limits},
    code::Code,
    message::ToGateway,
    model::Usd,
    provider::{Content, Dialect, Providers},
    record::{Decision, Phase},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{CHAT, CHAT_ANSWER, KEY, provider::Provider, provider::Reply, step, told, world, world_with};
use crate::world::{Options, TOKEN, World};

const STREAM: &str = r#"{"model":"gpt-5","messages":[],"stream":true}"#;
const PATH: &str = "/model/openai/v1/chat/completions";

fn chat_stream() -> Vec<&'static str> {
    vec![
        r#"{"id":"c","model":"gpt-5-2025-08-07","choices":[{"index":0,"delta":{"role":"assistant","content":"hel"}}]}"#,
        r#"{"id":"c","model":"gpt-5-2025-08-07","choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}"#,
        r#"{"id":"c","model":"gpt-5-2025-08-07","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":7,"total_tokens":107,"prompt_tokens_details":{"cached_tokens":40}}}"#,
        "[DONE]",
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_and_cost_of_an_answer_are_on_record_a16() {
    let (world, provider) = world(Dialect::OpenAi, Reply::json(CHAT_ANSWER)).await;
    assert_eq!(world.call(PATH, &["-d", CHAT]).await.status, 200);
    let (model, done) = step(&world).await;
    let tokens = model.tokens.clone().unwrap();
    assert_eq!((tokens.input, tokens.output, tokens.estimated, model.complete), (9, 2, false, true));
    assert_eq!(model.used.as_deref(), Some("gpt-5-2025-08-07"));
    assert!(model.cost.unwrap() > Usd(0), "{model:?}");
    let charge = done.charge.unwrap().amount;
    assert_eq!((charge.calls, charge.tokens, Some(charge.usd)), (1, 11, model.cost));
    // A model that has no price is counted and has no cost.
    provider.answers(Reply::json(&CHAT_ANSWER.replace("gpt-5-2025-08-07", "made-up")));
    assert_eq!(world.call(PATH, &["-d", &CHAT.replace("gpt-5", "made-up")]).await.status, 200);
    let done = world.log.steps_done(2).await.pop().unwrap();
    let model = done.model.unwrap();
    assert_eq!((model.cost, model.tokens.unwrap().input), (None, 9));
    // An error of the provider's is passed on, and costs nothing.
    provider.answers(Reply::json(r#"{"error":{"message":"busy"}}"#).status(529));
    let got = world.call(PATH, &["-d", CHAT]).await;
    assert_eq!((got.status, got.text().as_str()), (529, r#"{"error":{"message":"busy"}}"#));
    let done = world.log.steps_done(3).await.pop().unwrap();
    assert_eq!((done.status, done.charge.unwrap().amount.tokens), (Some(529), 0));
    assert_eq!(done.model.unwrap().tokens, None);
    world.log.settled().await;
    world.log.check_steps();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streams_usage_is_asked_for_and_kept_from_who_didnt_ask_case_63() {
    let events = chat_stream();
    for (body, hidden) in [
        (STREAM.to_owned(), true),
        (STREAM.replace("true}", r#"true,"stream_options":{"include_usage":false}}"#), true),
        (STREAM.replace("true}", r#"true,"stream_options":{"x":1,"include_usage":true}}"#), false),
    ] {
        let (world, provider) = world(Dialect::OpenAi, Reply::events(&events)).await;
        let got = world.call(PATH, &["-d", &body]).await;
        let shown: Vec<&str> =
            events.iter().copied().filter(|event| !hidden || !event.contains("usage")).collect();
        let expect = String::from_utf8(Reply::events(&shown).bytes()).unwrap();
        assert_eq!((got.status, got.text()), (200, expect), "{body}");
        let sent = provider.last();
        assert_eq!(sent.json()["stream_options"]["include_usage"], true);
        if !hidden {
            assert_eq!(sent.body, body.as_bytes(), "untouched");
        }
        let (model, done) = step(&world).await;
        let tokens = model.tokens.unwrap();
        assert_eq!((tokens.input, tokens.output, tokens.cache_read), (100, 7, 40), "{body}");
        assert!(model.complete && !tokens.estimated && done.charge.unwrap().amount.tokens == 107);
        world.log.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_off_is_recorded_with_what_it_came_to_a16_case_75() {
    let events = [
        r#"{"type":"message_start","message":{"id":"m","model":"claude-sonnet-4-5","usage":{"input_tokens":50,"cache_read_input_tokens":10,"output_tokens":1}}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"some words that have been written"}}"#,
        r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":90}}"#,
    ];
    // The upstream dies.
    let (world, provider) = world(Dialect::Anthropic, Reply::events(&events[..2]).breaking()).await;
    let path = "/model/anthropic/v1/messages";
    let got = world.call(path, &["-d", STREAM]).await;
    assert_ne!(got.exit, 0, "{got:?}");
    let done = world.log.steps_done(1).await.pop().unwrap();
    let model = done.model.unwrap();
    let tokens = model.tokens.unwrap();
    assert_eq!((done.code, tokens.input, model.complete), (Some(Code::UpstreamProtocol), 60, false));
    assert!(tokens.estimated && tokens.output > 4, "{tokens:?}");
    // The client goes.
    provider.answers(Reply::events(&events).gated());
    let mut stream = world.connect_to_proxy().await;
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: strait.internal\r\nx-api-key: {TOKEN}\r\ncontent-length: {}\r\n\r\n{STREAM}",
        STREAM.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut came = Vec::new();
    while !String::from_utf8_lossy(&came).contains("message_start") {
        let mut some = [0; 4096];
        let read =
            tokio::time::timeout(Duration::from_secs(10), stream.read(&mut some)).await.unwrap().unwrap();
        came.extend_from_slice(&some[..read]);
    }
    drop(stream);
    let done = world.log.steps_done(2).await.pop().unwrap();
    let model = done.model.unwrap();
    assert_eq!(done.code, Some(Code::ClientGone));
    assert_eq!((model.tokens.unwrap().input, model.complete), (60, false));
    assert!(done.charge.unwrap().amount.tokens >= 60);
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_that_is_used_up_is_said_in_the_apis_words_a18() {
    for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
        let (world, provider) = world(dialect, Reply::json(CHAT_ANSWER)).await;
        let run = Limits { calls: Some(1), ..Limits::default() };
        let budgets = vec![("coder".parse().unwrap(), Budget { run, ..Budget::default() })];
        world.agent.as_ref().unwrap().tell(ToGateway::Budgets(budgets), Vec::new());
        // In force once a credential that is asked for after it comes.
        let path = match dialect {
            Dialect::OpenAi => PATH,
            _ => "/model/anthropic/v1/messages",
        };
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(world.call(path, &["-d", CHAT]).await.status, 200);
        let got = world.call(path, &["-d", CHAT]).await;
        assert_eq!(got.status, 429, "{got:?}");
        assert!(
            got.head.contains("x-should-retry: false") && !got.head.contains("retry-after"),
            "{}",
            got.head
        );
        let error = got.error();
        let expect = if dialect == Dialect::OpenAi { "insufficient_quota" } else { "rate_limit_error" };
        assert_eq!(error["type"], expect);
        assert!(error["message"].as_str().unwrap().contains("BUDGET_EXCEEDED"), "{error}");
        assert!(error["message"].as_str().unwrap().contains("1 calls of 1 calls"), "{error}");
        assert_eq!(provider.seen().len(), 1);
        let done = world.log.steps_done(2).await.pop().unwrap();
        assert_eq!(
            (done.decision, done.code, done.charge),
            (Decision::Deny, Some(Code::BudgetExceeded), None)
        );
        world.log.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_providers_own_tools_are_decided_and_taken_out_a14_case_70() {
    let body = r#"{"model":"claude-sonnet-4-5","max_tokens":9,"tools":[{"type":"web_search_20250305","name":"web_search"},{"name":"mine","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":"x"}]}"#;
    let path = "/model/anthropic/v1/messages";
    let (world, provider) = world(Dialect::Anthropic, Reply::json(CHAT_ANSWER)).await;
    assert_eq!(world.call(path, &["-d", body]).await.status, 200);
    let sent = provider.last().json();
    assert_eq!(sent["tools"].as_array().unwrap().len(), 1);
    assert_eq!(sent["tools"][0]["name"], "mine");
    let (model, _) = step(&world).await;
    let offered = &model.server_tools;
    assert_eq!((offered.len(), offered[0].decision), (1, Decision::Deny), "{offered:?}");
    assert!(offered[0].name.contains("web_search"));
    // What can't be taken out is refused with the rule that would permit it.
    let page = r#"{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":[{"type":"document","source":{"type":"url","url":"https://evil.test/x"}}]}]}"#;
    let got = world.call(path, &["-d", page]).await;
    assert_eq!(got.status, 403, "{got:?}");
    assert!(got.error()["hint"].as_str().unwrap().contains("model/server_tool"), "{got:?}");
    assert_eq!(provider.seen().len(), 1);
    // Permitted, the request is the same byte for byte.
    let permit = r#"@id("search") permit(principal, action == Action::"model/server_tool", resource == ServerTool::"anthropic/web_search");"#;
    let provider = Provider::new(Reply::json(CHAT_ANSWER)).await;
    let providers =
        Providers { providers: vec![told(Dialect::Anthropic, provider.port())], ..Providers::default() };
    let world = World::new(Options { providers, policy: permit.to_owned(), ..Options::default() }).await;
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![Ok(KEY.to_owned())]);
    assert_eq!(world.call(path, &["-d", body]).await.status, 200);
    assert_eq!(provider.last().body, body.as_bytes());
    let (model, _) = step(&world).await;
    assert_eq!(
        (model.server_tools[0].decision, model.server_tools[0].rules.as_slice()),
        (Decision::Allow, &["search".to_owned()][..])
    );
    world.log.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_and_answers_are_kept_as_the_config_says() {
    let secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789";
    let body = CHAT.replace("hi", &format!("my key is {secret}"));
    for mode in [Content::None, Content::Hash, Content::Full] {
        let (world, _provider) =
            world_with(Dialect::OpenAi, Reply::json(CHAT_ANSWER), |all| all.providers[0].content = mode)
                .await;
        assert_eq!(world.call(PATH, &["-d", &body]).await.status, 200);
        let (model, _) = step(&world).await;
        assert!(!world.log.text().contains(secret));
        let Some(kept) = model.content else {
            assert_eq!(mode, Content::None);
            continue;
        };
        let (request, answer) = (kept.request.unwrap(), kept.answer.unwrap());
        match mode {
            Content::Hash => assert_eq!((request.len(), answer.len()), (64, 64)),
            _ => assert!(request.contains("my key is") && answer.contains("hello"), "{request} {answer}"),
        }
        let decided =
            world.log.steps().into_iter().find(|(_, phase, _)| *phase == Some(Phase::Decided)).unwrap().2;
        assert_eq!(decided.model.unwrap().content.unwrap().mode, mode);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_reached_its_provider_costs_nothing_a18() {
    let (world, _provider) = world_with(Dialect::OpenAi, Reply::json(CHAT_ANSWER), |all| {
        // Nobody listens there.
        all.providers[0].url = "http://ok.test:1".to_owned();
    })
    .await;
    let got = world.call(PATH, &["-d", CHAT]).await;
    assert_eq!(got.status, 502, "{got:?}");
    assert_eq!(got.error()["type"], "server_error");
    let done = world.log.steps_done(1).await.pop().unwrap();
    let charge = done.charge.unwrap().amount;
    assert_eq!((done.code, charge.tokens, charge.usd), (Some(Code::UpstreamUnreachable), 0, Usd(0)));
    let decided =
        world.log.steps().into_iter().find(|(_, phase, _)| *phase == Some(Phase::Decided)).unwrap().2;
    assert!(decided.charge.unwrap().amount.tokens > 0, "it was held before");
    world.log.settled().await;
}
