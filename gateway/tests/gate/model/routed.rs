//! Calls of models that the operator's routes send elsewhere (A18, case 75).

use strait_contract::{
    provider::{Dialect, Providers},
    record::{ModelStep, Step},
};

use super::{
    CHAT_ANSWER, KEY,
    provider::{Provider, Reply},
    told,
};
use crate::world::{Options, World};

const ANTHROPIC_ANSWER: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-haiku-4-5","content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":2}}"#;
const CHAT: &str = r#"{"model":"gpt-5","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}"#;
const PATH: &str = "/model/openai/v1/chat/completions";

/// A world with two providers, one of each API, and these routes.
async fn world(routes: &str, openai: Reply, anthropic: Reply) -> (World, Provider, Provider) {
    let (openai, anthropic) = (Provider::new(openai).await, Provider::new(anthropic).await);
    let providers = Providers {
        providers: vec![told(Dialect::OpenAi, openai.port()), told(Dialect::Anthropic, anthropic.port())],
        rules: routes.to_owned(),
        ..Providers::default()
    };
    let world = World::new(Options { providers, ..Options::default() }).await;
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![Ok(KEY.to_owned()); 2]);
    (world, openai, anthropic)
}

async fn steps(world: &World, count: usize) -> Vec<(ModelStep, Step)> {
    let steps = world.log.steps_done(count).await;
    steps.into_iter().map(|step| (*step.model.clone().unwrap(), step)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_a_route_names_another_model_and_the_trace_says_so() {
    let routes = "[[routes]]\nname = \"cheap\"\nmodels = [\"openai/gpt-5\"]\nto = \"openai/gpt-5-mini\"\n";
    let (world, openai, _) = world(routes, Reply::json(CHAT_ANSWER), Reply::json("")).await;
    let got = world.call(PATH, &["-d", CHAT]).await;
    assert_eq!((got.status, got.body.as_slice()), (200, CHAT_ANSWER.as_bytes()));
    // Only that span differs (case 77).
    assert_eq!(openai.last().body, CHAT.replace("gpt-5", "gpt-5-mini").as_bytes());
    let (model, _) = steps(&world, 1).await.remove(0);
    assert_eq!((model.asked.as_str(), model.route.as_deref()), ("gpt-5", Some("cheap")));
    // The control: what no rule is for goes as it came.
    world.call(PATH, &["-d", &CHAT.replace("gpt-5", "gpt-4o")]).await;
    assert_eq!(openai.last().body, CHAT.replace("gpt-5", "gpt-4o").as_bytes());
    assert_eq!(steps(&world, 2).await.remove(1).0.route, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_a_route_to_another_api_speaks_it_and_answers_in_the_clients_words() {
    let routes = "[[routes]]\nto = \"anthropic/claude-haiku-4-5\"\n";
    let (world, openai, anthropic) =
        world(routes, Reply::json(CHAT_ANSWER), Reply::json(ANTHROPIC_ANSWER)).await;
    let got = world.call(PATH, &["-d", CHAT]).await;
    let answer: serde_json::Value = serde_json::from_slice(&got.body).unwrap();
    assert_eq!(got.status, 200, "{answer}");
    assert_eq!(answer["choices"][0]["message"]["content"], "hello", "{answer}");
    assert_eq!(answer["usage"]["total_tokens"], 11, "{answer}");
    assert!(openai.seen().is_empty());
    let seen = anthropic.last();
    assert!(seen.line.starts_with("POST /v1/messages "), "{seen:?}");
    assert_eq!(seen.json()["model"], "claude-haiku-4-5");
    assert_eq!(seen.json()["messages"][0]["role"], "user");
    assert_eq!((seen.header("x-api-key"), seen.header("authorization")), (Some(KEY), None));
    let (model, _) = steps(&world, 1).await.remove(0);
    assert_eq!((model.provider.as_str(), model.asked.as_str()), ("anthropic", "openai/gpt-5"));
    let tokens = model.tokens.unwrap();
    assert_eq!((tokens.input, tokens.output), (9, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_a_stream_from_another_api_comes_in_the_clients_words() {
    let events: Vec<String> = [
        r#"{"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"claude-haiku-4-5","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":1}}}"#,
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}"#,
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}"#,
        r#"{"type":"message_stop"}"#,
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let routes = "[[routes]]\nto = \"anthropic/claude-haiku-4-5\"\n";
    let whole = Reply::events(&events);
    let (world, _, anthropic) = world(routes, Reply::json(""), whole.clone()).await;
    let body = CHAT.replace("{\"model\"", "{\"stream\":true,\"model\"");
    let got = world.call(PATH, &["-N", "-d", &body]).await;
    let text = String::from_utf8(got.body).unwrap();
    assert!(text.contains("\"content\":\"hello\"") && text.contains("chat.completion.chunk"), "{text}");
    assert!(text.trim_end().ends_with("data: [DONE]") && !text.contains("\"usage\":{"), "{text}");
    let (model, _) = steps(&world, 1).await.remove(0);
    let tokens = model.tokens.unwrap();
    assert_eq!((tokens.input, tokens.output, model.complete), (9, 2, true));
    // Cut on its way, it is no clean end (case 75).
    let cut = Reply { chunks: whole.chunks[..3].to_vec(), ..whole }.breaking();
    anthropic.answers(cut);
    let got = world.call(PATH, &["-N", "-d", &body]).await;
    let text = String::from_utf8(got.body).unwrap();
    assert!(text.contains("hello") && !text.contains("[DONE]") && text.contains("error"), "{text}");
    assert!(!steps(&world, 2).await.remove(1).0.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_what_fails_before_it_answers_falls_back_and_both_tries_are_on_record_case_75() {
    let routes = "[[routes]]\nname = \"safe\"\nfallback = [\"anthropic/claude-haiku-4-5\"]\n";
    let overloaded = Reply::json(r#"{"error":{"message":"busy","type":"server_error"}}"#).status(503);
    let (world, openai, anthropic) = world(routes, overloaded, Reply::json(ANTHROPIC_ANSWER)).await;
    let got = world.call(PATH, &["-d", CHAT]).await;
    assert_eq!(got.status, 200);
    assert!(String::from_utf8_lossy(&got.body).contains("hello"));
    assert_eq!((openai.seen().len(), anthropic.seen().len()), (1, 1));
    let steps = steps(&world, 2).await;
    let status: Vec<_> = steps.iter().map(|(model, step)| (model.provider.as_str(), step.status)).collect();
    assert_eq!(status, [("openai", Some(503)), ("anthropic", Some(200))]);
    assert!(steps[0].1.parent.is_none() && steps[1].1.parent.is_some());
    // What is the request's own fault would be elsewhere too.
    openai.answers(Reply::json(r#"{"error":{"message":"no","type":"invalid_request_error"}}"#).status(400));
    let got = world.call(PATH, &["-d", CHAT]).await;
    assert_eq!((got.status, anthropic.seen().len()), (400, 1));
    // Once it has begun to answer, its answer stands.
    openai.answers(Reply::json("{\"id\":\"c\",").breaking());
    let got = world.call(PATH, &["-d", CHAT]).await;
    assert!(got.body.starts_with(b"{\"id\"") || got.status != 200, "{got:?}");
    assert_eq!(anthropic.seen().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_what_another_api_cant_say_is_refused_by_name_and_goes_nowhere() {
    let routes = "[[routes]]\nto = \"anthropic/claude-haiku-4-5\"\n";
    let (world, openai, anthropic) =
        world(routes, Reply::json(CHAT_ANSWER), Reply::json(ANTHROPIC_ANSWER)).await;
    let got = world.call(PATH, &["-d", &CHAT.replace("{\"model\"", "{\"logprobs\":true,\"model\"")]).await;
    let text = String::from_utf8_lossy(&got.body).into_owned();
    assert_eq!(got.status, 403, "{text}");
    assert!(text.contains("logprobs"), "{text}");
    assert!(openai.seen().is_empty() && anthropic.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_the_version_of_the_api_is_named_once_wherever_a_provider_has_it() {
    let (openai, anthropic) =
        (Provider::new(Reply::json(CHAT_ANSWER)).await, Provider::new(Reply::json(ANTHROPIC_ANSWER)).await);
    let mut eos = told(Dialect::OpenAi, openai.port());
    eos.name = "eos".parse().unwrap();
    eos.url = format!("http://ok.test:{}/base/v1", openai.port());
    let providers = Providers {
        providers: vec![
            told(Dialect::OpenAi, openai.port()),
            eos,
            told(Dialect::Anthropic, anthropic.port()),
        ],
        rules: "[[routes]]\nto = \"eos/llama\"\n".to_owned(),
        ..Providers::default()
    };
    let world = World::new(Options { providers, ..Options::default() }).await;
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![Ok(KEY.to_owned()); 2]);
    assert_eq!(world.call(PATH, &["-d", CHAT]).await.status, 200);
    assert!(openai.last().line.starts_with("POST /base/v1/chat/completions "), "{:?}", openai.last());
    let messages = CHAT.replace("gpt-5", "claude");
    assert_eq!(world.call("/model/anthropic/v1/messages", &["-d", &messages]).await.status, 200);
    assert!(openai.last().line.starts_with("POST /base/v1/chat/completions "), "{:?}", openai.last());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a18_a_model_that_path_and_body_name_differently_is_refused_case_69() {
    let (world, gemini) = super::world(Dialect::Gemini, Reply::json("{}")).await;
    let path = "/model/gemini/v1beta/models/gemini-2.5-pro:generateContent";
    let body = |model: &str| format!("{{\"model\":\"models/{model}\",\"contents\":[]}}");
    assert_eq!(world.call(path, &["-d", &body("gemini-2.5-flash")]).await.status, 400);
    assert!(gemini.seen().is_empty());
    assert_eq!(world.call(path, &["-d", &body("gemini-2.5-pro")]).await.status, 200);
}
