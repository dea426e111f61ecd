//! Tools, and what MCP servers say of theirs.

use axum::{
    Json,
    extract::{ConnectInfo, Path, State},
};
use strait_contract::tool::{Kind, ToolName};

use super::{
    super::{
        Api, Peer,
        answer::Refused,
        wire::{SeenView, ToolView},
    },
    person,
};

pub(super) async fn list(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<Vec<ToolView>>, Refused> {
    person(peer)?;
    let tools = &api.runs.parts().config.borrow().tools.clone();
    let view = |tool: &strait_contract::tool::Tool| {
        let url = match &tool.kind {
            Kind::Http { url } | Kind::Mcp { url, .. } => Some(url.clone()),
            Kind::Web => None,
        };
        // An agent that isn't listed may address every tool, so a tool is some agents' alone only if all are listed.
        let may = tools.agents.iter().filter(|(_, names)| names.contains(&tool.name));
        ToolView {
            name: tool.name.to_string(),
            kind: tool.kind.as_str().to_owned(),
            url,
            credential: tool.credential.as_ref().map(|credential| credential.name.to_string()),
            agents: may.map(|(agent, _)| agent.to_string()).collect(),
        }
    };
    Ok(Json(tools.tools.iter().map(view).collect()))
}

pub(super) async fn seen(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Result<Json<SeenView>, Refused> {
    if !person(peer)?.admin {
        return Err(Refused::NotAdmin);
    }
    let parts = api.runs.parts();
    let known = name.parse::<ToolName>().ok().filter(|name| {
        let config = parts.config.borrow();
        config.tools.tools.iter().any(|tool| tool.name == *name && matches!(tool.kind, Kind::Mcp { .. }))
    });
    let name = known.ok_or(Refused::NoServer(name))?;
    Ok(Json(SeenView { list: parts.link.tools_seen(&name).await? }))
}
