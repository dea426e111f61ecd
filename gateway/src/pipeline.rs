//! The sentence that every connection follows: accepted, identified, read, decided, forwarded, recorded.

use std::{sync::Arc, time::Duration};

use strait_contract::{code::Code, message::Listener, record::Kind};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::watch};

use crate::{
    accept::Accepted,
    call::{Caller, Endpoint, Via},
    decide::{Refusal, Refused, refuse_line},
    gateway::{Gateway, Settings},
    identify::{Identified, Place, Unidentified, identify},
    protocol::{
        detect::{Spoken, detect},
        http, ssh, stream, tls,
        wire::Wire,
    },
    record::facts::{self, Line},
    refuse,
    runs::Admission,
};

/// What all requests of one connection share.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) caller: Arc<Caller>,
    /// The connection's place in the quota of its run, kept by its tunnels too.
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) admission: Arc<Admission>,
    /// Told when the gateway is to stop: idle connections end, answers under way are completed.
    pub(crate) stop: watch::Receiver<bool>,
}

impl Context {
    /// Resolves when the gateway is to stop.
    pub(crate) async fn stopped(&self) {
        // An error means that nobody is left to say so.
        let _ = self.stop.clone().wait_for(|stop| *stop).await;
    }

    /// Time for a client to finish a head or handshake.
    pub(crate) fn head_time(&self) -> Duration {
        Duration::from_secs(self.settings.limits.head_seconds.into())
    }

    /// Time that a stream or an answer may stand still.
    pub(crate) fn idle_time(&self) -> Duration {
        Duration::from_secs(self.settings.limits.idle_seconds.into())
    }

    /// Refuses a connection of which no more is known than where it was to go.
    pub(crate) async fn refuse(&self, kind: Kind, via: Via, to: &Endpoint, refusal: Refusal) -> Refused {
        let line = Line::connection(kind, &self.caller, via, facts::destination(to));
        refuse_line(&self.gateway, &self.caller, line, None, refusal).await
    }
}

/// Serves one accepted connection to its end, or to the end of its run.
pub(crate) async fn serve(gateway: Arc<Gateway>, accepted: Accepted, stop: watch::Receiver<bool>) {
    let identified = match Box::pin(identify(&gateway, accepted)).await {
        Ok(identified) => identified,
        Err(Unidentified::Refused(socket, listener, refused)) => {
            return tell(socket, listener, &refused).await;
        }
        Err(Unidentified::Stranger | Unidentified::NotReady) => return,
    };
    let Identified { socket, caller, to, admission, settings } = identified;
    let run = Arc::clone(&caller.run);
    let context = Context { gateway, settings, caller, admission: Arc::new(admission), stop };
    let wire = Wire::new(socket);
    tokio::select! {
        () = run.ended() => {}
        () = async {
            match to {
                Place::Gateway => Box::pin(http::proxy::serve(context, wire)).await,
                Place::Outside(to) => Box::pin(outside(context, wire, to, Via::Egress)).await,
            }
        } => {}
    }
}

/// Serves a stream that leads to `to`: a redirected connection, or a tunnel that the client asked for.
pub(crate) async fn outside(context: Context, mut wire: Wire, to: Endpoint, via: Via) {
    // Each on the heap: a connection takes the room of what it speaks, not of the largest there is.
    match detect(&mut wire, &context.settings.names, context.head_time()).await {
        Spoken::Tls(hello) => Box::pin(tls::serve(context, wire, to, via, hello)).await,
        Spoken::Http1 => Box::pin(http::serve::http1(http::Front::plain(context, to, via), wire)).await,
        Spoken::Http2 => Box::pin(http::serve::http2(http::Front::plain(context, to, via), wire)).await,
        Spoken::Other if ssh::is_ssh(wire.ahead()) => Box::pin(ssh::serve(context, wire, to, via)).await,
        Spoken::Silent | Spoken::Other => Box::pin(stream::serve(context, wire, to, via)).await,
        Spoken::BadTls(why) => {
            let reason = format!("the TLS hello can't be read: {why}");
            let refusal = Refusal::new(Code::MalformedRequest, reason);
            context.refuse(Kind::Stream, via, &to, refusal).await;
        }
        Spoken::Closed => {
            let reason = "the client closed the connection before it said anything";
            context.refuse(Kind::Stream, via, &to, Refusal::new(Code::ClientGone, reason)).await;
        }
    }
}

/// Says why to a client that could not be identified, if it speaks HTTP to the gateway itself.
async fn tell(mut socket: TcpStream, listener: Listener, refused: &Refused) {
    if listener == Listener::Gateway {
        let _ = socket.write_all(&refuse::raw(refused)).await;
        linger(socket).await;
    }
}

/// Closes so that the peer gets what was written: unread bytes in the socket at close make the kernel send a
/// reset, which discards the answer on the other side.
pub(crate) async fn linger(mut socket: TcpStream) {
    use tokio::io::AsyncReadExt;
    if socket.shutdown().await.is_err() {
        return;
    }
    let drain = async {
        let mut scratch = [0u8; 4096];
        while matches!(socket.read(&mut scratch).await, Ok(read) if read > 0) {}
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), drain).await;
}
