//! A prompt as people and the control API see it: every text spelled out, so that none is taken for another.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{
    prompts::{Past, Prompt, Worth},
    shown,
};
use crate::log;

/// A prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalView {
    /// Name, for `approve` and `deny`.
    pub id: String,
    /// Run.
    pub run: String,
    /// Its agent.
    pub agent: String,
    /// Who started it.
    pub user: String,
    /// `waiting`, `granted`, or how it ended.
    pub state: String,
    /// HTTP method, `connect`, or a tool.
    pub action: String,
    /// URL, `host:port` or tool.
    pub target: String,
    /// `egress`, `proxy`, `tool`, `web`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub via: String,
    /// Rules that permit it with a person's consent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// The rule's `@approval` text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Fields that are bound, each `name: value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// Length of body or arguments, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_bytes: Option<u64>,
    /// Their SHA-256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_sha256: Option<String>,
    /// Their text, whole; only where one prompt is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Digest of everything that an approval is bound to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Identical calls that wait now.
    #[serde(default)]
    pub waiting: usize,
    /// Identical calls so far.
    #[serde(default)]
    pub asked: u64,
    /// What an approval is still worth: a number of calls, or `run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
    /// Who approved or refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Unix time, milliseconds, when it was asked first.
    pub opened_ms: u64,
    /// Unix time, milliseconds, when it ends by itself; none if with its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Unix time, milliseconds, when it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
}

/// Both clocks now.
pub(super) fn now() -> (Instant, u64) {
    (Instant::now(), log::now_ms())
}

impl ApprovalView {
    /// Whether it isn't over.
    pub fn is_open(&self) -> bool {
        self.ended_ms.is_none()
    }

    pub(super) fn of(prompt: &Prompt, (instant, ms): (Instant, u64), whole: bool) -> Self {
        let (matter, call) = (&prompt.matter, &prompt.matter.shown);
        let left = match prompt.worth {
            Worth::Nothing => None,
            Worth::Times(left, _) => Some(left.to_string()),
            Worth::Run => Some("run".to_owned()),
        };
        let until = |end: Instant| {
            let left = end.saturating_duration_since(instant).as_millis();
            ms.saturating_add(u64::try_from(left).unwrap_or(u64::MAX))
        };
        let field = |(name, value): &(String, String)| {
            format!("{}: {}", shown::text(name, false), shown::text(value, false))
        };
        Self {
            id: prompt.id.to_string(),
            run: matter.key.run.to_string(),
            agent: matter.owner.agent.clone(),
            user: matter.owner.user.clone(),
            state: if left.is_some() { "granted" } else { "waiting" }.to_owned(),
            action: shown::text(&call.action, false),
            target: shown::text(&call.target, false),
            via: call.via.clone(),
            rules: matter.rules.clone(),
            why: shown::text(&matter.why, false),
            fields: call.fields.iter().map(field).collect(),
            content_bytes: call.content.map(|content| content.bytes),
            content_sha256: call.content.map(|content| content.digest.to_string()),
            content: (whole && call.content.is_some()).then(|| shown::bytes(&matter.content)),
            digest: matter.key.digest.to_string(),
            waiting: prompt.waiting(),
            asked: prompt.asked,
            left,
            by: prompt.by.clone(),
            opened_ms: prompt.opened_ms,
            expires_ms: prompt.expires().map(until),
            ended_ms: None,
        }
    }

    pub(super) fn past(past: &Past) -> Self {
        Self {
            id: past.id.to_string(),
            run: past.run.to_string(),
            agent: past.owner.agent.clone(),
            user: past.owner.user.clone(),
            state: past.end.as_str().to_owned(),
            action: shown::text(&past.action, false),
            target: shown::text(&past.target, false),
            by: past.by.clone(),
            opened_ms: past.opened_ms,
            ended_ms: Some(past.ended_ms),
            ..Self::default()
        }
    }
}
