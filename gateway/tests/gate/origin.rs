//! Small real origins that remember what reached them.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::world::{Ca, GATEWAY};

/// A request as an origin saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub target: String,
    pub version: Version,
    pub headers: HeaderMap,
    pub body: usize,
}

pub struct Origin {
    pub addr: SocketAddr,
    pub seen: Arc<Mutex<Vec<Seen>>>,
    pub connections: Arc<Mutex<u32>>,
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

impl Origin {
    /// An HTTP origin, both versions, on a free port of loopback.
    pub async fn http() -> Self {
        Self::begin(None).await
    }

    /// The same over TLS, for these names.
    pub async fn https(ca: &Ca, names: &[&str]) -> Self {
        let (leaf, key) = ca.leaf(names);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.unwrap().with_no_client_auth().with_single_cert(vec![leaf], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self::begin(Some(Arc::new(config))).await
    }

    async fn begin(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind((GATEWAY, 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (seen, connections) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::<Mutex<u32>>::default());
        let origin = Self { addr, seen: Arc::clone(&seen), connections: Arc::clone(&connections) };
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                *connections.lock().unwrap() += 1;
                let (seen, tls) = (Arc::clone(&seen), tls.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(Arc::clone(&seen), request));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    match tls {
                        None => {
                            drop(builder.serve_connection_with_upgrades(TokioIo::new(socket), service).await)
                        }
                        Some(tls) => {
                            let Ok(socket) = tokio_rustls::TlsAcceptor::from(tls).accept(socket).await else {
                                return;
                            };
                            drop(builder.serve_connection_with_upgrades(TokioIo::new(socket), service).await);
                        }
                    }
                });
            }
        });
        origin
    }

    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The only request so far.
    pub fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:#?}");
        seen.into_iter().next().unwrap()
    }
}

fn full(bytes: impl Into<Bytes>) -> BoxBody<Bytes, Infallible> {
    Full::new(bytes.into()).boxed()
}

async fn answer(seen: Arc<Mutex<Vec<Seen>>>, mut request: Request<Incoming>) -> Result<Answer, hyper::Error> {
    let path = request.uri().path().to_owned();
    if path == "/refuses-expect" {
        note(&seen, &request, 0);
        let mut response = Response::new(full("no"));
        *response.status_mut() = StatusCode::EXPECTATION_FAILED;
        return Ok(response);
    }
    if path == "/websocket" {
        note(&seen, &request, 0);
        return Ok(websocket(&mut request));
    }
    let (head, mut body) = request.into_parts();
    let (mut length, mut trailers) = (0, HeaderMap::new());
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => length += data.len(),
            Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    let mut request = Request::from_parts(head, ());
    request.headers_mut().extend(trailers);
    note(&seen, &request, length);
    Ok(match path.as_str() {
        "/moved" => {
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::FOUND;
            response.headers_mut().insert("location", "http://no.test/elsewhere".parse().unwrap());
            response
        }
        "/moved-by-name" => {
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
            response.headers_mut().insert("location", "/v1/moved".parse().unwrap());
            response
        }
        path if path.starts_with("/tells/") => tells(path, request.headers()),
        "/nothing" => {
            let mut response = Response::new(full(""));
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        "/trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let frames = [Frame::data(Bytes::from_static(b"message")), Frame::trailers(trailers)];
            Response::new(Frames(frames.into_iter()).boxed())
        }
        "/large" => {
            let piece = Bytes::from(vec![b'x'; 64 * 1024]);
            let frames = std::iter::repeat_n(piece, 512).map(Frame::data);
            Response::new(Frames(frames).boxed())
        }
        _ => {
            let mut response = Response::new(full(format!("hello from {path}")));
            response.headers_mut().insert("connection", "x-hop".parse().unwrap());
            response.headers_mut().insert("x-hop", "1".parse().unwrap());
            response.headers_mut().insert("x-end", "1".parse().unwrap());
            response
        }
    })
}

/// Tells the caller's credential back, in the way that the path names (A26).
fn tells(path: &str, headers: &HeaderMap) -> Answer {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let value = headers.get("authorization").map_or("nothing", |value| value.to_str().unwrap());
    let key = value.strip_prefix("Bearer ").unwrap_or(value).to_owned();
    let gzip = |text: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, text).unwrap();
        encoder.finish().unwrap()
    };
    let text = format!("your key is {key} and no other");
    let mut response = match path.trim_start_matches("/tells/") {
        "raw" => Response::new(full(text)),
        "base64" => Response::new(full(STANDARD.encode(format!("user:{key}")))),
        "url" => Response::new(full(format!("key={}", key.replace('/', "%2F").replace('+', "%2B")))),
        "json" => Response::new(full(serde_json::json!({ "key": key }).to_string().replace('/', "\\/"))),
        "chunks" => {
            let frames: Vec<_> =
                text.bytes().map(|byte| Frame::data(Bytes::copy_from_slice(&[byte]))).collect();
            Response::new(Frames(frames.into_iter()).boxed())
        }
        "gzip" => {
            let mut response = Response::new(full(gzip(text.as_bytes())));
            response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
            response
        }
        "br" => {
            let mut response = Response::new(full("not really"));
            response.headers_mut().insert("content-encoding", "br".parse().unwrap());
            response
        }
        "trailer" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-echo", key.parse().unwrap());
            let frames = [Frame::data(Bytes::from_static(b"see below")), Frame::trailers(trailers)];
            let mut response = Response::new(Frames(frames.into_iter()).boxed());
            response.headers_mut().insert("trailer", "x-echo".parse().unwrap());
            response
        }
        _ => {
            let mut response = Response::new(full("see above"));
            let cookie = format!("session={key}");
            response.headers_mut().insert("x-echo", key.parse().unwrap());
            response.headers_mut().insert("set-cookie", cookie.parse().unwrap());
            response
        }
    };
    response.headers_mut().insert("x-kind", "told".parse().unwrap());
    response.headers_mut().insert("x-strait-truncated", "1".parse().unwrap());
    response
}

fn note<B>(seen: &Mutex<Vec<Seen>>, request: &Request<B>, body: usize) {
    let target = match request.version() {
        Version::HTTP_2 => request.uri().to_string(),
        _ => request.uri().path_and_query().map_or("", |path| path.as_str()).to_owned(),
    };
    seen.lock().unwrap().push(Seen {
        method: request.method().clone(),
        target,
        version: request.version(),
        headers: request.headers().clone(),
        body,
    });
}

/// Switches, greets, and sends back what comes until the client ends.
fn websocket(request: &mut Request<Incoming>) -> Answer {
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgrade.await.unwrap());
        stream.write_all(b"ready").await.unwrap();
        let mut buffer = [0u8; 1024];
        while let Ok(read) = stream.read(&mut buffer).await {
            if read == 0 {
                break;
            }
            stream.write_all(&buffer[..read]).await.unwrap();
        }
    });
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("connection", "upgrade".parse().unwrap());
    response.headers_mut().insert("upgrade", "websocket".parse().unwrap());
    response
}

/// A body of these frames.
struct Frames<I>(I);

impl<I: Iterator<Item = Frame<Bytes>> + Unpin> http_body::Body for Frames<I> {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

/// A TCP origin that sends back what it gets, and ends when the client has.
pub async fn echo() -> SocketAddr {
    let listener = TcpListener::bind((GATEWAY, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    addr
}
