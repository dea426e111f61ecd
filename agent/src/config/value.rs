//! Values that check themselves while they are read, so that an error has its line.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use serde::{Deserialize, Deserializer, de};
use strait_contract::{message::Resolver, run::Range};

/// A canonical host name: lower case, no trailing dot, A-labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct HostName(pub String);

impl TryFrom<String> for HostName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let name = text.strip_suffix('.').unwrap_or(&text).to_ascii_lowercase();
        if !name.is_ascii() {
            return Err(format!("`{text}` isn't written in ASCII: write its `xn--` form"));
        }
        if let Some(rest) = name.strip_prefix("*.").or_else(|| name.strip_prefix('.')) {
            return Err(format!(
                "`{text}` names more than one host, which isn't possible here: name each, such as `{rest}`"
            ));
        }
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        if name.len() > 253 || !name.split('.').all(label) {
            return Err(format!("`{text}` isn't a host name"));
        }
        if name.parse::<Ipv4Addr>().is_ok() {
            return Err(format!("`{text}` is an address: a host name is wanted"));
        }
        Ok(Self(name))
    }
}

/// An IPv4 range in CIDR form without host bits.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Cidr(pub Range);

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad =
            || format!("`{text}` isn't an IPv4 range: write `10.0.0.0/8`, or `10.0.0.1` for one address");
        let (addr, prefix) = text.split_once('/').unwrap_or((&text, "32"));
        let addr: Ipv4Addr = addr.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        if prefix > 32 {
            return Err(bad());
        }
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        let network = Ipv4Addr::from(u32::from(addr) & mask);
        if network != addr {
            return Err(format!("`{text}` has bits beyond its prefix: write `{network}/{prefix}`"));
        }
        Ok(Self(Range { addr, prefix }))
    }
}

/// How names are resolved: `"system"`, `"proxy"`, or a list of servers.
#[derive(Clone, Debug)]
pub(super) struct ResolverValue(pub Resolver);

impl<'de> Deserialize<'de> for ResolverValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Resolver;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`\"system\"`, `\"proxy\"` or a list of servers such as `[\"192.0.2.1\"]`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Resolver, E> {
                match text {
                    "system" => Ok(Resolver::System),
                    "proxy" => Ok(Resolver::Proxy),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Resolver, A::Error> {
                let mut servers = Vec::new();
                while let Some(text) = seq.next_element::<String>()? {
                    let server = text
                        .parse::<SocketAddr>()
                        .or_else(|_| text.parse::<IpAddr>().map(|addr| SocketAddr::new(addr, 53)))
                        .map_err(|_| {
                            de::Error::custom(format!("`{text}` isn't an address of a name server"))
                        })?;
                    servers.push(server);
                }
                if servers.is_empty() {
                    return Err(de::Error::custom("the list of name servers is empty: write `\"system\"`"));
                }
                Ok(Resolver::Servers(servers))
            }
        }
        from.deserialize_any(Visitor).map(Self)
    }
}

/// `host:port` of a proxy, with or without `http://`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct ProxyAddress {
    pub host: String,
    pub port: u16,
}

impl TryFrom<String> for ProxyAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("`{text}` isn't a proxy: write `host:port`");
        let rest = text.strip_prefix("http://").unwrap_or(&text).trim_end_matches('/');
        if rest.contains('@') {
            return Err("a credential doesn't belong here: name it by `proxy_credential`".to_owned());
        }
        if rest.contains("://") {
            return Err(format!("`{text}`: only plain HTTP to the proxy is supported: write `host:port`"));
        }
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?;
        let host = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(addr) => addr.to_string(),
            Err(_) => HostName::try_from(host.to_owned())?.0,
        };
        Ok(Self { host, port })
    }
}

/// Name of an environment variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Variable(pub String);

impl TryFrom<String> for Variable {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let good = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
        if good { Ok(Self(text)) } else { Err(format!("`{text}` isn't the name of an environment variable")) }
    }
}

/// Host names with their addresses; two spellings of one name are refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts(pub Vec<(String, IpAddr)>);

impl<'de> Deserialize<'de> for Hosts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "an address or a list of addresses")]
        enum Addresses {
            One(IpAddr),
            Many(Vec<IpAddr>),
        }
        let mut seen: BTreeMap<String, ()> = BTreeMap::new();
        let mut hosts = Vec::new();
        let raw: BTreeMap<String, Addresses> = BTreeMap::deserialize(from)?;
        for (text, addresses) in raw {
            let HostName(name) = HostName::try_from(text.clone()).map_err(de::Error::custom)?;
            if seen.insert(name.clone(), ()).is_some() {
                return Err(de::Error::custom(format!("`{text}` is named twice")));
            }
            match addresses {
                Addresses::One(addr) => hosts.push((name, addr)),
                Addresses::Many(all) => hosts.extend(all.into_iter().map(|addr| (name.clone(), addr))),
            }
        }
        Ok(Self(hosts))
    }
}

/// As `@approval_timeout` spells it, at least a second and at most a day.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let digits = text.strip_suffix(['s', 'm', 'h'])?;
    let unit = if text.ends_with('h') {
        3600
    } else if text.ends_with('m') {
        60
    } else {
        1
    };
    let seconds = digits.parse::<u64>().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    seconds.checked_mul(unit).filter(|seconds| (1..=86_400).contains(seconds)).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_spelled_as_in_rules() {
        for (text, seconds) in
            [("10m", Some(600)), ("1s", Some(1)), ("24h", Some(86_400)), ("25h", None), ("0s", None)]
        {
            assert_eq!(duration(text), seconds.map(Duration::from_secs), "{text}");
        }
        for bad in ["", "10", "m", "-1s", "+1s", "1.5m"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
