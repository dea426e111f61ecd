//! The shim's arguments: every path absolute, nothing unknown.

use std::{
    ffi::OsString,
    fmt,
    os::fd::RawFd,
    path::{Path, PathBuf},
};

/// Marks the second, detached process.
pub(crate) const DETACHED: &str = "--detached";

/// What a shim is told.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// OCI bundle.
    pub(crate) bundle: PathBuf,
    /// Container id.
    pub(crate) id: String,
    /// OCI runtime to call.
    pub(crate) runc: PathBuf,
    /// Its state folder (`--root`), if not the standard one.
    pub(crate) root: Option<PathBuf>,
    /// Where the exit goes.
    pub(crate) exit_file: PathBuf,
    /// Socket to the agent.
    pub(crate) control_fd: RawFd,
    /// cgroup v2 folder to move to.
    pub(crate) cgroup: Option<PathBuf>,
    /// Socket that gets the pty's master.
    pub(crate) console_socket: Option<PathBuf>,
    /// Where `runc` writes the init's process id; `init.pid` in the bundle if not given.
    pub(crate) pid_file: PathBuf,
    /// Whether this is the second process.
    pub(crate) detached: bool,
}

/// What is wrong with the arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadArguments {
    /// Not an option of the shim.
    Unknown(OsString),
    /// An option without its value.
    NoValue(&'static str),
    /// An option that must be given.
    Missing(&'static str),
    /// A path that isn't absolute; the shim changes its folder.
    Relative(&'static str, PathBuf),
    /// A value that can't be used.
    Value(&'static str, OsString),
}

impl fmt::Display for BadArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "shim has no option `{}`", name.display()),
            Self::NoValue(name) => write!(f, "shim: `{name}` needs a value"),
            Self::Missing(name) => write!(f, "shim: `{name}` must be given"),
            Self::Relative(name, path) => {
                write!(f, "shim: `{name}` must be an absolute path, not `{}`", path.display())
            }
            Self::Value(name, value) => write!(f, "shim: `{}` is no value for `{name}`", value.display()),
        }
    }
}

const OPTIONS: [&str; 9] = [
    "--bundle",
    "--id",
    "--runc",
    "--root",
    "--exit-file",
    "--control-fd",
    "--cgroup",
    "--console-socket",
    "--pid-file",
];

/// The options that were given, each with its last value.
struct Given(Vec<(&'static str, OsString)>);

impl Given {
    fn optional(&self, name: &'static str) -> Option<&OsString> {
        self.0.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value)
    }

    fn value(&self, name: &'static str) -> Result<&OsString, BadArguments> {
        self.optional(name).ok_or(BadArguments::Missing(name))
    }

    fn text(&self, name: &'static str) -> Result<&str, BadArguments> {
        let value = self.value(name)?;
        value.to_str().ok_or_else(|| BadArguments::Value(name, value.clone()))
    }

    fn optional_path(&self, name: &'static str) -> Result<Option<PathBuf>, BadArguments> {
        let Some(value) = self.optional(name) else { return Ok(None) };
        let path = Path::new(value);
        if path.is_absolute() {
            Ok(Some(path.to_owned()))
        } else {
            Err(BadArguments::Relative(name, path.to_owned()))
        }
    }

    fn path(&self, name: &'static str) -> Result<PathBuf, BadArguments> {
        self.optional_path(name)?.ok_or(BadArguments::Missing(name))
    }
}

impl Arguments {
    /// Reads `--name value` pairs.
    pub(crate) fn parse(arguments: &[OsString]) -> Result<Self, BadArguments> {
        let mut given = Given(Vec::new());
        let mut detached = false;
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if argument == DETACHED {
                detached = true;
                continue;
            }
            let name = OPTIONS.into_iter().find(|name| argument == name);
            let name = name.ok_or_else(|| BadArguments::Unknown(argument.clone()))?;
            given.0.push((name, rest.next().ok_or(BadArguments::NoValue(name))?.clone()));
        }
        let bundle = given.path("--bundle")?;
        let control = given.text("--control-fd")?;
        Ok(Self {
            id: given.text("--id")?.to_owned(),
            runc: given.path("--runc")?,
            root: given.optional_path("--root")?,
            exit_file: given.path("--exit-file")?,
            control_fd: control
                .parse()
                .map_err(|_| BadArguments::Value("--control-fd", OsString::from(control)))?,
            cgroup: given.optional_path("--cgroup")?,
            console_socket: given.optional_path("--console-socket")?,
            pid_file: given.optional_path("--pid-file")?.unwrap_or_else(|| bundle.join("init.pid")),
            bundle,
            detached,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Arguments, BadArguments> {
        Arguments::parse(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    const ENOUGH: &str = "--bundle /b --id x --runc /usr/sbin/runc --exit-file /e --control-fd 3";

    #[test]
    fn the_needed_options_are_enough_and_the_pid_file_lies_in_the_bundle() {
        let arguments = parse(ENOUGH).unwrap();
        assert_eq!(arguments.pid_file, Path::new("/b/init.pid"));
        assert_eq!((arguments.control_fd, arguments.detached), (3, false));
        assert!(parse(&format!("{DETACHED} {ENOUGH}")).unwrap().detached);
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        let missing = parse("--bundle /b --control-fd 3 --runc /r --exit-file /e");
        assert_eq!(missing, Err(BadArguments::Missing("--id")));
        assert_eq!(parse("--id"), Err(BadArguments::NoValue("--id")));
        assert_eq!(parse("--bundel /b"), Err(BadArguments::Unknown("--bundel".into())));
        let relative = parse(&format!("{ENOUGH} --cgroup a/b"));
        assert_eq!(relative, Err(BadArguments::Relative("--cgroup", "a/b".into())));
        let value = parse(&format!("{ENOUGH} --control-fd three"));
        assert_eq!(value, Err(BadArguments::Value("--control-fd", "three".into())));
    }
}
