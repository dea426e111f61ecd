//! The environment of a run: ours, and of the caller's nothing but what they name.

use std::{collections::BTreeMap, path::PathBuf};

use strait_contract::exposure::Exposed;

use super::{account::Account, trust::Trust};

/// Variables taken from the caller without being asked for: they describe the terminal, not the person.
pub const PASSED: &[&str] = &["TERM", "COLORTERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "NO_COLOR"];

/// The variable with the workload token, which the gateway's own endpoints ask for.
pub const TOKEN: &str = "STRAIT_TOKEN";

/// Folders searched for programs behind `/tools/bin` and the program's own.
const SYSTEM_PATH: &[&str] = &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// What the environment is made from.
#[derive(Debug)]
pub struct Sources<'a> {
    /// Name of the run.
    pub run: &'a str,
    /// Name of the agent.
    pub agent: &'a str,
    /// Who runs it.
    pub account: &'a Account,
    /// Its workload token, in clear.
    pub token: &'a str,
    /// The certificate files.
    pub trust: &'a Trust,
    /// Folders of the program and what it is made of, searched first.
    pub program_path: &'a [PathBuf],
    /// What clients of models are told.
    pub models: &'a [(String, String)],
    /// `agents.NAME.env` of the configuration.
    pub configured: &'a [(String, String)],
    /// `--env` and [`PASSED`], from the command line.
    pub asked: &'a [(String, String)],
    /// Credentials that it is shown.
    pub exposed: &'a [Exposed],
}

/// `NAME=value` lines, sorted by name. A later source wins: ours, configured, asked for, shown.
pub fn variables(sources: &Sources<'_>) -> Vec<String> {
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
    set("HOME", sources.account.home.display().to_string());
    set("USER", sources.account.name.clone());
    set("LOGNAME", sources.account.name.clone());
    set("SHELL", "/bin/sh".to_owned());
    set("PATH", search_path(sources.program_path));
    set("TMPDIR", "/tmp".to_owned());
    set("STRAIT_RUN", sources.run.to_owned());
    set("STRAIT_AGENT", sources.agent.to_owned());
    set("STRAIT_GATEWAY", "http://strait.internal".to_owned());
    // Claude Code refuses to skip its own prompts as root unless it is told that a sandbox surrounds it.
    set("IS_SANDBOX", "1".to_owned());
    for (name, value) in sources.trust.environment() {
        set(name, value);
    }
    for (name, value) in sources.models.iter().chain(sources.configured).chain(sources.asked) {
        set(name, value.clone());
    }
    // What the operator shows can't be exchanged by who starts the run.
    for exposed in sources.exposed {
        set(&exposed.variable, exposed.text().expose().to_owned());
    }
    // Nobody else can name another: only this one is good from this run's address.
    set(TOKEN, sources.token.to_owned());
    variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// `/tools/bin`, the program's folders, the system's.
pub fn search_path(program_path: &[PathBuf]) -> String {
    let mut path = String::from("/tools/bin");
    let program = program_path.iter().map(|folder| folder.display().to_string());
    for folder in program.chain(SYSTEM_PATH.iter().map(|folder| (*folder).to_owned())) {
        path.push(':');
        path.push_str(&folder);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_overrides_ours_and_nothing_else_of_theirs_comes_in() {
        let folder = tempfile::tempdir().unwrap();
        let trust = Trust::build(&folder.path().join("t"), "ROOT\n").unwrap();
        let account = Account::of(4_000_123, 1).unwrap();
        let lines = variables(&Sources {
            run: "coder-aaaaaa",
            agent: "coder",
            account: &account,
            token: "strait_x",
            trust: &trust,
            program_path: &["/home/ann/.nvm/versions/node/v20/bin".into()],
            models: &[("OPENAI_API_KEY".into(), "strait_x".into()), ("MODE".into(), "ours".into())],
            configured: &[("MODE".into(), "fast".into()), ("A".into(), "1".into())],
            exposed: &[],
            asked: &[("NODE_EXTRA_CA_CERTS".into(), "/my.pem".into()), ("A".into(), "2".into())],
        });
        let has = |line: &str| lines.iter().any(|found| found == line);
        assert!(has("NODE_EXTRA_CA_CERTS=/my.pem"), "case 41: a person's own file is kept");
        assert!(has("MODE=fast") && has("A=2") && has("IS_SANDBOX=1") && has("STRAIT_RUN=coder-aaaaaa"));
        assert!(has("OPENAI_API_KEY=strait_x"));
        assert!(has("STRAIT_TOKEN=strait_x") && has("STRAIT_GATEWAY=http://strait.internal"));
        assert!(has("SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"));
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("PATH=/tools/bin:/home/ann/.nvm/versions/node/v20/bin:/usr"))
        );
        assert!(
            !lines.iter().any(|line| line.starts_with("CARGO_MANIFEST_DIR=")),
            "our own environment stays out"
        );
    }
}
