//! Which fields of a head go on to the other side.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING,
        UPGRADE,
    },
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Removes the fields that concern one connection only (RFC 9110, section 7.6.1) and those that `Connection`
/// names. What the gateway itself puts in is put in afterwards, so that naming it there is of no use.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let trailers = accepts_trailers(headers);
    if headers.contains_key(TRANSFER_ENCODING) {
        // It was overridden by the other, and says the wrong length once that is gone (RFC 9112, section 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    if headers.contains_key(CONNECTION) {
        let listed: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
            .collect();
        for name in listed {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in [
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether a message is in a transfer coding besides `chunked`, which nobody has undone.
pub(crate) fn transfer_coded(headers: &HeaderMap) -> bool {
    let all = headers.get_all(TRANSFER_ENCODING);
    let mut codings = all.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| !coding.trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

/// Makes the head of a request fit to be sent on; its authority comes from the judged URL alone.
pub(crate) fn for_upstream(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    headers.remove(HOST);
}

/// The protocol that a request asks to change to: a WebSocket handshake (RFC 6455, section 4.1) or none. Any other
/// would open a tunnel that nobody decides on, so its field stays on this connection like any hop-by-hop field and
/// the request goes on as it is, which RFC 9110 (section 7.8) leaves to the server.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let once = |name: &str| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    let protocol = once("upgrade").filter(|protocol| is_websocket(protocol))?;
    let handshake = once("sec-websocket-key").is_some_and(|key| key.len() == 24)
        && once("sec-websocket-version").is_some_and(|version| version.as_bytes() == b"13");
    (handshake && lists(headers, &CONNECTION, "upgrade")).then(|| protocol.clone())
}

/// Whether the value of an `Upgrade` field is `websocket` and nothing else.
pub(crate) fn is_websocket(protocol: &HeaderValue) -> bool {
    protocol.as_bytes().eq_ignore_ascii_case(b"websocket")
}

fn accepts_trailers(headers: &HeaderMap) -> bool {
    headers.contains_key(TE) && lists(headers, &TE, "trailers")
}

fn lists(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|listed| listed.trim().eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_one_connection_stay_on_it() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Secret"),
            ("connection", "authorization"),
            ("x-secret", "1"),
            ("authorization", "Bearer x"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("host", "ok.test"),
            ("accept", "*/*"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        for_upstream(&mut headers);
        let mut left: Vec<_> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        left.sort_unstable();
        assert_eq!(left, [("accept", "*/*"), ("te", "trailers")]);
    }

    #[test]
    fn a_length_that_did_not_count_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("3"));
        strip_hop_by_hop(&mut headers);
        assert!(headers.contains_key(CONTENT_LENGTH));
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        strip_hop_by_hop(&mut headers);
        assert!(headers.is_empty(), "{headers:?}");
    }

    #[test]
    fn an_upgrade_needs_both_fields() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        assert_eq!(upgrade(&headers), None);
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        assert_eq!(upgrade(&headers), None, "no handshake");
        headers.insert("sec-websocket-key", HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
        headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
        assert_eq!(upgrade(&headers), Some(HeaderValue::from_static("websocket")));
    }

    #[test]
    fn no_other_protocol_opens_a_tunnel() {
        let mut headers = HeaderMap::new();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert("sec-websocket-key", HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
        headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
        for other in ["h2c", "foo", "websocket, h2c", "TLS/1.0"] {
            headers.insert(UPGRADE, HeaderValue::from_static(other));
            assert_eq!(upgrade(&headers), None, "{other}");
        }
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        assert!(upgrade(&headers).is_some());
        headers.append(UPGRADE, HeaderValue::from_static("h2c"));
        assert_eq!(upgrade(&headers), None, "two fields");
    }
}
