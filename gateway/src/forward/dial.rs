//! Dialling: a host and port become a connection to a vetted address, or a refusal that says why.
//!
//! Order: an entry in `hosts`; else a literal address, vetted; else the name's addresses, **all** of them vetted
//! and the answer refused whole if any is special (an answer that mixes is an attack or a mistake); else, with
//! `resolve = "proxy"`, the corporate proxy is asked by name.
//!
//! Architecture invariant: no name is resolved a second time between vetting and connecting.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{lookup::Lookup, net::NetError, proto::rr::RecordType};
use rustls_pki_types::ServerName;
use strait_contract::{code::Code, message::Setup};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    proxy::{Proxy, ProxyError},
    resolve::{ResolveError, Resolver},
    trust::{Trust, TrustError},
    vet::{self, Vetted},
};
use crate::url::{Host, NameError, Names};

#[cfg(test)]
mod tests;

/// Most addresses of a name that are tried.
const MAX_TRIES: usize = 6;
/// Least time that a try gets while others wait behind it.
const MIN_TRY: Duration = Duration::from_millis(250);

/// Why a [`Dialer`] can't be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A name in `hosts`.
    #[error("`hosts`: {0}")]
    Hosts(NameError),
    /// The trust anchors.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// `resolve = "proxy"` without a proxy.
    #[error("the proxy is to resolve names, but there is none: set `network.proxy`")]
    NoProxy,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name has no address.
    #[error(transparent)]
    Name(#[from] ResolveError),
    /// An address of the name, or the literal itself, may not be dialled.
    #[error("`{host}`: {refused}")]
    Address {
        /// Host asked for.
        host: Host,
        /// Address and class.
        refused: vet::Refused,
    },
    /// No address accepted.
    #[error("`{host}` port {port} can't be reached at {addr}: {source}")]
    Unreachable {
        /// Host asked for.
        host: Host,
        /// Port.
        port: u16,
        /// The last address tried.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Time ran out.
    #[error("`{host}` port {port} did not answer in time ({doing})")]
    Timeout {
        /// Host asked for.
        host: Host,
        /// Port.
        port: u16,
        /// What was under way.
        doing: &'static str,
    },
    /// The corporate proxy.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// The handshake failed or the certificate isn't believed.
    #[error("`{host}`: {reason}")]
    Tls {
        /// Host asked for.
        host: Host,
        /// Why, and what to do.
        reason: String,
    },
}

impl DialError {
    /// Code for the record and the client.
    pub fn code(&self) -> Code {
        match self {
            Self::Name(ResolveError::Timeout(_)) | Self::Timeout { .. } => Code::UpstreamTimeout,
            Self::Name(_) => Code::UpstreamName,
            Self::Address { .. } => Code::AddressRefused,
            Self::Unreachable { .. } => Code::UpstreamUnreachable,
            Self::Proxy(error) => error.code(),
            Self::Tls { .. } => Code::UpstreamTls,
        }
    }
}

/// A TCP connection upstream.
#[derive(Debug)]
pub struct Dialed {
    /// The stream, with `TCP_NODELAY`.
    pub stream: TcpStream,
    /// How it leads there.
    pub route: Route,
}

/// How a connection leads upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To this vetted address.
    Direct(SocketAddr),
    /// Through the corporate proxy.
    Proxy {
        /// Its address.
        proxy: SocketAddr,
        /// The vetted address it was asked for; `None` if it resolved the name itself, which records show as
        /// `vetted: proxy`.
        vetted: Option<SocketAddr>,
    },
}

impl Route {
    /// The vetted upstream address; `None` if the proxy resolved.
    pub fn addr(self) -> Option<SocketAddr> {
        match self {
            Self::Direct(addr) => Some(addr),
            Self::Proxy { vetted, .. } => vetted,
        }
    }
}

/// Dials upstreams.
#[derive(Debug)]
pub struct Dialer {
    hosts: HashMap<Host, IpAddr>,
    resolver: Option<Resolver>,
    proxy: Option<Proxy>,
    trust: Trust,
    limit: Duration,
}

impl Dialer {
    /// Makes a dialer for an instance's setup. Call it within a tokio runtime.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn new(setup: &Setup) -> Result<Self, SetupError> {
        let names =
            Names::new(setup.hosts.iter().map(|(name, _)| name.as_str())).map_err(SetupError::Hosts)?;
        let hosts = setup.hosts.iter().map(|(name, addr)| Ok((Host::parse_with(name, &names)?, *addr)));
        let resolver = Resolver::new(&setup.resolver);
        if resolver.is_none() && setup.proxy.is_none() {
            return Err(SetupError::NoProxy);
        }
        Ok(Self {
            hosts: hosts.collect::<Result<_, _>>().map_err(SetupError::Hosts)?,
            resolver,
            proxy: setup.proxy.clone().map(Proxy::new),
            trust: Trust::new(&setup.anchors, setup.system_anchors)?,
            limit: Duration::from_secs(u64::from(setup.limits.connect_seconds)),
        })
    }

    /// When a connection begun now must be ready, TLS included.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Records of any type from the operator's servers, for a lookup that policy permits.
    ///
    /// # Errors
    /// What the servers said; also if the corporate proxy resolves names, which can't look up anything else.
    pub async fn records(&self, name: &str, record_type: RecordType) -> Result<Lookup, NetError> {
        match &self.resolver {
            Some(resolver) => resolver.records(name, record_type).await,
            None => Err(NetError::Msg("the corporate proxy resolves names: no other records".to_owned())),
        }
    }

    /// Connects to `host`, trying its addresses in turn until `deadline`.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn dial(&self, host: &Host, port: u16, deadline: Instant) -> Result<Dialed, DialError> {
        if let Some(addr) = self.hosts.get(host) {
            // Operator-named hosts lie inside, so not behind the corporate proxy.
            return try_all(host, &[Vetted::by_operator(*addr, port)], deadline).await;
        }
        self.dial_public(host, port, deadline).await
    }

    /// [`Self::dial`] without the exceptions of `hosts`.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn dial_public(&self, host: &Host, port: u16, deadline: Instant) -> Result<Dialed, DialError> {
        let late = |doing| move |_| DialError::Timeout { host: host.clone(), port, doing };
        let vetted =
            timeout_at(deadline, self.vetted(host, port)).await.map_err(late("looking up the name"))??;
        let Some(proxy) = &self.proxy else { return try_all(host, &vetted, deadline).await };
        // The proxy is asked for the vetted address, not the name, so that it can't resolve to another one;
        // where a proxy insists on names, `resolve = "proxy"` says openly that the vetting is its own.
        let vetted = vetted.first().map(|vetted| vetted.addr());
        let target = vetted.map_or_else(|| format!("{host}:{port}"), |addr| addr.to_string());
        let (stream, proxy) =
            timeout_at(deadline, proxy.connect(&target)).await.map_err(late("asking the proxy"))??;
        Ok(Dialed { stream, route: Route::Proxy { proxy, vetted } })
    }

    /// Vetted addresses; none if the proxy is to resolve the name.
    async fn vetted(&self, host: &Host, port: u16) -> Result<Vec<Vetted>, DialError> {
        let refused = |refused| DialError::Address { host: host.clone(), refused };
        match (host, &self.resolver) {
            (Host::Address(addr), _) => Ok(vec![vet::vet(*addr, port).map_err(refused)?]),
            (Host::Name(_), None) => Ok(Vec::new()),
            (Host::Name(name), Some(resolver)) => {
                let found = resolver.addresses(name).await?;
                found.iter().map(|addr| vet::vet(*addr, port)).collect::<Result<_, _>>().map_err(refused)
            }
        }
    }

    /// Makes TLS on a dialled connection and verifies the certificate for `host`. `alpn` is offered in order;
    /// empty offers none.
    ///
    /// # Errors
    /// [`DialError::Tls`], [`DialError::Timeout`].
    pub async fn tls(
        &self,
        dialed: Dialed,
        host: &Host,
        alpn: &[&[u8]],
        deadline: Instant,
    ) -> Result<(TlsStream<TcpStream>, Route), DialError> {
        let Dialed { stream, route } = dialed;
        let port = route.addr().map_or(0, |addr| addr.port());
        let server = match host {
            Host::Address(addr) => ServerName::IpAddress((*addr).into()),
            Host::Name(name) => ServerName::try_from(name.as_str().to_owned())
                .map_err(|error| DialError::Tls { host: host.clone(), reason: error.to_string() })?,
        };
        let alpn = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let connector = TlsConnector::from(self.trust.config.clone());
        let handshake = connector.with_alpn(alpn).connect(server, stream);
        match timeout_at(deadline, handshake).await {
            Ok(Ok(stream)) => Ok((stream, route)),
            Ok(Err(error)) => {
                Err(DialError::Tls { host: host.clone(), reason: explain(&error, self.trust.anchors) })
            }
            Err(_) => Err(DialError::Timeout { host: host.clone(), port, doing: "TLS handshake" }),
        }
    }
}

async fn try_all(host: &Host, addrs: &[Vetted], deadline: Instant) -> Result<Dialed, DialError> {
    let mut left = u32::try_from(addrs.len().min(MAX_TRIES)).unwrap_or(1);
    let mut last = None;
    for addr in addrs.iter().take(MAX_TRIES).map(|vetted| vetted.addr()) {
        let now = Instant::now();
        let share = (deadline.saturating_duration_since(now) / left.max(1)).max(MIN_TRY);
        left = left.saturating_sub(1);
        let until = deadline.min(now + share);
        let unreachable =
            |source| DialError::Unreachable { host: host.clone(), port: addr.port(), addr, source };
        last = Some(match timeout_at(until, TcpStream::connect(addr)).await {
            Ok(Ok(stream)) => match stream.set_nodelay(true) {
                Ok(()) => return Ok(Dialed { stream, route: Route::Direct(addr) }),
                Err(error) => unreachable(error),
            },
            Ok(Err(error)) => unreachable(error),
            Err(_) => DialError::Timeout { host: host.clone(), port: addr.port(), doing: "connecting" },
        });
        if Instant::now() >= deadline {
            break;
        }
    }
    // Unreached with the addresses that the callers give: they are never empty.
    Err(last.unwrap_or_else(|| DialError::Timeout { host: host.clone(), port: 0, doing: "connecting" }))
}

fn explain(error: &io::Error, anchors: usize) -> String {
    use rustls::{CertificateError, Error};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(Error::InvalidCertificate(_)) if anchors == 0 => {
            "no certificate can be verified without trust anchors: \
             install `ca-certificates` or set `network.trust`"
                .to_owned()
        }
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "its certificate is signed by nobody this host trusts: if that is as it should be, add the CA to \
             `network.trust`"
                .to_owned()
        }
        Some(Error::InvalidCertificate(CertificateError::BadSignature)) => {
            "its certificate names a CA that this host knows, but that CA's key did not sign it: if the CA was \
             renewed, renew it in `network.trust`"
                .to_owned()
        }
        Some(Error::InvalidCertificate(why)) => format!("its certificate is not acceptable: {why}"),
        Some(why) => format!("its TLS handshake failed: {why}"),
        None => format!("its TLS handshake broke off: {error}"),
    }
}
