//! The paths of the control API.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{ConnectInfo, Path, State},
    http::header::CONTENT_TYPE,
    response::IntoResponse,
    routing::{get, post},
};
use serde_json::{Value, json};
use strait_contract::ids::RunId;
use tokio::sync::oneshot;

mod approvals;
mod budget;
mod tools;

use super::{
    Api, Peer,
    answer::Refused,
    wire::{Degraded, Reloaded, RunView, StatusView, StopBody},
};
use crate::{
    metrics,
    run::{Run, account::Account, end::GRACE},
};

/// Longest grace that may be asked for.
const LONGEST_GRACE: Duration = Duration::from_secs(600);

pub(super) fn router(api: Api) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/runs", get(list))
        .route("/v1/status", get(status))
        .route("/v1/runs/{id}/stop", post(stop))
        .route("/v1/runs/{id}/kill", post(kill))
        .route("/v1/approvals", get(approvals::list))
        .route("/v1/approvals/{id}", get(approvals::show))
        .route("/v1/approvals/{id}/approve", post(approvals::approve))
        .route("/v1/approvals/{id}/deny", post(approvals::deny))
        .route("/v1/budget", get(budget::list))
        .route("/v1/budget/{agent}/reset", post(budget::reset))
        .route("/v1/tools", get(tools::list))
        .route("/v1/tools/{name}/seen", get(tools::seen))
        .route("/v1/reload", post(reload))
        .fallback(|| async { Refused::NoRoute })
        .with_state(api)
}

fn person(peer: Peer) -> Result<Account, Refused> {
    peer.0.ok_or(Refused::Unknown)
}

fn visible(api: &Api, account: &Account) -> Vec<Arc<Run>> {
    api.runs.list().into_iter().filter(|run| run.belongs_to(account)).collect()
}

async fn list(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<Vec<RunView>>, Refused> {
    let account = person(peer)?;
    Ok(Json(visible(&api, &account).iter().map(|run| view(run)).collect()))
}

fn view(run: &Run) -> RunView {
    let live = run.live();
    RunView {
        id: live.id.to_string(),
        agent: live.agent.clone(),
        version: live.version.clone(),
        user: live.user.clone(),
        command: live.command.clone(),
        workspace: live.workspace.as_ref().map(|path| path.display().to_string()),
        addr: live.addr.to_string(),
        pid: live.init.map(|init| init.pid),
        started_ms: live.started_ms,
    }
}

async fn status(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<StatusView>, Refused> {
    let account = person(peer)?;
    let runs = visible(&api, &account);
    let count = runs.len();
    let gate = Arc::clone(&api.runs.parts().gate);
    let verified = tokio::task::spawn_blocking(move || {
        runs.iter()
            .filter_map(|run| {
                let missing = match gate.verify(run.id()) {
                    Ok(missing) => missing.into_iter().map(str::to_owned).collect(),
                    Err(error) => vec![error.to_string()],
                };
                (!missing.is_empty()).then(|| Degraded { run: run.id().to_string(), missing })
            })
            .collect()
    });
    let parts = api.runs.parts();
    Ok(Json(StatusView {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: parts.instance.name.to_string(),
        pid: std::process::id(),
        gateway: parts.link.gateway_alive(),
        runs: count,
        degraded: verified.await.unwrap_or_default(),
    }))
}

async fn metrics(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<impl IntoResponse, Refused> {
    let account = person(peer)?;
    // The user database may be slow.
    let may = tokio::task::spawn_blocking(move || account.admin || account.audits());
    if !may.await.unwrap_or(false) {
        return Err(Refused::NotAuditor);
    }
    let parts = api.runs.parts();
    let now = metrics::Now { runs: api.runs.list().len(), gateway: parts.link.gateway_alive() };
    let models = parts.log.with_ledger(|ledger| ledger.view(|_| false)).await.unwrap_or_default();
    let text = metrics::text(&parts.log.tally().await, &models, now);
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}

fn find(api: &Api, peer: Peer, name: &str) -> Result<(Account, Arc<Run>), Refused> {
    let account = person(peer)?;
    let found = name.parse::<RunId>().ok().and_then(|id| api.runs.get(&id));
    let run = found.filter(|run| run.belongs_to(&account) && run.exit().is_none());
    Ok((account, run.ok_or_else(|| Refused::NoRun(name.to_owned()))?))
}

async fn stop(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Refused> {
    let (account, run) = find(&api, peer, &name)?;
    let body: StopBody = match body.len() {
        0 => StopBody::default(),
        _ => serde_json::from_slice(&body).map_err(|error| Refused::Body(error.to_string()))?,
    };
    let grace = body.grace_seconds.map_or(GRACE, Duration::from_secs).min(LONGEST_GRACE);
    api.runs.stop(&run, &account.name, grace).await?;
    Ok(Json(json!({})))
}

async fn kill(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refused> {
    let (account, run) = find(&api, peer, &name)?;
    api.runs.kill(&run, &account.name).await?;
    Ok(Json(json!({})))
}

async fn reload(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<Reloaded>, Refused> {
    if !person(peer)?.admin {
        return Err(Refused::NotAdmin);
    }
    let (reply, answer) = oneshot::channel();
    let gone = || Refused::Reload("the agent is shutting down".to_owned());
    api.reload.send(reply).await.map_err(|_| gone())?;
    match answer.await {
        Ok(Ok(message)) => Ok(Json(Reloaded { message })),
        Ok(Err(why)) => Err(Refused::Reload(why)),
        Err(_) => Err(gone()),
    }
}
