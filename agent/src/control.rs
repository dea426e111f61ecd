//! The control API: HTTP and JSON on `control.sock`.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/runs` | the caller's live runs; every run for root and `strait-admin` |
//! | `GET /v1/status` | what this Strait is doing |
//! | `POST /v1/runs/{id}/stop` | `{}` when the run is gone; body `{"graceSeconds":n}` |
//! | `POST /v1/runs/{id}/kill` | `{}` when the kernel has the order |
//! | `GET /v1/approvals` | prompts of the caller's live runs, open and over; every prompt for root and `strait-admin` |
//! | `GET /v1/approvals/{id}` | an open prompt with the whole body or arguments |
//! | `POST /v1/approvals/{id}/approve` | the prompt; body `{"count":n}` or `{"forRun":true}`; root and `strait-admin` |
//! | `POST /v1/approvals/{id}/deny` | the prompt; body `{"note":"…"}`; root and `strait-admin` |
//! | `GET /metrics` | counts as Prometheus text; root, `strait-admin` and `strait-audit` |
//! | `GET /v1/tools` | the tools of the configuration |
//! | `GET /v1/tools/{name}/seen` | what an MCP server last said its tools are; root and `strait-admin` |
//! | `POST /v1/reload` | what is in force now; root and `strait-admin` |
//!
//! Errors are `{"error":{"code","message","hint"}}`. Who asks is the kernel's word (`SO_PEERCRED`), never a header.
//! Somebody else's run is not found, not forbidden: names of runs tell what others work on. A process inside a run is
//! nobody here, whoever started the run: it would answer its own questions.

mod answer;
pub mod client;
mod routes;
pub mod wire;

use std::{io, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use axum::{Extension, Router, extract::ConnectInfo};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
};

use crate::{
    activity::Processes,
    approval::Approvals,
    launch::{callers::Callers, server::open_to_group},
    run::{Runs, account::Account},
};

/// A wish to read configuration and policies anew, with where to say what became of it: a sentence either way.
pub type Reload = oneshot::Sender<Result<String, String>>;

/// What the API works with.
#[derive(Clone, Debug)]
pub struct Api {
    /// The runs.
    pub runs: Arc<Runs>,
    /// Calls that wait for people.
    pub approvals: Approvals,
    /// Who reloads.
    pub reload: mpsc::Sender<Reload>,
}

/// Connections that one user may have.
const MOST_PER_USER: usize = 64;
/// How long a request's head may take.
const HEAD_WITHIN: Duration = Duration::from_secs(5);

/// The person at the other end of a connection; `None` if the user database didn't say.
#[derive(Clone, Debug)]
struct Peer(Option<Account>);

/// Listens on `control.sock`: 0660, group `strait` if the host has it, else root's.
///
/// # Errors
/// If the socket can't be made.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // Closed until the group is set.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    open_to_group(path)?;
    Ok(listener)
}

/// Serves the API until the task is dropped. A user with too many connections has further ones closed at once.
///
/// # Errors
/// If the listener fails.
pub async fn serve(listener: UnixListener, api: Api) -> io::Result<()> {
    let processes = Processes::new(&api.runs.parts().instance);
    let router = routes::router(api);
    let callers = Callers::new(MOST_PER_USER);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, say: callers wait in the backlog meanwhile.
                tracing::warn!(%error, "a caller could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match callers.admit(&stream) {
            Ok(place) => {
                let (router, processes) = (router.clone(), processes.clone());
                tokio::spawn(async move {
                    attend(stream, router, processes).await;
                    drop(place);
                });
            }
            Err(error) => tracing::debug!(%error, "a caller of control.sock isn't heard"),
        }
    }
}

/// Who is at the other end; nobody if that is a process inside a run, or can't be told.
async fn person(stream: &UnixStream, processes: &Processes) -> Option<Account> {
    let account = Account::of_peer(stream).ok()?;
    let pid = stream.peer_cred().ok()?.pid()?;
    let processes = processes.clone();
    let outside = tokio::task::spawn_blocking(move || processes.is_outside(u32::try_from(pid).ok()?));
    outside.await.ok().flatten().filter(|outside| *outside).map(|_| account)
}

/// One connection.
async fn attend(stream: UnixStream, router: Router, processes: Processes) {
    let peer = Peer(person(&stream, &processes).await);
    let service = TowerToHyperService::new(router.layer(Extension(ConnectInfo(peer))));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to control.sock ended early");
    }
}
