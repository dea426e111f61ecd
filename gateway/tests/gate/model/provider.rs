//! A provider of models that remembers what reached it and answers as the test says, byte for byte.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderMap, HeaderName};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::world::GATEWAY;

/// A request as the provider saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub line: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// What it answers.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub chunks: Vec<Vec<u8>>,
    /// Each chunk but the first waits for a permit of [`Provider::go`].
    pub gated: bool,
    /// The connection breaks off instead of the last chunk's end.
    pub breaks: bool,
}

impl Reply {
    pub fn json(text: &str) -> Self {
        Self {
            status: 200,
            headers: vec![("content-type", "application/json".to_owned())],
            chunks: vec![text.as_bytes().to_vec()],
            gated: false,
            breaks: false,
        }
    }

    /// A stream of these events' data.
    pub fn events(events: &[&str]) -> Self {
        let chunks = events.iter().map(|event| format!("data: {event}\n\n").into_bytes()).collect();
        Self { headers: vec![("content-type", "text/event-stream".to_owned())], chunks, ..Self::json("") }
    }

    pub fn gated(self) -> Self {
        Self { gated: true, ..self }
    }

    pub fn breaking(self) -> Self {
        Self { breaks: true, ..self }
    }

    pub fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Everything that it sends, one after the other.
    pub fn bytes(&self) -> Vec<u8> {
        self.chunks.concat()
    }
}

pub struct Provider {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    reply: Arc<Mutex<Reply>>,
    pub go: Arc<Semaphore>,
}

impl Provider {
    pub async fn new(reply: Reply) -> Self {
        let listener = TcpListener::bind((GATEWAY, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, reply) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::new(Mutex::new(reply)));
        let go = Arc::new(Semaphore::new(0));
        let provider = Self { port, seen: Arc::clone(&seen), reply: Arc::clone(&reply), go: Arc::clone(&go) };
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (seen, reply, go) = (Arc::clone(&seen), Arc::clone(&reply), Arc::clone(&go));
                tokio::spawn(async move { serve(socket, &seen, &reply, &go).await });
            }
        });
        provider
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn answers(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn last(&self) -> Seen {
        self.seen().pop().expect("nothing reached the provider")
    }
}

async fn serve(mut socket: TcpStream, seen: &Mutex<Vec<Seen>>, reply: &Mutex<Reply>, go: &Semaphore) {
    while let Some(asked) = read(&mut socket).await {
        seen.lock().unwrap().push(asked);
        let reply = reply.lock().unwrap().clone();
        let mut head = format!("HTTP/1.1 {} X\r\ntransfer-encoding: chunked\r\n", reply.status);
        for (name, value) in &reply.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        socket.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
        for (at, chunk) in reply.chunks.iter().enumerate() {
            if reply.gated && at > 0 {
                let waited = tokio::time::timeout(Duration::from_secs(20), go.acquire()).await;
                waited.expect("the test never let the provider go on").unwrap().forget();
            }
            let framed = [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat();
            if chunk.is_empty() {
                continue;
            }
            if socket.write_all(&framed).await.is_err() {
                return;
            }
        }
        if reply.breaks {
            return;
        }
        if socket.write_all(b"0\r\n\r\n").await.is_err() {
            return;
        }
    }
}

async fn read(socket: &mut TcpStream) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if socket.read(&mut byte).await.ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let line = lines.next().unwrap().to_owned();
    let mut headers = HeaderMap::new();
    for field in lines.filter(|line| !line.is_empty()) {
        let (name, value) = field.split_once(':').unwrap();
        headers.append(name.parse::<HeaderName>().unwrap(), value.trim().parse().unwrap());
    }
    assert!(!headers.contains_key("transfer-encoding"), "the length of a model call is known: {headers:?}");
    let length = headers.get("content-length").map_or(0, |length| length.to_str().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    Some(Seen { line, headers, body })
}
