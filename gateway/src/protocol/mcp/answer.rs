//! What a server answers, looked at message by message as it comes.
//!
//! Lists lose what the run can't call, questions that the tool doesn't opt into are answered here, everything else goes
//! on at once and in order. What goes on is what was read.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context as Task, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, header, response::Parts};
use http_body::{Frame, SizeHint};
use strait_contract::{code::Code, ids::RecordId};
use strait_policies::{Arguments, json::Json};
use tokio::{
    sync::watch,
    time::{Instant, Sleep},
};

use super::{
    back,
    exchange::Exchange,
    headers::{self, is_media},
    listing,
    message::{ANSWER_LIMITS, rpc},
    methods::{self, Standing, opts_in},
    sse::{COMMENT, Event, Splitter},
    words,
};
use crate::{
    call::{Call, McpCall, Via, What},
    decide::{Refusal, Refused, decide},
    protocol::http::body::{Broken, Source},
    record::Outcome,
};

/// How long a stream may be silent before the client is told that it's still there.
const QUIET: Duration = Duration::from_secs(15);

/// An answer's body, each message of it looked at.
pub(crate) struct Filter {
    from: Source,
    framing: Framing,
    judge: Judge,
    /// What has been cut and not looked at.
    waiting: VecDeque<Event>,
    /// A question that is being decided on.
    deciding: Option<Deciding>,
    out: VecDeque<Bytes>,
    quiet: Pin<Box<Sleep>>,
    /// New policies, where somebody listens.
    reload: Option<Reload>,
    room: Room,
    over: bool,
}

/// What an answer takes of its run's room.
struct Room {
    exchange: Arc<Exchange>,
    taken: usize,
}

impl Room {
    fn take(&mut self, now: usize) -> Result<(), Broken> {
        let fits = self.exchange.context.caller.run.mcp.hold(self.taken, now);
        self.taken = now;
        if fits {
            Ok(())
        } else {
            Err(Broken::Message("the answers under way take the run's whole room".to_owned()))
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.exchange.context.caller.run.mcp.hold(self.taken, 0);
    }
}

type Reload = Pin<Box<dyn Future<Output = watch::Receiver<()>> + Send>>;

/// Resolves once new policies are in force.
fn reload(mut reloaded: watch::Receiver<()>) -> Reload {
    Box::pin(async move {
        if reloaded.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        reloaded
    })
}

/// What servers say when their tools have changed; here it is what of them the run may see (A7).
const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

enum Framing {
    Json(BytesMut),
    Events(Splitter),
    /// Nothing is to come.
    Nothing,
    /// Not a message: an error page.
    Other,
}

type Deciding = Pin<Box<dyn Future<Output = Option<Event>> + Send>>;

/// What becomes of one message.
enum Judged {
    /// It goes on as it came.
    Same,
    /// It goes on like this.
    Changed(Json),
    /// It doesn't go on.
    Kept,
    /// It goes on if it is permitted.
    Asked(String, Arguments, Option<Json>),
}

/// Takes the answer to an exchange.
///
/// # Errors
/// Why it is no answer that MCP has.
pub(crate) fn take(exchange: &Arc<Exchange>, head: &mut Parts, from: Source) -> Result<Source, String> {
    session(exchange, head)?;
    if exchange.tool.credential.is_some() {
        // Whoever asks the client to log in asks the wrong one: the gateway does.
        head.headers.remove(header::WWW_AUTHENTICATE);
    }
    let media =
        head.headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes().to_vec()).unwrap_or_default();
    let nothing = from.is_end_stream();
    let framing = if !head.status.is_success() && !is_media(&media, b"application/json") {
        Framing::Other
    } else if is_media(&media, b"text/event-stream") {
        Framing::Events(Splitter::default())
    } else if is_media(&media, b"application/json") {
        Framing::Json(BytesMut::new())
    } else if media.is_empty() || head.headers.get(header::CONTENT_LENGTH).is_some_and(|length| length == "0")
    {
        Framing::Nothing
    } else {
        let media = String::from_utf8_lossy(&media).into_owned();
        return Err(format!("the server answered with `{media}`, neither JSON nor an event stream"));
    };
    if nothing || matches!(framing, Framing::Other) {
        exchange.over();
        return Ok(from);
    }
    head.headers.remove(header::CONTENT_LENGTH);
    let listens = matches!(framing, Framing::Events(_)) && exchange.listens();
    let reload = listens.then(|| reload(exchange.context.gateway.reloaded.subscribe()));
    let patience = QUIET.min(exchange.context.idle_time() / 3);
    Ok(Source::Mcp(Box::new(Filter {
        from,
        framing,
        judge: Judge { exchange: Arc::clone(exchange), patience },
        waiting: VecDeque::new(),
        deciding: None,
        out: VecDeque::new(),
        quiet: Box::pin(tokio::time::sleep(patience)),
        reload,
        room: Room { exchange: Arc::clone(exchange), taken: 0 },
        over: false,
    })))
}

/// Puts our name of a session in the place of the server's, and forgets what the server has forgotten (case 55).
fn session(exchange: &Exchange, head: &mut Parts) -> Result<(), String> {
    let sessions = &exchange.context.caller.run.mcp;
    let theirs: Vec<HeaderValue> = head.headers.get_all(headers::SESSION).iter().cloned().collect();
    head.headers.remove(headers::SESSION);
    let ended = head.status == http::StatusCode::NOT_FOUND
        || (exchange.method.is_none() && exchange.ends_session() && head.status.is_success());
    if let Some(session) = &exchange.session {
        if ended {
            sessions.end(session);
        }
        if theirs.first().is_some_and(|theirs| *theirs == session.theirs)
            && let Ok(ours) = HeaderValue::from_str(&session.ours)
        {
            head.headers.insert(headers::SESSION, ours);
        }
        return Ok(());
    }
    match theirs.as_slice() {
        [] => Ok(()),
        [theirs] if exchange.method.as_deref() == Some("initialize") && head.status.is_success() => {
            let session = sessions.begin(&exchange.tool.name, theirs.clone())?;
            let ours = HeaderValue::from_str(&session.ours).map_err(|error| error.to_string())?;
            head.headers.insert(headers::SESSION, ours);
            Ok(())
        }
        // Of no use to a client that didn't begin one.
        _ => Ok(()),
    }
}

struct Judge {
    exchange: Arc<Exchange>,
    patience: Duration,
}

impl Filter {
    pub(crate) fn is_end_stream(&self) -> bool {
        self.over && self.out.is_empty() && self.waiting.is_empty() && self.deciding.is_none()
    }

    /// What is read and written anew has no length beforehand.
    pub(crate) fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }

    pub(crate) fn poll_frame(&mut self, task: &mut Task<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            if let Some(bytes) = self.out.pop_front() {
                self.quiet.as_mut().reset(Instant::now() + self.judge.patience);
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            match self.step(task) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return Poll::Ready(None),
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                Poll::Pending => {
                    if !matches!(self.framing, Framing::Events(_)) {
                        return Poll::Pending;
                    }
                    if let Some(Poll::Ready(reloaded)) =
                        self.reload.as_mut().map(|reload| reload.as_mut().poll(task))
                    {
                        self.reload = Some(reload(reloaded));
                        self.out.push_back(Event::message(CHANGED.to_owned()).to_bytes());
                        continue;
                    }
                    ready!(self.quiet.as_mut().poll(task));
                    self.out.push_back(Bytes::from_static(COMMENT));
                }
            }
        }
    }

    /// Does the next thing; `false` if there is none.
    fn step(&mut self, task: &mut Task<'_>) -> Poll<Result<bool, Broken>> {
        if let Some(deciding) = &mut self.deciding {
            let event = ready!(deciding.as_mut().poll(task));
            self.deciding = None;
            self.out.extend(event.map(|event| event.to_bytes()));
            return Poll::Ready(Ok(true));
        }
        if let Some(event) = self.waiting.pop_front() {
            return Poll::Ready(self.look(event).map(|()| true));
        }
        if self.over {
            return Poll::Ready(Ok(false));
        }
        Poll::Ready(match ready!(self.from.poll_frame(task)) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => self.read(&data).map(|()| true),
                // Fields behind a message have no meaning in MCP.
                Err(_) => Ok(true),
            },
            Some(Err(error)) => Err(error),
            None => self.end().map(|()| true),
        })
    }

    fn read(&mut self, data: &[u8]) -> Result<(), Broken> {
        match &mut self.framing {
            Framing::Json(whole) if whole.len().saturating_add(data.len()) > ANSWER_LIMITS.bytes => {
                Err(Broken::Message(format!("it is longer than {} bytes", ANSWER_LIMITS.bytes)))
            }
            Framing::Json(whole) => {
                whole.extend_from_slice(data);
                self.room.take(whole.len())
            }
            Framing::Events(splitter) => {
                let events = splitter.push(data).map_err(|error| Broken::Message(error.to_string()))?;
                self.waiting.extend(events);
                self.room.take(splitter.held())
            }
            Framing::Nothing if data.is_empty() => Ok(()),
            Framing::Nothing => Err(Broken::Message("it doesn't say what it is".to_owned())),
            Framing::Other => {
                self.out.push_back(Bytes::copy_from_slice(data));
                Ok(())
            }
        }
    }

    fn end(&mut self) -> Result<(), Broken> {
        self.over = true;
        match std::mem::replace(&mut self.framing, Framing::Other) {
            Framing::Json(whole) => {
                let whole = whole.freeze();
                if whole.is_empty() {
                    return Ok(());
                }
                let json = read_json(&whole)?;
                self.judge.exchange.over();
                let changed = self.judge.document(json);
                self.out.push_back(changed.map_or(whole, |json| Bytes::from(json.to_string())));
                Ok(())
            }
            Framing::Events(_) => {
                // Half an event is none: every client drops it. Whether it was answered or not, the server has ended it.
                self.judge.exchange.over();
                Ok(())
            }
            Framing::Nothing | Framing::Other => Ok(()),
        }
    }

    /// Looks at one event.
    fn look(&mut self, mut event: Event) -> Result<(), Broken> {
        if event.id.is_some() {
            self.judge.exchange.resumable();
        }
        let Some(data) = event.data.as_deref().filter(|data| !data.trim().is_empty()) else {
            self.out.push_back(event.to_bytes());
            return Ok(());
        };
        let mut json = read_json(data.as_bytes())?;
        match self.judge.message(&mut json, true) {
            Judged::Same => self.out.push_back(event.to_bytes()),
            Judged::Changed(json) => {
                event.data = Some(json.to_string());
                self.out.push_back(event.to_bytes());
            }
            Judged::Kept => {
                // Its place in the stream stays known, so that a client that comes back doesn't get it either.
                event.data = None;
                event.name = None;
                if event != Event::default() {
                    self.out.push_back(event.to_bytes());
                }
            }
            Judged::Asked(method, arguments, id) => {
                self.deciding =
                    Some(Box::pin(decided(Arc::clone(&self.judge.exchange), method, arguments, id, event)));
            }
        }
        Ok(())
    }
}

fn read_json(bytes: &[u8]) -> Result<Json, Broken> {
    Json::parse(bytes, &ANSWER_LIMITS).map_err(|error| Broken::Message(error.to_string()))
}

impl Judge {
    /// Looks at a whole answer; gives what it becomes, if it changes. A list of messages is what servers of 2025-03-26 may
    /// answer with.
    fn document(&self, json: Json) -> Option<Json> {
        let mut json = json;
        let Json::List(list) = &mut json else {
            return match self.message(&mut json, false) {
                Judged::Same => None,
                Judged::Changed(json) => Some(json),
                Judged::Kept | Judged::Asked(..) => Some(self.nothing()),
            };
        };
        let kept = std::mem::take(list).into_iter().filter_map(|mut message| {
            match self.message(&mut message, false) {
                Judged::Same => Some(message),
                Judged::Changed(message) => Some(message),
                Judged::Kept | Judged::Asked(..) => None,
            }
        });
        Some(Json::List(kept.collect()))
    }

    /// In the place of an answer that isn't one.
    fn nothing(&self) -> Json {
        self.failure("the server answered with something else than a response")
    }

    fn failure(&self, reason: &str) -> Json {
        let why = Refused {
            id: self.exchange.call.get().copied().unwrap_or_else(RecordId::now),
            code: Code::UpstreamProtocol,
            rules: Vec::new(),
            reason: reason.to_owned(),
            hint: None,
        };
        let text = words::error(self.exchange.id.as_ref(), rpc::REFUSED, &why);
        Json::parse(text.as_bytes(), &ANSWER_LIMITS).unwrap_or(Json::Null)
    }

    /// Looks at one message. Questions can be passed on in a stream alone.
    fn message(&self, json: &mut Json, stream: bool) -> Judged {
        if json.as_object().is_none() {
            return Judged::Kept;
        }
        let Some(method) = json.get("method").and_then(Json::as_text).map(str::to_owned) else {
            return self.response(json);
        };
        let Some(id) = json.get("id").filter(|id| **id != Json::Null).cloned() else {
            return Judged::Same;
        };
        self.question(json, &method, &id, stream)
    }

    fn response(&self, json: &mut Json) -> Judged {
        let exchange = &self.exchange;
        let answers = exchange.id.is_some() && json.get("id") == exchange.id.as_ref();
        if answers {
            exchange.over();
        }
        let allowed = |method: &str| match methods::of_question(method) {
            Standing::Group(group) => opts_in(&exchange.tool, group),
            _ => false,
        };
        let unwanted = json.get("result").and_then(|result| listing::unwanted_question(result, allowed));
        if let Some(method) = unwanted {
            let reason = format!(
                "the server asks for `{method}`, which the tool `{}` doesn't opt into",
                exchange.tool.name
            );
            return Judged::Changed(self.failure(&reason));
        }
        let changed =
            listing::field(json, "result").is_some_and(|result| listing::fit(exchange, result, answers));
        if changed { Judged::Changed(std::mem::replace(json, Json::Null)) } else { Judged::Same }
    }

    fn question(&self, json: &Json, method: &str, id: &Json, stream: bool) -> Judged {
        let exchange = &self.exchange;
        let sessions = &exchange.context.caller.run.mcp;
        let refusal = match methods::of_question(method) {
            Standing::Protocol if stream => {
                sessions.asked(&exchange.tool.name, exchange.session.as_deref(), id.to_string());
                return Judged::Same;
            }
            Standing::Group(group) if stream && opts_in(&exchange.tool, group) => {
                let params = json.get("params").map(methods::without_protocol);
                match params.map_or_else(|| Ok(Arguments::none()), Arguments::from_json) {
                    Ok(arguments) => return Judged::Asked(method.to_owned(), arguments, Some(id.clone())),
                    Err(error) => Refusal::new(Code::MalformedRequest, error.to_string()),
                }
            }
            Standing::Group(group) => methods::not_opted_in(&exchange.tool, method, group),
            _ => methods::unknown(method),
        };
        back::say(back::Server::of(exchange), back::not_asked(id, &refusal.reason));
        let (exchange, method) = (Arc::clone(exchange), method.to_owned());
        tokio::spawn(async move {
            let call = inbound(&exchange, method, Arguments::none());
            let gateway = &exchange.context.gateway;
            crate::decide::refuse(gateway, &call, refusal).await;
        });
        Judged::Kept
    }
}

/// A question of the server's as a call that policy decides on.
fn inbound(exchange: &Exchange, method: String, arguments: Arguments) -> Call {
    let shown = Some(arguments.json().clone());
    let http = back::http(&exchange.tool, &exchange.target, 0);
    let call =
        McpCall { http, method, name: None, arguments, protocol: false, inbound: true, shown, ongoing: None };
    Call::new(Arc::clone(&exchange.context.caller), Via::Tool, What::Mcp(Box::new(call)))
}

/// Passes a question on if policy permits it, else answers it.
async fn decided(
    exchange: Arc<Exchange>,
    method: String,
    arguments: Arguments,
    id: Option<Json>,
    event: Event,
) -> Option<Event> {
    let id = id?;
    let call = inbound(&exchange, method, arguments);
    match decide(&exchange.context.gateway, call).await {
        Ok(permitted) => {
            let sessions = &exchange.context.caller.run.mcp;
            sessions.asked(&exchange.tool.name, exchange.session.as_deref(), id.to_string());
            permitted.done(&Outcome::default()).await.ok()?;
            Some(event)
        }
        Err(why) => {
            back::say(back::Server::of(&exchange), back::not_asked(&id, &crate::refuse::message(&why)));
            None
        }
    }
}
