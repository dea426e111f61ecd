//! From a question to what Cedar is asked: request and entities.
//!
//! Architecture invariant: entities are made here, in [`crate::names`] and in [`crate::caller`] only, always with the
//! run, the action and their parents, and with the resource and its parents if any rule can look at them. An entity
//! that is left out makes forbids weaker. Nothing a run wrote is ever parsed as JSON by Cedar: `{"__entity":…}` would
//! become a reference.

use std::{collections::HashMap, net::IpAddr, rc::Rc, sync::Arc};

use arc_swap::ArcSwapOption;
use cedar_policy::{Entities, Entity, EntityUid, Request, RestrictedExpression};
use cedar_policy_core::{ast, evaluator::RestrictedEvaluator, extensions::Extensions};
use jiff::{Timestamp, tz::TimeZone};
use strait_contract::run::Process;

use crate::{
    arguments::Arguments,
    caller::Caller,
    model::{Act, Model},
    names::{self, Lineage, Names, is_tool},
    pins::{Mismatch, Reading},
    question::{Ask, HttpAsk, Question, ServerToolAsk, ToolAsk},
    reads::Reads,
};

/// The question can't be put to Cedar; the call is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadQuestion {
    /// A fault inside Strait.
    #[error("the call can't be put as a policy question: {0}")]
    Fault(String),
    /// Of who calls.
    #[error("the arguments don't fit the tool's pinned schema: {0}")]
    Arguments(#[from] Mismatch),
}

impl BadQuestion {
    pub(crate) fn from(error: impl std::fmt::Display) -> Self {
        Self::Fault(error.to_string())
    }
}

/// Whether `ask` is written as rules are.
///
/// # Errors
/// A spelling that no rule can name: `post`, `OK.test`, `ok.test.`. A forbid would not match it, while the upstream
/// may well take it for the usual one.
pub(crate) fn canonical(ask: &Ask<'_>) -> Result<(), BadQuestion> {
    let lower = |text: &str| text.bytes().any(|byte| byte.is_ascii_lowercase());
    let odd_name = |name: &str| name.ends_with('.') || name.bytes().any(|byte| byte.is_ascii_uppercase());
    let odd = match ask {
        Ask::Http(http) if lower(http.method) => Some(("method", http.method)),
        Ask::Http(http) if odd_name(http.host) => Some(("host", http.host)),
        Ask::Http(HttpAsk { tool: Some(tool), .. }) if !is_tool(tool) => Some(("tool", *tool)),
        Ask::Http(http) if odd_name(http.scheme) => Some(("scheme", http.scheme)),
        Ask::Http(http) if !http.path.starts_with('/') => Some(("path", http.path)),
        Ask::Http(HttpAsk { content_type: Some(kind), .. }) if odd_name(kind) => {
            Some(("content type", *kind))
        }
        Ask::Connect { host: Some(host), .. } if odd_name(host) => Some(("host", *host)),
        Ask::Dns { name, .. } if odd_name(name) => Some(("name", *name)),
        Ask::Dns { record_type, .. } if lower(record_type) => Some(("record type", *record_type)),
        Ask::Tool(ToolAsk { server, .. }) | Ask::McpMethod { server, .. } if !is_tool(server) => {
            Some(("tool", *server))
        }
        Ask::ServerTool(ServerToolAsk { provider, .. }) if !is_tool(provider) => {
            Some(("provider", *provider))
        }
        Ask::ServerTool(ServerToolAsk { host: Some(host), .. }) if odd_name(host) => Some(("host", *host)),
        _ => None,
    };
    match odd {
        Some((what, text)) => Err(BadQuestion::Fault(format!("{what} `{text}` is not in canonical form"))),
        None => Ok(()),
    }
}

/// What Cedar is asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) entities: Rc<Entities>,
}

/// What a question is about, worked out once.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) act: Act<'a>,
    /// What the resource is and belongs to.
    pub(crate) lineage: Lineage,
    /// The arguments of a pinned tool.
    pub(crate) arguments: Option<Reading<'a>>,
}

/// Builds requests; keeps the time of the current second.
#[derive(Debug)]
pub(crate) struct Builder {
    zone: TimeZone,
    second: ArcSwapOption<(i64, ast::Value)>,
}

/// An attribute. Made as a value: Cedar's own way makes an expression first and evaluates it, which takes twice as long.
type Pair = (&'static str, ast::Value);

impl Builder {
    /// `zone` is the one that `hour` and `weekday` are in.
    pub(crate) fn new(zone: TimeZone) -> Self {
        Self { zone, second: ArcSwapOption::empty() }
    }

    /// The request for `question`, with what `reads` names in it and no more, and of the arguments those `wanted`.
    pub(crate) fn build(
        &self,
        model: &Model,
        names: &Names,
        question: &Question<'_>,
        subject: &Subject<'_>,
        reads: Reads,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Asked, BadQuestion> {
        let act = subject.act;
        let context = self.context(model, question, subject, reads, wanted)?;
        let caller = Caller::of(model, question.run)?;
        let mut entities = caller.base(model, act)?;
        let mut more = Vec::new();
        let uid = if reads.contains(Reads::RESOURCE) {
            let uid = names::resource(model, &question.ask);
            let parents = subject.lineage.nodes.iter().filter_map(|node| names.uid(*node));
            let parents = parents.filter(|parent| **parent != uid).cloned().collect();
            let attributes = resource_attributes(&question.ask, act);
            more.push(Entity::new(uid.clone(), attributes, parents).map_err(BadQuestion::from)?);
            uid
        } else {
            // No rule can tell it from any other of its type.
            act.any_resource(model).clone()
        };
        match &question.ask {
            Ask::Http(http) if reads.contains(Reads::QUERY) => more.push(query(model, http)?),
            Ask::Tool(ToolAsk { arguments, .. }) | Ask::McpMethod { arguments, .. }
                if reads.contains(Reads::FLAT) =>
            {
                more.push(flat(model, arguments)?);
            }
            _ => {}
        }
        if !more.is_empty() {
            entities = Rc::new((*entities).clone().add_entities(more, None).map_err(BadQuestion::from)?);
        }
        let (action, _) = act.entity(model).ok_or_else(|| BadQuestion::from("its tool has no action"))?;
        let known = |uid: &EntityUid| ast::EntityUIDEntry::known(uid.as_ref().clone(), None);
        // The schema was asked at load, about every rule; a test compares with a request that it was asked about.
        let request =
            ast::Request::new_unchecked(known(&caller.uid), known(action), known(&uid), Some(context));
        Ok(Asked { request: Request::from(request), entities })
    }

    fn context(
        &self,
        model: &Model,
        question: &Question<'_>,
        subject: &Subject<'_>,
        reads: Reads,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<ast::Context, BadQuestion> {
        let mut pairs: Vec<Pair> = Vec::with_capacity(8);
        attributes(question, reads, |name, value| {
            let value = match (value, &subject.arguments) {
                (Value::Typed(_), None) => return Ok(()),
                (Value::Typed(_), Some(reading)) => reading.value(wanted).map_err(BadQuestion::Fault)?,
                _ => value.as_cedar(model)?,
            };
            pairs.push((name, value));
            Ok::<(), BadQuestion>(())
        })?;
        if reads.contains(Reads::TIME) {
            pairs.push(("time", self.time(question.now_ms)?));
        }
        match ast::Value::record(pairs, None).value {
            ast::ValueKind::Record(attributes) => Ok(ast::Context::Value(attributes)),
            _ => Err(BadQuestion::from("a record is no record")),
        }
    }

    /// `time` of that second: making a datetime costs more than a decision, so it is made once a second.
    fn time(&self, now_ms: u64) -> Result<ast::Value, BadQuestion> {
        let second = i64::try_from(now_ms / 1000).map_err(BadQuestion::from)?;
        if let Some(kept) = self.second.load().as_deref()
            && kept.0 == second
        {
            return Ok(kept.1.clone());
        }
        let at = Timestamp::from_second(second).map_err(BadQuestion::from)?;
        let there = self.zone.to_datetime(at);
        let weekday = there.strftime("%A").to_string().to_lowercase();
        let spelled = RestrictedExpression::new_datetime(at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let record = [
            ("at", evaluated(&spelled).map_err(BadQuestion::Fault)?),
            ("epoch", ast::Value::from(second)),
            ("hour", ast::Value::from(i64::from(there.hour()))),
            ("weekday", ast::Value::from(weekday)),
        ];
        let time = ast::Value::record(record, None);
        self.second.store(Some(Arc::new((second, time.clone()))));
        Ok(time)
    }
}

/// An attribute of `context`, before Cedar.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Number(u64),
    Address(IpAddr),
    Query(&'a [(String, String)]),
    /// Every argument by its path.
    Flat(&'a Arguments),
    /// The arguments as the tool's pin types them.
    Typed(&'a Arguments),
    Process(&'a Process),
}

/// Gives `each` every attribute of the call that `reads` names, `time` excepted. The only list of them: what Cedar is
/// asked and what tells one remembered decision from another can't differ.
pub(crate) fn attributes<'a, E>(
    question: &Question<'a>,
    reads: Reads,
    mut each: impl FnMut(&'static str, Value<'a>) -> Result<(), E>,
) -> Result<(), E> {
    let mut give = |bit, name, value: Option<Value<'a>>| match value {
        Some(value) if reads.contains(bit) => each(name, value),
        _ => Ok(()),
    };
    let text = |text: &'a str| Some(Value::Text(text));
    match &question.ask {
        Ask::Http(http) => {
            give(Reads::METHOD, "method", text(http.method))?;
            give(Reads::SCHEME, "scheme", text(http.scheme))?;
            give(Reads::HOST, "host", text(http.host))?;
            give(Reads::PORT, "port", Some(Value::Number(http.port.into())))?;
            give(Reads::PATH, "path", text(http.path))?;
            give(Reads::QUERY, "query", Some(Value::Query(http.query)))?;
            give(Reads::QUERY_BYTES, "queryBytes", Some(Value::Number(http.query_bytes.into())))?;
            give(Reads::BODY_BYTES, "bodyBytes", http.body_bytes.map(Value::Number))?;
            give(Reads::CONTENT_TYPE, "contentType", http.content_type.map(Value::Text))?;
            give(Reads::VIA, "via", text(http.via))?;
            give(Reads::ADDRESS, "address", http.address.map(Value::Address))?;
        }
        Ask::Connect { host, address, port } => {
            give(Reads::HOST, "host", host.map(Value::Text))?;
            give(Reads::PORT, "port", Some(Value::Number((*port).into())))?;
            give(Reads::ADDRESS, "address", address.map(Value::Address))?;
        }
        Ask::Dns { record_type, .. } => give(Reads::RECORD_TYPE, "recordType", text(record_type))?,
        Ask::Tool(ToolAsk { arguments, .. }) => {
            give(Reads::FLAT, "flat", Some(Value::Flat(arguments)))?;
            give(Reads::ARGUMENTS, "arguments", Some(Value::Typed(arguments)))?;
        }
        Ask::McpMethod { method, arguments, .. } => {
            give(Reads::METHOD, "method", text(method))?;
            give(Reads::FLAT, "flat", Some(Value::Flat(arguments)))?;
        }
        Ask::ServerTool(tool) => {
            give(Reads::MODEL, "model", text(tool.model))?;
            give(Reads::KIND, "kind", text(tool.kind))?;
            give(Reads::HOST, "host", tool.host.map(Value::Text))?;
        }
    }
    give(Reads::PROCESS, "process", question.process.map(Value::Process))
}

impl Value<'_> {
    fn as_cedar(self, model: &Model) -> Result<ast::Value, BadQuestion> {
        Ok(match self {
            Self::Text(text) => ast::Value::from(text),
            Self::Number(number) => ast::Value::from(long(number)),
            // Cedar refuses `::ffff:10.0.0.1`, and a range of v4 addresses wouldn't hold it.
            Self::Address(address) => {
                let spelled = RestrictedExpression::new_ip(address.to_canonical().to_string());
                evaluated(&spelled).map_err(BadQuestion::Fault)?
            }
            Self::Query(_) => ast::Value::from(model.query.as_ref().clone()),
            Self::Flat(_) => ast::Value::from(model.flat.as_ref().clone()),
            Self::Typed(_) => return Err(BadQuestion::from("arguments without the pin that types them")),
            Self::Process(process) => process_record(process),
        })
    }
}

/// The value of an expression: addresses, decimals and times have a constructor and no other way in.
///
/// # Errors
/// Cedar's own, as text: a fault inside Strait.
pub(crate) fn evaluated(expression: &RestrictedExpression) -> Result<ast::Value, String> {
    let evaluator = RestrictedEvaluator::new(Extensions::all_available());
    evaluator.interpret(expression.as_ref().as_borrowed()).map_err(|error| error.to_string())
}

fn text(key: &str, value: &str) -> (String, RestrictedExpression) {
    (key.to_owned(), RestrictedExpression::new_string(value.to_owned()))
}

/// Numbers beyond `i64` are held at its end: they compare right with every number a rule can name.
fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn process_record(process: &Process) -> ast::Value {
    let mut fields = vec![
        ("comm", ast::Value::from(process.comm.as_str())),
        ("uid", ast::Value::from(long(process.uid.into()))),
    ];
    fields.extend(process.exe.as_deref().map(|exe| ("exe", ast::Value::from(exe))));
    fields.extend(process.digest.as_deref().map(|digest| ("digest", ast::Value::from(digest))));
    ast::Value::record(fields, None)
}

/// `Values::"query"`: each key with all its values.
fn query(model: &Model, http: &HttpAsk<'_>) -> Result<Entity, BadQuestion> {
    let mut values: HashMap<&str, Vec<RestrictedExpression>> = HashMap::new();
    for (key, value) in http.query {
        values.entry(key).or_default().push(RestrictedExpression::new_string(value.clone()));
    }
    let tags =
        values.into_iter().map(|(key, values)| (key.to_owned(), RestrictedExpression::new_set(values)));
    Entity::new_with_tags(model.query.clone(), [], [], tags).map_err(BadQuestion::from)
}

/// `Values::"flat"`: each path with all its values.
fn flat(model: &Model, arguments: &Arguments) -> Result<Entity, BadQuestion> {
    let tags = arguments.flat().into_iter().map(|(path, values)| {
        (path, RestrictedExpression::new_set(values.into_iter().map(RestrictedExpression::new_string)))
    });
    Entity::new_with_tags(model.flat.clone(), [], [], tags).map_err(BadQuestion::from)
}

/// What rules may ask of the resource itself. A server's own word that a tool only reads counts if it is pinned.
fn resource_attributes(ask: &Ask<'_>, act: Act<'_>) -> HashMap<String, RestrictedExpression> {
    let name = match ask {
        Ask::Tool(ToolAsk { tool, .. }) => tool,
        Ask::McpMethod { server, .. } => server,
        Ask::ServerTool(ServerToolAsk { provider, .. }) => {
            return HashMap::from([text("provider", provider)]);
        }
        Ask::Http(_) | Ask::Connect { .. } | Ask::Dns { .. } => return HashMap::new(),
    };
    let mut attributes = HashMap::from([text("name", name)]);
    if let Act::Pinned(tool) = act
        && let Some(read_only) = tool.read_only()
    {
        attributes.insert("readOnly".to_owned(), RestrictedExpression::new_bool(read_only));
    }
    attributes
}
