//! From texts to rules: bounds → parse → identify → validate → lint. Every problem found is reported, and one
//! is enough to refuse the whole set.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use cedar_policy::{
    ActionConstraint, Effect, EntityUid, Policy, PolicyId, PolicySet, Schema, ValidationMode,
    ValidationResult, ValidationWarning, Validator,
    pst::{self, Template},
};
use miette::Diagnostic;
use strait_contract::message::PolicyFile;

use crate::{
    bounds, lint,
    model::{Model, annotation},
    names::is_tool,
    pins::{Pin, Pins},
    problem::{Problem, Refused},
    vocabulary::Vocabulary,
};

/// What an annotation may be called. Cedar itself takes any word, so that a misspelt `@approval` would be a plain
/// permit.
const ANNOTATIONS: [&str; 4] = ["id", "reason", "approval", "approval_timeout"];
/// Prefix of ids from guardrail files.
pub(crate) const GUARDRAIL: &str = "guardrail:";
/// Attributes of entities may be read (`principal.labels`), but nothing behind them: nothing else is given to Cedar.
const DEREFERENCES: u32 = 1;

/// A rule under its final id, and where it came from.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) id: String,
    pub(crate) policy: Policy,
    /// The rule as a tree.
    pub(crate) tree: Template,
    pub(crate) place: Place,
}

/// Where a rule stands: file number and byte range.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) range: std::ops::Range<usize>,
}

/// The files being loaded, to point into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources<'a>(pub(crate) &'a [PolicyFile]);

impl Sources<'_> {
    /// A problem of the rule at `place`.
    pub(crate) fn problem(&self, place: &Place, message: impl Into<String>) -> Problem {
        self.0.get(place.file).map_or_else(
            || Problem::file("", ""),
            |file| Problem::at(&file.name, &file.text, place.range.clone(), message),
        )
    }

    /// The first `text` within `place`, or all of it.
    pub(crate) fn near(&self, place: &Place, text: &str) -> Place {
        let all =
            self.0.get(place.file).and_then(|file| file.text.get(place.range.clone())).unwrap_or_default();
        let range = match all.find(text) {
            Some(at) if !text.is_empty() => {
                let start = place.range.start.saturating_add(at);
                start..start.saturating_add(text.len())
            }
            _ => place.range.clone(),
        };
        Place { file: place.file, range }
    }
}

/// What was loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// What the rules speak of.
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) rules: Vec<Rule>,
}

/// The rules and pinned tools of `files`, or everything that is wrong with them.
pub(crate) fn load(model: &Model, files: &[PolicyFile]) -> Result<Loaded, Refused> {
    let sources = Sources(files);
    let mut problems = Vec::new();
    let mut rules: Vec<Rule> = Vec::new();
    let mut pins: Vec<Pin> = Vec::new();
    for (number, file) in files.iter().enumerate() {
        if is_pin(file) {
            match Pin::parse(file) {
                Ok(pin) => pins.push(pin),
                Err(refused) => problems.extend(refused.problems),
            }
            continue;
        }
        match parse(sources, number, file) {
            Ok(parsed) => rules.extend(parsed),
            Err(found) => problems.extend(found),
        }
    }
    duplicates(sources, &rules, &mut problems);
    if !problems.is_empty() {
        return Err(Refused::new(problems));
    }
    let vocabulary = Vocabulary::of(model, pins)?;
    validate(model, &vocabulary, sources, &rules, &mut problems);
    if problems.is_empty() { Ok(Loaded { vocabulary, rules }) } else { Err(Refused::new(problems)) }
}

/// Whether a file of a set is a pinned tool list ([`Pin`]) and not a policy.
pub fn is_pin(file: &PolicyFile) -> bool {
    is_pin_name(&file.name)
}

pub(crate) fn is_pin_name(name: &str) -> bool {
    name.ends_with(".json")
}

fn parse(sources: Sources<'_>, number: usize, file: &PolicyFile) -> Result<Vec<Rule>, Vec<Problem>> {
    bounds::check(file).map_err(|refused| refused.problems)?;
    let set = syntax(file)?;
    let mut problems: Vec<Problem> = set
        .templates()
        .map(|template| {
            let range = template.as_ref().loc().map_or(0..0, |loc| loc.start()..loc.end());
            let place = sources.near(&Place { file: number, range }, "?");
            sources
                .problem(&place, "this is a template: it has a slot such as `?principal`")
                .help("write the rule out for each agent or resource")
        })
        .collect();
    let mut rules = Vec::new();
    for policy in set.policies() {
        let range = policy.as_ref().loc().map_or(0..0, |loc| loc.start()..loc.end());
        match identify(sources, file, policy, Place { file: number, range }) {
            Ok(rule) => rules.push(rule),
            Err(found) => problems.extend(found),
        }
    }
    if problems.is_empty() { Ok(rules) } else { Err(problems) }
}

/// The text as Cedar reads it. The caller has checked [`bounds`].
pub(crate) fn syntax(file: &PolicyFile) -> Result<PolicySet, Vec<Problem>> {
    file.text.parse().map_err(|errors: cedar_policy::ParseErrors| {
        errors.iter().map(|error| diagnostic(file, error, "this isn't Cedar: ")).collect()
    })
}

/// Gives a parsed rule its own id instead of the one by position, and checks what its annotations may say.
fn identify(
    sources: Sources<'_>,
    file: &PolicyFile,
    policy: &Policy,
    place: Place,
) -> Result<Rule, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut complain = |near: &str, message: String, help: &str| {
        let problem = sources.problem(&sources.near(&place, near), message).help(help);
        problems.push(match annotation(policy, "id") {
            Some(id) => problem.rule(id),
            None => problem,
        });
    };
    for (key, _) in policy.annotations().filter(|(key, _)| !ANNOTATIONS.contains(key)) {
        let message = format!("`@{key}` is not an annotation that Strait knows");
        complain(&format!("@{key}"), message, "use @id, @reason, @approval or @approval_timeout");
    }
    match annotation(policy, "id") {
        None => complain(
            "",
            "this rule has no `@id`".to_owned(),
            "add `@id(\"a-name-of-your-own\")` above it: records and refusals name it",
        ),
        Some(id) if !well_formed(id) => {
            let help = "use 1 to 100 of letters, digits, `-`, `_`, `.` and `/`";
            complain("@id", format!("`{id}` can't be the id of a rule"), help);
        }
        Some(_) => {}
    }
    let approval = annotation(policy, "approval").is_some();
    if approval && policy.effect() == Effect::Forbid {
        let help = "a forbid can't be approved; put `@approval` on the permit";
        complain("@approval", "`@approval` stands on a forbid".to_owned(), help);
    }
    if let Some(timeout) = annotation(policy, "approval_timeout") {
        if !approval {
            let help = "add `@approval(\"why\")` or remove it";
            complain("@approval_timeout", "`@approval_timeout` without `@approval`".to_owned(), help);
        }
        if !is_duration(timeout) {
            let help = "write a number and s, m or h, such as `30m`";
            complain("@approval_timeout", format!("`{timeout}` is not a duration"), help);
        }
    }
    if file.guardrail && policy.effect() == Effect::Permit {
        let help = "guardrails only forbid; move the rule to a policy file";
        complain("permit", "a guardrail file has a permit".to_owned(), help);
    }
    let id = annotation(policy, "id").unwrap_or_default();
    let id = if file.guardrail { format!("{GUARDRAIL}{id}") } else { id.to_owned() };
    let tree = match policy.to_pst() {
        Ok(pst::Policy::Static(rule)) => Some(rule.body().clone().with_id(pst::PolicyID(id.as_str().into()))),
        Ok(pst::Policy::Linked(_)) => None,
        Err(error) => {
            complain("", format!("this rule can't be read: {error}"), "write it more simply");
            None
        }
    };
    match tree {
        Some(tree) if problems.is_empty() => {
            Ok(Rule { policy: policy.new_id(PolicyId::new(&id)), id, tree, place })
        }
        _ => Err(problems),
    }
}

fn well_formed(id: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    (1..=100).contains(&id.len()) && id.bytes().all(fits)
}

/// Seconds of an `@approval_timeout`.
pub(crate) fn seconds(text: &str) -> Option<u64> {
    if !is_duration(text) {
        return None;
    }
    let number = text.trim_end_matches(['s', 'm', 'h']);
    let unit = match text.as_bytes().last() {
        Some(b'm') => 60,
        Some(b'h') => 3600,
        _ => 1,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

fn is_duration(text: &str) -> bool {
    let digits = text.strip_suffix(['s', 'm', 'h']).unwrap_or_default();
    (1..=6).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn duplicates(sources: Sources<'_>, rules: &[Rule], problems: &mut Vec<Problem>) {
    let mut first: HashMap<&str, &Rule> = HashMap::new();
    for rule in rules {
        if let Some(other) = first.insert(&rule.id, rule) {
            let there = sources.problem(&other.place, "");
            problems.push(
                sources
                    .problem(&rule.place, format!("a second rule has the id `{}`", rule.id))
                    .rule(&rule.id)
                    .help(format!("the other one is at {}:{}; give each its own", there.file, there.line)),
            );
        }
    }
}

/// Strict validation and lints. A warning refuses too: rules that can never match and look-alike letters are only warnings
/// to Cedar.
fn validate(
    model: &Model,
    vocabulary: &Vocabulary,
    sources: Sources<'_>,
    rules: &[Rule],
    problems: &mut Vec<Problem>,
) {
    let places: BTreeMap<&str, &Place> = rules.iter().map(|rule| (rule.id.as_str(), &rule.place)).collect();
    let results = match cedar(model, vocabulary, rules) {
        Ok(results) => results,
        Err(why) => return problems.push(Problem::file("", why)),
    };
    let mut add = |id: &PolicyId, finding: &dyn Diagnostic| {
        let id: &str = id.as_ref();
        let file = places.get(id).and_then(|place| sources.0.get(place.file));
        problems.push(match file {
            Some(file) => unpinned(&vocabulary.pins, diagnostic(file, finding, "")).rule(id),
            None => Problem::file("", finding.to_string()).rule(id),
        });
    };
    for error in results.iter().flat_map(ValidationResult::validation_errors) {
        add(error.policy_id(), error);
    }
    let mut never: BTreeMap<String, Option<String>> = BTreeMap::new();
    for warning in results.iter().flat_map(ValidationResult::validation_warnings) {
        match warning {
            ValidationWarning::ImpossiblePolicy(_) => {
                never.entry(warning.policy_id().to_string()).or_default();
            }
            ValidationWarning::InvalidActionApplication(_) => {
                let help = warning.help().map(|help| help.to_string());
                never.insert(warning.policy_id().to_string(), help);
            }
            _ => add(warning.policy_id(), warning),
        }
    }
    for rule in rules {
        lint::check(vocabulary, sources, rule, problems);
    }
    // Why a rule never matches is mostly told by another problem of it.
    for (id, help) in never {
        if problems.iter().any(|problem| problem.rule.as_deref() == Some(&id)) {
            continue;
        }
        let Some(place) = places.get(id.as_str()) else { continue };
        let help = help.unwrap_or_else(|| {
            "no call has this action, this kind of resource and these conditions at once".to_owned()
        });
        problems.push(sources.problem(place, "this rule never matches").rule(id).help(help));
    }
    if problems.is_empty() && !results.iter().all(ValidationResult::validation_passed_without_warnings) {
        problems.push(Problem::file("", "the rules don't fit the schema"));
    }
}

/// Cedar's own validation. It looks at each rule once for each action, so rules that can't concern a pinned tool are
/// validated without those: for them the shipped schema is all there is.
fn cedar(model: &Model, vocabulary: &Vocabulary, rules: &[Rule]) -> Result<Vec<ValidationResult>, String> {
    let shipped: HashSet<&EntityUid> = model.shipped.schema.actions().chain([&model.tools_call]).collect();
    let of_tools = |rule: &&Rule| speaks_of_tools(model, &shipped, &rule.policy);
    let (tools, others): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(of_tools);
    let validate = |(schema, rules): (&Schema, Vec<&Rule>)| {
        let set = PolicySet::from_policies(rules.into_iter().map(|rule| rule.policy.clone()));
        let set = set.map_err(|error| error.to_string())?;
        let validator = Validator::new(schema.clone());
        Ok(validator.validate_with_level(&set, ValidationMode::Strict, DEREFERENCES))
    };
    [(&model.shipped.schema, others), (&vocabulary.schema, tools)].into_iter().map(validate).collect()
}

/// Whether the rule can concern a pinned tool or names the action of one, in its scope or elsewhere.
fn speaks_of_tools(model: &Model, shipped: &HashSet<&EntityUid>, policy: &Policy) -> bool {
    let pinned = |action: &EntityUid| *action == model.tools_call || !shipped.contains(action);
    let scope = match policy.action_constraint() {
        ActionConstraint::Any => true,
        ActionConstraint::Eq(action) => pinned(&action),
        ActionConstraint::In(actions) => actions.iter().any(pinned),
    };
    let mut literals = policy.entity_literals().into_iter();
    scope || literals.any(|uid| *uid.type_name() == model.types.action && !shipped.contains(&uid))
}

/// A finding of Cedar's as a problem of ours.
fn diagnostic(file: &PolicyFile, finding: &dyn Diagnostic, prefix: &str) -> Problem {
    let label = finding.labels().and_then(|mut labels| labels.next());
    let range =
        label.as_ref().map_or(0..0, |label| label.offset()..label.offset().saturating_add(label.len()));
    let text = finding.to_string();
    let message = without_policy(&text);
    let label = label.as_ref().and_then(|label| label.label()).map(str::to_owned);
    let problem = Problem::at(&file.name, &file.text, range, format!("{prefix}{message}"));
    match finding.help().map(|help| help.to_string()).or(label) {
        Some(help) => problem.help(expected(without_policy(&help))),
        None => problem,
    }
}

/// Cedar lists every token that could have stood there; mostly one was forgotten.
fn expected(help: &str) -> String {
    let tokens = help.strip_prefix("expected ").unwrap_or_default();
    let missing = ["`;`", "`,`", "`)`"].into_iter().find(|token| tokens.contains(token));
    match missing {
        Some(token) if tokens.matches('`').count() > 8 => format!("is a {token} missing before it?"),
        _ => help.to_owned(),
    }
}

/// A tool's action exists only if the tool is pinned, which Cedar can't know.
fn unpinned(pins: &Pins, problem: Problem) -> Problem {
    let action = problem.message.strip_prefix("unrecognized action `Action::\"");
    match action.and_then(|rest| rest.split_once('/')) {
        Some((server, _)) if is_tool(server) && pins.server(server).is_none() => {
            let help = format!(
                "the tools of `{server}` aren't pinned (`strait tool pin {server}`); until then their action is \
                 `Action::\"tools/call/unpinned\"`"
            );
            problem.help(help)
        }
        _ => problem,
    }
}

/// Cedar's findings start with ``for policy `id`, ``, which stands elsewhere here.
fn without_policy(message: &str) -> &str {
    message
        .strip_prefix("for policy `")
        .and_then(|rest| rest.split_once("`, "))
        .map_or(message, |(_, rest)| rest)
}
