//! The control API: HTTP and JSON on `control.sock`.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/runs` | the caller's live runs; every run for root and `strait-admin` |
//! | `GET /v1/status` | what this Strait is doing |
//! | `POST /v1/runs/{id}/stop` | `{}` when the run is gone; body `{"graceSeconds":n}` |
//! | `POST /v1/runs/{id}/kill` | `{}` when the kernel has the order |
//! | `POST /v1/reload` | what is in force now; root and `strait-admin` |
//!
//! Errors are `{"error":{"code","message","hint"}}`. Who asks is the kernel's word (`SO_PEERCRED`), never a header.
//! Somebody else's run is not found, not forbidden: names of runs tell what others work on.

mod answer;
pub mod client;
mod routes;
pub mod wire;

use std::{io, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use axum::{Router, extract::connect_info::Connected, serve::IncomingStream};
use tokio::{
    net::UnixListener,
    sync::{mpsc, oneshot},
};

use crate::{
    launch::server::open_to_group,
    run::{Runs, account::Account},
};

/// A wish to read configuration and policies anew, with where to say what became of it: a sentence either way.
pub type Reload = oneshot::Sender<Result<String, String>>;

/// What the API works with.
#[derive(Clone, Debug)]
pub struct Api {
    /// The runs.
    pub runs: Arc<Runs>,
    /// Who reloads.
    pub reload: mpsc::Sender<Reload>,
}

/// The person at the other end of a connection; `None` if the kernel or the user database didn't say.
#[derive(Clone, Debug)]
struct Peer(Option<Account>);

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let credentials = stream.io().peer_cred().ok();
        Self(credentials.and_then(|peer| Account::of(peer.uid(), peer.gid()).ok()))
    }
}

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

/// Serves the API until the task is dropped.
///
/// # Errors
/// If the listener fails.
pub async fn serve(listener: UnixListener, api: Api) -> io::Result<()> {
    let router: Router = routes::router(api);
    axum::serve(listener, router.into_make_service_with_connect_info::<Peer>()).await
}
