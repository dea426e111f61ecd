//! The schema and the Cedar names made from it once.

use std::sync::LazyLock;

use cedar_policy::{Entities, Entity, EntityTypeName, EntityUid, Policy, Schema};

use crate::question::Ask;

/// The schema as shipped.
const SCHEMA: &str = include_str!("../strait.cedarschema");

/// The Cedar schema that policies are checked against, as text for editors and other tools.
pub fn schema_text() -> &'static str {
    SCHEMA
}

/// What can be asked today. Declared actions that nothing asks yet aren't here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Http,
    Connect,
    Dns,
}

impl Action {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Connect, Self::Dns];

    pub(crate) fn of(ask: &Ask<'_>) -> Self {
        match ask {
            Ask::Http(_) => Self::Http,
            Ask::Connect { .. } => Self::Connect,
            Ask::Dns { .. } => Self::Dns,
        }
    }

    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Connect => "connect",
            Self::Dns => "dns",
        }
    }
}

/// One value for each live action.
#[derive(Debug, Default)]
pub(crate) struct PerAction<T> {
    pub(crate) http: T,
    pub(crate) connect: T,
    pub(crate) dns: T,
}

impl<T> PerAction<T> {
    pub(crate) fn get(&self, action: Action) -> &T {
        match action {
            Action::Http => &self.http,
            Action::Connect => &self.connect,
            Action::Dns => &self.dns,
        }
    }

    pub(crate) fn get_mut(&mut self, action: Action) -> &mut T {
        match action {
            Action::Http => &mut self.http,
            Action::Connect => &mut self.connect,
            Action::Dns => &mut self.dns,
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
    pub(crate) schema: Schema,
    pub(crate) schema_json: serde_json::Value,
    pub(crate) types: Types,
    pub(crate) action_entities: Entities,
    pub(crate) actions: PerAction<ActionModel>,
    /// `Values::"query"`.
    pub(crate) query: EntityUid,
}

/// The shipped schema could not be read. A test makes sure that it can; nothing is permitted otherwise.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the built-in policy schema is broken: {0}")]
pub(crate) struct BrokenSchema(String);

static MODEL: LazyLock<Result<Model, BrokenSchema>> = LazyLock::new(Model::load);

impl Model {
    pub(crate) fn get() -> Result<&'static Self, BrokenSchema> {
        MODEL.as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, BrokenSchema> {
        let broken = |error: &dyn std::fmt::Display| BrokenSchema(error.to_string());
        let (fragment, _warnings) =
            cedar_policy::SchemaFragment::from_cedarschema_str(SCHEMA).map_err(|error| broken(&error))?;
        let schema_json = fragment.clone().to_json_value().map_err(|error| broken(&error))?;
        let schema = Schema::from_schema_fragments([fragment]).map_err(|error| broken(&error))?;
        let action_entities = schema.action_entities().map_err(|error| broken(&error))?;
        let type_name = |name: &str| name.parse::<EntityTypeName>().map_err(|error| broken(&error));
        let uid_of = |text: &str| text.parse::<EntityUid>().map_err(|error| broken(&error));
        let action = |action: Action, resource: &str| {
            let uid = uid_of(&format!("Action::\"{}\"", action.id()))?;
            let entity = action_entities.get(&uid).cloned().ok_or_else(|| broken(&uid))?;
            let any_resource = uid_of(&format!("{resource}::\"\""))?;
            Ok(ActionModel { uid, entity, any_resource })
        };
        let actions = PerAction {
            http: action(Action::Http, "Url")?,
            connect: action(Action::Connect, "Endpoint")?,
            dns: action(Action::Dns, "Name")?,
        };
        let types = Types {
            run: type_name("Run")?,
            agent: type_name("Agent")?,
            version: type_name("AgentVersion")?,
            user: type_name("User")?,
            url: type_name("Url")?,
            endpoint: type_name("Endpoint")?,
            name: type_name("Name")?,
        };
        let query = uid_of("Values::\"query\"")?;
        Ok(Self { schema, schema_json, types, actions, query, action_entities })
    }
}
