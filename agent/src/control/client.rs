//! The command line's end of the control API.

use std::{io, path::Path, time::Duration};

use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::net::UnixStream;

use super::wire::{ErrorBody, ErrorView};

/// How long an answer may take: longer than the agent waits for anything itself, which is for policies to compile.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(90);

/// Why the agent did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens.
    #[error(
        "the agent isn't running (no one answers at `{path}`): start it with `systemctl start strait` \
             or `strait-agent`"
    )]
    NoAgent {
        /// Its socket.
        path: String,
    },
    /// It took the question and says nothing.
    #[error(
        "the agent has not answered within {} s (`{path}`): it hangs, restart it with `systemctl restart strait`; runs \
             go on meanwhile",
        .patience.as_secs()
    )]
    Silent {
        /// Its socket.
        path: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The person may not talk to it.
    #[error("you may not talk to the agent (`{path}`): ask to be put in the group `strait`")]
    NotAllowed {
        /// Its socket.
        path: String,
    },
    /// It said no.
    #[error("{message} ({code}): {hint}", message = .0.message, code = .0.code, hint = .0.hint)]
    Refused(ErrorView),
    /// The connection broke, or what came isn't an answer.
    #[error("the agent's answer can't be read: are `strait` and `strait-agent` of the same version?")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl AskError {
    /// Whether the reason is that no agent runs, or none that answers.
    pub fn is_no_agent(&self) -> bool {
        matches!(self, Self::NoAgent { .. } | Self::Silent { .. })
    }
}

fn answer(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> AskError {
    AskError::Answer(error.into())
}

/// Asks the agent at `socket`.
///
/// # Errors
/// [`AskError`].
pub async fn ask<T: DeserializeOwned>(
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<T, AskError> {
    ask_within(ANSWERS_WITHIN, socket, method, path, body).await
}

/// As [`ask`], with no more patience than given.
///
/// # Errors
/// [`AskError`].
pub async fn ask_within<T: DeserializeOwned>(
    patience: Duration,
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<T, AskError> {
    let bytes = bytes_within(patience, socket, method, path, body).await?;
    serde_json::from_slice(&bytes).map_err(answer)
}

/// Asks for a text.
///
/// # Errors
/// [`AskError`].
pub async fn text(socket: &Path, path: &str) -> Result<String, AskError> {
    let bytes = bytes_within(ANSWERS_WITHIN, socket, Method::GET, path, None::<&()>).await?;
    String::from_utf8(bytes.into()).map_err(answer)
}

async fn bytes_within(
    patience: Duration,
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<Bytes, AskError> {
    let answer = tokio::time::timeout(patience, exchange(socket, method, path, body)).await;
    answer.unwrap_or_else(|_| Err(AskError::Silent { path: socket.display().to_string(), patience }))
}

async fn exchange(
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<Bytes, AskError> {
    let stream = UnixStream::connect(socket).await.map_err(|error| {
        let path = socket.display().to_string();
        match error.kind() {
            io::ErrorKind::PermissionDenied => AskError::NotAllowed { path },
            _ => AskError::NoAgent { path },
        }
    })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(answer)?;
    // It ends with the answer; a failure shows there.
    tokio::spawn(connection);
    let body = match body {
        Some(body) => serde_json::to_vec(body).map_err(answer)?,
        None => Vec::new(),
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(answer)?;
    let response = sender.send_request(request).await.map_err(answer)?;
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(answer)?.to_bytes();
    if status.is_success() {
        return Ok(bytes);
    }
    let refused: ErrorBody = serde_json::from_slice(&bytes).map_err(answer)?;
    Err(AskError::Refused(refused.error))
}
