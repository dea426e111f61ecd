//! A small real MCP server over streamable HTTP that notes what it is sent.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};

use crate::world::GATEWAY;

pub const UPSTREAM_SESSION: &str = "the-upstreams-own-name";

#[derive(Clone, Debug)]
pub struct Said {
    pub method: Method,
    pub headers: HeaderMap,
    pub text: String,
    pub json: Value,
}

#[derive(Default)]
pub struct State {
    pub said: Vec<Said>,
    /// Pages of `tools/list`: tools, and the next cursor.
    pub pages: Vec<(Vec<Value>, Option<String>)>,
    /// Whether it has forgotten its sessions.
    pub forgetful: bool,
    /// Streams whose client has gone.
    pub dropped: u32,
}

pub struct Server {
    pub addr: SocketAddr,
    pub state: Arc<Mutex<State>>,
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

pub fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("does {name}"), "inputSchema": {"type": "object"}})
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind((GATEWAY, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(Arc::clone(&state), request));
                    let http1 = hyper::server::conn::http1::Builder::new();
                    let _ = http1.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { addr, state }
    }

    pub fn said(&self) -> Vec<Said> {
        self.state.lock().unwrap().said.clone()
    }

    /// Messages with this method.
    pub fn said_of(&self, method: &str) -> Vec<Said> {
        self.said().into_iter().filter(|said| said.json["method"] == method).collect()
    }

    /// Waits for the first message for which this holds.
    pub async fn hears(&self, what: impl Fn(&Said) -> bool) -> Said {
        for _ in 0..500 {
            if let Some(said) = self.said().into_iter().find(&what) {
                return said;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the server did not hear it: {:#?}", self.said());
    }
}

fn full(status: u16, media: &str, text: String) -> Answer {
    let response = Response::builder().status(status).header("content-type", media);
    response.body(Full::new(Bytes::from(text)).boxed()).unwrap()
}

fn result(id: &Value, result: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string()
}

pub fn event(json: &Value) -> String {
    format!("event: message\ndata: {json}\n\n")
}

async fn answer(state: Arc<Mutex<State>>, request: Request<Incoming>) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&body).into_owned();
    let json: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    let said = Said { method: head.method.clone(), headers: head.headers.clone(), text, json: json.clone() };
    let forgetful = {
        let mut state = state.lock().unwrap();
        state.said.push(said);
        state.forgetful
    };
    let in_session = head.headers.contains_key("mcp-session-id");
    if forgetful && in_session {
        return Ok(full(
            404,
            "application/json",
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#.to_owned(),
        ));
    }
    if head.method == Method::DELETE {
        return Ok(full(200, "application/json", String::new()));
    }
    if head.method == Method::GET {
        let from = head.headers.get("last-event-id").map(|id| id.to_str().unwrap().to_owned());
        return Ok(stream(state, move |tell| async move {
            let progress = json!({"jsonrpc":"2.0","method":"notifications/tools/list_changed"});
            match from {
                Some(from) => {
                    let list =
                        json!({"jsonrpc":"2.0","id":77,"result":{"tools":[tool("read"), tool("hidden")]}});
                    tell.send(format!("id: {from}-next\n{}", event(&list))).await.ok()?;
                }
                None => tell.send(event(&progress)).await.ok()?,
            }
            tell.closed().await;
            None
        }));
    }
    let id = &json["id"];
    if id.is_null() || json["method"].is_null() {
        return Ok(full(202, "application/json", String::new()));
    }
    Ok(match json["method"].as_str().unwrap() {
        "initialize" => {
            let all = json!({"protocolVersion": json["params"]["protocolVersion"], "serverInfo": {"name": "small", "version": "1"},
                "capabilities": {"tools": {"listChanged": true}, "resources": {}, "prompts": {}, "logging": {}, "completions": {}, "tasks": {}, "experimental": {"x": {}}}});
            let mut response = full(200, "application/json", result(id, all));
            response.headers_mut().insert("mcp-session-id", UPSTREAM_SESSION.parse().unwrap());
            response
        }
        "tools/list" => {
            let at = json["params"]["cursor"].as_str().map_or(0, |cursor| cursor.parse().unwrap());
            let (tools, next) = state.lock().unwrap().pages[at].clone();
            let mut page = json!({"tools": tools});
            if let Some(next) = next {
                page["nextCursor"] = next.into();
            }
            full(200, "application/json", result(id, page))
        }
        "tools/call" => return Ok(called(state, &json)),
        "resources/read" => full(
            200,
            "application/json",
            result(id, json!({"contents": [{"uri": json["params"]["uri"], "text": "here"}]})),
        ),
        _ => full(200, "application/json", result(id, json!({}))),
    })
}

fn called(state: Arc<Mutex<State>>, json: &Value) -> Answer {
    let id = json["id"].clone();
    let arguments = json["params"]["arguments"].clone();
    let done = json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": arguments.to_string()}]}});
    match json["params"]["name"].as_str().unwrap() {
        "progress" => stream(state, move |tell| async move {
            for step in 1..=3 {
                let progress = json!({"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":step}});
                tell.send(event(&progress)).await.ok()?;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            tell.send(event(&done)).await.ok()
        }),
        "asks" => stream(state, move |tell| async move {
            let sampling = json!({"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage","params":{"messages":[],"maxTokens":7}});
            let ping = json!({"jsonrpc":"2.0","id":"p1","method":"ping"});
            tell.send(event(&ping) + &event(&sampling)).await.ok()?;
            tokio::time::sleep(Duration::from_millis(500)).await;
            tell.send(event(&done)).await.ok()
        }),
        "silent" => stream(state, |tell| async move {
            tell.closed().await;
            None
        }),
        "resumable" => stream(state, |tell| async move {
            tell.send("id: e-1\ndata: \n\n".to_owned()).await.ok()?;
            tell.closed().await;
            None
        }),
        "round" => full(
            200,
            "application/json",
            result(
                &id,
                json!({"resultType": "input_required", "inputRequests": {"a": {"method": "elicitation/create", "params": {}}}}),
            ),
        ),
        "html" => full(200, "text/html", "<p>no".to_owned()),
        "twice" => full(
            200,
            "application/json",
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}},"result":{{"content":[]}}}}"#),
        ),
        "broken" => full(500, "text/plain", "it broke".to_owned()),
        "echoes" => full(
            200,
            "application/json",
            result(
                &id,
                json!({"content": [{"type": "text", "text": format!("{:?}", state.lock().unwrap().said.last().unwrap().headers)}]}),
            ),
        ),
        _ => full(200, "application/json", done.to_string()),
    }
}

fn stream<F, R>(state: Arc<Mutex<State>>, script: F) -> Answer
where
    F: FnOnce(mpsc::Sender<String>) -> R + Send + 'static,
    R: Future<Output = Option<()>> + Send + 'static,
{
    let (tell, mut told) = mpsc::channel::<String>(1);
    let closing = tell.clone();
    tokio::spawn(async move {
        closing.closed().await;
        state.lock().unwrap().dropped += 1;
    });
    let script = tokio::spawn(script(tell));
    let (frames, body) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                piece = told.recv() => match piece {
                    Some(piece) => if frames.send(Ok(Frame::data(Bytes::from(piece)))).await.is_err() { break },
                    None => break,
                },
                () = frames.closed() => break,
            }
            if script.is_finished() && told.is_empty() {
                break;
            }
        }
    });
    let body = StreamBody::new(futures_util::stream::unfold(body, |mut body| async move {
        body.recv().await.map(|frame| (frame, body))
    }));
    let response = Response::builder().status(StatusCode::OK).header("content-type", "text/event-stream");
    response.body(BodyExt::boxed(body)).unwrap()
}
