//! DNS names and hosts in canonical form.

use std::{borrow::Cow, collections::HashSet, fmt, net::IpAddr, sync::Arc};

use idna::AsciiDenyList;
use strait_contract::code::Code;

use super::address;

/// Longest name, bytes, without trailing dot (RFC 1035 section 3.1).
const MAX_NAME: usize = 253;
/// Longest label, bytes.
const MAX_LABEL: usize = 63;

/// Names that mean something on this host or inside somebody's network and never a public host: special-use
/// names (RFC 6761, 6762, 7686, 8375, 9476), cluster and cloud-internal suffixes (A11). Each stands for itself
/// and everything below it.
const RESERVED: &[&str] = &[
    "alt",
    "cluster.local",
    "home.arpa",
    "in-addr.arpa",
    "internal",
    "intranet",
    "ip6.arpa",
    "lan",
    "local",
    "localdomain",
    "localhost",
    "onion",
    "svc",
];

/// A DNS name that may leave the host: lower case, A-labels, no trailing dot, at least two labels, not like an
/// address, not reserved. Only [`Names`] makes exceptions. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

/// Why a host name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing there.
    #[error("the host is empty")]
    Empty,
    /// Two dots in a row, or a leading dot.
    #[error("`{0}` has an empty label")]
    EmptyLabel(String),
    /// A label of more than 63 or a name of more than 253 bytes.
    #[error("`{0}` is too long: 63 bytes a label, 253 in all")]
    TooLong(String),
    /// A character, escape or bracket that no host name holds, or a label that isn't valid IDNA.
    #[error("`{0}` is not a host name: use letters, digits, `-` and `.`")]
    Character(String),
    /// Ends in a number or stands in brackets, but isn't an address.
    #[error("`{0}` looks like an address but is not one")]
    Address(String),
    /// One label: its meaning depends on the host's search domains.
    #[error("`{0}` has a single label: write the full name")]
    SingleLabel(String),
    /// Reserved for this host, a local network or a cluster.
    #[error("`{0}` is reserved for local use (`{1}`): only an entry in `hosts` makes it reachable")]
    Reserved(String, &'static str),
}

impl NameError {
    /// [`Code::NameRefused`] for what is well formed, else [`Code::MalformedRequest`].
    pub fn code(&self) -> Code {
        match self {
            Self::SingleLabel(_) | Self::Reserved(..) => Code::NameRefused,
            _ => Code::MalformedRequest,
        }
    }
}

impl Name {
    /// Reads a name.
    ///
    /// # Errors
    /// See [`NameError`]; a literal address is [`NameError::Character`].
    pub fn parse(text: &str) -> Result<Self, NameError> {
        Self::parse_with(text, &Names::default())
    }

    /// [`Self::parse`] where the names of `names` are good too.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_with(text: &str, names: &Names) -> Result<Self, NameError> {
        match Host::parse_with(text, names)? {
            Host::Name(name) => Ok(name),
            Host::Address(_) => Err(NameError::Character(text.to_owned())),
        }
    }

    /// Reads a name that has records of types other than an address: labels that start with `_` may stand before
    /// one that [`Self::parse_with`] takes (RFC 8552), so that `_x.local` is as local as `local` is.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_owner(text: &str, names: &Names) -> Result<Self, NameError> {
        let mut host = text;
        while let Some((_, rest)) = host.split_once('.').filter(|(label, _)| label.starts_with('_')) {
            host = rest;
        }
        Self::parse_with(host, names)?;
        let whole = well_formed(text)?;
        Ok(Self(Arc::from(whole)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({})", self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A name or a literal address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name.
    Name(Name),
    /// A literal address. IPv4 in any spelling becomes IPv4; IPv4-mapped IPv6 stays IPv6, which vetting
    /// refuses by class.
    Address(IpAddr),
}

impl Host {
    /// Reads a host as it stands in an authority, without port; IPv6 in brackets.
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn parse(text: &str) -> Result<Self, NameError> {
        Self::parse_with(text, &Names::default())
    }

    /// [`Self::parse`] where the names of `names` are good too.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_with(text: &str, names: &Names) -> Result<Self, NameError> {
        if let Some(inside) = text.strip_prefix('[') {
            return inside
                .strip_suffix(']')
                .and_then(address::v6)
                .map(|addr| Self::Address(IpAddr::V6(addr)))
                .ok_or_else(|| NameError::Address(text.to_owned()));
        }
        let host = well_formed(text)?;
        if address::ends_in_number(&host) {
            let addr = address::v4(&host).ok_or_else(|| NameError::Address(text.to_owned()))?;
            return Ok(Self::Address(IpAddr::V4(addr)));
        }
        if !names.0.contains(host.as_ref()) {
            refuse_local(&host)?;
        }
        Ok(Self::Name(Name(Arc::from(host))))
    }

    /// The name, if it is one.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }

    /// The address, if it is one.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::Address(addr) => Some(*addr),
        }
    }
}

impl fmt::Display for Host {
    /// As in an authority: IPv6 in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name.as_str()),
            Self::Address(IpAddr::V4(addr)) => write!(f, "{addr}"),
            Self::Address(IpAddr::V6(addr)) => write!(f, "[{addr}]"),
        }
    }
}

impl From<Name> for Host {
    fn from(name: Name) -> Self {
        Self::Name(name)
    }
}

impl From<IpAddr> for Host {
    fn from(addr: IpAddr) -> Self {
        Self::Address(addr)
    }
}

/// Names that are good although reserved or of one label: the operator's `hosts` and the gateway's own name.
#[derive(Clone, Debug, Default)]
pub struct Names(HashSet<Box<str>>);

impl Names {
    /// Takes the exceptions in.
    ///
    /// # Errors
    /// [`NameError`] of the first that isn't well formed. A literal address is accepted and makes no
    /// difference: addresses are vetted where they are dialled.
    pub fn new<'a>(exceptions: impl IntoIterator<Item = &'a str>) -> Result<Self, NameError> {
        exceptions
            .into_iter()
            .filter(|text| !text.starts_with('['))
            .map(|text| well_formed(text).map(|host| host.into_owned().into_boxed_str()))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// Canonical spelling of a host that isn't in brackets, with label rules checked.
fn well_formed(text: &str) -> Result<Cow<'_, str>, NameError> {
    let bad = || NameError::Character(text.to_owned());
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
    let host = if text.bytes().all(plain) && !text.contains("xn--") {
        Cow::Borrowed(text)
    } else {
        idna::domain_to_ascii_cow(text.as_bytes(), AsciiDenyList::URL).map_err(|_| bad())?
    };
    // Exactly one dot may follow the last label (the root); canonical is without.
    let host = match host {
        Cow::Borrowed(host) => Cow::Borrowed(host.strip_suffix('.').unwrap_or(host)),
        Cow::Owned(mut host) => {
            if host.ends_with('.') {
                host.pop();
            }
            Cow::Owned(host)
        }
    };
    if host.is_empty() {
        return Err(NameError::Empty);
    }
    if !host.bytes().all(plain) {
        return Err(bad());
    }
    if host.len() > MAX_NAME {
        return Err(NameError::TooLong(text.chars().take(MAX_LABEL).collect()));
    }
    for label in host.split('.') {
        match label.len() {
            0 => return Err(NameError::EmptyLabel(text.to_owned())),
            1..=MAX_LABEL => {}
            _ => return Err(NameError::TooLong(text.to_owned())),
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(bad());
        }
    }
    Ok(host)
}

fn refuse_local(host: &str) -> Result<(), NameError> {
    // A single label is judged first as reserved, so that `localhost` is named for what it is.
    for suffix in RESERVED {
        let below = host.strip_suffix(suffix);
        if below.is_some_and(|below| below.is_empty() || below.ends_with('.')) {
            return Err(NameError::Reserved(host.to_owned(), suffix));
        }
    }
    if host.contains('.') { Ok(()) } else { Err(NameError::SingleLabel(host.to_owned())) }
}
