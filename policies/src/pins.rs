//! Pinned tools: what an MCP server said its tools are when a person looked at it.
//!
//! Takes `tools/NAME.json`, the answer to `tools/list` as a file (`{"tools":[…]}`); gives for each tool a typed
//! [`shape`] of its arguments, which becomes part of the schema, so that rules about arguments are checked at load and
//! calls before they are judged. Descriptions and hints of a server are not trusted; those in a pinned file were
//! reviewed.

mod fragment;
mod shape;
mod typed;

use std::collections::HashSet;

use cedar_policy::{Entity, EntityUid};
use strait_contract::message::PolicyFile;

pub(crate) use self::{
    fragment::fragment,
    shape::Shape,
    typed::{Mismatch, Reading},
};
use crate::{
    bounds::FILE_BYTES,
    json::{Json, JsonError, Limits},
    names::{Fixed, is_tool},
    problem::{Problem, Refused},
};

const LIMITS: Limits = Limits { bytes: FILE_BYTES, depth: 64, nodes: 1 << 20 };
/// Longest name of a tool, bytes.
const NAME: usize = 128;

/// The pinned tools of one server.
#[derive(Clone, Debug)]
pub struct Pin {
    /// As the config names it.
    pub server: String,
    /// In the order of the file; at least one.
    pub tools: Vec<PinnedTool>,
}

/// One tool as it was reviewed.
#[derive(Clone, Debug)]
pub struct PinnedTool {
    /// As its server names it.
    pub name: String,
    /// What the model is told about it.
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub input_schema: Json,
    /// `annotations`, or `null`.
    pub annotations: Json,
    pub(crate) shape: Shape,
    /// Of this tool among all of the set.
    pub(crate) number: u32,
    /// `Action::"<server>/<tool>"`, and the entity it needs in every request; none until the set has a schema.
    pub(crate) action: Option<(EntityUid, Entity)>,
}

/// All pinned tools of a set.
#[derive(Debug, Default)]
pub struct Pins {
    servers: Fixed<String, Server>,
}

#[derive(Debug)]
struct Server {
    pin: Pin,
    by_name: Fixed<String, usize>,
}

impl Pin {
    /// Reads a pinned file; the server is its name without `.json`.
    ///
    /// # Errors
    /// Everything that is wrong with it, the first fault of each tool.
    pub fn parse(file: &PolicyFile) -> Result<Self, Refused> {
        let server = server(&file.name).to_owned();
        let whole = |message: String| Refused::from(Problem::file(&file.name, message));
        if !is_tool(&server) {
            return Err(whole(format!("`{server}` can't be the name of a tool: use a-z, 0-9, `-` and `_`")));
        }
        let json = Json::parse(file.text.as_bytes(), &LIMITS).map_err(|error| {
            let near = match &error {
                JsonError::Duplicate(key) => twice(&file.text, key),
                _ => 0..0,
            };
            let message = format!("this pinned tool list can't be read: {error}");
            Refused::from(Problem::at(&file.name, &file.text, near, message))
        })?;
        let Some(list) = json.get("tools").and_then(Json::as_list) else {
            return Err(whole(
                "a pinned tool list is an object `{\"tools\":[…]}`, as `tools/list` answers".to_owned(),
            ));
        };
        if json.get("nextCursor").is_some_and(|cursor| *cursor != Json::Null) {
            return Err(whole(
                "the list has a `nextCursor`: it is one page, and all of them are needed".to_owned(),
            ));
        }
        let mut tools = Vec::new();
        let mut problems = Vec::new();
        let mut seen = HashSet::new();
        for tool in list {
            match PinnedTool::parse(tool) {
                Ok(tool) if !seen.insert(tool.name.clone()) => {
                    problems.push(at(
                        file,
                        &tool.name,
                        format!("the tool `{}` stands twice in the list", tool.name),
                    ));
                }
                Ok(tool) => tools.push(tool),
                Err((name, why)) => problems.push(at(file, &name, why)),
            }
        }
        if tools.is_empty() && problems.is_empty() {
            problems.push(
                Problem::file(&file.name, "the list has no tools").help("remove the file to pin nothing"),
            );
        }
        if problems.is_empty() { Ok(Self { server, tools }) } else { Err(Refused::new(problems)) }
    }
}

/// `github` of `…/tools/github.json`.
fn server(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".json").unwrap_or(name)
}

/// Where the name of a tool stands in the file.
fn at(file: &PolicyFile, name: &str, message: String) -> Problem {
    let quoted = Json::Text(name.to_owned()).to_string();
    let range = file.text.rfind(&quoted).map_or(0..0, |start| start..start.saturating_add(quoted.len()));
    Problem::at(&file.name, &file.text, range, message)
}

/// Where a key stands for the second time, if it is written without escapes.
fn twice(text: &str, key: &str) -> std::ops::Range<usize> {
    let quoted = Json::Text(key.to_owned()).to_string();
    let second = text.match_indices(&quoted).nth(1).map_or(0, |(start, _)| start);
    second..second.saturating_add(quoted.len())
}

impl PinnedTool {
    /// Reads one element of `tools`; an error has the name, if there is one.
    fn parse(tool: &Json) -> Result<Self, (String, String)> {
        let name = tool.get("name").and_then(Json::as_text).unwrap_or_default();
        let wrong = |why: String| (name.to_owned(), why);
        if name.is_empty() || name.len() > NAME || name.chars().any(|char| char.is_control()) {
            return Err(wrong(format!(
                "a tool has no `name` of 1 to {NAME} bytes without control characters"
            )));
        }
        let description = match tool.get("description") {
            None | Some(Json::Null) => None,
            Some(Json::Text(text)) => Some(text.clone()),
            Some(_) => return Err(wrong(format!("the `description` of `{name}` is not text"))),
        };
        let Some(input_schema) = tool.get("inputSchema") else {
            return Err(wrong(format!("the tool `{name}` has no `inputSchema`")));
        };
        let shape = Shape::of(input_schema)
            .map_err(|why| wrong(format!("the `inputSchema` of `{name}` can't be used: {why}")))?;
        let annotations = tool.get("annotations").cloned().unwrap_or(Json::Null);
        Ok(Self {
            name: name.to_owned(),
            description,
            input_schema: input_schema.clone(),
            annotations,
            shape,
            number: 0,
            action: None,
        })
    }

    /// The tool as a server says it: what [`PinnedTool::drift`] compares with.
    pub fn live(&self) -> Json {
        let text = |key: &str, value: Json| (key.to_owned(), value);
        let mut fields = vec![text("name", Json::Text(self.name.clone()))];
        fields.extend(self.description.clone().map(|said| text("description", Json::Text(said))));
        fields.push(text("inputSchema", self.input_schema.clone()));
        if self.annotations != Json::Null {
            fields.push(text("annotations", self.annotations.clone()));
        }
        Json::Object(fields)
    }

    /// Whether it says of itself that it changes nothing. Reviewed with the pin; a live hint is never asked.
    pub fn read_only(&self) -> Option<bool> {
        match self.annotations.get("readOnlyHint") {
            Some(Json::Bool(value)) => Some(*value),
            _ => None,
        }
    }

    /// What of a tool in a server's live list isn't as it was reviewed: `description`, `inputSchema`, `annotations`.
    /// The order of keys is no difference.
    pub fn drift(&self, live: &Json) -> Vec<&'static str> {
        let live = |key| live.get(key).unwrap_or(&Json::Null).to_sorted_text();
        let description = self.description.clone().map_or(Json::Null, Json::Text);
        let pinned = [
            ("description", description.to_sorted_text()),
            ("inputSchema", self.input_schema.to_sorted_text()),
            ("annotations", self.annotations.to_sorted_text()),
        ];
        pinned.into_iter().filter(|(key, pinned)| live(key) != *pinned).map(|(key, _)| key).collect()
    }

    /// What tells it from other versions of itself.
    pub fn digest_input(&self) -> String {
        let Self { name, description, input_schema, annotations, .. } = self;
        let text = |text: &str| Json::Text(text.to_owned());
        let description = description.as_deref().map_or(Json::Null, text);
        Json::List(vec![text(name), description, input_schema.clone(), annotations.clone()]).to_sorted_text()
    }
}

impl Pins {
    /// Every pin once; each tool gets its number.
    pub(crate) fn of(pins: Vec<Pin>) -> Self {
        let mut servers = Fixed::default();
        let mut number = 0_u32;
        for mut pin in pins {
            for tool in &mut pin.tools {
                tool.number = number;
                number = number.saturating_add(1);
            }
            let by_name = pin.tools.iter().enumerate().map(|(at, tool)| (tool.name.clone(), at)).collect();
            servers.insert(pin.server.clone(), Server { pin, by_name });
        }
        Self { servers }
    }

    /// The pinned tools of a server; `None` if nothing of it is pinned.
    pub fn server(&self, server: &str) -> Option<&Pin> {
        self.servers.get(server).map(|server| &server.pin)
    }

    /// A pinned tool; `None` if it isn't pinned.
    pub fn tool(&self, server: &str, tool: &str) -> Option<&PinnedTool> {
        let server = self.servers.get(server)?;
        server.pin.tools.get(*server.by_name.get(tool)?)
    }

    /// All pins, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Pin> {
        self.servers.values().map(|server| &server.pin)
    }

    /// All pins by name.
    pub(crate) fn sorted(&self) -> Vec<&Pin> {
        let mut pins: Vec<&Pin> = self.iter().collect();
        pins.sort_by(|a, b| a.server.cmp(&b.server));
        pins
    }

    pub(crate) fn tools_mut(&mut self) -> impl Iterator<Item = (&str, &mut PinnedTool)> {
        self.servers
            .iter_mut()
            .flat_map(|(name, server)| server.pin.tools.iter_mut().map(move |tool| (name.as_str(), tool)))
    }
}

#[cfg(test)]
mod tests;
