//! Placeholders of a permitted request become values: in its fields, its query, and a body of a kind and size in which
//! they can be replaced. Anything else that holds one is cut on its way ([`crate::exposure::Watch`]).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, IF_RANGE, RANGE},
};
use http_body::Body as _;
use strait_contract::{code::Code, tool::ToolName};
use zeroize::Zeroizing;

use super::Failure;
use crate::{
    call::{Call, HttpCall},
    credential::Ready,
    exposure::{Content, Exposure, Misuse, Swap, content_kind, patterns},
    mask::Patterns,
    pipeline::Context,
    protocol::http::body::{Collect, Payload},
};

/// Largest body that placeholders are replaced in, bytes.
const MAX_BODY: u64 = 256 * 1024;

/// A request that holds values now.
pub(super) struct Swapped {
    /// The URL, if its query holds one.
    pub(super) url: Option<Zeroizing<String>>,
    /// What to hide in the answer.
    pub(super) hide: Option<Arc<Patterns>>,
    /// Whose.
    pub(super) names: Vec<ToolName>,
}

/// Replaces the placeholders of a request; `None` if it has none.
pub(super) async fn swap(
    context: &Context,
    call: &Call,
    request: &mut Request<Payload>,
    tool: Option<&Arc<Patterns>>,
) -> Result<Option<Swapped>, Failure> {
    let (Some(exposure), Some(http)) = (&context.caller.run.exposure, call.http()) else {
        return Ok(None);
    };
    if !exposure.has_placeholders() {
        return Ok(None);
    }
    let misused = |misuse: Misuse| Failure::from(misuse.tell(&context.gateway.whois, &context.caller));
    // Not every caller of this has shown the fields that it sends to `decide`.
    exposure.check(call, Some(request.headers())).map_err(misused)?;
    let mut found = exposure.found(http, Some(request.headers()));
    let body = whole(context, http, exposure, request).await?;
    if let Some((kind, bytes)) = &body {
        let inside = exposure.found_in_body(bytes);
        if let Some(which) = unreplaceable(exposure, http, &inside, *kind, bytes) {
            return Err(misused(exposure.misuse(which, http, "the body")));
        }
        found.extend(inside);
        found.sort_unstable();
        found.dedup();
    }
    if found.is_empty() {
        return Ok(None);
    }
    let mut values: Vec<(usize, Arc<Ready>)> = Vec::with_capacity(found.len());
    for which in &found {
        let value = exposure.value(*which, &context.gateway).await;
        let value = value.map_err(|reason| Failure { code: Code::CredentialUnavailable, reason })?;
        values.push((*which, value));
    }
    let swap = Swap::new(exposure, &values);
    swap.fields(request.headers_mut());
    if let Some(text) = body.and_then(|(kind, bytes)| swap.body(kind, &bytes)) {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        request.body_mut().replace(bytes);
    }
    // As for a tool with a credential: the answer is to be looked through, and a part of it may be a part of the value.
    for name in [RANGE, IF_RANGE] {
        request.headers_mut().remove(name);
    }
    request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let hide = patterns(&values, tool);
    Ok(Some(Swapped { url: swap.url(http.target.url()), hide, names: exposure.names(&found) }))
}

/// The whole body, if a placeholder could be replaced in it.
async fn whole(
    context: &Context,
    http: &HttpCall,
    exposure: &Exposure,
    request: &mut Request<Payload>,
) -> Result<Option<(Content, Bytes)>, Failure> {
    let Some(kind) = content_kind(http.content_type.as_deref()) else { return Ok(None) };
    let small = request.body().size_hint().exact().is_some_and(|length| length > 0 && length <= MAX_BODY);
    if !small || request.headers().contains_key(CONTENT_ENCODING) || !exposure.is_bound_any(http) {
        return Ok(None);
    }
    let patience: Duration = context.idle_time();
    let most = usize::try_from(MAX_BODY).unwrap_or(usize::MAX);
    let collected = request.body_mut().collect(most, &context.caller.run.held_bytes);
    let why = match tokio::time::timeout(patience, collected).await {
        Ok(Ok(bytes)) => return Ok(Some((kind, bytes))),
        Ok(Err(why)) => why,
        Err(_) => Collect::Late,
    };
    let code = match why {
        Collect::Source(_) => Code::ClientGone,
        Collect::Full => Code::LimitExceeded,
        Collect::Late | Collect::TooLarge(_) | Collect::Trailers => Code::MalformedRequest,
    };
    Err(Failure { code, reason: format!("the body is to be looked through for placeholders, and {why}") })
}

/// A placeholder of a body that isn't for there, or would still be in it after all that can be replaced is.
fn unreplaceable(
    exposure: &Exposure,
    http: &HttpCall,
    inside: &[usize],
    kind: Content,
    bytes: &[u8],
) -> Option<usize> {
    if let Some(foreign) = inside.iter().find(|which| !exposure.is_bound(**which, http)) {
        return Some(*foreign);
    }
    let first = inside.first()?;
    match Swap::dry(exposure, inside).body(kind, bytes) {
        Some(rest) => exposure.found_in_body(rest.as_bytes()).first().copied(),
        None => Some(*first),
    }
}
