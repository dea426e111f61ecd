//! Which rules can concern a call, found without looking at the others.
//!
//! A rule whose scope is false contributes neither decision, reason nor error, so it may be left out. Rules are
//! kept in buckets by action (those of every pinned tool once), agent and named resource; a call is evaluated against the few buckets it falls in,
//! and the answers are joined. What a bucket already guarantees is cut from the scopes of its rules.

mod outline;

use std::collections::BTreeSet;

use cedar_policy::{
    ActionConstraint, EntityUid, Policy, PolicySet, PrincipalConstraint, ResourceConstraint,
    pst::{self, Template},
};
use cedar_policy_core::ast;

use self::outline::outline;
use crate::{
    load::Rule,
    model::{Act, Action, Model, PerAction},
    names::{Fixed, Lineage, Names, Node},
    reads::{Fields, Path, Reads, argument_paths},
    vocabulary::Vocabulary,
};

/// A rule as it is evaluated: its condition put together once, not for each call.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) policy: Policy,
    pub(crate) condition: ast::Expr,
}

/// The rules of one scope.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    pub(crate) rules: PolicySet,
    /// The same.
    pub(crate) judged: Vec<Judged>,
    /// What any of them reads.
    pub(crate) reads: Reads,
    /// The rules that read `context.process`, and what of it.
    pub(crate) process: Vec<(String, Reads)>,
    /// The rules that read `context.arguments`, and what of it.
    pub(crate) arguments: Vec<(String, Vec<Path>)>,
    /// The attributes of `context.arguments` that any of them reads.
    pub(crate) fields: Fields,
    /// What can be said of these rules before the context is known, for tools only.
    pub(crate) outlines: PolicySet,
}

/// The rules of one action for one agent, or for any.
#[derive(Debug, Default)]
struct Table {
    anywhere: Option<Bucket>,
    at: Fixed<Node, Bucket>,
}

#[derive(Debug, Default)]
struct Tables {
    any_agent: Table,
    agents: Fixed<String, Table>,
}

/// All rules, by scope.
#[derive(Debug, Default)]
pub(crate) struct Index {
    actions: PerAction<Tables>,
    /// The rules of every pinned tool.
    pinned: Tables,
    /// The rules that name a pinned tool's action, by the tool's number.
    tools: Fixed<u32, Tables>,
}

/// A rule as it is put into buckets.
struct Entry {
    id: String,
    agent: Option<String>,
    node: Option<Node>,
    policy: Policy,
    reads: Reads,
    arguments: Vec<Path>,
    outline: Option<Policy>,
}

/// A rule can't be put into the index. A fault inside Strait; the set is refused.
#[derive(Debug, thiserror::Error)]
#[error("the rule `{rule}` can't be indexed: {why}")]
pub(crate) struct NotIndexed {
    pub(crate) rule: String,
    why: String,
}

impl Index {
    pub(crate) fn of(
        model: &Model,
        vocabulary: &Vocabulary,
        names: &Names,
        rules: &[Rule],
    ) -> Result<Self, NotIndexed> {
        let mut index = Self::default();
        let numbers: Fixed<&EntityUid, u32> = vocabulary
            .pins
            .iter()
            .flat_map(|pin| &pin.tools)
            .filter_map(|tool| tool.action.as_ref().map(|(uid, _)| (uid, tool.number)))
            .collect();
        for rule in rules {
            index
                .add(model, names, &numbers, rule)
                .map_err(|why| NotIndexed { rule: rule.id.clone(), why })?;
        }
        Ok(index)
    }

    fn add(
        &mut self,
        model: &Model,
        names: &Names,
        numbers: &Fixed<&EntityUid, u32>,
        rule: &Rule,
    ) -> Result<(), String> {
        let mut entry = Entry::of(names, rule)?;
        for action in [Action::Http, Action::Connect, Action::Dns, Action::Method, Action::ServerTool] {
            if concerns(model, &rule.policy, action) {
                self.actions.get_mut(action).add(&entry)?;
            }
        }
        let unpinned = concerns(model, &rule.policy, Action::Unpinned);
        let pinned = pinned(model, numbers, &rule.policy);
        if unpinned || !matches!(&pinned, Pinned::These(tools) if tools.is_empty()) {
            entry.outline = outline(&rule.tree, &entry.policy)?;
        }
        if unpinned {
            self.actions.unpinned.add(&entry)?;
        }
        match pinned {
            Pinned::Every => self.pinned.add(&entry),
            Pinned::These(tools) => {
                tools.into_iter().try_for_each(|tool| self.tools.entry(tool).or_default().add(&entry))
            }
        }
    }

    /// The buckets a call falls in, in no order that matters.
    pub(crate) fn buckets<'a>(&'a self, act: Act<'_>, agent: &str, lineage: &Lineage) -> Vec<&'a Bucket> {
        let tables = match act {
            Act::Shipped(action) => [Some(self.actions.get(action)), None],
            Act::Pinned(tool) => [Some(&self.pinned), self.tools.get(&tool.number)],
        };
        let mut found = Vec::with_capacity(8);
        for tables in tables.into_iter().flatten() {
            for table in [Some(&tables.any_agent), tables.agents.get(agent)].into_iter().flatten() {
                found.extend(&table.anywhere);
                if !table.at.is_empty() {
                    found.extend(lineage.nodes.iter().filter_map(|node| table.at.get(node)));
                }
            }
        }
        found
    }
}

impl Entry {
    fn of(names: &Names, rule: &Rule) -> Result<Self, String> {
        let mut tree = rule.tree.clone();
        tree.action = pst::ActionConstraint::Any;
        let agent = agent(&rule.policy, &mut tree);
        let node = node(names, &rule.policy, &mut tree)?;
        let reads = Reads::of(&tree);
        let arguments = argument_paths(&tree);
        let (id, outline) = (rule.id.clone(), None);
        Ok(Self { id, agent, node, policy: bare(tree)?, reads, arguments, outline })
    }
}

impl Tables {
    fn add(&mut self, entry: &Entry) -> Result<(), String> {
        let table = match &entry.agent {
            Some(agent) => self.agents.entry(agent.clone()).or_default(),
            None => &mut self.any_agent,
        };
        let bucket = match entry.node {
            Some(node) => table.at.entry(node).or_default(),
            None => table.anywhere.get_or_insert_default(),
        };
        bucket.rules.add(entry.policy.clone()).map_err(|error| error.to_string())?;
        let condition = entry.policy.as_ref().condition();
        bucket.judged.push(Judged { policy: entry.policy.clone(), condition });
        bucket.reads = bucket.reads.with(entry.reads);
        if entry.reads.contains(Reads::PROCESS) {
            bucket.process.push((entry.id.clone(), entry.reads));
        }
        entry.arguments.iter().for_each(|path| bucket.fields.add(path));
        if !entry.arguments.is_empty() {
            bucket.arguments.push((entry.id.clone(), entry.arguments.clone()));
        }
        match &entry.outline {
            Some(outline) => bucket.outlines.add(outline.clone()).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}

/// Which pinned tools a rule concerns by its action.
enum Pinned {
    Every,
    These(BTreeSet<u32>),
}

/// Exact, so the constraint is cut: pinned tools are in one group and in no other.
fn pinned(model: &Model, numbers: &Fixed<&EntityUid, u32>, policy: &Policy) -> Pinned {
    let these = |uids: &[EntityUid]| uids.iter().filter_map(|uid| numbers.get(uid).copied()).collect();
    match policy.action_constraint() {
        ActionConstraint::Any => Pinned::Every,
        ActionConstraint::In(groups) if groups.contains(&model.tools_call) => Pinned::Every,
        ActionConstraint::In(groups) => Pinned::These(these(&groups)),
        ActionConstraint::Eq(one) => Pinned::These(these(&[one])),
    }
}

/// Whether the action part of the rule's scope holds for `action`. Exact, so the constraint is cut.
pub(crate) fn concerns(model: &Model, policy: &Policy, action: Action) -> bool {
    let uid = &model.actions.get(action).uid;
    let within = |group: &EntityUid| group == uid || model.shipped.action_entities.is_ancestor_of(group, uid);
    match policy.action_constraint() {
        ActionConstraint::Any => true,
        ActionConstraint::Eq(one) => one == *uid,
        ActionConstraint::In(groups) => groups.iter().any(within),
    }
}

/// The agent whose runs alone the rule can concern. `principal in Agent::"x"` is exact and cut; a version of an
/// agent stays in the scope.
fn agent(policy: &Policy, tree: &mut Template) -> Option<String> {
    let uid = match policy.principal_constraint() {
        PrincipalConstraint::In(uid) => uid,
        PrincipalConstraint::IsIn(_, uid) => uid,
        PrincipalConstraint::Any | PrincipalConstraint::Is(_) | PrincipalConstraint::Eq(_) => return None,
    };
    let id: &str = uid.id().unescaped();
    match uid.type_name().to_string().as_str() {
        "Agent" => {
            if matches!(tree.principal, pst::PrincipalConstraint::In(_)) {
                tree.principal = pst::PrincipalConstraint::Any;
            }
            Some(id.to_owned())
        }
        // An agent's name has no `/`, a version may.
        "AgentVersion" => id.split_once('/').map(|(agent, _)| agent.to_owned()),
        _ => None,
    }
}

/// The named entity that a resource must be or be in. `resource in X` is exact and cut; `==` isn't, since what is in
/// the bucket may also be below it, and stays with `is`.
fn node(names: &Names, policy: &Policy, tree: &mut Template) -> Result<Option<Node>, String> {
    let uid = match policy.resource_constraint() {
        ResourceConstraint::Any | ResourceConstraint::Is(_) => return Ok(None),
        ResourceConstraint::In(uid) | ResourceConstraint::Eq(uid) | ResourceConstraint::IsIn(_, uid) => uid,
    };
    if matches!(tree.resource, pst::ResourceConstraint::In(_)) {
        tree.resource = pst::ResourceConstraint::Any;
    }
    names.node(&uid).map(Some).ok_or_else(|| format!("`{uid}` was not found among the names"))
}

/// The rule as Cedar evaluates it, without its text and tree: those take more room than the rest.
pub(crate) fn bare(tree: Template) -> Result<Policy, String> {
    let rule = pst::StaticPolicy::try_from(tree).map_err(|error| error.to_string())?;
    let policy = Policy::from_pst(rule.into()).map_err(|error| error.to_string())?;
    Ok(Policy::from(policy.as_ref().clone()))
}
