//! Clients that write bytes, so that a test says exactly what is on the wire.

use std::{sync::Arc, time::Duration};

use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// An answer as it came.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The `error` object of a refusal.
    pub fn error(&self) -> serde_json::Value {
        let body: serde_json::Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"));
        body["error"].clone()
    }

    pub fn code(&self) -> String {
        self.error()["code"].as_str().unwrap().to_owned()
    }
}

/// Writes a request and reads its answer.
pub async fn ask<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).await.unwrap();
    answer(stream, request.starts_with("HEAD ")).await
}

/// `ask` for a GET without frills.
pub async fn get<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, host: &str, path: &str) -> Answer {
    ask(stream, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await
}

/// Reads one answer with Content-Length or chunks; informational ones are skipped.
pub async fn answer<S: AsyncRead + Unpin>(stream: &mut S, no_body: bool) -> Answer {
    timeout(Duration::from_secs(10), read(stream, no_body)).await.expect("no answer in time")
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S, no_body: bool) -> Answer {
    let head = loop {
        let head = head(stream).await;
        if !head.starts_with("HTTP/1.1 100") {
            break head;
        }
    };
    let status =
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{head:?}"));
    let field = |name: &str| {
        head.lines().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    let mut body = Vec::new();
    if no_body || status == 204 || status == 304 || status == 101 {
    } else if let Some(length) = field("content-length") {
        body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
    } else if field("transfer-encoding").is_some() {
        loop {
            let size = line(stream).await;
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            if size == 0 {
                while line(stream).await != "\r\n" {}
                break;
            }
            stream.read_exact(&mut chunk).await.unwrap();
            body.extend_from_slice(&chunk[..size]);
        }
    }
    Answer { status, head, body }
}

pub async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut head = String::new();
    loop {
        let line = line(stream).await;
        head.push_str(&line);
        if line == "\r\n" || line.is_empty() {
            return head;
        }
    }
}

async fn line<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut line = Vec::new();
    let mut byte = [0u8];
    while !line.ends_with(b"\n") {
        match stream.read(&mut byte).await {
            Ok(0) | Err(_) => break,
            Ok(_) => line.push(byte[0]),
        }
    }
    String::from_utf8_lossy(&line).into_owned()
}

/// Reads to the end, within limits; a reset counts as one.
pub async fn rest<S: AsyncRead + Unpin>(stream: &mut S) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes)).await;
    let _ = read.expect("the connection did not end");
    bytes
}

/// A TLS client that trusts one CA.
pub fn tls(ca: &str, alpn: &[&[u8]]) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

pub async fn handshake<S>(stream: S, ca: &str, name: &str, alpn: &[&[u8]]) -> std::io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(name.to_owned()).unwrap();
    timeout(Duration::from_secs(10), tls(ca, alpn).connect(name, stream)).await.expect("no handshake in time")
}
