//! Credentials that a run was shown (A34): placeholders, which become their values on the way to their origins and are
//! refused anywhere else; values, which records hide.
//!
//! Architecture invariant: a value is put into a request only here and in `credential`, and only for a target that
//! `is_bound` has found among the placeholder's origins. Seeing a placeholder elsewhere is a canary and no wall: a run can
//! encode it as it likes, and all that leaves then is a text that is good nowhere.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use percent_encoding::percent_decode_str;
use strait_contract::{
    code::Code,
    exposure::{Exposed, Origin, Shown},
    message::{Misused, Secret},
    redact,
    tool::ToolName,
};

use self::finder::Finder;
use crate::{
    call::{Call, Caller, HttpCall, What},
    credential::{Credential, Ready},
    decide::Refusal,
    gateway::Gateway,
    link::WhoIs,
    token::basic_pair,
    tools::Kind,
    url::Scheme,
};

mod finder;
mod frames;
mod swap;
mod watch;

pub(crate) use self::{
    swap::{Content, Swap, content_kind, patterns},
    watch::{Caught, Watch},
};

/// Shortest text that records hide: shorter ones are in any text.
const SHORTEST: usize = 6;

/// Everything that one run was shown.
#[derive(Debug)]
pub(crate) struct Exposure {
    placeholders: Vec<Placeholder>,
    /// The placeholders.
    finder: Finder,
    /// Everything that records hide.
    hidden: Finder,
}

#[derive(Debug)]
struct Placeholder {
    text: Secret,
    /// In lower case, as it would stand in a name.
    lower: String,
    name: ToolName,
    origins: Vec<Origin>,
    ttl_seconds: u32,
    /// Exchanged when the operator reloads.
    credential: ArcSwap<Credential>,
}

/// A placeholder that must not go on.
#[derive(Debug)]
pub(crate) struct Misuse {
    refusal: Refusal,
    credential: Option<ToolName>,
    host: String,
    port: Option<u16>,
    bound: bool,
}

impl Misuse {
    /// Has the agent write the event, and gives the refusal.
    pub(crate) fn tell(self, whois: &WhoIs, caller: &Caller) -> Refusal {
        let Self { refusal, credential, host, port, bound } = self;
        let process = caller.flow.as_ref().map(|flow| (flow.tgid, flow.comm()));
        if let Some(credential) = credential {
            whois.misused(Misused {
                run: caller.run.info.id.clone(),
                credential,
                host,
                port,
                bound,
                process,
            });
        }
        refusal
    }
}

impl Exposure {
    /// `None` if nothing was shown.
    pub(crate) fn new(exposed: &[Exposed]) -> Option<Arc<Self>> {
        if exposed.is_empty() {
            return None;
        }
        let placeholders: Vec<_> = exposed.iter().filter_map(Placeholder::of).collect();
        let texts = exposed.iter().map(|exposed| exposed.text().expose());
        // Names lose their case.
        let texts = texts.chain(placeholders.iter().map(|placeholder| placeholder.lower.as_str()));
        let hidden = Finder::new(texts.filter(|text| text.len() >= SHORTEST));
        let finder = Finder::new(placeholders.iter().map(|placeholder| placeholder.text.expose()));
        Some(Arc::new(Self { finder, placeholders, hidden }))
    }

    /// Whether there is something to look for on the way out.
    pub(crate) fn has_placeholders(&self) -> bool {
        !self.placeholders.is_empty()
    }

    /// Drops what was kept of values.
    pub(crate) fn forget(&self) {
        for placeholder in &self.placeholders {
            placeholder.credential.store(Arc::new(placeholder.fresh()));
        }
    }

    /// A text for a record, with what was shown hidden.
    pub(crate) fn hide(&self, text: &str) -> String {
        let (mut out, mut from) = (String::with_capacity(text.len()), 0);
        for found in self.hidden.all(text.as_bytes()) {
            // Patterns are ASCII or whole characters, so these are borders of characters.
            out.push_str(text.get(from..found.start).unwrap_or_default());
            out.push_str(&redact::mark(text.get(found.start..found.end).unwrap_or_default().as_bytes()));
            from = found.end;
        }
        out.push_str(text.get(from..).unwrap_or_default());
        out
    }

    /// The credentials whose placeholders stand in a call, each in a place where it is to be replaced.
    ///
    /// # Errors
    /// [`Misuse`] if one of them is not for this target, or stands where it can't be replaced.
    pub(crate) fn check(&self, call: &Call, head: Option<&HeaderMap>) -> Result<Vec<ToolName>, Misuse> {
        if !self.has_placeholders() {
            return Ok(Vec::new());
        }
        let http = match &call.what {
            What::Http(http) => http,
            // From the server: nothing of it leaves.
            What::Mcp(mcp) if mcp.inbound => return Ok(Vec::new()),
            What::Mcp(mcp) => {
                let said = mcp.shown.as_ref().map(ToString::to_string).unwrap_or_default();
                let inside = self.found_in_body((mcp.arguments.json().to_string() + &said).as_bytes());
                // For its own server it is replaced where the body is sent.
                if let Some(foreign) = inside.iter().find(|which| !self.is_bound(**which, &mcp.http)) {
                    return Err(self.misuse(*foreign, &mcp.http, "the message"));
                }
                &mcp.http
            }
            What::Stream(to) => return self.check_name(&to.host.to_string(), Some(to.port)),
            What::Dns(question) => return self.check_name(&question.name, None),
        };
        let found = self.found(http, head);
        if found.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(foreign) = found.iter().find(|which| !self.is_bound(**which, http)) {
            return Err(self.misuse(*foreign, http, "the request"));
        }
        let swap = Swap::dry(self, &found);
        let head = head.map(|head| {
            let mut head = head.clone();
            swap.fields(&mut head);
            head
        });
        let url = swap.url(http.target.url());
        let url = url.as_ref().map_or_else(|| http.target.url(), |url| url.as_str());
        if let Some(rest) = self.found_in_url(url, &[]) {
            return Err(self.misuse(rest, http, "the URL's path"));
        }
        match head.as_ref().and_then(|head| self.found_in(head).first().copied()) {
            Some(rest) => Err(self.misuse(rest, http, "a field, encoded")),
            None => Ok(self.names(&found)),
        }
    }

    fn check_name(&self, name: &str, port: Option<u16>) -> Result<Vec<ToolName>, Misuse> {
        match self.in_name(name) {
            Some(which) => Err(self.misuse_at(which, (name.to_owned(), port), false, "the name")),
            None => Ok(Vec::new()),
        }
    }

    /// The placeholders of a request but for its body.
    pub(crate) fn found(&self, http: &HttpCall, head: Option<&HeaderMap>) -> Vec<usize> {
        let mut found = head.map(|head| self.found_in(head)).unwrap_or_default();
        found.extend(self.in_name(http.target.host_text()));
        found.extend(self.finder.all(http.target.url().as_bytes()).into_iter().map(|find| find.which));
        found.extend(self.found_in_url(http.target.url(), &http.query));
        found.sort_unstable();
        found.dedup();
        found
    }

    fn found_in(&self, head: &HeaderMap) -> Vec<usize> {
        let mut found = Vec::new();
        for (name, value) in head {
            found.extend(self.finder.all(value.as_bytes()).into_iter().map(|find| find.which));
            if let Some(password) = as_basic(name, value) {
                found.extend(self.finder.all(password.as_bytes()).into_iter().map(|find| find.which));
            }
        }
        found
    }

    fn found_in_url(&self, url: &str, query: &[(String, String)]) -> Option<usize> {
        let pairs = query.iter().flat_map(|(name, value)| [name, value]);
        self.finder
            .first(url.as_bytes())
            .or_else(|| {
                let decoded: Vec<u8> = url.contains('%').then(|| percent_decode_str(url).collect())?;
                self.finder.first(&decoded)
            })
            .or_else(|| pairs.into_iter().find_map(|text| self.finder.first(text.as_bytes())))
    }

    fn in_name(&self, name: &str) -> Option<usize> {
        let name = name.to_ascii_lowercase();
        self.placeholders.iter().position(|placeholder| name.contains(&placeholder.lower))
    }

    /// The placeholders of a whole body.
    pub(crate) fn found_in_body(&self, body: &[u8]) -> Vec<usize> {
        let mut found: Vec<_> = self.finder.all(body).into_iter().map(|find| find.which).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Whether any placeholder is for this target.
    pub(crate) fn is_bound_any(&self, http: &HttpCall) -> bool {
        (0..self.placeholders.len()).any(|which| self.is_bound(which, http))
    }

    /// Whether a placeholder is for this target.
    pub(crate) fn is_bound(&self, which: usize, http: &HttpCall) -> bool {
        // Pages get no credential.
        if http.tool.as_ref().is_some_and(|tool| matches!(tool.kind, Kind::Web)) {
            return false;
        }
        let target = &http.target;
        let https = target.scheme() == Scheme::Https;
        self.placeholders.get(which).is_some_and(|placeholder| {
            placeholder.origins.iter().any(|origin| {
                origin.https == https && origin.port == target.port() && origin.host == target.host_text()
            })
        })
    }

    pub(crate) fn names(&self, found: &[usize]) -> Vec<ToolName> {
        found.iter().filter_map(|which| self.placeholders.get(*which)).map(|it| it.name.clone()).collect()
    }

    /// The value behind a placeholder.
    ///
    /// # Errors
    /// Why it can't be had.
    pub(crate) async fn value(&self, which: usize, gateway: &Gateway) -> Result<Arc<Ready>, String> {
        let placeholder = self.placeholders.get(which).ok_or("there is no such placeholder")?;
        let credential = placeholder.credential.load_full();
        credential.ready(&gateway.whois).await
    }

    fn text(&self, which: usize) -> &str {
        self.placeholders.get(which).map(|placeholder| placeholder.text.expose()).unwrap_or_default()
    }

    /// That a placeholder of a request must not go on.
    pub(crate) fn misuse(&self, which: usize, http: &HttpCall, place: &str) -> Misuse {
        let to = (http.target.host_text().to_owned(), Some(http.target.port()));
        self.misuse_at(which, to, self.is_bound(which, http), place)
    }

    /// The same of anything that goes to a host.
    pub(crate) fn misuse_at(
        &self,
        which: usize,
        (host, port): (String, Option<u16>),
        bound: bool,
        place: &str,
    ) -> Misuse {
        let host = self.hide(&host.to_ascii_lowercase());
        let Some(placeholder) = self.placeholders.get(which).or_else(|| self.placeholders.first()) else {
            // Nobody looks for none.
            let refusal = Refusal::new(Code::Internal, "a placeholder was found where there is none");
            return Misuse { refusal, credential: None, host, port, bound };
        };
        let name = &placeholder.name;
        let refusal = if bound {
            let reason = format!(
                "the placeholder of the credential `{name}` stands in {place}, where it can't be replaced by the value"
            );
            Refusal::new(Code::PlaceholderMisused, reason).hint(
                "send it in a field, as a password of Basic authentication, in the query, or in a JSON or form body of \
                 256 KiB at most",
            )
        } else {
            let to = port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
            let reason = format!(
                "{place} holds the placeholder of the credential `{name}`, which isn't for `{to}`: it was not sent"
            );
            let origins: Vec<String> = placeholder.origins.iter().map(shown).collect();
            Refusal::new(Code::PlaceholderMisused, reason)
                .hint(format!("it is good at {} and nowhere else", origins.join(", ")))
        };
        Misuse { refusal, credential: Some(name.clone()), host, port, bound }
    }
}

impl Placeholder {
    fn of(exposed: &Exposed) -> Option<Self> {
        let Shown::Placeholder { text, origins, ttl_seconds } = &exposed.shown else { return None };
        let name = exposed.credential.clone();
        let credential = ArcSwap::from_pointee(Credential::of_placeholder(name.clone(), *ttl_seconds));
        let lower = text.expose().to_ascii_lowercase();
        let (text, origins) = (text.clone(), origins.clone());
        Some(Self { text, lower, name, origins, ttl_seconds: *ttl_seconds, credential })
    }

    fn fresh(&self) -> Credential {
        Credential::of_placeholder(self.name.clone(), self.ttl_seconds)
    }
}

fn shown(origin: &Origin) -> String {
    let scheme = if origin.https { Scheme::Https } else { Scheme::Http };
    if origin.port == scheme.default_port() {
        format!("`{scheme}://{}`", origin.host)
    } else {
        format!("`{scheme}://{}:{}`", origin.host, origin.port)
    }
}

/// User and password of Basic authentication, decoded.
fn as_basic(name: &HeaderName, value: &HeaderValue) -> Option<zeroize::Zeroizing<String>> {
    (*name == AUTHORIZATION).then(|| value.to_str().ok().and_then(basic_pair)).flatten()
}

#[cfg(test)]
mod tests;
