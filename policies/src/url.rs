//! One URL parser: what is judged is what is sent.
//!
//! Takes an authority and a path as a client spelled them, gives a [`Target`] in its only canonical spelling, or
//! refuses. Names come out as lower-case A-labels without trailing dot, addresses in their usual form, paths
//! without dot segments and with normalised percent-encoding (RFC 3986 section 6.2.2).
//!
//! Architecture invariant: nothing else in Strait reads a host, port, path or query from text, and a
//! [`Target`] can't be changed, so policy and upstream can't see two different URLs.

mod address;
mod name;
mod path;
#[cfg(any(test, fuzzing))]
pub mod properties;
#[cfg(test)]
mod tests;

use std::{fmt, net::IpAddr, ops::Range};

use strait_contract::code::Code;

pub use name::{Host, Name, NameError, Names};
pub use path::PathError;

/// Scheme of a [`Target`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP in TLS.
    Https,
}

impl Scheme {
    /// Lower-case name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Port used when an authority names none.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a URL or a part of one was refused. The text says which part and what about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not an absolute `http` or `https` URL.
    #[error("the URL must start with `http://` or `https://`")]
    Scheme,
    /// `user@host`: two readers may see two hosts (case 46).
    #[error("the authority must not hold a user name or password (`@`)")]
    UserInfo,
    /// A port that isn't a number from 1 to 65535 without leading zeros, or is missing where one is needed.
    #[error("`{0}` is not a port: write a number from 1 to 65535")]
    Port(String),
    /// The host part.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The path or query.
    #[error(transparent)]
    Path(#[from] PathError),
}

impl UrlError {
    /// [`Code::NameRefused`] for a well-formed name that may not leave the host, else [`Code::MalformedRequest`].
    pub fn code(&self) -> Code {
        match self {
            Self::Name(error) => error.code(),
            _ => Code::MalformedRequest,
        }
    }
}

/// Where a request goes: a canonical `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    scheme: Scheme,
    host: Host,
    port: u16,
    // INVARIANT: `scheme://authority/path?query`; the three offsets lie on character boundaries within it.
    url: String,
    authority: usize,
    path: usize,
    query: Option<usize>,
}

impl Target {
    /// Reads an absolute-form request target or any other `http(s)` URL text.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn from_absolute(url: &str) -> Result<Self, UrlError> {
        Self::from_absolute_with(url, &Names::default())
    }

    /// [`Self::from_absolute`] where the names of `names` are good too.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn from_absolute_with(url: &str, names: &Names) -> Result<Self, UrlError> {
        let (scheme, rest) = url.split_once("://").ok_or(UrlError::Scheme)?;
        let scheme = match scheme {
            _ if scheme.eq_ignore_ascii_case("http") => Scheme::Http,
            _ if scheme.eq_ignore_ascii_case("https") => Scheme::Https,
            _ => return Err(UrlError::Scheme),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
        Self::from_parts_with(scheme, authority, path, names)
    }

    /// Joins what the connection, `Host` or `:authority`, and the request line say. An empty `path_and_query`,
    /// or one that begins with `?`, has the path `/`.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn from_parts(scheme: Scheme, authority: &str, path_and_query: &str) -> Result<Self, UrlError> {
        Self::from_parts_with(scheme, authority, path_and_query, &Names::default())
    }

    /// [`Self::from_parts`] where the names of `names` are good too.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn from_parts_with(
        scheme: Scheme,
        authority: &str,
        path_and_query: &str,
        names: &Names,
    ) -> Result<Self, UrlError> {
        let (host, port) = host_and_port_with(authority, Some(scheme.default_port()), names)?;
        Ok(Self::build(scheme, host, port, path_and_query)?)
    }

    /// As [`Self::from_parts`] with a host that has been read before.
    ///
    /// # Errors
    /// [`UrlError::Path`].
    pub fn from_host(scheme: Scheme, host: Host, port: u16, path_and_query: &str) -> Result<Self, UrlError> {
        Ok(Self::build(scheme, host, port, path_and_query)?)
    }

    fn build(scheme: Scheme, host: Host, port: u16, path_and_query: &str) -> Result<Self, PathError> {
        use fmt::Write;
        let mut url = String::with_capacity(path_and_query.len() + 64);
        url.push_str(scheme.as_str());
        url.push_str("://");
        let authority = url.len();
        // Writing to a String can't fail.
        let _ = write!(url, "{host}");
        if port != scheme.default_port() {
            let _ = write!(url, ":{port}");
        }
        let path = url.len();
        let query = path::append_canonical(&mut url, path_and_query)?;
        Ok(Self { scheme, host, port, url, authority, path, query })
    }

    fn part(&self, range: Range<usize>) -> &str {
        self.url.get(range).unwrap_or_default()
    }

    /// Scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Port, the scheme's own if none was named.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Host, with `:port` if it isn't the scheme's own; what `Host` and `:authority` say upstream.
    pub fn authority(&self) -> &str {
        self.part(self.authority..self.path)
    }

    /// The host as policies spell it: without port and without the brackets of IPv6.
    pub fn host_text(&self) -> &str {
        let host = match &self.host {
            Host::Name(name) => return name.as_str(),
            Host::Address(IpAddr::V4(_)) => self.authority().split(':').next(),
            Host::Address(IpAddr::V6(_)) => {
                self.authority().strip_prefix('[').and_then(|rest| rest.split(']').next())
            }
        };
        host.unwrap_or_default()
    }

    /// Canonical path with leading slash.
    pub fn path(&self) -> &str {
        self.part(self.path..self.query.map_or(self.url.len(), |query| query.saturating_sub(1)))
    }

    /// Canonical query without its `?`; `None` if there is no `?`.
    pub fn query(&self) -> Option<&str> {
        self.query.map(|query| self.part(query..self.url.len()))
    }

    /// Canonical path and query: the request target sent upstream.
    pub fn path_and_query(&self) -> &str {
        self.part(self.path..self.url.len())
    }

    /// Decoded query pairs in order, read as `application/x-www-form-urlencoded`; bytes that aren't UTF-8
    /// become U+FFFD.
    ///
    /// Some servers separate pairs by `;` too. Where one stands, the pairs of that reading follow those of the usual one:
    /// a forbid finds what either holds, and a value that is to be the only one must be so in both.
    pub fn query_pairs(&self) -> Vec<(String, String)> {
        let Some(query) = self.query() else { return Vec::new() };
        let mut pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        for pair in query.split('&').filter(|pair| pair.contains(';')) {
            for part in pair.split(';') {
                pairs.extend(form_urlencoded::parse(part.as_bytes()).into_owned());
            }
        }
        pairs
    }

    /// The whole URL.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// Reads `host`, `host:port`, `[v6]` or `[v6]:port`; `default` is the port if none is written, and `None`
/// makes the port compulsory, as in a CONNECT target.
///
/// # Errors
/// [`UrlError::UserInfo`], [`UrlError::Port`], [`UrlError::Name`].
pub fn host_and_port(authority: &str, default: Option<u16>) -> Result<(Host, u16), UrlError> {
    host_and_port_with(authority, default, &Names::default())
}

/// [`host_and_port`] where the names of `names` are good too.
///
/// # Errors
/// As [`host_and_port`].
pub fn host_and_port_with(
    authority: &str,
    default: Option<u16>,
    names: &Names,
) -> Result<(Host, u16), UrlError> {
    if authority.contains('@') {
        return Err(UrlError::UserInfo);
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (inside, after) =
                rest.split_once(']').ok_or_else(|| NameError::Character(authority.to_owned()))?;
            let address = address::v6(inside).ok_or_else(|| NameError::Address(authority.to_owned()))?;
            let port = match after.strip_prefix(':') {
                Some(port) => Some(port),
                None if after.is_empty() => None,
                None => return Err(UrlError::Port(after.to_owned())),
            };
            (Host::Address(IpAddr::V6(address)), port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (Host::parse_with(host, names)?, Some(port)),
            None => (Host::parse_with(authority, names)?, None),
        },
    };
    let port = match port {
        Some(port) => parse_port(port)?,
        None => default.ok_or_else(|| UrlError::Port(String::new()))?,
    };
    Ok((host, port))
}

fn parse_port(text: &str) -> Result<u16, UrlError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    let port = if digits { text.parse().ok() } else { None };
    port.ok_or_else(|| UrlError::Port(text.to_owned()))
}
