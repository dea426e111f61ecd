//! `[agents.NAME.expose.VARIABLE]`: credentials that an agent's runs are shown (A34).

use std::{collections::BTreeMap, net::IpAddr, path::Path};

use serde::Deserialize;
use strait_contract::{
    exposure::{Origin, PREFIX},
    ids::AgentName,
    tool::ToolName,
};
use strait_policies::url::{Names, Scheme, Target};

use super::{ConfigError, Credential, value::Variable};

/// Most variables of one agent.
const MOST: usize = 16;
/// Most origins of one placeholder.
const MOST_ORIGINS: usize = 32;
/// Variables that say where a run is and what it trusts: nothing else may stand there.
const RESERVED: [&str; 4] = ["HOME", "PATH", "USER", "LOGNAME"];

/// One variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expose {
    /// Its name.
    pub variable: String,
    /// The credential behind it.
    pub credential: ToolName,
    /// What of it is shown.
    pub shown: Shown,
}

/// What of a credential is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Its value.
    Value,
    /// A placeholder, which becomes the value on the way to these origins.
    Placeholder {
        /// How it begins.
        prefix: String,
        /// Where it is good.
        origins: Vec<Origin>,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExposeTable {
    credential: String,
    #[serde(rename = "as")]
    shown: ShownValue,
    #[serde(rename = "for")]
    origins: Option<Vec<String>>,
    prefix: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ShownValue {
    Placeholder,
    Value,
}

/// What exposures are checked against.
pub(super) struct Known<'a> {
    pub(super) path: &'a Path,
    pub(super) hosts: &'a [(String, IpAddr)],
    pub(super) passthrough: &'a [String],
    pub(super) credentials: &'a BTreeMap<ToolName, Credential>,
}

impl Known<'_> {
    /// The variables of one agent, in order.
    pub(super) fn exposed(
        &self,
        agent: &AgentName,
        tables: BTreeMap<Variable, ExposeTable>,
        env: &BTreeMap<String, String>,
    ) -> Result<Vec<Expose>, ConfigError> {
        let conflict = |message| ConfigError::Conflict { path: self.path.to_owned(), message };
        if tables.len() > MOST {
            return Err(conflict(format!("`agents.{agent}.expose` has more than {MOST} variables")));
        }
        let mut all = Vec::with_capacity(tables.len());
        for (Variable(variable), table) in tables {
            let place = format!("`agents.{agent}.expose.{variable}`");
            if variable.starts_with("STRAIT_") || RESERVED.contains(&variable.as_str()) {
                return Err(conflict(format!("{place}: the variable is set by Strait itself")));
            }
            if env.contains_key(&variable) {
                return Err(conflict(format!("{place}: `agents.{agent}.env` sets the same variable")));
            }
            let exposed = self.one(variable, table).map_err(|why| conflict(format!("{place}: {why}")))?;
            all.push(exposed);
        }
        Ok(all)
    }

    fn one(&self, variable: String, table: ExposeTable) -> Result<Expose, String> {
        let ExposeTable { credential, shown, origins, prefix } = table;
        let found = credential.parse::<ToolName>().ok().filter(|name| self.credentials.contains_key(name));
        let name = found.ok_or_else(|| {
            format!("`credential` names `{credential}`, but there is no `[credentials.{credential}]`")
        })?;
        let shown = match shown {
            ShownValue::Value if origins.is_some() || prefix.is_some() => {
                return Err(
                    "`for` and `prefix` are for `as = \"placeholder\"`: a value can go anywhere that policy \
                            permits"
                        .to_owned(),
                );
            }
            ShownValue::Value => Shown::Value,
            ShownValue::Placeholder => Shown::Placeholder {
                prefix: begins(prefix.unwrap_or_else(|| PREFIX.to_owned()))?,
                origins: self.origins(origins.unwrap_or_default())?,
            },
        };
        Ok(Expose { variable, credential: name, shown })
    }

    fn origins(&self, listed: Vec<String>) -> Result<Vec<Origin>, String> {
        if listed.is_empty() || listed.len() > MOST_ORIGINS {
            return Err(format!(
                "`for` must name where the placeholder is good, as `[\"https://api.github.com\"]`, at most {MOST_ORIGINS}"
            ));
        }
        let names = Names::new(self.hosts.iter().map(|(name, _)| name.as_str()))
            .map_err(|error| format!("`hosts`: {error}"))?;
        let mut origins: Vec<Origin> = Vec::new();
        for text in listed {
            let origin = self.origin(&text, &names).map_err(|why| format!("`for`: `{text}`: {why}"))?;
            if origins.contains(&origin) {
                return Err(format!("`for` names `{text}` twice"));
            }
            origins.push(origin);
        }
        Ok(origins)
    }

    fn origin(&self, text: &str, names: &Names) -> Result<Origin, String> {
        let target = Target::from_absolute_with(text, names).map_err(|error| error.to_string())?;
        if target.path_and_query() != "/" {
            return Err("name scheme, host and port, without a path".to_owned());
        }
        let https = target.scheme() == Scheme::Https;
        let host = target.host_text();
        if !https && !self.hosts.iter().any(|(name, _)| name == host) {
            return Err("the value would go there in the clear: write `https://`, or name the host in `[hosts]` if it \
                        is one of your own network"
                .to_owned());
        }
        if self.passthrough.iter().any(|name| name.trim_end_matches('.').eq_ignore_ascii_case(host)) {
            return Err(
                "`network.passthrough` names the host: nothing can be replaced in what isn't read".to_owned()
            );
        }
        Ok(Origin { https, host: host.to_owned(), port: target.port() })
    }
}

/// A prefix whose characters no encoding changes.
fn begins(prefix: String) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if prefix.len() <= 32 && prefix.bytes().all(plain) {
        Ok(prefix)
    } else {
        Err(format!("`prefix` is `{prefix}`: at most 32 letters, digits, `_` and `-`, such as `ghp_`"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const BASE: &str = "[credentials.gh]\nfrom = \"env:GH\"\n[hosts]\n\"git.corp\" = \"10.0.0.1\"\n\
                        [network]\npassthrough = [\"pin.example.com\"]\n";

    fn parse(text: &str) -> Result<Vec<Expose>, String> {
        let config = Config::parse(&format!("{BASE}{text}"), Path::new("/etc/strait/strait.toml"));
        let config = config.map_err(|error| error.to_string())?;
        Ok(config.agent(&"coder".parse().unwrap()).expose)
    }

    #[test]
    fn a_placeholder_has_origins_and_a_value_has_none_a34() {
        let exposed = parse(
            "[agents.coder.expose]\nGITHUB_TOKEN = { credential = \"gh\", as = \"placeholder\", prefix = \"ghp_\", \
             for = [\"https://API.github.com\", \"https://github.com:8443/\", \"http://git.corp\"] }\n\
             X = { credential = \"gh\", as = \"value\" }\n",
        )
        .unwrap();
        let Shown::Placeholder { prefix, origins } = &exposed[0].shown else { panic!("{exposed:?}") };
        assert_eq!((exposed[0].variable.as_str(), prefix.as_str()), ("GITHUB_TOKEN", "ghp_"));
        let origins: Vec<_> = origins.iter().map(|o| (o.https, o.host.as_str(), o.port)).collect();
        let expected = [(true, "api.github.com", 443), (true, "github.com", 8443), (false, "git.corp", 80)];
        assert_eq!(origins, expected);
        assert_eq!(exposed[1].shown, Shown::Value);
    }

    #[test]
    fn what_could_not_be_kept_is_refused_with_its_key_a34_case_82() {
        let with = |table: &str| format!("[agents.coder.expose]\nT = {{ {table} }}\n");
        for (text, says) in [
            (with("credential = \"other\", as = \"value\""), "no `[credentials.other]`"),
            (with("credential = \"gh\", as = \"placeholder\""), "must name where"),
            (with("credential = \"gh\", as = \"placeholder\", for = []"), "must name where"),
            (with("credential = \"gh\", as = \"value\", for = [\"https://a.com\"]"), "are for `as"),
            (with("credential = \"gh\", as = \"hidden\""), "hidden"),
            (with("credential = \"gh\""), "as"),
            (with("credential = \"gh\", as = \"value\", to = 1"), "to"),
            (with("credential = \"gh\", as = \"placeholder\", for = [\"http://a.com\"]"), "in the clear"),
            (with("credential = \"gh\", as = \"placeholder\", for = [\"https://a.com/x\"]"), "without a path"),
            (with("credential = \"gh\", as = \"placeholder\", for = [\"https://u@a.com\"]"), "user name"),
            (with("credential = \"gh\", as = \"placeholder\", for = [\"https://pin.example.com\"]"), "passthrough"),
            (
                with("credential = \"gh\", as = \"placeholder\", for = [\"https://a.com\", \"https://A.com:443\"]"),
                "twice",
            ),
            (
                with("credential = \"gh\", as = \"placeholder\", for = [\"https://a.com\"], prefix = \"a b\""),
                "`prefix`",
            ),
            ("[agents.coder.expose]\nSTRAIT_TOKEN = { credential = \"gh\", as = \"value\" }".to_owned(), "Strait"),
            (
                "[agents.coder]\nenv = { T = \"x\" }\nexpose = { T = { credential = \"gh\", as = \"value\" } }".to_owned(),
                "same variable",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
