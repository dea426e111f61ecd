//! The schema and the Cedar names made from it once.

use std::sync::{Arc, LazyLock};

use cedar_policy::{Entity, EntityTypeName, EntityUid, Policy, SchemaFragment};

use crate::{
    pins::{PinnedTool, Pins},
    question::{Ask, ToolAsk},
    vocabulary::Vocabulary,
};

/// The schema as shipped.
const SCHEMA: &str = include_str!("../strait.cedarschema");

/// The Cedar schema that policies are checked against, as text for editors and other tools.
pub fn schema_text() -> &'static str {
    SCHEMA
}

/// An action of the shipped schema that can be asked today. Declared ones that nothing asks yet aren't here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Http,
    Connect,
    Dns,
    /// A tool that isn't pinned.
    Unpinned,
    /// Another method of an MCP server.
    Method,
    /// A tool that a provider of models would run.
    ServerTool,
}

impl Action {
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Connect => "connect",
            Self::Dns => "dns",
            Self::Unpinned => "tools/call/unpinned",
            Self::Method => "mcp/method",
            Self::ServerTool => "model/server_tool",
        }
    }
}

/// The action of a call: one of the shipped schema, or that of a pinned tool.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act<'a> {
    Shipped(Action),
    Pinned(&'a PinnedTool),
}

impl<'a> Act<'a> {
    pub(crate) fn of(pins: &'a Pins, ask: &Ask<'_>) -> Self {
        Self::Shipped(match ask {
            Ask::Http(_) => Action::Http,
            Ask::Connect { .. } => Action::Connect,
            Ask::Dns { .. } => Action::Dns,
            Ask::Tool(ToolAsk { server, tool, .. }) => match pins.tool(server, tool) {
                Some(tool) => return Self::Pinned(tool),
                None => Action::Unpinned,
            },
            Ask::McpMethod { .. } => Action::Method,
            Ask::ServerTool(_) => Action::ServerTool,
        })
    }

    /// Its name and the entity it needs in every request; `None` is a fault inside Strait.
    pub(crate) fn entity(self, model: &'a Model) -> Option<(&'a EntityUid, &'a Entity)> {
        match self {
            Self::Shipped(action) => {
                let action = model.actions.get(action);
                Some((&action.uid, &action.entity))
            }
            Self::Pinned(tool) => tool.action.as_ref().map(|(uid, entity)| (uid, entity)),
        }
    }

    /// A resource of its type, for requests whose rules don't look at it.
    pub(crate) fn any_resource(self, model: &'a Model) -> &'a EntityUid {
        match self {
            Self::Shipped(action) => &model.actions.get(action).any_resource,
            Self::Pinned(_) => &model.actions.unpinned.any_resource,
        }
    }
}

/// One value for each action of the shipped schema.
#[derive(Debug, Default)]
pub(crate) struct PerAction<T> {
    pub(crate) http: T,
    pub(crate) connect: T,
    pub(crate) dns: T,
    pub(crate) unpinned: T,
    pub(crate) method: T,
    pub(crate) server_tool: T,
}

impl<T> PerAction<T> {
    pub(crate) fn get(&self, action: Action) -> &T {
        match action {
            Action::Http => &self.http,
            Action::Connect => &self.connect,
            Action::Dns => &self.dns,
            Action::Unpinned => &self.unpinned,
            Action::Method => &self.method,
            Action::ServerTool => &self.server_tool,
        }
    }

    pub(crate) fn get_mut(&mut self, action: Action) -> &mut T {
        match action {
            Action::Http => &mut self.http,
            Action::Connect => &mut self.connect,
            Action::Dns => &mut self.dns,
            Action::Unpinned => &mut self.unpinned,
            Action::Method => &mut self.method,
            Action::ServerTool => &mut self.server_tool,
        }
    }
}

/// The value of a rule's annotation. Cedar's own way in parses the key with its grammar first, which takes longer than
/// evaluating the rule.
pub(crate) fn annotation<'a>(rule: &'a Policy, key: &str) -> Option<&'a str> {
    rule.annotations().find(|(name, _)| *name == key).map(|(_, value)| value)
}

/// Type names, parsed once: parsing one takes ten times as long as using it.
#[derive(Debug)]
pub(crate) struct Types {
    pub(crate) run: EntityTypeName,
    pub(crate) agent: EntityTypeName,
    pub(crate) version: EntityTypeName,
    pub(crate) user: EntityTypeName,
    pub(crate) url: EntityTypeName,
    pub(crate) endpoint: EntityTypeName,
    pub(crate) name: EntityTypeName,
    pub(crate) tool: EntityTypeName,
    pub(crate) server_tool: EntityTypeName,
    pub(crate) action: EntityTypeName,
}

/// An action and the entity it needs in every request.
#[derive(Debug)]
pub(crate) struct ActionModel {
    pub(crate) uid: EntityUid,
    /// INVARIANT: with every request, or `action in Action::"group"` doesn't match and a forbid fails open.
    pub(crate) entity: Entity,
    /// A resource of its type, for requests whose rules don't look at it.
    pub(crate) any_resource: EntityUid,
}

/// The schema and what was made from it.
#[derive(Debug)]
pub(crate) struct Model {
    /// The schema as shipped, which the actions of pinned tools are joined to.
    pub(crate) fragment: SchemaFragment,
    pub(crate) shipped: Arc<Vocabulary>,
    pub(crate) types: Types,
    pub(crate) actions: PerAction<ActionModel>,
    /// `Values::"query"`.
    pub(crate) query: EntityUid,
    /// `Values::"flat"`.
    pub(crate) flat: EntityUid,
    /// `Action::"tools/call"`, the group of all tools.
    pub(crate) tools_call: EntityUid,
}

/// The shipped schema could not be read. A test makes sure that it can; nothing is permitted otherwise.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the built-in policy schema is broken: {0}")]
pub(crate) struct BrokenSchema(pub(crate) String);

static MODEL: LazyLock<Result<Model, BrokenSchema>> = LazyLock::new(Model::load);

impl Model {
    pub(crate) fn get() -> Result<&'static Self, BrokenSchema> {
        MODEL.as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, BrokenSchema> {
        let broken = |error: &dyn std::fmt::Display| BrokenSchema(error.to_string());
        let (fragment, _warnings) =
            SchemaFragment::from_cedarschema_str(SCHEMA).map_err(|error| broken(&error))?;
        let shipped = Vocabulary::shipped(fragment.clone())?;
        let type_name = |name: &str| name.parse::<EntityTypeName>().map_err(|error| broken(&error));
        let uid_of = |text: &str| text.parse::<EntityUid>().map_err(|error| broken(&error));
        let action = |action: Action, resource: &str| {
            let uid = uid_of(&format!("Action::\"{}\"", action.id()))?;
            let entity = shipped.action_entities.get(&uid).cloned().ok_or_else(|| broken(&uid))?;
            let any_resource = uid_of(&format!("{resource}::\"\""))?;
            Ok(ActionModel { uid, entity, any_resource })
        };
        let actions = PerAction {
            http: action(Action::Http, "Url")?,
            connect: action(Action::Connect, "Endpoint")?,
            dns: action(Action::Dns, "Name")?,
            unpinned: action(Action::Unpinned, "Tool")?,
            method: action(Action::Method, "Tool")?,
            server_tool: action(Action::ServerTool, "ServerTool")?,
        };
        let types = Types {
            run: type_name("Run")?,
            agent: type_name("Agent")?,
            version: type_name("AgentVersion")?,
            user: type_name("User")?,
            url: type_name("Url")?,
            endpoint: type_name("Endpoint")?,
            name: type_name("Name")?,
            tool: type_name("Tool")?,
            server_tool: type_name("ServerTool")?,
            action: type_name("Action")?,
        };
        let query = uid_of("Values::\"query\"")?;
        let flat = uid_of("Values::\"flat\"")?;
        let tools_call = uid_of("Action::\"tools/call\"")?;
        Ok(Self { fragment, shipped: Arc::new(shipped), types, actions, query, flat, tools_call })
    }
}
