//! TLS towards the run.

use strait_contract::{code::Code, record::Kind};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::{http, stream, wire::Wire};
use crate::{
    call::{Endpoint, Via},
    decide::Refusal,
    pipeline::Context,
    url::Host,
};

pub mod hello;
pub mod leaf;

use hello::{Hello, Sni};

/// Serves a TLS connection: intercepted, or passed through if its host is named for that.
pub(crate) async fn serve(context: Context, wire: Wire, to: Endpoint, via: Via, hello: Hello) {
    if let Err(refusal) = agree(&hello, &to) {
        context.refuse(Kind::Stream, via, &to, refusal).await;
        return;
    }
    if is_passed_through(&context, &to.host) {
        stream::serve(context, wire, to, via).await;
    } else {
        intercept(context, wire, to, via).await;
    }
}

/// The name in the hello must be the one that the connection was made for (case 38).
fn agree(hello: &Hello, to: &Endpoint) -> Result<(), Refusal> {
    let said = match (&hello.sni, &to.host) {
        (Sni::Name(name), Host::Name(host)) if name == host => return Ok(()),
        // An address has no server name (RFC 6066, section 3).
        (Sni::None, Host::Address(_)) => return Ok(()),
        (Sni::Name(name), _) => format!("names `{name}`"),
        (Sni::None, _) => "names no server".to_owned(),
        (Sni::Address(addr), _) => format!("names the address `{addr}`"),
        (Sni::Bad(why), _) => format!("has a server name that isn't one ({why})"),
    };
    let reason = format!("the TLS hello {said}, the connection was made for `{}`", to.text());
    Err(Refusal::new(Code::NameMismatch, reason)
        .hint("connect to the address that the name in the hello resolves to"))
}

fn is_passed_through(context: &Context, host: &Host) -> bool {
    context.settings.passthrough.contains(host)
}

async fn intercept(context: Context, wire: Wire, to: Endpoint, via: Via) {
    let config = match context.settings.leaves.config(&to.host) {
        Ok(config) => config,
        Err(error) => {
            let refusal = Refusal::new(Code::Internal, format!("no certificate can be made: {error}"));
            context.refuse(Kind::Stream, via, &to, refusal).await;
            return;
        }
    };
    let accepted = timeout(context.head_time(), TlsAcceptor::from(config).accept(wire)).await;
    let stream = match accepted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return failed(&context, via, &to, &error.to_string()).await,
        Err(_) => return failed(&context, via, &to, "it took too long").await,
    };
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let front = http::Front::tls(context, to, via);
    if http2 {
        http::serve::http2(front, stream).await;
    } else {
        http::serve::http1(front, stream).await;
    }
}

async fn failed(context: &Context, via: Via, to: &Endpoint, why: &str) {
    let reason = format!("the TLS handshake with the client failed: {why}");
    let refusal = Refusal::new(Code::ClientTls, reason).hint(
        "a client with a trust store of its own must be told of the run's CA (SSL_CERT_FILE); a client that pins a \
         certificate needs its host in `network.passthrough`",
    );
    context.refuse(Kind::Stream, via, to, refusal).await;
}
