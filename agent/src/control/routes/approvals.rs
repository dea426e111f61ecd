//! Prompts: listed for whoever owns the run, answered by administrators alone.

use axum::{
    Json,
    body::Bytes,
    extract::{ConnectInfo, Path, State},
};
use strait_contract::approval::ApprovalId;

use super::{
    super::{
        Api, Peer,
        answer::Refused,
        wire::{ApproveBody, DenyBody},
    },
    person, visible,
};
use crate::{
    approval::{ApprovalError, Scope, view::ApprovalView},
    run::account::Account,
};

/// Most executions that one approval may be worth.
const MOST_TIMES: u32 = 1000;

pub(super) async fn list(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Json<Vec<ApprovalView>>, Refused> {
    let account = person(peer)?;
    let mut all = api.approvals.list().await?;
    if !account.admin {
        let own: Vec<String> = visible(&api, &account).iter().map(|run| run.id().to_string()).collect();
        all.retain(|prompt| own.contains(&prompt.run));
    }
    Ok(Json(all))
}

pub(super) async fn show(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
) -> Result<Json<ApprovalView>, Refused> {
    let account = person(peer)?;
    let id = parse(&id)?;
    let prompt = api.approvals.show(&id).await?;
    let own = || visible(&api, &account).iter().any(|run| run.id().as_str() == prompt.run);
    if account.admin || own() { Ok(Json(prompt)) } else { Err(ApprovalError::Unknown(id).into()) }
}

pub(super) async fn approve(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<ApprovalView>, Refused> {
    let account = admin(peer)?;
    let scope = match read::<ApproveBody>(&body)? {
        ApproveBody { for_run: true, count: None } => Scope::Run,
        ApproveBody { for_run: false, count } => match count.unwrap_or(1) {
            count @ 1..=MOST_TIMES => Scope::Times(count),
            _ => return Err(Refused::Body(format!("`count` must be from 1 to {MOST_TIMES}"))),
        },
        ApproveBody { for_run: true, count: Some(_) } => {
            return Err(Refused::Body("`count` and `forRun` exclude each other".to_owned()));
        }
    };
    Ok(Json(api.approvals.approve(parse(&id)?, scope, account).await?))
}

pub(super) async fn deny(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
    body: Bytes,
) -> Result<Json<ApprovalView>, Refused> {
    let account = admin(peer)?;
    let note = read::<DenyBody>(&body)?.note;
    Ok(Json(api.approvals.deny(parse(&id)?, note, account).await?))
}

/// Whoever may answer: never the owner of a run as such, or an agent could be approved by who let it loose.
fn admin(peer: Peer) -> Result<Account, Refused> {
    let account = person(peer)?;
    if account.admin { Ok(account) } else { Err(Refused::NotAdmin) }
}

fn parse(id: &str) -> Result<ApprovalId, Refused> {
    id.parse().map_err(|_| Refused::NoPrompt(id.to_owned()))
}

fn read<T: serde::de::DeserializeOwned + Default>(body: &Bytes) -> Result<T, Refused> {
    match body.len() {
        0 => Ok(T::default()),
        _ => serde_json::from_slice(body).map_err(|error| Refused::Body(error.to_string())),
    }
}
