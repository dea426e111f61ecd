//! Official clients of model APIs, set up by nothing but base URL and key, with third-party mocks behind the gateway: what
//! they see is what they see without it, and what they used is counted.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use strait_contract::{
    model::Tokens,
    provider::{Content, Dialect, Provider, Providers},
};
use tokio::{io::AsyncWriteExt as _, process::Command};

use super::{KEY, told};
use crate::{
    mcp::official::{Server, redirected},
    world::{GATEWAY, Options, TOKEN, World},
};

/// Where `cargo xtask setup` has put them.
fn parts() -> PathBuf {
    let parts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/clients/model");
    assert!(parts.join("ready").exists(), "the official clients of models are missing: cargo xtask setup");
    parts.canonicalize().unwrap()
}

fn source(name: &str) -> String {
    format!("{}/tests/gate/model/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// `aimock` of npm: all three APIs.
async fn aimock() -> Server {
    Server::start(|| {
        let mut command = Command::new("sh");
        let main = "node_modules/@copilotkit/aimock/dist/cli.js";
        let line = format!("exec node {main} -h {GATEWAY} -p $PORT -f {}", source("fixtures.json"));
        command.current_dir(parts()).args(["-c", &line]);
        command
    })
    .await
}

/// `fakellm` of PyPI: chat without a word on what was used.
async fn fakellm() -> Server {
    Server::start(|| {
        let mut command = Command::new("sh");
        // It wants a configuration, and writes one.
        let line = format!(
            "test -e fakellm.yaml || py/bin/fakellm init; exec py/bin/fakellm serve --host {GATEWAY} --port $PORT"
        );
        command.current_dir(parts()).args(["-c", &line]);
        command
    })
    .await
}

async fn world(port: u16) -> (Arc<World>, Ipv4Addr) {
    let of = |dialect| Provider { content: Content::Hash, ..told(dialect, port) };
    let providers = [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini].map(of).to_vec();
    let providers = Providers { providers, ..Providers::default() };
    let world = Arc::new(World::new(Options { providers, ..Options::default() }).await);
    world.log.credentials.lock().unwrap().insert("key".to_owned(), vec![Ok(KEY.to_owned())]);
    let addr = redirected(&world).await;
    (world, addr)
}

/// What a client saw: of the mock itself, or through the gateway.
async fn saw(script: &str, to: Result<u16, Ipv4Addr>) -> Value {
    let python = script.ends_with(".py");
    let mut command = if python { Command::new(parts().join("py/bin/python")) } else { Command::new("node") };
    if python {
        command.arg(source(script));
    } else {
        command.args(["--input-type=module", "-"]);
    }
    let (base, key) = match to {
        Ok(port) => (format!("http://{GATEWAY}:{port}"), "dummy"),
        Err(addr) => {
            command.env("ADDRESS", addr.to_string());
            ("http://strait.internal/model/".to_owned(), TOKEN)
        }
    };
    let of = |name: &str| if to.is_ok() { base.clone() } else { format!("{base}{name}") };
    let mut child = command
        .current_dir(parts())
        .env("OPENAI_BASE_URL", format!("{}/v1", of("openai")))
        .env("ANTHROPIC_BASE_URL", of("anthropic"))
        .env("GOOGLE_GEMINI_BASE_URL", of("gemini"))
        .envs(["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"].map(|name| (name, key)))
        .env_remove("ANTHROPIC_AUTH_TOKEN")
        .env_remove("GOOGLE_API_KEY")
        .kill_on_drop(true)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cargo xtask setup");
    let mut stdin = child.stdin.take().unwrap();
    if !python {
        stdin.write_all(&std::fs::read(source(script)).unwrap()).await.unwrap();
    }
    drop(stdin);
    let output =
        tokio::time::timeout(Duration::from_secs(300), child.wait_with_output()).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// A15, A16: nothing but base URL and key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn official_clients_see_what_they_see_without_a_gateway_a15_a16() {
    let mock = aimock().await;
    let (world, addr) = world(mock.port).await;
    let mut calls = 0;
    for script in ["official.py", "official.mjs"] {
        let (direct, through) = tokio::join!(saw(script, Ok(mock.port)), saw(script, Err(addr)));
        assert_eq!(direct, through, "{script}");
        let all = through.as_object().unwrap();
        assert!(all.values().all(|value| value.get("failed").is_none()), "{through:#}");
        calls += all.len();
    }
    assert!(calls >= 13);
    let steps = world.log.steps_done(calls).await;
    assert_eq!(steps.len(), calls, "no client has tried anything twice");
    for step in steps {
        let model = step.model.clone().unwrap();
        let Tokens { input, output, estimated, .. } = model.tokens.clone().unwrap();
        let expect = if output == 11 { (31, 11) } else { (23, 19) };
        assert_eq!(((input, output), estimated), (expect, false), "{step:#?}");
        assert!(model.complete && model.cost.is_some() && model.attempts == 1, "{step:#?}");
    }
    world.log.settled().await;
    world.log.check_steps();
    assert!(!world.log.text().contains(TOKEN));
}

/// A16: an upstream that says nothing of what was used is estimated, and the estimate is marked as one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_provider_doesnt_count_is_estimated_a16_case_63() {
    let mock = fakellm().await;
    let (world, _) = world(mock.port).await;
    let body = r#"{"model":"gpt-5","stream":true,"messages":[{"role":"user","content":"say something longer than this"}]}"#;
    let got = world.call("/model/openai/v1/chat/completions", &["-d", body]).await;
    assert_eq!(got.status, 200, "{got:?}");
    assert!(got.text().trim_end().ends_with("data: [DONE]"), "{got:?}");
    let step = world.log.steps_done(1).await.pop().unwrap();
    let tokens = step.model.unwrap().tokens.unwrap();
    assert!(tokens.estimated && tokens.input > 5 && tokens.output > 0, "{tokens:?}");
}
