//! Entity ids that no resource will ever have, with the spelling that works (cases 28, 29).

use std::net::IpAddr;

use strait_contract::ids::AgentName;

use crate::names::{is_tool, parse_net};

/// Whether an entity of type `kind` can have this id; if not, what to write instead.
pub(super) fn entity(kind: &str, id: &str) -> Result<(), String> {
    match kind {
        "Domain" => domain(id),
        "Host" => host(id),
        "Endpoint" => endpoint(id),
        "Name" => name(id, "Name"),
        "Net" => net(id),
        "Url" => url(id),
        "Tool" => tool(id),
        "Agent" => id.parse::<AgentName>().map(drop).map_err(|error| error.to_string()),
        "AgentVersion" => {
            match id.split_once('/') {
                Some((agent, version)) if agent.parse::<AgentName>().is_ok() && !version.is_empty() => Ok(()),
                _ => Err("write the agent's name, `/` and the version, such as `AgentVersion::\"coder/3\"`"
                    .to_owned()),
            }
        }
        _ => Ok(()),
    }
}

/// The name as requests carry it: lower case, A-labels, no trailing dot, no empty label.
pub(super) fn canonical(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let ascii = idna::domain_to_ascii(text).ok()?;
    let fits = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte))
    };
    (ascii.len() <= 253 && ascii.split('.').all(fits)).then_some(ascii)
}

fn domain(id: &str) -> Result<(), String> {
    if address(id).is_some() {
        return Err(format!("an address is in no domain; write `Host::\"{id}\"` or a `Net`"));
    }
    if parse_net(id).is_some() {
        return Err(format!("write `Net::\"{id}\"`"));
    }
    name(id, "Domain")
}

fn name(id: &str, kind: &str) -> Result<(), String> {
    let bare = id.trim_start_matches(['*', '.']);
    match canonical(bare) {
        Some(name) if name == id => Ok(()),
        Some(name) if !id.is_ascii() => {
            Err(format!("if these letters are meant, write `{kind}::\"{name}\"`"))
        }
        Some(name) if bare != id => {
            Err(format!("write `Domain::\"{name}\"`: it holds `{name}` itself and every name below it"))
        }
        Some(name) => Err(format!("write `{kind}::\"{name}\"`")),
        None if bare.contains('*') => {
            Err("a name has no wildcards; `Domain::\"example.com\"` holds every name below it".to_owned())
        }
        None if bare.contains("://") || bare.contains('/') => {
            Err("write the name alone, such as `Domain::\"example.com\"`".to_owned())
        }
        None if bare.contains(':') => {
            Err("a domain has no port; add `context.port == 443` or use `Endpoint`".to_owned())
        }
        None => Err("write a host name: labels of letters, digits and `-` with dots between".to_owned()),
    }
}

fn address(id: &str) -> Option<IpAddr> {
    id.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

fn host(id: &str) -> Result<(), String> {
    if let Some(address) = address(id) {
        let text = address.to_canonical().to_string();
        return if text == id { Ok(()) } else { Err(format!("write `Host::\"{text}\"`")) };
    }
    if parse_net(id).is_some() {
        return Err(format!("write `Net::\"{id}\"`"));
    }
    if let Some((name, port)) = id.rsplit_once(':')
        && port.parse::<u16>().is_ok()
        && let Some(name) = canonical(name)
    {
        return Err(format!("a host has no port; write `Endpoint::\"{name}:{port}\"`"));
    }
    name(id, "Host")
}

fn endpoint(id: &str) -> Result<(), String> {
    let example = "write host and port, such as `Endpoint::\"api.example.com:443\"`";
    let Some((name, port)) = id.rsplit_once(':') else { return Err(example.to_owned()) };
    let Ok(number) = port.parse::<u16>() else { return Err(example.to_owned()) };
    let name = match (address(name), canonical(name)) {
        (Some(address), _) => match address.to_canonical() {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        },
        (None, Some(name)) => name,
        (None, None) if name.contains('*') => {
            return Err("an endpoint has no wildcards; use `Domain` and `context.port`".to_owned());
        }
        (None, None) => return Err(example.to_owned()),
    };
    if number == 0 {
        return Err("there is no port 0".to_owned());
    }
    let right = format!("{name}:{number}");
    if right == id { Ok(()) } else { Err(format!("write `Endpoint::\"{right}\"`")) }
}

fn net(id: &str) -> Result<(), String> {
    match parse_net(id) {
        Some((base, prefix)) if format!("{}/{prefix}", base.to_canonical()) == id => Ok(()),
        _ => {
            Err("write a range with all bits after the prefix zero, such as `Net::\"203.0.113.0/24\"`"
                .to_owned())
        }
    }
}

/// `server` or `server/tool`; what an MCP server calls its tools is its own affair.
fn tool(id: &str) -> Result<(), String> {
    let (server, name) = id.split_once('/').map_or((id, None), |(server, name)| (server, Some(name)));
    if is_tool(server) && name != Some("") {
        return Ok(());
    }
    Err("write the tool as the config names it, such as `Tool::\"github\"`, or one tool of an MCP server, such as \
         `Tool::\"github/get_me\"`"
        .to_owned())
}

fn url(id: &str) -> Result<(), String> {
    let example = "write scheme, host and path, such as `Url::\"https://api.example.com/v1/models\"`";
    let rest = id.strip_prefix("https://").map(|rest| (rest, ":443"));
    let rest = rest.or_else(|| id.strip_prefix("http://").map(|rest| (rest, ":80")));
    let Some((rest, own_port)) = rest else { return Err(example.to_owned()) };
    let Some((authority, path)) = rest.split_once('/') else {
        return Err(format!("a URL has a path: write `Url::\"{id}/\"`"));
    };
    if path.contains(['?', '#']) {
        return Err("a `Url` has no query and no fragment; use `context.query`".to_owned());
    }
    if path.split('/').any(|segment| segment == "." || segment == "..") {
        return Err("requests have no `.` and `..` in their path; write the path that is meant".to_owned());
    }
    if authority.ends_with(own_port) {
        return Err("leave out the port that the scheme has anyway".to_owned());
    }
    let known = if authority.contains(':') && !authority.ends_with(']') {
        endpoint(authority)
    } else if let Some(v6) = authority.strip_prefix('[') {
        host(v6.trim_end_matches(']'))
    } else {
        host(authority)
    };
    known.map_err(|_| example.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_28_every_odd_spelling_is_refused_with_the_right_one() {
        for (kind, id, right) in [
            ("Domain", "OK.test", "Domain::\"ok.test\""),
            ("Domain", "OK.test.", "Domain::\"ok.test\""),
            ("Domain", "ok.test.", "Domain::\"ok.test\""),
            ("Domain", ".ok.test", "Domain::\"ok.test\""),
            ("Domain", "*.ok.test", "Domain::\"ok.test\""),
            ("Domain", "bücher.example", "Domain::\"xn--bcher-kva.example\""),
            ("Host", "*.ok.test", "Domain::\"ok.test\""),
            ("Host", "OK.test", "Host::\"ok.test\""),
            ("Host", "ok.test:443", "Endpoint::\"ok.test:443\""),
            ("Host", "[2001:DB8::1]", "Host::\"2001:db8::1\""),
            ("Host", "::ffff:10.0.0.1", "Host::\"10.0.0.1\""),
            ("Host", "10.0.0.0/8", "Net::\"10.0.0.0/8\""),
            ("Endpoint", "OK.test:0443", "Endpoint::\"ok.test:443\""),
            ("Endpoint", "2001:db8::1:443", "Endpoint::\"[2001:db8::1]:443\""),
            ("Endpoint", "ok.test", "port"),
            ("Endpoint", "*.ok.test:443", "wildcards"),
            ("Domain", "ok..test", "labels"),
            ("Domain", "ok.test/path", "name alone"),
            ("Domain", "ok.test:443", "port"),
            ("Domain", "a.*.test", "wildcards"),
            ("Domain", "10.0.0.1", "Host::"),
            ("Net", "10.0.0.1/8", "zero"),
            ("Url", "https://ok.test", "https://ok.test/"),
            ("Url", "https://ok.test:443/", "leave out the port"),
            ("Url", "https://OK.test/", "scheme, host and path"),
            ("Url", "https://ok.test/a/../b", ".."),
            ("Url", "https://ok.test/?q", "query"),
            ("Tool", "GitHub", "Tool::\"github\""),
            ("Tool", "github/", "as the config names it"),
            ("Tool", "-github", "as the config names it"),
            ("Agent", "Coder", "Coder"),
            ("AgentVersion", "coder", "coder/3"),
        ] {
            let help = entity(kind, id).expect_err(id);
            assert!(help.contains(right), "{kind} {id}: {help}");
        }
        for (kind, id) in [
            ("Domain", "ok.test"),
            ("Domain", "test"),
            ("Domain", "xn--bcher-kva.example"),
            ("Host", "a.b.ok.test"),
            ("Host", "10.0.0.1"),
            ("Host", "2001:db8::1"),
            ("Endpoint", "ok.test:443"),
            ("Endpoint", "[2001:db8::1]:443"),
            ("Endpoint", "10.0.0.1:22"),
            ("Name", "_acme-challenge.ok.test"),
            ("Net", "10.0.0.0/8"),
            ("Net", "2001:db8::/32"),
            ("Url", "https://ok.test/"),
            ("Url", "http://ok.test:8080/a/b"),
            ("Url", "https://[2001:db8::1]/a"),
            ("Tool", "github"),
            ("Tool", "github/Get Me/é"),
            ("Agent", "coder"),
            ("AgentVersion", "coder/3"),
        ] {
            assert_eq!(entity(kind, id), Ok(()), "{kind} {id}");
        }
    }
}
