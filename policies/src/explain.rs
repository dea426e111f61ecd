//! Why a call is decided as it is: what Cedar is asked, which rules can concern it, what each says.

use std::fmt;

use cedar_policy::{Authorizer, Effect, EntityUid, Policy, PolicySet};
use serde::Serialize;

use crate::{
    model::{Model, annotation},
    names,
    question::{Question, Verdict},
    reads::Reads,
    request::Asked,
    snapshot::{Slice, Snapshot},
};

/// What [`Snapshot::explain`] finds.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The Cedar request, as text.
    pub request: String,
    /// The rules whose scope this call falls in, by id.
    pub candidates: Vec<Candidate>,
    /// The decision, from [`Snapshot::decide`].
    pub verdict: Verdict,
    /// Digest of the set that decided.
    pub policy: String,
}

/// A rule that could concern the call, and what it says to it.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// `@id`.
    pub rule: String,
    /// `permit` or `forbid`.
    pub effect: &'static str,
    /// What it says.
    pub outcome: Outcome,
    /// `@reason` or `@approval` text, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What one rule says to one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// Its scope and conditions hold.
    Matches,
    /// A condition doesn't hold.
    DoesNotMatch,
    /// It could not be evaluated.
    Failed(String),
}

impl Snapshot {
    /// Explains the decision about `question`. The verdict is [`Snapshot::decide_anew`]'s own, so the two can't differ
    /// (case 84).
    pub fn explain(&self, question: &Question<'_>) -> Explanation {
        let verdict = self.decide_anew(question);
        let (request, candidates) = match Model::get() {
            Ok(model) => {
                let asked = self.slice(question).and_then(|slice| {
                    let all = self.builder.build(
                        model,
                        &self.names,
                        question,
                        &slice.subject,
                        Reads::ALL,
                        &|_| true,
                    )?;
                    Ok((self.request_text(model, question, &slice, &all), candidates(&slice, &all)))
                });
                asked.unwrap_or_else(|error| (error.to_string(), Vec::new()))
            }
            Err(error) => (error.to_string(), Vec::new()),
        };
        Explanation { request, candidates, verdict, policy: self.digest().to_owned() }
    }

    fn request_text(
        &self,
        model: &Model,
        question: &Question<'_>,
        slice: &Slice<'_>,
        asked: &Asked,
    ) -> String {
        let list = |uid: &EntityUid| {
            let mut parents: Vec<String> =
                asked.entities.ancestors(uid).into_iter().flatten().map(ToString::to_string).collect();
            parents.sort();
            if parents.is_empty() { uid.to_string() } else { format!("{uid} in [{}]", parents.join(", ")) }
        };
        let principal = asked.request.principal().map_or_else(|| question.run.id.to_string(), list);
        let action = slice.subject.act.entity(model).map_or_else(String::new, |(uid, _)| list(uid));
        let context = asked.request.context().map_or_else(String::new, ToString::to_string);
        let mut text = format!(
            "principal: {principal}\naction:    {action}\nresource:  {}\ncontext:   {context}",
            list(&names::resource(model, &question.ask))
        );
        for entity in asked.entities.iter() {
            for (key, value) in entity.tags() {
                let value = value.map_or_else(|error| error.to_string(), |value| value.to_string());
                text.push_str(&format!("\n  {}.getTag({key:?}) = {value}", entity.uid()));
            }
        }
        text
    }
}

fn candidates(slice: &Slice<'_>, asked: &Asked) -> Vec<Candidate> {
    let rules = slice.buckets.iter().flat_map(|bucket| bucket.rules.policies());
    let mut candidates: Vec<Candidate> = rules.map(|rule| candidate(rule, asked)).collect();
    candidates.sort_by(|a, b| a.rule.cmp(&b.rule));
    candidates
}

fn candidate(rule: &Policy, asked: &Asked) -> Candidate {
    let outcome = match PolicySet::from_policies([rule.clone()]) {
        Ok(set) => {
            let answer = Authorizer::new().is_authorized(&asked.request, &set, &asked.entities);
            match answer.diagnostics().errors().next() {
                Some(error) => Outcome::Failed(error.to_string()),
                None if answer.diagnostics().reason().next().is_some() => Outcome::Matches,
                None => Outcome::DoesNotMatch,
            }
        }
        Err(error) => Outcome::Failed(error.to_string()),
    };
    let effect = match rule.effect() {
        Effect::Permit => "permit",
        Effect::Forbid => "forbid",
    };
    let note = annotation(rule, "approval").or_else(|| annotation(rule, "reason")).map(str::to_owned);
    Candidate { rule: rule.id().to_string(), effect, outcome, note }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.request)?;
        if self.candidates.is_empty() && self.verdict.is_unpermitted() {
            writeln!(f, "no rule's scope covers this call")?;
        }
        for Candidate { rule, effect, outcome, note } in &self.candidates {
            let outcome = match outcome {
                Outcome::Matches => "matches".to_owned(),
                Outcome::DoesNotMatch => "does not match".to_owned(),
                Outcome::Failed(why) => format!("fails: {why}"),
            };
            let note = note
                .as_deref()
                .filter(|note| !note.is_empty())
                .map_or_else(String::new, |note| format!(" ({note})"));
            writeln!(f, "{effect} `{rule}` {outcome}{note}")?;
        }
        write!(f, "\n{}\npolicy {}", self.verdict, self.policy)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permit { rules } => write!(f, "permitted by `{}`", rules.join("`, `")),
            Self::Hold { rules, why } => write!(f, "held for approval by `{}`: {why}", rules.join("`, `")),
            Self::Refuse { code, rules, reason } if rules.is_empty() => {
                write!(f, "refused, {code}: {reason}")
            }
            Self::Refuse { code, rules, reason } => {
                write!(f, "refused by `{}`, {code}: {reason}", rules.join("`, `"))
            }
        }
    }
}
