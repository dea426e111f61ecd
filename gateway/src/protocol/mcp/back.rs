//! What the gateway itself says to a server, on record like everything else.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Method, Request, Version, header};
use http_body_util::BodyExt as _;
use strait_policies::{Arguments, json::Json};

use super::{exchange::Exchange, headers, session::Session};
use crate::{
    call::{Call, HttpCall, McpCall, Via, What},
    decide::decide,
    forward,
    pipeline::Context,
    protocol::http::body::Payload,
    tools::{Kind, Tool},
    url::Target,
};

/// How long saying something may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where to say it.
pub(super) struct Server {
    context: Context,
    tool: Arc<Tool>,
    session: Option<Arc<Session>>,
    version: Option<HeaderValue>,
}

/// What is said.
pub(super) struct Word {
    method: &'static str,
    text: String,
}

impl Server {
    pub(super) fn of(exchange: &Exchange) -> Self {
        Self {
            context: exchange.context.clone(),
            tool: Arc::clone(&exchange.tool),
            session: exchange.session.clone(),
            version: exchange.version.clone(),
        }
    }
}

/// That nobody waits for the answer to a request.
pub(super) fn cancelled(id: &Json) -> Word {
    let text = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the client went away"}}}}"#
    );
    Word { method: "notifications/cancelled", text }
}

/// That a question of the server's was not passed on.
pub(super) fn not_asked(id: &Json, reason: &str) -> Word {
    let reason = Json::Text(reason.to_owned());
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":{reason}}}}}"#);
    Word { method: "response", text }
}

/// Says it, without anybody waiting.
pub(super) fn say(server: Server, word: Word) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        let run = Arc::clone(&server.context.caller.run);
        let said = tokio::time::timeout(PATIENCE, Box::pin(send(server, word)));
        tokio::select! {
            _ = said => {}
            () = run.ended() => {}
        }
    });
}

/// The request that carries a message of so many bytes.
pub(super) fn http(tool: &Arc<Tool>, url: &Target, bytes: usize) -> HttpCall {
    HttpCall {
        method: Method::POST,
        target: url.clone(),
        version: Version::HTTP_11,
        body_bytes: u64::try_from(bytes).ok(),
        content_type: Some("application/json".to_owned()),
        query: Vec::new(),
        tool: Some(Arc::clone(tool)),
        model: None,
    }
}

async fn send(server: Server, word: Word) {
    let Server { context, tool, session, version } = server;
    let Kind::Mcp { url, .. } = &tool.kind else { return };
    let mut fields = HeaderMap::new();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    fields.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    if let Some(session) = session {
        fields.insert(headers::SESSION, session.theirs.clone());
    }
    if let Some(version) = version {
        fields.insert(headers::VERSION, version);
    }
    let call = McpCall {
        http: http(&tool, url, word.text.len()),
        method: word.method.to_owned(),
        name: None,
        arguments: Arguments::none(),
        protocol: true,
        inbound: false,
        shown: None,
        ongoing: None,
    };
    let call = Call::new(Arc::clone(&context.caller), Via::Tool, What::Mcp(Box::new(call)));
    let Ok(permitted) = decide(&context.gateway, call).await else { return };
    let mut request = Request::new(Payload::whole(word.text.into()));
    *request.method_mut() = Method::POST;
    *request.headers_mut() = fields;
    let mut answer = Box::pin(forward::send(&context, permitted, request)).await.into_body();
    while let Some(Ok(_)) = answer.frame().await {}
}
