//! Credentials that a run is shown: made at its start, kept on its own tmpfs for a later agent, and told to the gateway.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use strait_contract::{
    exposure::{BODY, Exposed, Shown},
    message::Secret,
    tool::ToolName,
};
use zeroize::Zeroizing;

use super::folder::Folder;
use crate::config::{self, AgentConfig, Config};

/// Most bytes of all values of one run: they travel in one packet.
const MOST: usize = 64 * 1024;
/// What a placeholder is made of.
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Why a run can't be shown what it is to be shown. No variant shows a value.
#[derive(Debug, thiserror::Error)]
pub enum ExposureError {
    /// A value can't be had.
    #[error("the credential `{name}`, which the agent's runs are shown (`expose`), can't be had: {why}")]
    Unavailable {
        /// Which.
        name: ToolName,
        /// Why.
        why: String,
    },
    /// Together they are too long.
    #[error(
        "the values that the agent's runs are shown (`expose`) are longer than 64 KiB together: show fewer"
    )]
    TooLong,
    /// The kernel gave no random bytes.
    #[error("the kernel gave no random bytes: {0}")]
    Random(getrandom::Error),
    /// What a run was shown can't be kept or found.
    #[error("`{path}`, which says what the run is shown, can't be used: {source}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What a run of this agent is shown. Blocks as long as looking values up takes.
///
/// # Errors
/// [`ExposureError`]: the run must not start.
pub(super) fn make(config: &Config, profile: &AgentConfig) -> Result<Vec<Exposed>, ExposureError> {
    let mut all = Vec::with_capacity(profile.expose.len());
    for config::Expose { variable, credential, shown } in &profile.expose {
        let shown = match shown {
            config::Shown::Value => {
                let value = config.credential(credential);
                let unavailable = |why| ExposureError::Unavailable { name: credential.clone(), why };
                Shown::Value(value.map_err(unavailable)?)
            }
            config::Shown::Placeholder { prefix, origins } => Shown::Placeholder {
                text: placeholder(prefix).map_err(ExposureError::Random)?,
                origins: origins.clone(),
                ttl_seconds: config.credentials.get(credential).map_or(0, |known| known.ttl_seconds),
            },
        };
        all.push(Exposed { variable: variable.clone(), credential: credential.clone(), shown });
    }
    let long = all.iter().map(|exposed| exposed.text().expose().len()).sum::<usize>() > MOST;
    if long { Err(ExposureError::TooLong) } else { Ok(all) }
}

/// A fresh placeholder: every letter is as likely as any other.
fn placeholder(prefix: &str) -> Result<Secret, getrandom::Error> {
    let mut text = Zeroizing::new(prefix.to_owned());
    let mut bytes = Zeroizing::new([0_u8; 64]);
    while text.len() < prefix.len() + BODY {
        getrandom::fill(bytes.as_mut_slice())?;
        // 248 is the last multiple of 62 that a byte holds.
        let fair = bytes.iter().filter(|byte| **byte < 248).map(|byte| usize::from(byte % 62));
        let left = prefix.len() + BODY - text.len();
        text.extend(fair.take(left).filter_map(|at| LETTERS.get(at)).map(|byte| char::from(*byte)));
    }
    Ok(Secret::new(text.to_string()))
}

fn failed(path: PathBuf) -> impl FnOnce(io::Error) -> ExposureError {
    move |source| ExposureError::File { path, source }
}

/// Keeps it in the run's folder, which no run sees and no disk.
pub(super) fn keep(folder: &Folder, exposed: &[Exposed]) -> Result<(), ExposureError> {
    if exposed.is_empty() {
        return Ok(());
    }
    let path = folder.exposed();
    let text = serde_json::to_vec(exposed).map(Zeroizing::new).map_err(io::Error::from);
    let written = text.and_then(|text| {
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(&text)
    });
    written.map_err(failed(path))
}

/// What an earlier agent kept.
///
/// # Errors
/// [`ExposureError::File`]: without it the gateway would let placeholders pass as they are.
pub(super) fn kept(folder: &Folder) -> Result<Vec<Exposed>, ExposureError> {
    let path = folder.exposed();
    match fs::read(&path).map(Zeroizing::new) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from).map_err(failed(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(path)(error)),
    }
}

/// As the record of the start has it: names alone.
pub(super) fn told(exposed: &[Exposed]) -> String {
    exposed.iter().map(Exposed::told).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, path::Path};

    use super::*;
    use crate::instance::Instance;

    #[test]
    fn placeholders_are_unique_look_like_the_real_thing_and_are_told_by_name_alone_a34() {
        let text = "[credentials.gh]\nfrom = \"env:STRAIT_TEST_UNSET\"\n[agents.a.expose]\n\
                    T = { credential = \"gh\", as = \"placeholder\", for = [\"https://a.com\"] }\n\
                    U = { credential = \"gh\", as = \"placeholder\", for = [\"https://a.com\"], prefix = \"ghp_\" }\n";
        let config = Config::parse(text, Path::new("/x/strait.toml")).unwrap();
        let profile = config.agent(&"a".parse().unwrap());
        let mut seen = HashSet::new();
        for _ in 0..50 {
            let made = make(&config, &profile).unwrap();
            assert_eq!(told(&made), "T=placeholder:gh U=placeholder:gh");
            for (exposed, prefix) in made.iter().zip(["strait_ph_", "ghp_"]) {
                let body = exposed.text().expose().strip_prefix(prefix).unwrap();
                assert!(
                    body.len() == BODY && body.bytes().all(|byte| byte.is_ascii_alphanumeric()),
                    "{body}"
                );
                assert!(seen.insert(body.to_owned()));
                let record = strait_contract::redact::redact_text(exposed.text().expose(), 200);
                assert!(record.starts_with("[hidden:"), "{record}");
            }
        }
        let value = "[credentials.gh]\nfrom = \"env:STRAIT_TEST_UNSET\"\n[agents.a.expose]\n\
                     T = { credential = \"gh\", as = \"value\" }\n";
        let config = Config::parse(value, Path::new("/x/strait.toml")).unwrap();
        let error = make(&config, &config.agent(&"a".parse().unwrap())).unwrap_err().to_string();
        assert!(error.contains("`gh`") && error.contains("STRAIT_TEST_UNSET"), "{error}");
    }

    #[test]
    fn a_later_agent_finds_what_was_shown_and_refuses_what_it_cant_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut instance = Instance::standard("x".parse().unwrap());
        instance.run_dir = dir.path().to_owned();
        let folder = Folder::of(&instance, "a-1");
        fs::create_dir_all(folder.bundle()).unwrap();
        assert_eq!(kept(&folder).unwrap(), []);
        let shown = Shown::Value(Secret::new("s3cret".to_owned()));
        let exposed = [Exposed { variable: "T".to_owned(), credential: "gh".parse().unwrap(), shown }];
        keep(&folder, &exposed).unwrap();
        assert_eq!(kept(&folder).unwrap(), exposed);
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(folder.exposed()).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        fs::write(folder.exposed(), "[{").unwrap();
        assert!(matches!(kept(&folder), Err(ExposureError::File { .. })));
    }
}
