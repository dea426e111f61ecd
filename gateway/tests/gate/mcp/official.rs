//! Official clients and servers, unchanged: what they see through the gateway is what they see without it.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use strait_contract::{
    message::PolicyFile,
    tool::{Kind, Tool},
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};

use crate::{
    tools::tools,
    world::{GATEWAY, Options, TOKEN, World},
};

const GROUPS: [&str; 7] =
    ["resources", "prompts", "completion", "logging", "sampling", "elicitation", "roots"];
const ALL: &str = r#"
@id("tools") permit(principal, action in Action::"tools/call", resource in Tool::"all");
@id("methods") permit(principal, action == Action::"mcp/method", resource == Tool::"all");
"#;

/// Where `cargo xtask setup` has put the official parts.
fn parts() -> PathBuf {
    let parts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/clients/mcp");
    assert!(parts.join("ready").exists(), "the official MCP parts are missing: cargo xtask setup");
    parts.canonicalize().unwrap()
}

fn source(name: &str) -> String {
    format!("{}/tests/gate/mcp/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A server, ended with the test.
pub struct Server {
    pub port: u16,
    _child: Child,
}

impl Server {
    /// Another test may take the port before the server does: then it ends, and gets another.
    pub async fn start(command: fn() -> Command) -> Self {
        for _ in 0..5 {
            let port = std::net::TcpListener::bind((GATEWAY, 0)).unwrap().local_addr().unwrap().port();
            let mut command = command();
            let quiet = command.env("PORT", port.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
            let mut child =
                quiet.stderr(Stdio::null()).kill_on_drop(true).spawn().expect("cargo xtask setup");
            for _ in 0..600 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if child.try_wait().unwrap().is_some() {
                    break;
                }
                if TcpStream::connect((GATEWAY, port)).await.is_ok() {
                    // Somebody listens: the server, if it is still there in a moment.
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    if child.try_wait().unwrap().is_none() {
                        return Self { port, _child: child };
                    }
                }
            }
        }
        panic!("the server did not start");
    }

    /// `server-everything` of npm.
    async fn everything() -> Self {
        Self::start(|| {
            let mut command = Command::new("node");
            let main = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
            command.current_dir(parts()).args([main, "streamableHttp"]);
            command
        })
        .await
    }

    /// A server made with FastMCP of PyPI.
    async fn fast() -> Self {
        Self::start(|| {
            let mut command = Command::new(parts().join("py/bin/python"));
            command.arg(source("server.py"));
            command
        })
        .await
    }

    fn url(&self) -> String {
        format!("http://{GATEWAY}:{}/mcp", self.port)
    }

    async fn world(&self, name: &str, methods: &[&str], files: &[PolicyFile]) -> Arc<World> {
        let url = format!("http://ok.test:{}/mcp", self.port);
        let methods = methods.iter().map(|method| (*method).to_owned()).collect();
        let kind = Kind::Mcp { url, methods };
        let tool = Tool { name: name.parse().unwrap(), kind, credential: None, headers: Vec::new() };
        let world = World::new(Options { tools: tools(vec![tool]), ..Options::default() }).await;
        world.agent.as_ref().unwrap().policies(2, files).await;
        Arc::new(world)
    }
}

fn policy(text: &str) -> PolicyFile {
    PolicyFile { name: "test.cedar".to_owned(), guardrail: false, text: text.to_owned() }
}

/// The kernel's part: connections of the run to the gateway's address. Gives the address of the test's own.
pub async fn redirected(world: &Arc<World>) -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [high, low] = u16::try_from(std::process::id() % 65_536).unwrap().to_be_bytes();
    let addr = Ipv4Addr::new(127, high | 128, low, NEXT.fetch_add(1, Ordering::Relaxed));
    let listener = TcpListener::bind((addr, 80)).await.expect("port 80 of a loopback address, for root");
    let world = Arc::clone(world);
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let mut to = world.connect_to_proxy().await;
            tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut from, &mut to).await) });
        }
    });
    addr
}

/// What a client saw.
async fn seen(mut command: Command, script: Option<&str>, url: &str, token: &str) -> Value {
    let command = command.env("URL", url).env("TOKEN", token).kill_on_drop(true);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cargo xtask setup");
    let mut stdin = child.stdin.take().unwrap();
    if let Some(script) = script {
        stdin.write_all(&std::fs::read(source(script)).unwrap()).await.unwrap();
    }
    drop(stdin);
    let output =
        tokio::time::timeout(Duration::from_secs(120), child.wait_with_output()).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

async fn typescript(what: &str, to: To<'_>) -> Value {
    let mut command = Command::new("node");
    command.current_dir(parts()).args(["--input-type=module", "-"]).env("WHAT", what);
    let (url, token) = match to {
        To::Server(server) => (server.url(), ""),
        To::Gateway(addr, tool) => {
            command.env("ADDRESS", addr.to_string());
            (format!("http://strait.internal/mcp/{tool}"), TOKEN)
        }
    };
    seen(command, Some("official.mjs"), &url, token).await
}

async fn python(to: To<'_>) -> Value {
    let (url, token) = match to {
        To::Server(server) => (server.url(), ""),
        To::Gateway(addr, tool) => (format!("http://{addr}/mcp/{tool}"), TOKEN),
    };
    let mut command = Command::new(parts().join("py/bin/python"));
    command.arg(source("official.py"));
    seen(command, None, &url, token).await
}

/// Whom a client speaks to.
#[derive(Clone, Copy)]
enum To<'a> {
    Server(&'a Server),
    Gateway(Ipv4Addr, &'a str),
}

/// A5, cases 57, 58: everything opted into and permitted, the gateway can't be told from none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_sees_what_it_sees_without_a_gateway_a5_case_57() {
    let server = Server::everything().await;
    let world = server.world("all", &GROUPS, &[policy(ALL)]).await;
    let gateway = To::Gateway(redirected(&world).await, "all");
    let (mut direct, mut through) =
        tokio::join!(typescript("everything", To::Server(&server)), typescript("everything", gateway));
    for (name, saw) in direct.as_object_mut().unwrap() {
        assert_eq!(*saw, through[name], "{name}");
    }
    assert_eq!(through["resumed"]["content"][0]["type"], "text", "{through:#}");
    assert_eq!(through["progress"], json!(["1/4", "2/4", "3/4", "4/4"]));
    assert_eq!(through["gone"], "refused");
    assert_eq!(through["sampling"].to_string().matches("sampled 7").count(), 1);
    assert!(through.as_object_mut().unwrap().len() > 25);
    world.log.settled().await;
    world.log.check_steps();
}

/// A7, A8, A23: a run that may do little is shown little, and is told why by its own client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_is_shown_what_it_may_do_and_told_why_not_a7_a23() {
    let server = Server::everything().await;
    let rule = r#"@id("little") permit(principal, action in Action::"tools/call", resource in Tool::"all")
        when { ["echo", "get-sum"].contains(resource.name) };"#;
    let world = server.world("all", &[], &[policy(rule)]).await;
    let saw = typescript("some", To::Gateway(redirected(&world).await, "all")).await;
    assert_eq!(saw["tools"], json!(["echo", "get-sum"]));
    assert_eq!(saw["capabilities"], json!(["tools"]));
    assert_eq!(saw["echo"]["content"][0]["text"], "Echo: hi");
    let told = saw["env"]["failed"].as_str().unwrap();
    assert!(told.contains("TOOL_CALL_DENIED") && told.contains("record"), "{told}");
}

/// Case 61 in both eras: the official Python client, a FastMCP server, a rule about an argument. (A5, A6.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_eras_are_decided_on_arguments_case_61() {
    let server = Server::fast().await;
    let listed = {
        let world = server.world("bank", &[], &[policy(&ALL.replace("\"all\"", "\"bank\""))]).await;
        let gateway = To::Gateway(redirected(&world).await, "bank");
        let (direct, through) = tokio::join!(python(To::Server(&server)), python(gateway));
        assert_eq!(direct, through, "everything permitted");
        through
    };
    assert_eq!(
        (&listed["legacy"]["version"], &listed["auto"]["version"]),
        (&json!("2025-11-25"), &json!("2026-07-28"))
    );
    let pin =
        PolicyFile { name: "../tools/bank.json".to_owned(), guardrail: false, text: pinned(&server).await };
    let rules = r#"
        @id("pays") permit(principal, action == Action::"bank/pay", resource) when { context.arguments.amount <= 100 };
        @id("reads") permit(principal, action in [Action::"bank/read", Action::"bank/slow"], resource);
    "#;
    let world = server.world("bank", &[], &[pin, policy(rules)]).await;
    let saw = python(To::Gateway(redirected(&world).await, "bank")).await;
    for era in ["legacy", "auto"] {
        let saw = &saw[era];
        assert_eq!(saw["tools"], json!(["pay", "read", "slow"]), "{saw}");
        assert_eq!(saw["pay 100"], json!([false, "paid 100 to nobody"]));
        assert_eq!(saw["read"], json!([false, "balance of ä"]));
        assert_eq!(saw["progress"], json!([[1.0, 3.0], [2.0, 3.0], [3.0, 3.0]]));
        for refused in ["pay 101", "pay '100'", "missing", "hidden"] {
            assert_eq!(saw[refused][0], "failed", "{refused}: {saw}");
            let told = saw[refused][1].as_str().unwrap();
            assert!(told.contains("TOOL_CALL_DENIED") || told.contains("POLICY_ERROR"), "{refused}: {told}");
        }
    }
    world.log.settled().await;
    world.log.check_steps();
}

/// The server's own list, as `strait tool pin` would keep it.
async fn pinned(server: &Server) -> String {
    let world = server.world("bank", &[], &[policy(&ALL.replace("\"all\"", "\"bank\""))]).await;
    let got = world
        .call(
            "/mcp/bank",
            &[
                "-X", "POST", "-H", "Content-Type: application/json", "-H", "Accept: application/json, text/event-stream",
                "-H", "MCP-Protocol-Version: 2026-07-28", "-H", "Mcp-Method: tools/list", "--data-binary",
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#,
            ],
        )
        .await;
    let text = got.text();
    let json = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text).to_owned();
    let list: Value = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{got:?}"));
    json!({"tools": list["result"]["tools"]}).to_string()
}
