//! `[approvals]`.

use std::{path::Path, time::Duration};

use serde::Deserialize;

use super::{ApprovalConfig, ApprovalMode, ConfigError, file::bounded, file::conflict, value::duration};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ApprovalsTable {
    mode: ApprovalMode,
    timeout: Option<String>,
    notify: Option<NotifyTable>,
    per_run: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotifyTable {
    #[serde(default)]
    command: Vec<String>,
    url: Option<String>,
}

impl ApprovalsTable {
    pub(super) fn into_config(self, path: &Path) -> Result<ApprovalConfig, ConfigError> {
        let Self { mode, timeout, notify, per_run } = self;
        let timeout = match timeout {
            None => Duration::from_secs(600),
            Some(text) => duration(&text).ok_or_else(|| {
                conflict(
                    path,
                    format!("`approvals.timeout` is `{text}`: write a number and s, m or h, such as `10m`"),
                )
            })?,
        };
        if notify.as_ref().is_some_and(|notify| notify.url.is_some() || notify.command.is_empty()) {
            let message = "`approvals.notify` must be a command, since root talks to no network: for a webhook write \
                           `{ command = [\"/usr/bin/curl\", \"-sS\", \"--json\", \"@-\", \"https://…\"] }`";
            return Err(conflict(path, message));
        }
        let notify = notify.map_or_else(Vec::new, |notify| notify.command);
        if notify.first().is_some_and(|program| !program.starts_with('/')) {
            return Err(conflict(path, "`approvals.notify.command` must begin with an absolute path"));
        }
        let per_run = bounded(path, "approvals.per_run", per_run, 100, 1..=10_000)?;
        Ok(ApprovalConfig { mode, timeout, notify, per_run: usize::try_from(per_run).unwrap_or(100) })
    }
}
