//! Refusals as JSON-RPC errors, which MCP clients show (A23).

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use serde::Serialize;
use strait_policies::json::Json;

use super::message::Fault;
use crate::{
    call::Via,
    decide::{Refused, refuse_line},
    protocol::http::{Front, body::Body, read},
    record::facts::Line,
    refuse as general,
};

#[derive(Serialize)]
struct Error<'a> {
    code: i32,
    message: String,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    code: &'static str,
    rule: Option<&'a str>,
    reason: &'a str,
    record: String,
    hint: Option<&'a str>,
    retryable: bool,
}

/// The JSON-RPC error of a refusal.
pub(super) fn error(id: Option<&Json>, rpc: i32, why: &Refused) -> String {
    let error = Error {
        code: rpc,
        message: general::message(why),
        data: Data {
            code: why.code.as_str(),
            rule: why.rules.first().map(String::as_str),
            reason: &why.reason,
            record: why.id.to_string(),
            hint: why.hint.as_deref(),
            retryable: general::is_retryable(why.code),
        },
    };
    let id = id.map_or_else(|| "null".to_owned(), Json::to_string);
    let error = serde_json::to_string(&error).unwrap_or_default();
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

/// A refusal as an answer.
pub(super) fn refused(id: Option<&Json>, rpc: i32, why: &Refused) -> Response<Body> {
    let mut response = general::response(why).map(Body::full);
    *response.body_mut() = Body::full(Bytes::from(error(id, rpc, why)));
    response
}

/// Refuses and records what never became a call.
pub(super) async fn unread(front: &Front, head: &Parts, fault: Fault) -> Response<Body> {
    let Fault { rpc, status, id, refusal } = fault;
    let status = status.unwrap_or_else(|| general::status(refusal.code));
    let (to, request) = read::facts_of(front, head);
    let caller = &front.context.caller;
    let line = Line::unread(caller, Via::Tool, to, request);
    let why = refuse_line(&front.context.gateway, caller, line, Some(status.as_u16()), refusal).await;
    let mut response = refused(id.as_ref(), rpc, &why);
    if why.code != strait_contract::code::Code::RecordUnavailable {
        *response.status_mut() = status;
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
    }
    response
}
