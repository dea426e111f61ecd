//! Workload tokens of requests: whose they are, and that none is sent on (A2, A4).
//!
//! The run is known by its address and its flow before a token is looked at; the token must be that run's. Architecture
//! invariant: a token never says who calls.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, header::AUTHORIZATION};
use memchr::memmem;
use strait_contract::{
    code::Code,
    token::{self, PREFIX, TokenHash},
};
use zeroize::Zeroizing;

use crate::{call::Caller, decide::Refusal, gateway::Gateway, record::now_ms, url::Target};

/// Fields whose whole value is a key, as clients of model and other APIs send it.
const KEYS: [&str; 3] = ["x-api-key", "api-key", "x-goog-api-key"];

/// Checks that a request to the gateway's own endpoints has the caller's token.
///
/// # Errors
/// [`Code::TokenMissing`], [`Code::TokenUnknown`], [`Code::TokenAddressMismatch`].
pub(crate) fn check(gateway: &Gateway, caller: &Caller, headers: &HeaderMap) -> Result<(), Refusal> {
    let presented = presented(headers);
    if presented.is_empty() {
        let reason = "the request has no workload token";
        return Err(Refusal::new(Code::TokenMissing, reason).hint(
            "send the run's `STRAIT_TOKEN`: as `Authorization: Bearer`, `x-api-key`, `api-key`, `x-goog-api-key` or \
             the password of Basic authentication",
        ));
    }
    let own = &caller.run.info;
    let mut found = false;
    for hash in presented {
        if own.token.matches(&hash) {
            found = true;
        } else if let Some(other) = gateway.runs.by_token(&hash) {
            if caller.run.tells_misuse(now_ms() / 1000) {
                gateway.whois.token_mismatch(own.id.clone(), other.info.id.clone());
            }
            let reason = "the workload token is another run's: it is good from that run's own address alone";
            return Err(
                Refusal::new(Code::TokenAddressMismatch, reason).hint("send this run's own `STRAIT_TOKEN`")
            );
        }
    }
    if found {
        return Ok(());
    }
    let reason = "the workload token is that of no live run";
    Err(Refusal::new(Code::TokenUnknown, reason).hint("send this run's own `STRAIT_TOKEN`"))
}

/// Hashes of everything that a request presents as a token.
fn presented(headers: &HeaderMap) -> Vec<TokenHash> {
    let keys = KEYS.iter().flat_map(|name| headers.get_all(*name)).filter_map(|value| value.to_str().ok());
    let mut all: Vec<_> = keys.map(|key| TokenHash::of(key.trim())).collect();
    for value in headers.get_all(AUTHORIZATION).iter().filter_map(|value| value.to_str().ok()) {
        let (scheme, rest) = value.trim().split_once(' ').unwrap_or((value, ""));
        if scheme.eq_ignore_ascii_case("bearer") {
            all.push(TokenHash::of(rest.trim()));
        } else if let Some(password) = basic(value) {
            all.push(TokenHash::of(&password));
        }
    }
    all
}

/// The password of Basic authentication (RFC 7617).
fn basic(value: &str) -> Option<Zeroizing<String>> {
    let (scheme, rest) = value.trim().split_once(' ')?;
    let encoded = Some(rest.trim()).filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let pair = Zeroizing::new(String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?);
    pair.split_once(':').map(|(_, password)| Zeroizing::new(password.to_owned()))
}

/// Takes every field out that holds the run's own token, so that it is sent to nobody.
pub(crate) fn strip(headers: &mut HeaderMap, own: &TokenHash) {
    let holds = |name: &HeaderName, value: &[u8]| {
        let plain =
            memmem::find(value, PREFIX.as_bytes()).is_some() && is_in(&String::from_utf8_lossy(value), own);
        plain
            || (*name == AUTHORIZATION
                && std::str::from_utf8(value).ok().and_then(basic).is_some_and(|text| is_in(&text, own)))
    };
    let named: Vec<HeaderName> = headers
        .iter()
        .filter(|(name, value)| holds(name, value.as_bytes()))
        .map(|(name, _)| name.clone())
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Refuses a URL with the run's own token in it, which would be in the logs of whoever gets it.
///
/// # Errors
/// [`Code::MalformedRequest`].
pub(crate) fn check_url(target: &Target, own: &TokenHash) -> Result<(), Refusal> {
    if !is_in(target.url(), own) {
        return Ok(());
    }
    let reason = "the URL holds this run's workload token, which is sent to nobody";
    Err(Refusal::new(Code::MalformedRequest, reason)
        .hint("send the token to the gateway in a field, not in the URL"))
}

fn is_in(text: &str, own: &TokenHash) -> bool {
    token::find(text).any(|(_, found)| TokenHash::of(found).matches(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> String {
        format!("{PREFIX}{}", "x".repeat(token::BODY))
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_token_is_found_in_each_of_the_places() {
        let token = token();
        let basic = format!("Basic {}", STANDARD.encode(format!("any:{token}")));
        let places: [(&'static str, &str); 6] = [
            ("authorization", &format!("Bearer {token}")),
            ("authorization", &format!("bearer   {token} ")),
            ("authorization", &basic),
            ("x-api-key", &token),
            ("api-key", &token),
            ("x-goog-api-key", &token),
        ];
        for place in places {
            let mut headers = headers(&[place, ("accept", "*/*")]);
            assert!(presented(&headers).iter().any(|hash| hash.matches(&TokenHash::of(&token))), "{place:?}");
            strip(&mut headers, &TokenHash::of("another"));
            assert_eq!(headers.len(), 2, "another run's isn't known here");
            strip(&mut headers, &TokenHash::of(&token));
            assert_eq!(headers.keys().collect::<Vec<_>>(), ["accept"], "{place:?}");
        }
        for nothing in [("accept", "*/*"), ("authorization", "Digest x"), ("authorization", "Basic %%")] {
            assert!(presented(&headers(&[nothing])).is_empty(), "{nothing:?}");
        }
    }

    #[test]
    fn a_token_is_stripped_wherever_it_stands() {
        let token = token();
        let mut all =
            headers(&[("cookie", &format!("a=b; t={token}")), ("x-other", &token), ("x-fine", "strait_x")]);
        strip(&mut all, &TokenHash::of(&token));
        assert_eq!(all.keys().collect::<Vec<_>>(), ["x-fine"]);
        let spelled = token.replace('x', "%78");
        for url in [format!("https://a.test/{token}"), format!("https://a.test/?k={spelled}")] {
            let target = Target::from_absolute(&url).unwrap();
            assert_eq!(check_url(&target, &TokenHash::of(&token)).unwrap_err().code, Code::MalformedRequest);
            assert!(check_url(&target, &TokenHash::of("another")).is_ok());
        }
    }
}
