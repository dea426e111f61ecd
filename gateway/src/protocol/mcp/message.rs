//! JSON-RPC as MCP has it: one message, read strictly, so that what is judged is what any reader takes it for.
//!
//! Refused besides what isn't JSON-RPC 2.0: batches, members that the protocol doesn't have, and keys that differ only in
//! the size of letters, which some servers take for the same (cases 53, 82).

use http::StatusCode;
use strait_contract::code::Code;
use strait_policies::json::{Json, JsonError, Limits};

use crate::decide::Refusal;

/// Most that a client may send in one message.
pub(crate) const LIMITS: Limits = Limits { bytes: 4 * 1024 * 1024, depth: 64, nodes: 1 << 16 };
/// Most that a server may send in one message.
pub(crate) const ANSWER_LIMITS: Limits = Limits { bytes: 16 * 1024 * 1024, depth: 100, nodes: 1 << 20 };
/// Members of a message.
const MEMBERS: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];
/// Longest method and id, bytes.
const LONGEST: usize = 256;

/// Error codes of JSON-RPC and MCP.
pub(crate) mod rpc {
    /// It isn't JSON.
    pub(crate) const PARSE: i32 = -32700;
    /// It isn't a message.
    pub(crate) const INVALID: i32 = -32600;
    /// A method that isn't offered here.
    pub(crate) const METHOD: i32 = -32601;
    /// Parameters that the method can't have.
    pub(crate) const PARAMS: i32 = -32602;
    /// A mirrored header says otherwise than the body (MCP 2026-07-28).
    pub(crate) const HEADERS: i32 = -32020;
    /// A protocol version that isn't spoken here (MCP 2026-07-28).
    pub(crate) const VERSION: i32 = -32022;
    /// No such session.
    pub(crate) const SESSION: i32 = -32001;
    /// Refused, or failed behind the gateway.
    pub(crate) const REFUSED: i32 = -32003;
}

/// One message.
#[derive(Debug)]
pub(crate) struct Message {
    /// All of it, an object.
    pub(crate) json: Json,
    pub(crate) kind: Kind,
}

/// What a message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It wants an answer.
    Request { id: Json, method: String },
    /// It doesn't.
    Notification { method: String },
    /// It is one.
    Response { id: Json },
}

/// Why a message isn't taken.
#[derive(Debug)]
pub(crate) struct Fault {
    /// JSON-RPC's own code.
    pub(crate) rpc: i32,
    /// HTTP status, if not that of the refusal's code.
    pub(crate) status: Option<StatusCode>,
    /// Of the request, if it can be told.
    pub(crate) id: Option<Json>,
    pub(crate) refusal: Refusal,
}

impl Fault {
    /// The client's fault.
    pub(crate) fn malformed(rpc: i32, reason: impl Into<String>) -> Self {
        Self { rpc, status: None, id: None, refusal: Refusal::new(Code::MalformedRequest, reason) }
    }

    pub(crate) fn refused(rpc: i32, refusal: Refusal) -> Self {
        Self { rpc, status: None, id: None, refusal }
    }

    pub(crate) fn status(self, status: StatusCode) -> Self {
        Self { status: Some(status), ..self }
    }

    pub(crate) fn of(self, id: Option<&Json>) -> Self {
        Self { id: id.cloned(), ..self }
    }
}

impl Message {
    /// Reads the body of a client's request.
    ///
    /// # Errors
    /// A [`Fault`] with the code that JSON-RPC has for it.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Fault> {
        let json = Json::parse(body, &LIMITS).map_err(|error| unreadable(&error))?;
        Self::new(json)
    }

    /// Takes a value for a message.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub(crate) fn new(json: Json) -> Result<Self, Fault> {
        if matches!(json, Json::List(_)) {
            let reason = "a batch of messages: send one message in a request";
            return Err(Fault::malformed(rpc::INVALID, reason));
        }
        let Some(members) = json.as_object() else {
            return Err(Fault::malformed(rpc::INVALID, "the message is not an object"));
        };
        if let Some((odd, _)) = members.iter().find(|(name, _)| !MEMBERS.contains(&name.as_str())) {
            let reason = format!("a message has no member `{odd}`");
            return Err(Fault::malformed(rpc::INVALID, reason));
        }
        if json.get("jsonrpc").and_then(Json::as_text) != Some("2.0") {
            return Err(Fault::malformed(rpc::INVALID, "`jsonrpc` is not \"2.0\""));
        }
        let kind = kind(&json)?;
        let id = match &kind {
            Kind::Request { id, .. } | Kind::Response { id } => Some(id),
            Kind::Notification { .. } => None,
        };
        let params = json.get("params");
        if params.is_some_and(|params| params.as_object().is_none()) {
            return Err(Fault::malformed(rpc::INVALID, "`params` is not an object").of(id));
        }
        if let Some(twice) = params.and_then(alike) {
            let reason = format!("the key `{twice}` stands twice in one object, but for the size of letters");
            return Err(Fault::malformed(rpc::INVALID, reason).of(id));
        }
        for own in ["name", "arguments", "uri", "_meta"] {
            let alike = |key: &str| key != own && fold(key) == own;
            let odd = params.and_then(Json::as_object).into_iter().flatten().find(|(key, _)| alike(key));
            if let Some((odd, _)) = odd {
                let reason = format!("`params` has `{odd}`, which some would take for `{own}`");
                return Err(Fault::malformed(rpc::INVALID, reason).of(id));
            }
        }
        Ok(Self { json, kind })
    }

    /// The method, if it has one.
    pub(crate) fn method(&self) -> Option<&str> {
        match &self.kind {
            Kind::Request { method, .. } | Kind::Notification { method } => Some(method),
            Kind::Response { .. } => None,
        }
    }

    /// The id, if it has one.
    pub(crate) fn id(&self) -> Option<&Json> {
        match &self.kind {
            Kind::Request { id, .. } | Kind::Response { id } => Some(id),
            Kind::Notification { .. } => None,
        }
    }

    /// A parameter.
    pub(crate) fn param(&self, name: &str) -> Option<&Json> {
        self.json.get("params")?.get(name)
    }
}

fn unreadable(error: &JsonError) -> Fault {
    let code = match error {
        JsonError::NotText | JsonError::Malformed(_) => rpc::PARSE,
        _ => rpc::INVALID,
    };
    Fault::malformed(code, format!("the message can't be read: {error}"))
}

fn kind(json: &Json) -> Result<Kind, Fault> {
    let invalid = |reason: &str| Fault::malformed(rpc::INVALID, reason);
    let id = match json.get("id") {
        None => None,
        Some(id) if is_id(id) => Some(id.clone()),
        Some(_) => return Err(invalid("`id` is neither a string nor a whole number")),
    };
    let answers = [json.get("result"), json.get("error")].into_iter().flatten().count();
    match (json.get("method"), id) {
        (Some(Json::Text(method)), id) if answers == 0 => {
            if method.is_empty()
                || method.len() > LONGEST
                || !method.bytes().all(|byte| byte.is_ascii_graphic())
            {
                return Err(invalid("`method` is not the name of one").of(id.as_ref()));
            }
            let method = method.clone();
            Ok(match id {
                Some(id) => Kind::Request { id, method },
                None => Kind::Notification { method },
            })
        }
        (None, Some(id)) if answers == 1 && json.get("params").is_none() => Ok(Kind::Response { id }),
        (_, id) => {
            Err(invalid("the message is neither a request, a notification nor a response").of(id.as_ref()))
        }
    }
}

fn is_id(id: &Json) -> bool {
    match id {
        Json::Text(text) => text.len() <= LONGEST,
        Json::Number(number) => {
            let digits = number.as_str().strip_prefix('-').unwrap_or(number.as_str());
            digits.len() <= 20 && digits.bytes().all(|byte| byte.is_ascii_digit())
        }
        _ => false,
    }
}

/// A key that is there twice in one object for those who don't look at the size of letters.
fn alike(json: &Json) -> Option<&str> {
    match json {
        Json::List(list) => list.iter().find_map(alike),
        Json::Object(fields) => {
            let mut keys: Vec<(String, &str)> =
                fields.iter().map(|(key, _)| (fold(key), key.as_str())).collect();
            keys.sort_unstable();
            let twice = keys.windows(2).find_map(|pair| match pair {
                [one, two] if one.0 == two.0 => Some(two.1),
                _ => None,
            });
            twice.or_else(|| fields.iter().find_map(|(_, value)| alike(value)))
        }
        _ => None,
    }
}

/// Small letters, with the two that aren't ASCII but fold into it.
fn fold(key: &str) -> String {
    key.chars()
        .flat_map(char::to_lowercase)
        .map(|char| match char {
            'ſ' => 's',
            '\u{212a}' => 'k',
            other => other,
        })
        .collect()
}

#[cfg(test)]
mod tests;
