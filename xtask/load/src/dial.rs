//! How a connection comes about: directly or by CONNECT, plain or with TLS.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context as Task, Poll},
};

use anyhow::{Context, Result, bail};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{To, http};

/// Where to, and how.
#[derive(Clone)]
pub(crate) struct Target {
    dial: String,
    connect: Option<String>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    request: Arc<[u8]>,
}

/// A connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Target {
    pub(crate) fn new(to: &To) -> Result<Self> {
        let authority = format!("{}:{}", to.host, to.port);
        let direct = to.at.as_ref().map_or_else(|| authority.clone(), |at| format!("{at}:{}", to.port));
        let tls = to.ca.as_ref().map(|ca| {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(ca).context("no trust anchors")? {
                roots.add(certificate?)?;
            }
            let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            anyhow::Ok((TlsConnector::from(Arc::new(config)), ServerName::try_from(to.host.clone())?))
        });
        let host = if [80, 443].contains(&to.port) { &to.host } else { &authority };
        let request = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n\r\n", to.path);
        Ok(Self {
            connect: to.proxy.as_ref().map(|_| authority),
            dial: to.proxy.clone().unwrap_or(direct),
            tls: tls.transpose()?,
            request: request.into_bytes().into(),
        })
    }

    pub(crate) fn request(&self) -> &[u8] {
        &self.request
    }

    pub(crate) async fn dial(&self) -> Result<Stream> {
        let tcp =
            TcpStream::connect(&self.dial).await.with_context(|| format!("no way to `{}`", self.dial))?;
        tcp.set_nodelay(true)?;
        let mut stream = Stream::Plain(tcp);
        if let Some(authority) = &self.connect {
            let ask = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            http::send(&mut stream, ask.as_bytes()).await?;
            let status = http::head(&mut stream, &mut Vec::new()).await?.status;
            if status != 200 {
                bail!("the proxy answers CONNECT with {status}");
            }
        }
        match (&self.tls, stream) {
            (Some((connector, name)), Stream::Plain(tcp)) => {
                Ok(Stream::Tls(Box::new(connector.connect(name.clone(), tcp).await?)))
            }
            (_, stream) => Ok(stream),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        task: &mut Task<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(task, to),
            Self::Tls(stream) => Pin::new(stream).poll_read(task, to),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, task: &mut Task<'_>, from: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(task, from),
            Self::Tls(stream) => Pin::new(stream).poll_write(task, from),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(task),
            Self::Tls(stream) => Pin::new(stream).poll_flush(task),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(task),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(task),
        }
    }
}
