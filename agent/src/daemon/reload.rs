//! Configuration and policies put in force, at the start and when asked (`strait reload`, SIGHUP).

use std::sync::Arc;

use anyhow::Context as _;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};

use crate::{
    child::Program,
    config::Config,
    control::Reload,
    link::{Applied, Link},
    log::Log,
    policy_source::{Checking, PolicySource},
};

/// Puts configuration and policies in force, all or nothing.
pub(super) struct Reloader {
    config: watch::Sender<Arc<Config>>,
    link: Link,
    log: Log,
    program: Program,
}

impl Reloader {
    pub(super) fn new(config: watch::Sender<Arc<Config>>, link: Link, log: Log, program: Program) -> Self {
        Self { config, link, log, program }
    }

    /// The policies at the start. A set that is refused leaves every call refused and the command line working
    /// (case 81).
    pub(super) async fn first(&self, checking: Checking) {
        if let Err(error) = self.apply(checking).await {
            tracing::error!("{error}; until this is mended every call is refused");
        }
    }

    /// Waits for wishes and SIGHUP.
    pub(super) async fn run(self, mut wishes: mpsc::Receiver<Reload>) -> anyhow::Result<()> {
        let mut hangup = signal(SignalKind::hangup()).context("watching for SIGHUP")?;
        loop {
            tokio::select! {
                Some(answer) = wishes.recv() => {
                    // Whoever asked may have gone.
                    let _ = answer.send(self.reload().await);
                }
                _ = hangup.recv() => match self.reload().await {
                    Ok(done) => tracing::info!("{done}"),
                    Err(error) => tracing::error!("{error}"),
                },
            }
        }
    }

    async fn reload(&self) -> Result<String, String> {
        let path = self.config.borrow().path.clone();
        let config = Config::load(path.as_deref()).map_err(|error| error.to_string())?;
        let old = Arc::clone(&self.config.borrow());
        if config.instance != old.instance {
            return Err(
                "`[instance]` and `network.pool` can't change while the agent runs: restart it".to_owned()
            );
        }
        let mut done = self.policies(&config).await?;
        if config.network != old.network || config.limits != old.limits {
            done.push_str(
                "; `network`, `hosts` and `limits` hold from the gateway's next start: send \
                           strait-gateway a SIGTERM (open calls end), and the agent starts it anew",
            );
        }
        self.config.send_replace(Arc::new(config));
        self.link.set_tools().map_err(|error| error.to_string())?;
        self.link.set_budgets().await.map_err(|error| error.to_string())?;
        Ok(done)
    }

    async fn policies(&self, config: &Config) -> Result<String, String> {
        self.apply(PolicySource::new(config, self.program.clone()).begin()).await
    }

    async fn apply(&self, checking: Checking) -> Result<String, String> {
        let (checked, applied) = checking.apply(&self.link).await.map_err(|error| error.to_string())?;
        let (epoch, when) = match applied {
            Applied::Live { epoch } => (epoch, "live"),
            Applied::AtNextStart { epoch } => (epoch, "waiting for the gateway"),
        };
        let facts = [
            ("digest", checked.digest.clone()),
            ("epoch", epoch.to_string()),
            ("files", checked.files.len().to_string()),
        ];
        self.log.event(None, "policy.changed", &facts).await.map_err(|error| error.to_string())?;
        Ok(format!(
            "{} policy files are {when} (epoch {epoch}, digest {})",
            checked.files.len(),
            checked.digest
        ))
    }
}
