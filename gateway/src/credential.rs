//! Credentials of tools: fetched from the agent when a call needs one, kept for a while, added to the request (A25, A26).
//!
//! Architecture invariant: a value goes to the scheme, host and port of its tool's URL and nowhere else, since it is added
//! only to a request whose target was joined from that URL, and no redirect is followed.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{AUTHORIZATION, COOKIE},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use strait_contract::{
    message::Secret,
    tool::{Bound, Placement, ToolName},
};
use tokio::{
    sync::Mutex,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

use crate::{forward::sigv4::Signer, link::WhoIs, mask::Patterns};

/// A tool's credential; its value is kept for its time to live and wiped afterwards.
#[derive(Debug)]
pub(crate) struct Credential {
    name: ToolName,
    ttl: Duration,
    /// Where it goes; `None` if the caller says, by a placeholder.
    send: Option<Placement>,
    /// The field it goes into, if it does.
    field: Option<HeaderName>,
    /// Held while it is asked for, so that many calls at once ask once.
    kept: Mutex<Option<Kept>>,
}

#[derive(Debug)]
struct Kept {
    /// Why it can't be had is kept too, for a moment: else a run could have the agent look for it without end.
    ready: Result<Arc<Ready>, String>,
    until: Instant,
}

/// How long it counts as unavailable once it was.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// A value in the forms that a call needs.
#[derive(Debug)]
pub(crate) struct Ready {
    value: Secret,
    place: Place,
    /// What to hide in answers.
    pub(crate) patterns: Arc<Patterns>,
}

#[derive(Debug)]
enum Place {
    Field(HeaderName, HeaderValue),
    Query { name: String },
    Signature(Box<Signer>),
    Caller,
}

impl Credential {
    /// `None` if its field isn't one.
    pub(crate) fn new(bound: Bound) -> Option<Self> {
        let field = match &bound.send {
            Placement::Header { name, .. } => Some(name.parse().ok()?),
            Placement::Basic { .. } | Placement::Aws { .. } => Some(AUTHORIZATION),
            Placement::Query { .. } => None,
        };
        let Bound { name, send, ttl_seconds } = bound;
        let ttl = Duration::from_secs(ttl_seconds.into());
        Some(Self { name, ttl, send: Some(send), field, kept: Mutex::default() })
    }

    /// One that goes where its placeholder stands.
    pub(crate) fn of_placeholder(name: ToolName, ttl_seconds: u32) -> Self {
        let ttl = Duration::from_secs(ttl_seconds.into());
        Self { name, ttl, send: None, field: None, kept: Mutex::default() }
    }

    /// The name of the query's pair that it is, if it is one.
    pub(crate) fn query_name(&self) -> Option<&str> {
        match &self.send {
            Some(Placement::Query { name }) => Some(name),
            _ => None,
        }
    }

    /// Takes out what of a caller's request would be a credential of its own: the field of this one in any spelling,
    /// and what servers take for one.
    pub(crate) fn clear(&self, headers: &mut HeaderMap) {
        remove_like(headers, &AUTHORIZATION);
        remove_like(headers, &COOKIE);
        if let Some(field) = &self.field {
            remove_like(headers, field);
        }
    }

    /// The value, kept or asked for.
    ///
    /// # Errors
    /// Why it can't be had, in words that show nothing of it.
    pub(crate) async fn ready(&self, agent: &WhoIs) -> Result<Arc<Ready>, String> {
        let mut kept = self.kept.lock().await;
        if let Some(kept) = kept.as_ref().filter(|kept| Instant::now() < kept.until) {
            return kept.ready.clone();
        }
        *kept = None;
        let name = &self.name;
        let value = agent.credential(name).await.map_err(|why| format!("the credential `{name}`: {why}"));
        let ready = value.and_then(|value| self.form(value)).map(Arc::new);
        let lasts = ready.as_ref().map_or(FAILED_FOR, |_| self.ttl);
        *kept = Some(Kept { ready: ready.clone(), until: Instant::now() + lasts });
        ready
    }

    fn form(&self, value: Secret) -> Result<Ready, String> {
        let mut patterns = Arc::new(Patterns::of(value.expose()));
        let place = match (&self.send, &self.field) {
            (None, _) => {
                self.field_value(value.expose())?;
                Place::Caller
            }
            (Some(Placement::Query { name }), _) => Place::Query { name: name.clone() },
            (Some(Placement::Header { format, .. }), Some(field)) => {
                let text = Zeroizing::new(format.replace("{}", value.expose()));
                Place::Field(field.clone(), self.field_value(&text)?)
            }
            (Some(Placement::Basic { user }), Some(field)) => {
                let pair = Zeroizing::new(format!("{user}:{}", value.expose()));
                let text = Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
                Place::Field(field.clone(), self.field_value(&text)?)
            }
            (Some(Placement::Aws { region, service }), Some(_)) => {
                let signer = Signer::new(value.expose(), region, service)
                    .map_err(|why| format!("the credential `{}`: {why}", self.name))?;
                patterns = signer.patterns();
                Place::Signature(Box::new(signer))
            }
            (_, None) => return Err(format!("the credential `{}` has no place", self.name)),
        };
        Ok(Ready { value, place, patterns })
    }

    fn field_value(&self, text: &str) -> Result<HeaderValue, String> {
        let mut value = HeaderValue::from_str(text)
            .map_err(|_| format!("the credential `{}` holds characters that no field can", self.name))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl Ready {
    /// The value.
    pub(crate) fn value(&self) -> &str {
        self.value.expose()
    }

    /// Adds the field, if the credential is one.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        if let Place::Field(name, value) = &self.place {
            headers.insert(name.clone(), value.clone());
        }
    }

    /// What signs the request, if the credential is no part of it.
    pub(crate) fn signer(&self) -> Option<&Signer> {
        match &self.place {
            Place::Signature(signer) => Some(signer),
            _ => None,
        }
    }

    /// The URL with the pair, if the credential is one.
    pub(crate) fn url(&self, url: &str) -> Option<Zeroizing<String>> {
        let Place::Query { name } = &self.place else { return None };
        let mark = if url.contains('?') { '&' } else { '?' };
        let value = utf8_percent_encode(self.value.expose(), NON_ALPHANUMERIC);
        Some(Zeroizing::new(format!("{url}{mark}{name}={value}")))
    }
}

/// Removes a field in any spelling: servers behind CGI and its heirs can't tell `_` from `-`.
pub(crate) fn remove_like(headers: &mut HeaderMap, field: &HeaderName) {
    headers.remove(field);
    let plain = |byte: u8| if byte == b'_' { b'-' } else { byte };
    let like = |name: &&HeaderName| name.as_str().bytes().map(plain).eq(field.as_str().bytes().map(plain));
    let odd: Vec<HeaderName> = headers.keys().filter(like).cloned().collect();
    for name in odd {
        headers.remove(name);
    }
}
