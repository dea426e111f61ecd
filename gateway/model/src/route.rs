//! Which model a call is sent to: ordered rules, first match wins (A18).
//!
//! Architecture invariant: rules are read once and refused with the key at fault; choosing is one pass over them, a
//! target is never matched again, so no set of rules can loop.

mod pattern;
mod window;

pub use pattern::{BadPattern, ModelPattern};
pub use window::{BadWindow, Window};

use serde::Deserialize;

/// The most targets one rule may name, its first among them.
const MAX_TARGETS: usize = 8;

/// One `[[routes]]` table as it stands in the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Table {
    /// What the trace calls the rule; its place (`routes[0]`) if absent.
    pub name: Option<String>,
    /// Agents it's for, `*` and `?` as wildcards; absent: all.
    pub agents: Vec<String>,
    /// `provider/model` patterns of what's asked for; absent: all.
    pub models: Vec<String>,
    /// Matches requests of more bytes than this.
    pub over_bytes: Option<u64>,
    /// Matches requests of at most so many bytes.
    pub up_to_bytes: Option<u64>,
    /// `HH:MM-HH:MM`, UTC.
    pub between: Option<String>,
    /// Matches when less than this part (0–1) of the budget is left.
    pub budget_below: Option<f64>,
    /// `provider/model` to send it to; `provider/*` keeps the model's name. Absent: what was asked for.
    pub to: Option<String>,
    /// `provider/model`s tried in order where the one before fails (see [`falls_back`]).
    pub fallback: Vec<String>,
}

/// Why a `[[routes]]` table can't be taken. The operator's to mend; `key` says where.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BadRoute {
    /// A pattern that can't match as meant.
    #[error("`{key}`: {source}")]
    Pattern {
        /// The key at fault.
        key: String,
        /// What's wrong.
        source: BadPattern,
    },
    /// A time that's none.
    #[error("`{key}`: {source}")]
    Window {
        /// The key at fault.
        key: String,
        /// What's wrong.
        source: BadWindow,
    },
    /// A target that isn't `provider/model`.
    #[error("`{key}`: `{target}` is not `provider/model`; write e.g. `openai/gpt-5-mini` or `azure/*`")]
    Target {
        /// The key at fault.
        key: String,
        /// What stands there.
        target: String,
    },
    /// A target whose provider isn't configured.
    #[error("`{key}`: there is no provider `{provider}`; add `[providers.{provider}]` or correct the name")]
    Provider {
        /// The key at fault.
        key: String,
        /// The name that isn't configured.
        provider: String,
    },
    /// A value outside of what it can be.
    #[error("`{key}`: {why}")]
    Value {
        /// The key at fault.
        key: String,
        /// What it can be.
        why: &'static str,
    },
}

/// The rules in their order.
#[derive(Clone, Debug, Default)]
pub struct Rules(Vec<Rule>);

#[derive(Clone, Debug)]
struct Rule {
    name: String,
    agents: Vec<ModelPattern>,
    models: Vec<ModelPattern>,
    over_bytes: Option<u64>,
    up_to_bytes: Option<u64>,
    between: Option<Window>,
    budget_below: Option<f64>,
    to: Option<Target>,
    fallback: Vec<Target>,
}

/// What a call asks for, as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The agent's name.
    pub agent: &'a str,
    /// The provider in the call's path.
    pub provider: &'a str,
    /// The model it names.
    pub model: &'a str,
    /// Size of the request's body, bytes.
    pub bytes: u64,
    /// Minutes since midnight, UTC.
    pub minute_of_day: u16,
    /// The smallest part (0–1) left of any budget that holds for the run; `None` if there's none.
    pub budget_left: Option<f64>,
}

/// A model at a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The provider's name in the configuration.
    pub provider: String,
    /// The model's name there.
    pub model: String,
}

/// Where a call goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The rule that matched; `None`: nothing did, the one target is what was asked for.
    pub rule: Option<String>,
    /// In the order to try, never empty, none twice.
    pub targets: Vec<Target>,
}

/// How a try at a target ended before the first byte of an answer was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No connection, or none that spoke TLS with the right name.
    Connect,
    /// Connected, and ended or stayed silent before an answer's head.
    Silent,
    /// An answer of this status.
    Status(u16),
}

/// Whether the next target is tried after `outcome`. Only before the first byte of an answer went to the client: after
/// that the answer stands as it is, cut or not (case 75). 429 and all of 5xx (529 too); other 4xx say that the request
/// is at fault and would be elsewhere.
#[must_use]
pub fn falls_back(outcome: Outcome) -> bool {
    match outcome {
        Outcome::Connect | Outcome::Silent => true,
        Outcome::Status(status) => status == 429 || (500..600).contains(&status),
    }
}

impl Rules {
    /// Reads the tables; `is_provider` says which providers are configured.
    ///
    /// # Errors
    /// The first value that can't be taken, with its key.
    pub fn parse(tables: &[Table], is_provider: impl Fn(&str) -> bool) -> Result<Self, BadRoute> {
        tables
            .iter()
            .enumerate()
            .map(|(at, table)| Rule::parse(&format!("routes[{at}]"), table, &is_provider))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether there's no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The targets of the first rule that matches; what's asked for if none does.
    #[must_use]
    pub fn choose(&self, asked: &Asked<'_>) -> Chosen {
        let same = || Target { provider: asked.provider.to_owned(), model: asked.model.to_owned() };
        let Some(rule) = self.0.iter().find(|rule| rule.matches(asked)) else {
            return Chosen { rule: None, targets: vec![same()] };
        };
        let first = rule.to.as_ref().map_or_else(same, |to| to.named(asked.model));
        let mut targets = vec![first];
        for next in &rule.fallback {
            let next = next.named(asked.model);
            if !targets.contains(&next) {
                targets.push(next);
            }
        }
        Chosen { rule: Some(rule.name.clone()), targets }
    }
}

impl Rule {
    fn parse(at: &str, table: &Table, is_provider: &impl Fn(&str) -> bool) -> Result<Self, BadRoute> {
        let key = |name: &str| format!("{at}.{name}");
        let value = |name: &str, why| BadRoute::Value { key: key(name), why };
        if table.to.is_none() && table.fallback.is_empty() {
            return Err(value(
                "to",
                "a route says where to (`to`), what to fall back on (`fallback`) or both",
            ));
        }
        if table.fallback.len() >= MAX_TARGETS {
            return Err(value("fallback", "at most 7 models to fall back on"));
        }
        if table.budget_below.is_some_and(|part| !(part > 0.0 && part <= 1.0)) {
            return Err(value("budget_below", "a part of the budget above 0 and up to 1, e.g. 0.2"));
        }
        if let (Some(over), Some(up_to)) = (table.over_bytes, table.up_to_bytes)
            && over >= up_to
        {
            return Err(value("up_to_bytes", "no size is over `over_bytes` and up to this one"));
        }
        let agents = patterns(&table.agents, |at| key(&format!("agents[{at}]")), ModelPattern::of_name)?;
        let models = patterns(&table.models, |at| key(&format!("models[{at}]")), ModelPattern::parse)?;
        let between = table.between.as_deref().map(Window::parse).transpose();
        let between = between.map_err(|source| BadRoute::Window { key: key("between"), source })?;
        let to = table.to.as_deref().map(|to| Target::parse(key("to"), to, is_provider)).transpose()?;
        let fallback = table.fallback.iter().enumerate();
        let fallback = fallback
            .map(|(at, to)| Target::parse(key(&format!("fallback[{at}]")), to, is_provider))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            name: table.name.clone().unwrap_or_else(|| at.to_owned()),
            agents,
            models,
            over_bytes: table.over_bytes,
            up_to_bytes: table.up_to_bytes,
            between,
            budget_below: table.budget_below,
            to,
            fallback,
        })
    }

    fn matches(&self, asked: &Asked<'_>) -> bool {
        (self.agents.is_empty() || self.agents.iter().any(|pattern| pattern.matches_name(asked.agent)))
            && (self.models.is_empty()
                || self.models.iter().any(|pattern| pattern.matches(asked.provider, asked.model)))
            && self.over_bytes.is_none_or(|over| asked.bytes > over)
            && self.up_to_bytes.is_none_or(|up_to| asked.bytes <= up_to)
            && self.between.is_none_or(|window| window.holds(asked.minute_of_day))
            && self.budget_below.is_none_or(|part| asked.budget_left.is_some_and(|left| left < part))
    }
}

impl Target {
    fn parse(key: String, target: &str, is_provider: &impl Fn(&str) -> bool) -> Result<Self, BadRoute> {
        let Some((provider, model)) = target.split_once('/') else {
            return Err(BadRoute::Target { key, target: target.to_owned() });
        };
        let wild = |text: &str| text.contains(['*', '?']) || text.is_empty();
        if wild(provider) || (wild(model) && model != "*") {
            return Err(BadRoute::Target { key, target: target.to_owned() });
        }
        if !is_provider(provider) {
            return Err(BadRoute::Provider { key, provider: provider.to_owned() });
        }
        Ok(Self { provider: provider.to_owned(), model: model.to_owned() })
    }

    fn named(&self, asked: &str) -> Self {
        let model = if self.model == "*" { asked } else { &self.model };
        Self { provider: self.provider.clone(), model: model.to_owned() }
    }
}

fn patterns(
    texts: &[String],
    key: impl Fn(usize) -> String,
    parse: impl Fn(&str) -> Result<ModelPattern, BadPattern>,
) -> Result<Vec<ModelPattern>, BadRoute> {
    texts
        .iter()
        .enumerate()
        .map(|(at, text)| parse(text).map_err(|source| BadRoute::Pattern { key: key(at), source }))
        .collect()
}

#[cfg(test)]
mod tests;
