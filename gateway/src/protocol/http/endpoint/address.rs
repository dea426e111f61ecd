//! Addresses of tools: which one, and what of it. What a path leads to is read by the one URL parser, so what is judged is
//! what is sent (cases 26, 45, 46).

use strait_contract::code::Code;

use crate::url::{Target, UrlError};

/// What the path of a request to the gateway names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address<'a> {
    /// `/http/TOOL` and what follows, as it was sent.
    Http { tool: &'a str, rest: &'a str },
    /// `/web/URL` or `/web?url=URL`.
    Web(Named<'a>),
    /// `/mcp/TOOL`
    Mcp(&'a str),
    /// `/model/PROVIDER` and what follows, as it was sent.
    Model { provider: &'a str, rest: &'a str },
}

/// How a page is named.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    /// In the path, as it was sent.
    Path(&'a str),
    /// In the query.
    Query(&'a str),
}

/// Why an address leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadAddress {
    /// What it leads to isn't a URL.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The query names no page, or more than one.
    #[error("the query must have `url` once, and nothing else")]
    Query,
}

impl BadAddress {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Url(error) => error.code(),
            Self::Query => Code::MalformedRequest,
        }
    }

    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::Url(UrlError::Scheme) | Self::Query => {
                "write /web/https://HOST/PATH, or /web?url= and the percent-encoded URL"
            }
            Self::Url(_) => "write the path as the tool itself has it, below the tool's URL",
        }
    }
}

impl<'a> Address<'a> {
    /// Reads path and query; `None` if it isn't a tool's.
    pub(super) fn read(path: &'a str) -> Option<Self> {
        if let Some(rest) = path.strip_prefix("/http/") {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (tool, rest) = rest.split_at_checked(end)?;
            return Some(Self::Http { tool, rest });
        }
        if let Some(rest) = path.strip_prefix("/model/") {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (provider, rest) = rest.split_at_checked(end)?;
            return Some(Self::Model { provider, rest });
        }
        if let Some(tool) = path.strip_prefix("/mcp/") {
            return Some(Self::Mcp(tool));
        }
        if let Some(url) = path.strip_prefix("/web/").filter(|url| !url.starts_with('?')) {
            return Some(Self::Web(Named::Path(url)));
        }
        let query = path.strip_prefix("/web").map(|rest| rest.strip_prefix('/').unwrap_or(rest))?;
        let query = if query.is_empty() { query } else { query.strip_prefix('?')? };
        Some(Self::Web(Named::Query(query)))
    }
}

impl Named<'_> {
    /// The page. Names of `hosts` are no good here: the web tool reaches public addresses alone.
    pub(super) fn target(&self) -> Result<Target, BadAddress> {
        match self {
            Self::Path(url) => Ok(Target::from_absolute(url)?),
            Self::Query(query) => {
                let mut pairs = form_urlencoded::parse(query.as_bytes());
                match (pairs.next(), pairs.next()) {
                    (Some((key, url)), None) if key == "url" => Ok(Target::from_absolute(&url)?),
                    _ => Err(BadAddress::Query),
                }
            }
        }
    }
}

/// The URL of `rest` below `base`. What leads above its own root is refused, so nothing leads above the base. Pairs named
/// `replaced` are left out of the query: the credential is the one of this name.
pub(crate) fn join(base: &Target, rest: &str, replaced: Option<&str>) -> Result<Target, BadAddress> {
    let below = Target::from_host(base.scheme(), base.host().clone(), base.port(), rest)?;
    let root = base.path().trim_end_matches('/');
    let mut whole = String::from(root);
    // A base without more is itself: `/http/TOOL` is not `/http/TOOL/`.
    if !rest.is_empty() && !rest.starts_with('?') || root.is_empty() {
        whole.push_str(below.path());
    }
    let kept = below.query().map(|query| match replaced {
        None => query.to_owned(),
        Some(name) => without(query, name),
    });
    if let Some(query) = kept.filter(|query| !query.is_empty() || replaced.is_none()) {
        whole.push('?');
        whole.push_str(&query);
    }
    Ok(Target::from_host(base.scheme(), base.host().clone(), base.port(), &whole)?)
}

/// A query without the pairs of a name, in whichever way a server separates them.
fn without(query: &str, name: &str) -> String {
    let is_other = |pair: &str| !form_urlencoded::parse(pair.as_bytes()).any(|(key, _)| key == name);
    let mut kept = Vec::new();
    for part in query.split('&') {
        let pairs: Vec<&str> = part.split(';').filter(|pair| is_other(pair)).collect();
        if !pairs.is_empty() {
            kept.push(pairs.join(";"));
        }
    }
    kept.join("&")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for (path, expect) in [
            ("/http/github/repos/a?b=c", Some(Address::Http { tool: "github", rest: "/repos/a?b=c" })),
            ("/http/github", Some(Address::Http { tool: "github", rest: "" })),
            ("/http/github?x", Some(Address::Http { tool: "github", rest: "?x" })),
            ("/http//x", Some(Address::Http { tool: "", rest: "/x" })),
            ("/web/https://a.test/b?c=d", Some(Address::Web(Named::Path("https://a.test/b?c=d")))),
            ("/web?url=x", Some(Address::Web(Named::Query("url=x")))),
            ("/web/?url=x", Some(Address::Web(Named::Query("url=x")))),
            ("/web", Some(Address::Web(Named::Query("")))),
            ("/webs", None),
            ("/mcp/github", Some(Address::Mcp("github"))),
            ("/mcp/github/x?y", Some(Address::Mcp("github/x?y"))),
            ("/mcp", None),
            ("/model/openai/v1/x?y", Some(Address::Model { provider: "openai", rest: "/v1/x?y" })),
            ("/model/openai", Some(Address::Model { provider: "openai", rest: "" })),
            ("/model", None),
            ("/http", None),
            ("/", None),
        ] {
            assert_eq!(Address::read(path), expect, "{path}");
        }
    }

    /// Cases 26 and 46: what is below the base stays below it in every reading.
    #[test]
    fn nothing_leads_above_the_base() {
        let base = Target::from_absolute("https://api.test/v1/x/").unwrap();
        for (rest, expect) in [
            ("", "https://api.test/v1/x"),
            ("/", "https://api.test/v1/x/"),
            ("?a=b", "https://api.test/v1/x?a=b"),
            ("/repos/acme", "https://api.test/v1/x/repos/acme"),
            ("/repos/acme/../evil", "https://api.test/v1/x/repos/evil"),
            ("/repos/%2e%2e/evil?q=..%2f", "https://api.test/v1/x/evil?q=..%2F"),
            ("/@scope%2fname", "https://api.test/v1/x/@scope%2Fname"),
            ("/%252e%252e/x", "https://api.test/v1/x/%252e%252e/x"),
        ] {
            assert_eq!(join(&base, rest, None).unwrap().url(), expect, "{rest}");
        }
        for rest in [
            "/..",
            "/../y",
            "/a/../../y",
            "/%2e%2e/y",
            "/..;/y",
            "/..%2fy",
            "//evil.test/",
            "/a//b",
            "/\\..\\y",
            "/a%00",
        ] {
            let refused = join(&base, rest, None).unwrap_err();
            assert_eq!(refused.code(), Code::MalformedRequest, "{rest}");
        }
        let root = Target::from_absolute("https://api.test").unwrap();
        assert_eq!(join(&root, "", None).unwrap().url(), "https://api.test/");
        assert_eq!(join(&root, "/a", None).unwrap().url(), "https://api.test/a");
    }

    #[test]
    fn a_pair_that_the_credential_replaces_is_left_out() {
        let base = Target::from_absolute("https://api.test/v1").unwrap();
        for (rest, expect) in [
            ("/a?key=mine", "https://api.test/v1/a"),
            ("/a?x=1&key=mine&y=2&k%65y=b", "https://api.test/v1/a?x=1&y=2"),
            ("/a?x=1;key=mine", "https://api.test/v1/a?x=1"),
            ("/a?monkey=1", "https://api.test/v1/a?monkey=1"),
        ] {
            assert_eq!(join(&base, rest, Some("key")).unwrap().url(), expect, "{rest}");
        }
    }

    #[test]
    fn pages_are_named_whole_and_by_public_names() {
        let named = |path: &str| match Address::read(path) {
            Some(Address::Web(named)) => {
                named.target().map(|target| target.url().to_owned()).map_err(|why| why.code())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(named("/web/https://a.test/b/../c?d=e").unwrap(), "https://a.test/c?d=e");
        assert_eq!(named("/web?url=https%3A%2F%2FA.test%2Fb%3Fc%3Dd").unwrap(), "https://a.test/b?c=d");
        for bad in [
            "/web/ftp://a.test/",
            "/web/file:///etc/passwd",
            "/web/gopher://a.test/",
            "/web/https:/a.test/",
            "/web/http://127.0.0.1:6666\\@a.test/",
            "/web/http://ok.test@no.test/",
            "/web?url=http%3A%2F%2Fno.test%23%40ok.test%2F",
            "/web?url=http%3A%2F%2Fa.test%0d%0a%2F",
            "/web?url=a&url=b",
            "/web?u=https://a.test/",
            "/web",
        ] {
            assert_eq!(named(bad), Err(Code::MalformedRequest), "{bad}");
        }
        for reserved in [
            "/web/http://localhost/",
            "/web/http://db.internal/",
            "/web/http://printer.local/",
            "/web/http://single/",
        ] {
            assert_eq!(named(reserved), Err(Code::NameRefused), "{reserved}");
        }
    }

    proptest! {
        /// Case 26: whatever is asked for, what is sent lies below the base, in one spelling.
        #[test]
        fn whatever_is_joined_stays_below_the_base(
            rest in prop_oneof![
                "[/.%a-z0-9;?&=\\\\#@: -]{0,40}",
                prop::collection::vec(prop::sample::select(&["/", "..", ".", "%2e", "%2E%2e", "%2f", "%5c", ";", "a", "//", "?", "%25", "@"][..]), 0..12)
                    .prop_map(|parts| parts.concat()),
                any::<String>(),
            ],
        ) {
            let rest = if rest.starts_with(['/', '?']) { rest } else { format!("/{rest}") };
            for base in ["https://api.test/v1/x", "https://api.test/v1/x/", "https://api.test/"] {
                let base = Target::from_absolute(base).unwrap();
                let Ok(joined) = join(&base, &rest, None) else { continue };
                let root = base.path().trim_end_matches('/');
                let below = joined.path().strip_prefix(root).unwrap_or("outside");
                prop_assert!(below.is_empty() || below.starts_with('/'), "{}", joined);
                prop_assert_eq!(joined.authority(), base.authority());
                prop_assert!(!joined.path().split('/').any(|segment| segment == ".." || segment == "."), "{}", joined);
                // What is sent is read by the next reader as it was judged.
                prop_assert_eq!(&Target::from_absolute(joined.url()).unwrap(), &joined);
            }
        }
    }
}
