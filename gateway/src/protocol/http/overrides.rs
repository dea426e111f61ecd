//! Fields by which a request asks a server to take it for another one.
//!
//! Frameworks of all languages know them, some by default. Rules judge the request line; a field that says something
//! else would go around them, so such a request is refused. One that repeats what the request line says passes.

use http::{HeaderMap, HeaderName, HeaderValue};
use strait_contract::code::Code;

use crate::{
    call::HttpCall,
    decide::Refusal,
    url::{Names, Target},
};

/// Fields with the method that a server shall assume.
const METHOD: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
/// Fields with the path or URL that a server shall assume.
const URL: [&str; 2] = ["x-original-url", "x-rewrite-url"];

/// Compares what such fields say with what is judged.
///
/// # Errors
/// [`Code::MalformedRequest`] if they differ.
pub(crate) fn check(call: &HttpCall, headers: &HeaderMap, names: &Names) -> Result<(), Refusal> {
    for (name, value) in headers {
        let name = name.as_str();
        if !name.starts_with('x') {
            continue;
        }
        if METHOD.iter().any(|known| is(name, known)) {
            if !value.as_bytes().eq_ignore_ascii_case(call.method.as_str().as_bytes()) {
                let hint = "send the request with the method that it means: rules are about that";
                return Err(differs(name, value, call.method.as_str()).hint(hint));
            }
        } else if URL.iter().any(|known| is(name, known)) && !is_same(call, value, names) {
            let hint = "send the request to the URL that it means: rules are about that";
            return Err(differs(name, value, call.target.path_and_query()).hint(hint));
        }
    }
    Ok(())
}

/// Takes such fields out of trailers: some servers add those to the head, and nothing has judged them.
pub(crate) fn strip(trailers: &mut HeaderMap) {
    let known = |name: &&HeaderName| METHOD.iter().chain(&URL).any(|known| is(name.as_str(), known));
    let named: Vec<HeaderName> = trailers.keys().filter(known).cloned().collect();
    for name in named {
        trailers.remove(name);
    }
}

/// Servers behind CGI and its heirs can't tell `_` from `-`.
fn is(name: &str, known: &str) -> bool {
    name.len() == known.len()
        && name.bytes().map(|byte| if byte == b'_' { b'-' } else { byte }).eq(known.bytes())
}

fn is_same(call: &HttpCall, value: &HeaderValue, names: &Names) -> bool {
    let Ok(text) = value.to_str() else { return false };
    let target = &call.target;
    let meant = if text.starts_with('/') {
        Target::from_host(target.scheme(), target.host().clone(), target.port(), text)
    } else {
        Target::from_absolute_with(text, names)
    };
    meant.is_ok_and(|meant| meant == *target)
}

fn differs(name: &str, value: &HeaderValue, judged: &str) -> Refusal {
    let said = String::from_utf8_lossy(value.as_bytes());
    let reason = format!("the field `{name}` says `{said}`, the request is `{judged}`");
    Refusal::new(Code::MalformedRequest, reason)
}
