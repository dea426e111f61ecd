//! Every error of the control API becomes an answer here, and nowhere else.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use strait_contract::record::Unrecorded;

use super::wire::{ErrorBody, ErrorView};
use crate::{approval::ApprovalError, link::NotSeen, run::end::EndError};

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("you are inside a run, or the kernel did not say who you are")]
    Unknown,
    #[error("no run `{0}` of yours is alive")]
    NoRun(String),
    #[error("only root and the group `strait-admin` may do that")]
    NotAdmin,
    #[error("only root and the groups `strait-admin` and `strait-audit` may read that")]
    NotAuditor,
    #[error("`{0}` is not the name of a prompt")]
    NoPrompt(String),
    #[error("no tool `{0}` of kind `mcp` is configured")]
    NoServer(String),
    #[error("agent `{0}` has not used any model")]
    NoUse(String),
    #[error("it can't be put on record: {0}")]
    Unrecorded(Unrecorded),
    #[error(transparent)]
    Seen(#[from] NotSeen),
    #[error("the body is not acceptable: {0}")]
    Body(String),
    #[error("there is nothing at this path")]
    NoRoute,
    #[error("{0}")]
    Reload(String),
    #[error(transparent)]
    Approval(#[from] ApprovalError),
    #[error(transparent)]
    End(#[from] EndError),
}

impl Refused {
    fn parts(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Unknown => {
                (StatusCode::FORBIDDEN, "PEER_UNKNOWN", "ask from the host, not from inside a run")
            }
            Self::NoRun(_) => (StatusCode::NOT_FOUND, "NO_RUN", "`strait ps` lists your live runs"),
            Self::NotAdmin => {
                (StatusCode::FORBIDDEN, "NOT_ADMIN", "use sudo, or ask to be put in the group `strait-admin`")
            }
            Self::NotAuditor => (
                StatusCode::FORBIDDEN,
                "NOT_AUDITOR",
                "use sudo, or ask to be put in the group `strait-audit`",
            ),
            Self::NoServer(_) => {
                (StatusCode::NOT_FOUND, "NO_TOOL", "`strait tool list` shows what is configured")
            }
            Self::NoUse(_) => (StatusCode::NOT_FOUND, "NO_USE", "`strait budget` lists agents that have"),
            Self::Unrecorded(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "UNRECORDED", "see the agent's log, and try again")
            }
            Self::Seen(NotSeen::Never) => (
                StatusCode::NOT_FOUND,
                "NOT_SEEN",
                "start a run with an MCP client on it once; what policy hides from the run is seen all the same",
            ),
            Self::Seen(NotSeen::Gateway) => {
                (StatusCode::SERVICE_UNAVAILABLE, "NO_GATEWAY", "see `strait status`, and try again")
            }
            Self::Body(_) => (StatusCode::BAD_REQUEST, "BAD_BODY", "send JSON as the documentation shows"),
            Self::NoRoute => (StatusCode::NOT_FOUND, "NO_ROUTE", "the paths begin with /v1/"),
            Self::Reload(_) => (
                StatusCode::CONFLICT,
                "RELOAD_REFUSED",
                "what was in force stays; `strait check` shows every fault",
            ),
            Self::NoPrompt(_) | Self::Approval(ApprovalError::Unknown(_)) => {
                (StatusCode::NOT_FOUND, "NO_PROMPT", "`strait approvals` lists what waits")
            }
            Self::Approval(ApprovalError::Approved(_)) => {
                (StatusCode::CONFLICT, "APPROVED", "an identical call uses it when it comes")
            }
            Self::Approval(ApprovalError::Unrecorded(_) | ApprovalError::Stopping) => {
                (StatusCode::SERVICE_UNAVAILABLE, "UNRECORDED", "see the agent's log, and try again")
            }
            Self::End(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "NOT_ENDED", "see the agent's log, and try `strait kill`")
            }
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, code, hint) = self.parts();
        let error = ErrorView { code: code.to_owned(), message: self.to_string(), hint: hint.to_owned() };
        (status, Json(ErrorBody { error })).into_response()
    }
}
