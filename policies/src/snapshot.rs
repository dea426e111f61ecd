//! One loaded policy set, ready to decide.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cedar_policy::{Authorizer, Effect, Policy};
use cedar_policy_core::{
    ast::{Literal, ValueKind},
    evaluator::Evaluator,
    extensions::Extensions,
};
use jiff::tz::TimeZone;
use strait_contract::{code::Code, message::PolicyFile, run::Process};

use crate::{
    bounds,
    caller::Caller,
    digest,
    index::{Bucket, Index, Judged},
    inspected::{self, PathRule},
    load, memo,
    model::{Act, Model, annotation},
    names::Names,
    pins::Pins,
    problem::{Problem, Refused},
    question::{Ask, Question, ToolAsk, Verdict},
    reads::{Reads, touches},
    request::{self, BadQuestion, Builder, Subject},
};

/// Numbers of sets; 0 is none's.
static SERIALS: AtomicU64 = AtomicU64::new(1);

/// A policy set that was checked whole. Sharing it needs no lock; replacing it is the caller's business.
#[derive(Debug)]
pub struct Snapshot {
    pub(crate) names: Names,
    pub(crate) index: Index,
    pub(crate) builder: Builder,
    pub(crate) authorizer: Authorizer,
    pins: Arc<Pins>,
    digest: String,
    rules: usize,
    path_rules: Vec<PathRule>,
    /// Seconds of each `@approval_timeout`, by rule.
    timeouts: BTreeMap<String, u64>,
    epoch: u64,
    /// Of this set alone, while an epoch may come again.
    serial: u64,
}

impl Snapshot {
    /// Checks `files` and makes them ready to decide with. `epoch` is the caller's number for this set.
    ///
    /// Takes about 0.1 ms a rule. Parsing runs on a thread of its own with a large stack.
    ///
    /// # Errors
    /// Everything that is wrong with the files (cases 81, 82). Nothing of them may then be used.
    pub fn compile(files: &[PolicyFile], epoch: u64) -> Result<Self, Refused> {
        Self::compile_in(files, epoch, TimeZone::system())
    }

    /// Like [`Self::compile`], with the zone that `context.time.hour` and `weekday` are in.
    ///
    /// # Errors
    /// As [`Self::compile`].
    pub fn compile_in(files: &[PolicyFile], epoch: u64, zone: TimeZone) -> Result<Self, Refused> {
        on_large_stack(|| {
            let model = Model::get()
                .map_err(|error| Refused::from(Problem::file("strait.cedarschema", error.to_string())))?;
            let load::Loaded { vocabulary, rules } = load::load(model, files)?;
            let names = Names::of(&rules);
            let index = Index::of(model, &vocabulary, &names, &rules)
                .map_err(|error| Refused::from(Problem::file("", error.to_string()).rule(&error.rule)))?;
            let digest = digest::of(&rules, &vocabulary.pins);
            Ok(Self {
                names,
                index,
                builder: Builder::new(zone),
                authorizer: Authorizer::new(),
                pins: Arc::clone(&vocabulary.pins),
                digest,
                rules: rules.len(),
                path_rules: inspected::path_rules(model, &rules),
                timeouts: rules.iter().filter_map(timeout).collect(),
                epoch,
                serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            })
        })
    }

    /// The set without rules, which refuses everything.
    pub fn empty() -> Self {
        Self {
            names: Names::default(),
            index: Index::default(),
            builder: Builder::new(TimeZone::UTC),
            authorizer: Authorizer::new(),
            pins: Arc::default(),
            digest: digest::of(&[], &Pins::default()),
            rules: 0,
            path_rules: Vec::new(),
            timeouts: BTreeMap::new(),
            epoch: 0,
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// SHA-256 over what the rules mean, lower-case hex: equal for sets that differ in format, order, comments or
    /// spread over files only.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// How many rules there are.
    pub fn rules(&self) -> usize {
        self.rules
    }

    /// The hosts whose HTTP must be looked into for a rule to work, with the rule: none of them may be passed
    /// through (cases 42, 83).
    pub fn hosts_with_path_rules(&self) -> &[PathRule] {
        &self.path_rules
    }

    /// Names of the agents that rules name, to check against the configured ones.
    pub fn named_agents(&self) -> impl Iterator<Item = &str> {
        self.names.of_type("Agent")
    }

    /// Names of the tools that rules name, as the config has them, to check against it: `github` for both
    /// `Tool::"github"` and `Tool::"github/get_me"`.
    pub fn named_tools(&self) -> impl Iterator<Item = &str> {
        self.names.of_type("Tool").map(|id| id.split_once('/').map_or(id, |(server, _)| server))
    }

    /// The tools that are pinned.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// How long a call that these rules hold may wait for a person, seconds: the shortest `@approval_timeout` among
    /// them, if one has any.
    pub fn approval_timeout(&self, rules: &[String]) -> Option<u64> {
        rules.iter().filter_map(|rule| self.timeouts.get(rule)).min().copied()
    }

    /// The number this set was compiled under.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether a rule that can concern `question` reads `context.process`. If so, [`Question::process`] should be
    /// filled in before [`Self::decide`], which refuses otherwise.
    pub fn reads_process(&self, question: &Question<'_>) -> bool {
        let lineage = self.names.lineage(&question.ask);
        let act = Act::of(&self.pins, &question.ask);
        let buckets = self.index.buckets(act, question.run.agent.as_str(), &lineage);
        buckets.iter().any(|bucket| !bucket.process.is_empty())
    }

    /// Decides. A forbid that matches wins and is named; else any rule that could not be evaluated refuses; else a
    /// permit that matches permits, or holds if all that match are `@approval` rules; else the call is refused.
    ///
    /// What was decided for an equal call is remembered for as long as the set and the run live; rules that read the
    /// time are always asked.
    pub fn decide(&self, question: &Question<'_>) -> Verdict {
        self.try_decide(question).unwrap_or_else(|why| failed(Vec::new(), why.to_string()))
    }

    fn try_decide(&self, question: &Question<'_>) -> Result<Verdict, BadQuestion> {
        let slice = self.slice(question)?;
        if slice.buckets.is_empty() {
            return Ok(no_permit());
        }
        let caller = Caller::of(Model::get().map_err(BadQuestion::from)?, question.run)?;
        let anew = || verdict(self.tally(question, &slice));
        Ok(memo::remembered(self.serial, &caller, question, &slice.subject.lineage, slice.reads, anew))
    }

    /// [`Self::decide`] with nothing remembered, neither before nor after.
    pub fn decide_anew(&self, question: &Question<'_>) -> Verdict {
        verdict(self.slice(question).and_then(|slice| self.tally(question, &slice)))
    }

    /// The rules that can concern `question`.
    pub(crate) fn slice<'a>(&'a self, question: &'a Question<'_>) -> Result<Slice<'a>, BadQuestion> {
        request::canonical(&question.ask)?;
        let lineage = self.names.lineage(&question.ask);
        let act = Act::of(&self.pins, &question.ask);
        let buckets = self.index.buckets(act, question.run.agent.as_str(), &lineage);
        let arguments = match (act, &question.ask) {
            // What no rule concerns is refused for that, whatever its arguments.
            (Act::Pinned(pinned), Ask::Tool(ToolAsk { arguments, .. })) if !buckets.is_empty() => {
                Some(pinned.shape.read(arguments).map_err(BadQuestion::Arguments)?)
            }
            _ => None,
        };
        let reads = buckets.iter().fold(Reads::default(), |reads, bucket| reads.with(bucket.reads));
        Ok(Slice { subject: Subject { act, lineage, arguments }, buckets, reads })
    }

    /// What those rules say.
    fn tally<'a>(&self, question: &Question<'_>, slice: &Slice<'a>) -> Result<Tally<'a>, BadQuestion> {
        let mut tally = Tally::default();
        if slice.buckets.is_empty() {
            return Ok(tally);
        }
        let model = Model::get().map_err(BadQuestion::from)?;
        let wanted = |name: &str| slice.buckets.iter().any(|bucket| bucket.fields.contains(name));
        let asked = self.builder.build(model, &self.names, question, &slice.subject, slice.reads, &wanted)?;
        // One evaluator for all buckets, where Cedar's authorizer would make one for each and every rule's condition anew.
        // That both come to the same is tested with rules and calls of every kind.
        let evaluator = Evaluator::new(
            asked.request.as_ref().clone(),
            (*asked.entities).as_ref(),
            Extensions::all_available(),
        );
        for bucket in &slice.buckets {
            tally.count(&evaluator, bucket, question.process);
            if let Some(reading) = &slice.subject.arguments {
                tally.errors.extend(reading.inexact.iter().filter_map(|inexact| unseen(bucket, inexact)));
            }
        }
        Ok(tally)
    }
}

fn timeout(rule: &load::Rule) -> Option<(String, u64)> {
    Some((rule.id.clone(), load::seconds(annotation(&rule.policy, "approval_timeout")?)?))
}

/// The rules that can concern a call.
#[derive(Debug)]
pub(crate) struct Slice<'a> {
    pub(crate) subject: Subject<'a>,
    pub(crate) buckets: Vec<&'a Bucket>,
    /// What any of them reads.
    pub(crate) reads: Reads,
}

/// The rule that reads a number that it wasn't given. Left out silently, it would make a forbid weaker.
fn unseen(bucket: &Bucket, (path, number): &(Vec<String>, String)) -> Option<(String, String)> {
    let reads = |paths: &[Vec<String>]| paths.iter().any(|read| touches(read, path));
    let (rule, _) = bucket.arguments.iter().find(|(_, paths)| reads(paths))?;
    let path = path.join(".");
    let why = format!("it reads the argument `{path}`, and no decimal of four places is exactly {number}");
    Some((rule.clone(), why))
}

/// What the buckets said, joined. Errors count wherever they are; forbids count wherever they are; permits count
/// if no bucket has a forbid.
#[derive(Default)]
struct Tally<'a> {
    forbids: Vec<&'a Policy>,
    permits: Vec<&'a Policy>,
    errors: Vec<(String, String)>,
}

impl<'a> Tally<'a> {
    fn count(&mut self, evaluator: &Evaluator<'_>, bucket: &'a Bucket, process: Option<&Process>) {
        for Judged { policy, condition } in &bucket.judged {
            let holds = evaluator.interpret(condition, policy.as_ref().env());
            match (holds.map(|value| value.value), policy.effect()) {
                (Ok(ValueKind::Lit(Literal::Bool(false))), _) => {}
                (Ok(ValueKind::Lit(Literal::Bool(true))), Effect::Permit) => self.permits.push(policy),
                (Ok(ValueKind::Lit(Literal::Bool(true))), Effect::Forbid) => self.forbids.push(policy),
                (Ok(_), _) => self.failed(policy, "its condition is neither true nor false".to_owned()),
                (Err(error), _) => self.failed(policy, error.to_string()),
            }
        }
        self.errors.extend(bucket.process.iter().filter_map(|(rule, reads)| {
            unknown(process, *reads)
                .map(|what| (rule.clone(), format!("it reads {what}, which could not be determined")))
        }));
    }

    fn failed(&mut self, policy: &Policy, why: String) {
        self.errors.push((policy.id().to_string(), why));
    }

    fn verdict(mut self) -> Verdict {
        if !self.forbids.is_empty() {
            let rules = sorted(&mut self.forbids);
            let reason = self.forbids.iter().find_map(|rule| annotation(rule, "reason"));
            let reason =
                reason.map_or_else(|| format!("forbidden by rule `{}`", rules.join("`, `")), str::to_owned);
            return Verdict::Refuse { code: Code::ToolCallDenied, rules, reason };
        }
        self.errors.sort();
        if let Some((rule, why)) = self.errors.first() {
            let reason = format!("rule `{rule}` could not be evaluated: {why}");
            let mut rules: Vec<String> = self.errors.iter().map(|(rule, _)| rule.clone()).collect();
            rules.dedup();
            return failed(rules, reason);
        }
        if self.permits.is_empty() {
            return no_permit();
        }
        let rules = sorted(&mut self.permits);
        if self.permits.iter().all(|rule| annotation(rule, "approval").is_some()) {
            let why = self
                .permits
                .iter()
                .find_map(|rule| annotation(rule, "approval"))
                .unwrap_or_default()
                .to_owned();
            return Verdict::Hold { rules, why };
        }
        Verdict::Permit { rules }
    }
}

fn sorted(rules: &mut Vec<&Policy>) -> Vec<String> {
    rules.sort_by(|a, b| a.id().cmp(b.id()));
    rules.iter().map(|rule| rule.id().to_string()).collect()
}

/// What of the calling process a rule reads and isn't known. Left out silently, it would make a forbid weaker.
fn unknown(process: Option<&Process>, reads: Reads) -> Option<&'static str> {
    match process {
        None => Some("the calling process"),
        Some(process) if reads.contains(Reads::PROCESS_EXE) && process.exe.is_none() => {
            Some("its executable")
        }
        Some(process) if reads.contains(Reads::PROCESS_DIGEST) && process.digest.is_none() => {
            Some("the digest of its executable")
        }
        Some(_) => None,
    }
}

fn verdict(tally: Result<Tally<'_>, BadQuestion>) -> Verdict {
    tally.map_or_else(|why| failed(Vec::new(), why.to_string()), Tally::verdict)
}

fn failed(rules: Vec<String>, reason: String) -> Verdict {
    Verdict::Refuse { code: Code::PolicyError, rules, reason }
}

fn no_permit() -> Verdict {
    let reason = "no rule permits this".to_owned();
    Verdict::Refuse { code: Code::ToolCallDenied, rules: Vec::new(), reason }
}

/// Runs `work` where deep trees don't overflow the stack.
pub(crate) fn on_large_stack<T: Send>(
    work: impl FnOnce() -> Result<T, Refused> + Send,
) -> Result<T, Refused> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("policies".to_owned()).stack_size(bounds::STACK);
        match thread.spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_else(|_| {
                Err(Refused::from(Problem::file("", "checking the policies failed inside Strait")))
            }),
            Err(error) => {
                Err(Refused::from(Problem::file("", format!("no thread to check policies on: {error}"))))
            }
        }
    })
}

#[cfg(test)]
mod tests;
