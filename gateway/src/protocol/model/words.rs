//! A refusal of a model call in the words of its API.

use http::{HeaderValue, Response, header};
use strait_contract::code::Code;
use strait_model::{api::Dialect, refusal};

use crate::{decide::Refused, protocol::http::body::Body, refuse};

/// Puts an answer of the gateway's own into the shape of an API; an upstream's stays as it is.
pub(super) fn in_dialect(dialect: Dialect, mut response: Response<Body>) -> Response<Body> {
    // One of ours: the upstream's extensions never get here.
    let Some(why) = response.extensions_mut().remove::<Refused>() else { return response };
    let (status, record, message) = (response.status(), why.id.to_string(), refuse::message(&why));
    let own = [
        ("rule", why.rules.first().map(String::as_str)),
        ("reason", Some(why.reason.as_str())),
        ("record", Some(record.as_str())),
        ("hint", why.hint.as_deref()),
    ];
    let body = refusal::body(
        dialect,
        &refusal::Refusal {
            status: status.as_u16(),
            code: why.code.as_str(),
            message: &message,
            is_budget: why.code == Code::BudgetExceeded,
            own: &own,
        },
    );
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = Body::full(body.into());
    response
}
