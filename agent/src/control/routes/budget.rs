//! What agents and runs have used of models.

use axum::{
    Json,
    extract::{ConnectInfo, Path, State},
};
use serde_json::{Value, json};
use strait_contract::ids::AgentName;

use super::{
    super::{Api, Peer, answer::Refused},
    person, visible,
};
use crate::budget::view::AgentView;

/// Everybody's for administrators and auditors; else one's own runs, and their agents.
pub(super) async fn list(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<Vec<AgentView>>, Refused> {
    let account = person(peer)?;
    let runs: Vec<String> = visible(&api, &account).iter().map(|run| run.id().to_string()).collect();
    // The user database may be slow.
    let all = tokio::task::spawn_blocking(move || account.admin || account.audits()).await.unwrap_or(false);
    let log = &api.runs.parts().log;
    let view =
        move |ledger: &mut crate::budget::Ledger| ledger.view(|run| all || runs.iter().any(|own| own == run));
    let mut agents = log.with_ledger(view).await.unwrap_or_default();
    if !all {
        agents.retain(|agent| !agent.runs.is_empty());
    }
    Ok(Json(agents))
}

pub(super) async fn reset(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refused> {
    let account = person(peer)?;
    if !account.admin {
        return Err(Refused::NotAdmin);
    }
    let unknown = || Refused::NoUse(name.clone());
    let agent: AgentName = name.parse().map_err(|_| unknown())?;
    let known = api.runs.parts().link.reset_budget(agent, account.name).await;
    match known {
        Ok(true) => Ok(Json(json!({}))),
        Ok(false) => Err(unknown()),
        Err(why) => Err(Refused::Unrecorded(why)),
    }
}
