//! DNS over HTTPS: a way around the gateway's own answers, refused unless the host is named for it (case 21).

use http::{HeaderMap, header};
use strait_contract::code::Code;

use crate::{call::HttpCall, decide::Refusal, gateway::Settings};

/// Public resolvers that answer DNS over HTTPS in any of its forms.
const KNOWN: &[&str] = &[
    "chrome.cloudflare-dns.com",
    "cloudflare-dns.com",
    "dns.adguard.com",
    "dns.adguard-dns.com",
    "dns.alidns.com",
    "dns.controld.com",
    "dns.google",
    "dns.google.com",
    "dns.mullvad.net",
    "dns.nextdns.io",
    "dns.quad9.net",
    "dns.sb",
    "dns0.eu",
    "dns9.quad9.net",
    "dns10.quad9.net",
    "dns11.quad9.net",
    "doh.cleanbrowsing.org",
    "doh.dns.sb",
    "doh.opendns.com",
    "doh.pub",
    "doh.umbrella.com",
    "freedns.controld.com",
    "mozilla.cloudflare-dns.com",
    "one.one.one.one",
    "1dot1dot1dot1.cloudflare-dns.com",
    "security.cloudflare-dns.com",
    "family.cloudflare-dns.com",
];
const MESSAGE: &str = "application/dns-message";
const JSON: &str = "application/dns-json";

/// Refuses a request that is one for DNS.
///
/// # Errors
/// The refusal.
pub(crate) fn check(settings: &Settings, call: &HttpCall, headers: &HeaderMap) -> Result<(), Refusal> {
    let host = call.target.host_text();
    if settings.doh.contains(call.target.host()) {
        return Ok(());
    }
    let sends = call.content_type.as_deref().is_some_and(|kind| kind == MESSAGE || kind == JSON);
    let wants = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|kind| is(kind, MESSAGE) || is(kind, JSON)));
    if !sends && !wants && !KNOWN.contains(&host) {
        return Ok(());
    }
    let reason = format!("`{host}` is asked for DNS over HTTPS, which goes around this gateway's DNS");
    Err(Refusal::new(Code::DohRefused, reason)
        .hint("use the resolver of the run, or have the operator name the host in `network.doh`"))
}

fn is(kind: &str, expected: &str) -> bool {
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(expected))
}
