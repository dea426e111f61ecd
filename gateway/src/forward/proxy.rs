//! The corporate proxy: when the only way out is an HTTP proxy that is asked by CONNECT (case 36).
//!
//! Takes an authority, gives a TCP stream that leads there. The proxy's own address isn't vetted, because the
//! operator names it; what it's asked to connect to was vetted by [`super::dial`]. The credential goes to the
//! proxy alone and never into a message.

use std::{io, net::SocketAddr};

use base64::{Engine, engine::general_purpose::STANDARD};
use strait_contract::{code::Code, message::UpstreamProxy};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use zeroize::Zeroizing;

/// Longest answer head, bytes.
const MAX_HEAD: usize = 16 * 1024;

/// What went wrong at the proxy.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// No connection to the proxy.
    #[error("the corporate proxy `{proxy}` can't be reached ({source}): see `network.proxy`")]
    Unreachable {
        /// `host:port` of the proxy.
        proxy: String,
        /// Why.
        source: io::Error,
    },
    /// The connection broke before the answer was complete.
    #[error("the corporate proxy `{proxy}` broke off ({source})")]
    Broken {
        /// `host:port` of the proxy.
        proxy: String,
        /// Why.
        source: io::Error,
    },
    /// The answer isn't HTTP.
    #[error("the corporate proxy `{proxy}` does not speak HTTP: see `network.proxy`")]
    NotHttp {
        /// `host:port` of the proxy.
        proxy: String,
    },
    /// 407.
    #[error(
        "the corporate proxy `{proxy}` wants other credentials (407 {reason}; it offers: {offers}): set \
         `network.proxy_credential` to a `user:password` for Basic"
    )]
    Credential {
        /// `host:port` of the proxy.
        proxy: String,
        /// Reason phrase.
        reason: String,
        /// Schemes of `Proxy-Authenticate`.
        offers: String,
    },
    /// Any other answer than success.
    #[error("the corporate proxy `{proxy}` refused `{target}` ({status} {reason})")]
    Refused {
        /// `host:port` of the proxy.
        proxy: String,
        /// Authority it was asked for.
        target: String,
        /// Status.
        status: u16,
        /// Reason phrase.
        reason: String,
    },
}

impl ProxyError {
    /// Code for the record and the client.
    pub fn code(&self) -> Code {
        match self {
            Self::NotHttp { .. } => Code::UpstreamProtocol,
            Self::Refused { status: 504, .. } => Code::UpstreamTimeout,
            _ => Code::UpstreamUnreachable,
        }
    }
}

/// A configured proxy.
#[derive(Debug)]
pub struct Proxy {
    setting: UpstreamProxy,
}

impl Proxy {
    /// Takes the configuration in.
    pub fn new(setting: UpstreamProxy) -> Self {
        Self { setting }
    }

    fn name(&self) -> String {
        format!("{}:{}", self.setting.host, self.setting.port)
    }

    /// Asks the proxy for a way to `target` (`host:port`). Gives the stream, just behind the answer's head, and
    /// the proxy's address. The caller bounds the time.
    ///
    /// # Errors
    /// See [`ProxyError`].
    pub async fn connect(&self, target: &str) -> Result<(TcpStream, SocketAddr), ProxyError> {
        let unreachable = |source| ProxyError::Unreachable { proxy: self.name(), source };
        let broken = |source| ProxyError::Broken { proxy: self.name(), source };
        let setting = &self.setting;
        let mut stream =
            TcpStream::connect((setting.host.as_str(), setting.port)).await.map_err(unreachable)?;
        let addr = stream.peer_addr().map_err(unreachable)?;
        stream.set_nodelay(true).map_err(unreachable)?;
        stream.write_all(self.request(target).as_bytes()).await.map_err(broken)?;
        let head = read_head(&mut stream).await.map_err(broken)?;
        self.judge(target, &head)?;
        Ok((stream, addr))
    }

    fn request(&self, target: &str) -> Zeroizing<String> {
        let mut text = Zeroizing::new(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n"));
        if let Some(credential) = &self.setting.credential {
            let encoded = Zeroizing::new(STANDARD.encode(credential.expose()));
            // One allocation large enough, so that no shorter copy stays behind unwiped.
            text.reserve(encoded.len() + 64);
            text.push_str("Proxy-Authorization: Basic ");
            text.push_str(&encoded);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text
    }

    fn judge(&self, target: &str, head: &[u8]) -> Result<(), ProxyError> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut answer = httparse::Response::new(&mut headers);
        let status = match answer.parse(head) {
            Ok(httparse::Status::Complete(_)) => answer.code,
            _ => None,
        };
        let reason = printable(answer.reason.unwrap_or_default());
        let proxy = self.name();
        match status {
            None => Err(ProxyError::NotHttp { proxy }),
            Some(200..=299) => Ok(()),
            Some(407) => {
                let offers =
                    answer.headers.iter().filter(|it| it.name.eq_ignore_ascii_case("proxy-authenticate"));
                let schemes: Vec<String> = offers
                    .filter_map(|it| {
                        std::str::from_utf8(it.value).ok()?.split_whitespace().next().map(printable)
                    })
                    .collect();
                Err(ProxyError::Credential { proxy, reason, offers: schemes.join(", ") })
            }
            Some(status) => Err(ProxyError::Refused { proxy, target: target.to_owned(), status, reason }),
        }
    }
}

/// Reads exactly the head: peeks, then takes no byte beyond the empty line, so that the stream that is handed on
/// begins where the tunnel begins.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut window = [0; 1024];
    loop {
        let seen = stream.peek(&mut window).await?;
        if seen == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = head.len();
        head.extend_from_slice(window.get(..seen).unwrap_or_default());
        let from = before.saturating_sub(3);
        let end = head.get(from..).and_then(|new| new.windows(4).position(|four| four == b"\r\n\r\n"));
        head.truncate(end.map_or(head.len(), |at| from + at + 4));
        let take = window.get_mut(..head.len() - before).ok_or(io::ErrorKind::InvalidData)?;
        stream.read_exact(take).await?;
        if end.is_some() {
            return Ok(head);
        }
        if head.len() > MAX_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer has no end"));
        }
    }
}

fn printable(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(80).collect()
}
