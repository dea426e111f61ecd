//! Upstream connections of one run, kept alive for its next requests and for nobody else's.

use std::{
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use arc_swap::ArcSwapOption;
use http::{Request, Response, Uri};
use hyper::{
    body::Incoming,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::{
    client::legacy::{
        Client, Error as ClientError,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use strait_contract::code::Code;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{Failure, dial::DialError};
use crate::{
    gateway::Settings,
    limits::{POOL_IDLE, POOL_SIZE},
    protocol::http::body::{Upload, chain},
    url::{Host, Scheme, Target, UrlError},
};

/// Which versions a connection is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 over TLS if the upstream has it, else HTTP/1.1.
    Http2,
    /// HTTP/2 without TLS, by prior knowledge.
    Http2Clear,
    /// HTTP/1.1 to public addresses alone: what `hosts` names is not reached.
    Public,
}

/// The vetted address of the connection that an answer came by; `None` if a corporate proxy chose it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpstreamAddr(pub(crate) Option<IpAddr>);

/// A run's upstream connections.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    clients: ArcSwapOption<Clients>,
}

#[derive(Debug)]
struct Clients {
    settings: Arc<Settings>,
    http1: Client<Connector, Upload>,
    http2: Client<Connector, Upload>,
    http2_clear: Client<Connector, Upload>,
    public: Client<Connector, Upload>,
}

impl Pool {
    /// Sends a request by a kept connection or a new one.
    pub(crate) async fn send(
        &self,
        settings: &Arc<Settings>,
        kind: Kind,
        request: Request<Upload>,
    ) -> Result<Response<Incoming>, Failure> {
        let clients = self.clients(settings);
        let client = match kind {
            Kind::Http1 => &clients.http1,
            Kind::Http2 => &clients.http2,
            Kind::Http2Clear => &clients.http2_clear,
            Kind::Public => &clients.public,
        };
        client.request(request).await.map_err(|error| failure(&error))
    }

    /// Drops all connections that no request uses.
    pub(crate) fn close(&self) {
        self.clients.store(None);
    }

    /// The clients for these settings. Two first requests at once may both make some; one pair is dropped.
    fn clients(&self, settings: &Arc<Settings>) -> Arc<Clients> {
        if let Some(clients) = self.clients.load_full()
            && Arc::ptr_eq(&clients.settings, settings)
        {
            return clients;
        }
        let clients = Arc::new(Clients::new(settings));
        self.clients.store(Some(Arc::clone(&clients)));
        clients
    }
}

impl Clients {
    fn new(settings: &Arc<Settings>) -> Self {
        let client = |kind| {
            let connector = Connector { settings: Arc::clone(settings), kind };
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(POOL_SIZE)
                .http2_only(kind == Kind::Http2Clear)
                .http2_adaptive_window(true)
                .http1_max_buf_size(128 * 1024)
                .build(connector)
        };
        Self {
            settings: Arc::clone(settings),
            http1: client(Kind::Http1),
            http2: client(Kind::Http2),
            http2_clear: client(Kind::Http2Clear),
            public: client(Kind::Public),
        }
    }
}

/// Dials the vetted address of a URL.
#[derive(Clone, Debug)]
struct Connector {
    settings: Arc<Settings>,
    kind: Kind,
}

/// Why there is no connection for a request.
#[derive(Debug, thiserror::Error)]
enum PoolError {
    /// The dialling side.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// A URL that was judged can't be read back: a fault of ours.
    #[error("the judged URL can't be read back: {0}")]
    Url(UrlError),
}

type Dialling = Pin<Box<dyn Future<Output = Result<Upstream, PoolError>> + Send>>;

impl tower_service::Service<Uri> for Connector {
    type Response = Upstream;
    type Error = PoolError;
    type Future = Dialling;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), PoolError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, origin: Uri) -> Dialling {
        let Self { settings, kind } = self.clone();
        Box::pin(async move { dial(&settings, kind, &origin).await })
    }
}

async fn dial(settings: &Settings, kind: Kind, origin: &Uri) -> Result<Upstream, PoolError> {
    let (scheme, host, port) = parts(settings, origin)?;
    let deadline = settings.dialer.deadline();
    let dialed = match kind {
        Kind::Public => settings.dialer.dial_public(&host, port, deadline).await?,
        Kind::Http1 | Kind::Http2 | Kind::Http2Clear => settings.dialer.dial(&host, port, deadline).await?,
    };
    let addr = dialed.route.addr().map(|addr| addr.ip());
    if scheme == Scheme::Http {
        let io = Io::Plain(TokioIo::new(dialed.stream));
        return Ok(Upstream { io, addr, http2: kind == Kind::Http2Clear });
    }
    let alpn: &[&[u8]] = if kind == Kind::Http2 { &[b"h2", b"http/1.1"] } else { &[b"http/1.1"] };
    let (stream, _) = settings.dialer.tls(dialed, &host, alpn, deadline).await?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok(Upstream { io: Io::Tls(Box::new(TokioIo::new(stream))), addr, http2 })
}

/// The judged target, read back from the URL that was made of it.
fn parts(settings: &Settings, origin: &Uri) -> Result<(Scheme, Host, u16), PoolError> {
    let authority = origin.authority().map_or("", |authority| authority.as_str());
    let scheme = if origin.scheme_str() == Some("https") { Scheme::Https } else { Scheme::Http };
    let target = Target::from_parts_with(scheme, authority, "/", &settings.names).map_err(PoolError::Url)?;
    Ok((scheme, target.host().clone(), target.port()))
}

/// A connection to an upstream.
struct Upstream {
    io: Io,
    addr: Option<IpAddr>,
    http2: bool,
}

enum Io {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for Upstream {
    fn connected(&self) -> Connected {
        let connected = Connected::new().extra(UpstreamAddr(self.addr));
        if self.http2 { connected.negotiated_h2() } else { connected }
    }
}

impl Read for Upstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_read(cx, buffer),
            Io::Tls(io) => Pin::new(io).poll_read(cx, buffer),
        }
    }
}

impl Write for Upstream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Io::Tls(io) => Pin::new(io).poll_write(cx, bytes),
        }
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_flush(cx),
            Io::Tls(io) => Pin::new(io).poll_flush(cx),
        }
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Io::Tls(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Plain(io) => Pin::new(io).poll_write_vectored(cx, bytes),
            Io::Tls(io) => Pin::new(io).poll_write_vectored(cx, bytes),
        }
    }
    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(io) => io.is_write_vectored(),
            Io::Tls(io) => io.is_write_vectored(),
        }
    }
}

/// What went wrong, in the words of the part that failed.
fn failure(error: &ClientError) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        match inner.downcast_ref::<PoolError>() {
            Some(PoolError::Dial(dial)) => return Failure { code: dial.code(), reason: chain(dial) },
            Some(error) => return Failure { code: Code::Internal, reason: error.to_string() },
            None => {}
        }
        cause = inner.source();
    }
    Failure {
        code: Code::UpstreamProtocol,
        reason: format!("the upstream broke the exchange: {}", chain(error)),
    }
}
