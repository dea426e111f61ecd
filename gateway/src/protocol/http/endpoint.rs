//! What the gateway itself serves at `http://strait.internal`.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use hyper::body::Incoming;
use strait_contract::code::Code;

use super::{Front, body::Body, serve};
use crate::decide::Refusal;

const ABOUT: &str = "This is Strait's gateway: everything that leaves this run passes it, is decided by policy and \
is on record.\nConnections are captured without any setting; it is also an explicit HTTP proxy (absolute-form and \
CONNECT).\nA refusal is JSON: error.code, error.reason, error.rule, error.hint and the id of its record.\n";

/// Answers a request to the gateway's own address.
pub(crate) async fn answer(front: &Front, request: &Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    if path == "/" && matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = Response::new(Body::full(Bytes::from_static(ABOUT.as_bytes())));
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
        return response;
    }
    let refusal = Refusal::new(Code::NotFound, format!("the gateway has nothing at `{path}`"))
        .hint("GET / says what this is");
    let (head, ()) = Request::builder()
        .method(request.method())
        .uri(request.uri())
        .version(request.version())
        .body(())
        .unwrap_or_default()
        .into_parts();
    serve::refused(serve::unread(front, &head, refusal).await)
}
