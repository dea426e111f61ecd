//! The gateway's own address: explicit proxy and endpoints.

use std::sync::Arc;

use http::{Request, Response};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;

use super::{Front, body::Body, head::Strict, serve};
use crate::{
    call::{Endpoint, Via},
    pipeline::{self, Context},
    protocol::wire::Wire,
};

/// Serves a connection to the gateway's own address.
pub(crate) async fn serve(context: Context, wire: Wire) {
    serve::http1(Front::proxy(context), wire).await;
}

/// Opens a tunnel. Nothing is decided yet: what goes through it is read like any other connection.
pub(crate) fn tunnel(context: &Context, to: Endpoint, mut request: Request<Incoming>) -> Response<Body> {
    let context = context.clone();
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let run = Arc::clone(&context.caller.run);
        let Ok(upgraded) = upgrade.await else { return };
        let Some(wire) = wire_of(upgraded) else {
            tracing::error!("a tunnel's stream is not the one that was accepted");
            return;
        };
        tokio::select! {
            () = run.ended() => {}
            () = Box::pin(pipeline::outside(context, wire, to, Via::Proxy)) => {}
        }
    });
    Response::new(Body::empty())
}

/// The stream under an upgraded connection, with what hyper had read of it.
fn wire_of(upgraded: Upgraded) -> Option<Wire> {
    let parts = upgraded.downcast::<TokioIo<Strict<Wire>>>().ok()?;
    let (mut wire, held) = parts.io.into_inner().into_parts()?;
    wire.put_back(&held);
    wire.put_back(&parts.read_buf);
    Some(wire)
}
