//! From a request to a judged model call: what it asks for, whether config, policy and budget let it pass, and the body as
//! it is sent. What nothing changes stays byte for byte as it came.

use std::{collections::BTreeSet, sync::Arc};

use http::{HeaderMap, header, request::Parts};
use strait_contract::{
    code::Code,
    provider::Content,
    record::{Decision, Kept, ModelStep, ServerTool},
    redact::redact_text,
};
use strait_model::{
    api::{Dialect, Operation},
    document::{Document, DocumentError},
    endpoint::{self, Endpoint},
    server_tools::{self, Offered, StripError},
};
use strait_policies::{Ask, ServerToolAsk, Verdict};

use super::{ModelCall, answer, body};
use crate::{
    call::{Call, Caller, What},
    decide::{self, Refusal},
    protocol::http::{Front, body::Payload, headers},
    providers::Provider,
    url::Target,
};

/// Most bytes of the name of a provider's tool in a record.
const MAX_NAME: usize = 128;

/// What is known of a request so far.
pub(super) struct Draft {
    pub(super) provider: Arc<Provider>,
    pub(super) operation: Option<Operation>,
    pub(super) step: ModelStep,
}

/// A request that config and policy let pass.
pub(super) enum Judged {
    /// As it came: nothing in it is counted.
    Plain,
    /// To where the routes say, with this body.
    Routed(Document),
}

impl Draft {
    pub(super) fn new(provider: Arc<Provider>) -> Self {
        let step = ModelStep { provider: provider.name().to_string(), ..ModelStep::default() };
        Self { provider, operation: None, step }
    }

    /// The call with what is known of it, for one that isn't counted or isn't sent.
    pub(super) fn into_call(self, mut call: Call) -> Call {
        if let What::Http(http) = &mut call.what {
            let model = ModelCall::uncounted(self.step, self.operation, self.provider.content);
            http.model = Some(Arc::new(model));
        }
        call
    }

    /// Reads what is asked for and judges it.
    pub(super) async fn judge(
        &mut self,
        front: &Front,
        call: &Call,
        head: &mut Parts,
        body: &mut Payload,
    ) -> Result<Judged, Refusal> {
        refuse_upgrade(&head.headers)?;
        let path = call.http().and_then(|http| self.provider.below(http.target.path()));
        let path = path.unwrap_or_default();
        let (operation, named) = match endpoint::read(self.provider.dialect, head.method.as_str(), path) {
            Endpoint::Operation(operation, model) => (operation, model),
            Endpoint::Group(group) => return self.group(group).map(|()| Judged::Plain),
            Endpoint::Method(method) => {
                let reason = format!("`{path}` is asked for with {method}, not {}", head.method);
                return Err(Refusal::new(Code::NotFound, reason));
            }
            Endpoint::Unknown => {
                let reason = format!("`{path}` is no endpoint for models that is known here");
                return Err(Refusal::new(Code::NotFound, reason).hint(
                    "chat, responses, messages, generateContent, embeddings and the like are: see the provider's API",
                ));
            }
        };
        self.operation = Some(operation);
        operation.as_str().clone_into(&mut self.step.operation);
        if let Some(named) = named {
            named.clone_into(&mut self.step.asked);
        }
        if operation == Operation::Models {
            return Ok(Judged::Plain);
        }
        let text = body::read(front, head, body).await?;
        let document = Document::read(text.to_vec()).map_err(unreadable)?;
        self.read(operation, &document).map_err(unreadable)?;
        if self.step.asked.is_empty() {
            let reason = "the request names no model";
            return Err(
                Refusal::new(Code::MalformedRequest, reason).hint("put the model's name into `model`")
            );
        }
        let context = &front.context;
        let providers = context.gateway.providers();
        providers.check(&context.caller.run.info.agent, self.provider.name(), &self.step.asked)?;
        let provider = self.provider.name().as_str();
        let (document, decided) = without_denied(
            front,
            &call.caller,
            (self.provider.dialect, operation),
            provider,
            &self.step.asked,
            document,
        )
        .await?;
        self.step.server_tools = decided;
        self.keep(document.as_str());
        Ok(Judged::Routed(document))
    }

    /// An endpoint in which nothing is counted passes if the config says so.
    fn group(&mut self, group: &str) -> Result<(), Refusal> {
        group.clone_into(&mut self.step.operation);
        if self.provider.allow.iter().any(|allowed| allowed == group) {
            return Ok(());
        }
        let name = self.provider.name();
        let reason = format!("the endpoints `{group}` of the provider `{name}` aren't passed on here");
        Err(Refusal::new(Code::ToolCallDenied, reason).hint(format!(
            "nothing in them is counted; the operator may add `{group}` to `providers.{name}.allow`"
        )))
    }

    /// What the body says.
    fn read(&mut self, operation: Operation, document: &Document) -> Result<(), DocumentError> {
        let model = document.model()?.unwrap_or_default();
        if self.step.asked.is_empty() {
            self.step.asked = model;
        } else if !model.is_empty() && model.strip_prefix("models/").unwrap_or(&model) != self.step.asked {
            // The path says one and the body another: servers differ in which they take (case 69).
            return Err(DocumentError::Duplicate("model".to_owned()));
        }
        self.step.stream = operation == Operation::StreamGenerate || document.stream()?;
        Ok(())
    }

    fn keep(&mut self, text: &str) {
        let request = match self.provider.content {
            Content::None => return,
            Content::Hash => answer::digest(text.as_bytes()),
            Content::Full => redact_text(answer::beginning(text), answer::MAX_CONTENT),
        };
        let mode = self.provider.content;
        self.step.content = Some(Box::new(Kept { mode, request: Some(request), answer: None }));
    }
}

/// Has each of the provider's own tools that a request offers decided, and takes out what isn't permitted. Gives what is
/// left, and what was decided.
///
/// # Errors
/// What isn't permitted can't be taken out, or the request can't be read.
pub(super) async fn without_denied(
    front: &Front,
    caller: &Caller,
    (dialect, operation): (Dialect, Operation),
    provider: &str,
    model: &str,
    document: Document,
) -> Result<(Document, Vec<ServerTool>), Refusal> {
    let offered = server_tools::offered(dialect, operation, &document).map_err(unreadable)?;
    let (mut denied, mut hint, mut decided) = (BTreeSet::new(), None, Vec::new());
    for (at, offer) in offered.iter().enumerate() {
        let names = &front.context.settings.names;
        let target = offer.url.as_deref().map(|url| Target::from_absolute_with(url, names));
        let (decision, rules) = if matches!(target, Some(Err(_))) && leads_somewhere(offer) {
            // Where it leads can't be told, so no rule can speak of it.
            (Decision::Deny, Vec::new())
        } else {
            let host = target.and_then(Result::ok).map(|target| target.host_text().to_owned());
            let ask = Ask::ServerTool(ServerToolAsk {
                provider,
                name: &offer.name,
                kind: &offer.kind,
                model,
                host: host.as_deref(),
            });
            let (verdict, how) = decide::ask_part(&front.context.gateway, caller, ask).await;
            match verdict {
                Verdict::Permit { rules } => (Decision::Allow, rules),
                // Nobody is asked about a part of a call: what is to be held isn't offered.
                Verdict::Refuse { rules, .. } | Verdict::Hold { rules, .. } => {
                    hint = hint.or(how);
                    (Decision::Deny, rules)
                }
            }
        };
        if decision == Decision::Deny {
            denied.insert(at);
        }
        decided.push(ServerTool { name: shown(offer), decision, rules });
    }
    let left = server_tools::strip(dialect, document, &offered, &denied).map_err(|why| match why {
        StripError::Fixed { .. } => {
            let reason = format!("the provider would do what no policy permits, and {why}");
            let refusal = Refusal::new(Code::ToolCallDenied, reason);
            match hint {
                Some(hint) => refusal.hint(hint),
                None => refusal,
            }
        }
        StripError::Document(error) => unreadable(error),
    })?;
    Ok((left, decided))
}

/// Whether its address is one: a connector's id names a place at the provider.
fn leads_somewhere(offer: &Offered) -> bool {
    offer.url.as_deref().is_some_and(|url| url.contains(':') || url.contains('/'))
}

fn refuse_upgrade(fields: &HeaderMap) -> Result<(), Refusal> {
    if !fields.get_all(header::UPGRADE).iter().any(headers::is_websocket) {
        return Ok(());
    }
    Err(Refusal::new(Code::UpgradeRefused, "WebSocket isn't offered for calls of models")
        .hint("send the same request as POST; its answer can be a stream of events"))
}

pub(super) fn unreadable(error: DocumentError) -> Refusal {
    Refusal::new(Code::MalformedRequest, format!("the request can't be read: {error}"))
}

/// A provider's tool as records name it: its name in policies, and its type if that is another.
fn shown(offer: &Offered) -> String {
    let text = if offer.name == offer.kind {
        offer.name.clone()
    } else {
        format!("{} ({})", offer.name, offer.kind)
    };
    redact_text(&text, MAX_NAME)
}
