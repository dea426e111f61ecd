//! From a question to what Cedar is asked: request and entities.
//!
//! Architecture invariant: entities are made here and in [`crate::names`] only, always with the run, the action and
//! the resource and their parents. An entity that is left out makes forbids weaker. Nothing a run wrote is ever
//! parsed as JSON by Cedar: `{"__entity":…}` would become a reference.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arc_swap::ArcSwapOption;
use cedar_policy::{Context, Entities, Entity, EntityUid, Request, RestrictedExpression};
use jiff::{Timestamp, tz::TimeZone};
use strait_contract::run::{Process, RunInfo};

use crate::{
    model::{Action, Model},
    names::{Lineage, Names, uid},
    question::{Ask, HttpAsk, Question},
    reads::Reads,
};

/// Runs whose entities a thread keeps.
const CALLERS_KEPT: usize = 256;

/// The question can't be put to Cedar. A fault inside Strait; the call is refused.
#[derive(Debug, thiserror::Error)]
#[error("the call can't be put as a policy question: {0}")]
pub(crate) struct BadQuestion(String);

impl BadQuestion {
    fn from(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
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
        Ask::Http(http) if odd_name(http.scheme) => Some(("scheme", http.scheme)),
        Ask::Http(http) if !http.path.starts_with('/') => Some(("path", http.path)),
        Ask::Http(HttpAsk { content_type: Some(kind), .. }) if odd_name(kind) => {
            Some(("content type", *kind))
        }
        Ask::Connect { host: Some(host), .. } if odd_name(host) => Some(("host", *host)),
        Ask::Dns { name, .. } if odd_name(name) => Some(("name", *name)),
        Ask::Dns { record_type, .. } if lower(record_type) => Some(("record type", *record_type)),
        _ => None,
    };
    match odd {
        Some((what, text)) => Err(BadQuestion(format!("{what} `{text}` is not in canonical form"))),
        None => Ok(()),
    }
}

/// What Cedar is asked.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: Request,
    pub(crate) entities: Entities,
}

/// Builds requests; keeps the time of the current second.
#[derive(Debug)]
pub(crate) struct Builder {
    zone: TimeZone,
    second: ArcSwapOption<(i64, Context)>,
}

type Pairs = Vec<(String, RestrictedExpression)>;

impl Builder {
    /// `zone` is the one that `hour` and `weekday` are in.
    pub(crate) fn new(zone: TimeZone) -> Self {
        Self { zone, second: ArcSwapOption::empty() }
    }

    /// The request for `question`, with the attributes of `reads` in its context.
    pub(crate) fn build(
        &self,
        model: &Model,
        names: &Names,
        question: &Question<'_>,
        lineage: &Lineage,
        reads: Reads,
    ) -> Result<Asked, BadQuestion> {
        let action = Action::of(&question.ask);
        let context = self.context(model, question, reads)?;
        let values = match &question.ask {
            Ask::Http(http) if reads.contains(Reads::QUERY) => Some(query(model, http)?),
            _ => None,
        };
        let parents = lineage
            .nodes
            .iter()
            .filter_map(|node| names.uid(*node))
            .filter(|uid| **uid != lineage.uid)
            .cloned()
            .collect();
        let resource = Entity::new_no_attrs(lineage.uid.clone(), parents);
        let (run, base) = caller(model, question.run, action)?;
        let entities =
            base.add_entities([resource].into_iter().chain(values), None).map_err(BadQuestion::from)?;
        let action = model.actions.get(action).uid.clone();
        let request =
            Request::new(run, action, lineage.uid.clone(), context, None).map_err(BadQuestion::from)?;
        Ok(Asked { request, entities })
    }

    fn context(&self, model: &Model, question: &Question<'_>, reads: Reads) -> Result<Context, BadQuestion> {
        let mut pairs = Pairs::new();
        match &question.ask {
            Ask::Http(http) => http_pairs(model, http, reads, &mut pairs),
            Ask::Connect { host, address, port } => {
                pairs.extend(host.filter(|_| reads.contains(Reads::HOST)).map(|host| text("host", host)));
                pairs.extend(address.filter(|_| reads.contains(Reads::ADDRESS)).map(ip));
                if reads.contains(Reads::PORT) {
                    pairs.push(long("port", u64::from(*port)));
                }
            }
            Ask::Dns { record_type, .. } => {
                if reads.contains(Reads::RECORD_TYPE) {
                    pairs.push(text("recordType", record_type));
                }
            }
        }
        if let Some(process) = question.process.filter(|_| reads.contains(Reads::PROCESS)) {
            pairs.push(("process".to_owned(), process_record(process)?));
        }
        if reads.contains(Reads::TIME) {
            let time = self.time(question.now_ms)?;
            time.merge(pairs).map_err(BadQuestion::from)
        } else {
            Context::from_pairs(pairs).map_err(BadQuestion::from)
        }
    }

    /// `time` of that second: making a datetime costs more than a decision, so it is made once a second.
    fn time(&self, now_ms: u64) -> Result<Context, BadQuestion> {
        let second = i64::try_from(now_ms / 1000).map_err(BadQuestion::from)?;
        if let Some(kept) = self.second.load().as_deref()
            && kept.0 == second
        {
            return Ok(kept.1.clone());
        }
        let at = Timestamp::from_second(second).map_err(BadQuestion::from)?;
        let there = self.zone.to_datetime(at);
        let weekday = there.strftime("%A").to_string().to_lowercase();
        let record = RestrictedExpression::new_record([
            (
                "at".to_owned(),
                RestrictedExpression::new_datetime(at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            ),
            ("epoch".to_owned(), RestrictedExpression::new_long(second)),
            ("hour".to_owned(), RestrictedExpression::new_long(i64::from(there.hour()))),
            ("weekday".to_owned(), RestrictedExpression::new_string(weekday)),
        ])
        .map_err(BadQuestion::from)?;
        let context = Context::from_pairs([("time".to_owned(), record)]).map_err(BadQuestion::from)?;
        self.second.store(Some(Arc::new((second, context.clone()))));
        Ok(context)
    }
}

fn text(key: &str, value: &str) -> (String, RestrictedExpression) {
    (key.to_owned(), RestrictedExpression::new_string(value.to_owned()))
}

/// Numbers beyond `i64` are held at its end: they compare right with every number a rule can name.
fn long(key: &str, value: u64) -> (String, RestrictedExpression) {
    (key.to_owned(), RestrictedExpression::new_long(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn ip(address: std::net::IpAddr) -> (String, RestrictedExpression) {
    // Cedar refuses `::ffff:10.0.0.1`, and a range of v4 addresses wouldn't hold it.
    ("address".to_owned(), RestrictedExpression::new_ip(address.to_canonical().to_string()))
}

fn http_pairs(model: &Model, http: &HttpAsk<'_>, reads: Reads, pairs: &mut Pairs) {
    for (bit, key, value) in [
        (Reads::METHOD, "method", http.method),
        (Reads::SCHEME, "scheme", http.scheme),
        (Reads::HOST, "host", http.host),
        (Reads::PATH, "path", http.path),
        (Reads::VIA, "via", http.via),
    ] {
        if reads.contains(bit) {
            pairs.push(text(key, value));
        }
    }
    if reads.contains(Reads::PORT) {
        pairs.push(long("port", u64::from(http.port)));
    }
    if reads.contains(Reads::QUERY) {
        pairs.push(("query".to_owned(), RestrictedExpression::new_entity_uid(model.query.clone())));
    }
    if reads.contains(Reads::QUERY_BYTES) {
        pairs.push(long("queryBytes", u64::from(http.query_bytes)));
    }
    if let Some(bytes) = http.body_bytes.filter(|_| reads.contains(Reads::BODY_BYTES)) {
        pairs.push(long("bodyBytes", bytes));
    }
    if let Some(kind) = http.content_type.filter(|_| reads.contains(Reads::CONTENT_TYPE)) {
        pairs.push(text("contentType", kind));
    }
    pairs.extend(http.address.filter(|_| reads.contains(Reads::ADDRESS)).map(ip));
}

fn process_record(process: &Process) -> Result<RestrictedExpression, BadQuestion> {
    let mut fields = vec![text("comm", &process.comm), long("uid", u64::from(process.uid))];
    fields.extend(process.exe.as_deref().map(|exe| text("exe", exe)));
    fields.extend(process.digest.as_deref().map(|digest| text("digest", digest)));
    RestrictedExpression::new_record(fields).map_err(BadQuestion::from)
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

/// What was made of a run and an action.
struct Caller {
    run: RunInfo,
    uid: EntityUid,
    entities: Entities,
}

thread_local! {
    /// Entities of the runs this thread saw: making them costs as much as a decision. A kept value is used only if
    /// the run it was made from is equal, so what is kept can't be wrong.
    static CALLERS: RefCell<HashMap<(u64, Action), Caller>> = RefCell::default();
}

/// The run and the entities of it and of the action.
fn caller(model: &Model, run: &RunInfo, action: Action) -> Result<(EntityUid, Entities), BadQuestion> {
    CALLERS.with_borrow_mut(|callers| {
        match callers.get(&(run.number, action)) {
            Some(kept) if kept.run == *run => return Ok((kept.uid.clone(), kept.entities.clone())),
            Some(_) => {}
            None if callers.len() >= CALLERS_KEPT => callers.clear(),
            None => {}
        }
        let entity = run_entity(model, run)?;
        let uid = entity.uid();
        let action_entity = model.actions.get(action).entity.clone();
        let entities = Entities::from_entities([entity, action_entity], None).map_err(BadQuestion::from)?;
        let caller = Caller { run: run.clone(), uid: uid.clone(), entities: entities.clone() };
        callers.insert((run.number, action), caller);
        Ok((uid, entities))
    })
}

fn run_entity(model: &Model, run: &RunInfo) -> Result<Entity, BadQuestion> {
    let types = &model.types;
    let labels = run.labels.iter().cloned().map(RestrictedExpression::new_string);
    let user = RestrictedExpression::new_entity_uid(uid(&types.user, &run.started_by));
    let attributes = HashMap::from([
        ("startedBy".to_owned(), user),
        text("agent", run.agent.as_str()),
        text("version", &run.version),
        ("labels".to_owned(), RestrictedExpression::new_set(labels)),
    ]);
    let version = format!("{}/{}", run.agent, run.version);
    let parents = HashSet::from([uid(&types.version, &version), uid(&types.agent, run.agent.as_str())]);
    Entity::new(uid(&types.run, run.id.as_str()), attributes, parents).map_err(BadQuestion::from)
}
