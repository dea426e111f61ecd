//! Bodies of the control API, as both ends see them.

use serde::{Deserialize, Serialize};

/// A live run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    /// Name.
    pub id: String,
    /// Agent.
    pub agent: String,
    /// Its version.
    pub version: String,
    /// Login name of who started it.
    pub user: String,
    /// Command, shortened, keys hidden.
    pub command: String,
    /// Workspace on the host.
    pub workspace: Option<String>,
    /// Address.
    pub addr: String,
    /// Init's process id in the host's pid namespace.
    pub pid: Option<i32>,
    /// Unix time of the start, milliseconds.
    pub started_ms: u64,
}

/// What this Strait is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusView {
    /// Version of the agent.
    pub version: String,
    /// Instance.
    pub instance: String,
    /// Process id of the agent.
    pub pid: u32,
    /// Whether a gateway is connected; without one every call is refused.
    pub gateway: bool,
    /// Live runs that the caller may see.
    pub runs: usize,
    /// Runs whose enforcement isn't whole, with what is missing.
    pub degraded: Vec<Degraded>,
}

/// A run whose enforcement isn't whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Degraded {
    /// Name.
    pub run: String,
    /// Hooks that are gone, or why that can't be told.
    pub missing: Vec<String>,
}

/// Body of a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StopBody {
    /// Seconds between SIGTERM and SIGKILL.
    pub grace_seconds: Option<u64>,
}

/// Body of an approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ApproveBody {
    /// Executions that it is worth; one if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Every identical call for the rest of the run's life.
    pub for_run: bool,
}

/// Body of a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct DenyBody {
    /// What the client is told.
    pub note: Option<String>,
}

/// A configured tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolView {
    /// Name.
    pub name: String,
    /// `http`, `web` or `mcp`.
    pub kind: String,
    /// Where it is, but for the web.
    pub url: Option<String>,
    /// Name of its credential.
    pub credential: Option<String>,
    /// The only agents that may address it; none if every agent may.
    pub agents: Vec<String>,
}

/// What an MCP server last said its tools are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenView {
    /// The list as a pinned file has it.
    pub list: String,
}

/// Answer to a reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// What is in force now.
    pub message: String,
}

/// An error's body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorView,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorView {
    /// Stable code.
    pub code: String,
    /// What and why.
    pub message: String,
    /// What to do next.
    pub hint: String,
}
