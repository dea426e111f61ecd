//! Values of credentials on their way to the gateway: each hand-over is an event, none shows a value.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use strait_contract::{
    message::{Secret, ToGateway},
    tool::ToolName,
};
use tokio::{sync::OwnedSemaphorePermit, task::spawn_blocking};

use super::{Link, session::reply};
use crate::log;

/// Hand-overs, and news of changed tools, that a gateway may have in a second: one that was taken over would have programs
/// started and events written without end.
const MOST: usize = 50;

/// How many there were lately.
#[derive(Debug, Default)]
pub(super) struct Asked(VecDeque<Instant>);

impl Asked {
    /// Whether there may be one more now.
    pub(super) fn admits(&mut self) -> bool {
        let now = Instant::now();
        while self.0.front().is_some_and(|at| now.duration_since(*at) > Duration::from_secs(1)) {
            self.0.pop_front();
        }
        let admitted = self.0.len() < MOST;
        if admitted {
            self.0.push_back(now);
        }
        admitted
    }
}

/// Resolves a credential and answers the link that asked.
pub(super) async fn hand_over(
    link: Link,
    number: u64,
    ticket: u64,
    name: ToolName,
    permit: OwnedSemaphorePermit,
) {
    let value = resolve(&link, &name).await;
    let event = match &value {
        Ok(_) => log::event(None, "credential.handed", &[("name", name.to_string())]),
        Err(why) => {
            log::event(None, "credential.unavailable", &[("name", name.to_string()), ("reason", why.clone())])
        }
    };
    let value = match link.0.parts.log.append(vec![event]).await {
        Ok(()) => value,
        // What isn't on record doesn't happen.
        Err(why) => Err(format!("its hand-over can't be put on record: {why}")),
    };
    reply(&link, number, &ToGateway::Credential { ticket, value }, permit);
}

async fn resolve(link: &Link, name: &ToolName) -> Result<Secret, String> {
    let (link, name) = (link.clone(), name.clone());
    let resolved = spawn_blocking(move || (link.0.parts.credential)(&name)).await;
    resolved.unwrap_or_else(|_| Err("a fault inside strait-agent".to_owned()))
}
