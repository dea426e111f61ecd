//! Credentials by reference: `file:/path`, `env:NAME`, `exec:/path arguments` or `systemd:NAME`.
//!
//! A reference is read with the config, its value only when it is needed. No error shows a value.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Read},
    os::unix::{
        fs::{MetadataExt as _, OpenOptionsExt as _},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use strait_contract::message::Secret;
use zeroize::Zeroizing;

/// Longest value, bytes; one is to fit a field of a request.
const MAX_VALUE: u64 = 16 * 1024;
/// How long a program may take to print a value.
const EXEC_WITHIN: Duration = Duration::from_secs(10);

/// Where a credential's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A regular file of root's that nobody else can open.
    File(PathBuf),
    /// A variable in strait-agent's own environment.
    Env(String),
    /// What a program prints: its path and arguments, split at spaces; no shell.
    Exec(PathBuf, Vec<String>),
    /// A credential that systemd hands to the unit (`LoadCredential=`).
    Systemd(String),
}

/// Why a credential can't be had. No variant shows a value.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// Not a reference.
    #[error(
        "a credential is named by reference: `file:/path`, `env:NAME`, `exec:/path arguments` or `systemd:NAME`, \
         never by value"
    )]
    NotAReference,
    /// The file or program can't be read.
    #[error("`{path}` can't be read: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not a regular file.
    #[error("`{0}` isn't a regular file")]
    NotAFile(PathBuf),
    /// Others can read the file.
    #[error("`{0}` can be read by others than its owner: chown root and chmod 600 it")]
    Open(PathBuf),
    /// Others can change the program.
    #[error("`{0}` can be changed by others than root: chown root and chmod 755 it")]
    Writable(PathBuf),
    /// The variable isn't set.
    #[error("the variable `{0}` isn't set for strait-agent")]
    Unset(String),
    /// The unit has no such credential.
    #[error("systemd handed no credential `{0}` to strait-agent: add `LoadCredential={0}:…` to its unit")]
    NotLoaded(String),
    /// The program failed.
    #[error("`{path}` {what}")]
    Program {
        /// Which.
        path: PathBuf,
        /// How.
        what: String,
    },
    /// It's empty, too long, or has a line break or control character inside.
    #[error(
        "what `{0}` holds is empty, longer than 16 KiB, has more than one line, or holds control characters"
    )]
    Malformed(String),
}

impl Reference {
    /// Reads a reference; nothing is looked up yet.
    ///
    /// # Errors
    /// [`CredentialError::NotAReference`], without the text: it may be a value.
    pub fn parse(text: &str) -> Result<Self, CredentialError> {
        let (scheme, rest) = text.split_once(':').ok_or(CredentialError::NotAReference)?;
        let plain = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
        match scheme {
            "file" if Path::new(rest).is_absolute() => Ok(Self::File(rest.into())),
            "env" if plain(rest) && !rest.contains('=') => Ok(Self::Env(rest.to_owned())),
            "systemd" if plain(rest) => Ok(Self::Systemd(rest.to_owned())),
            "exec" => {
                let mut words = rest.split_whitespace().map(str::to_owned);
                let program = words.next().map(PathBuf::from).filter(|path| path.is_absolute());
                Ok(Self::Exec(program.ok_or(CredentialError::NotAReference)?, words.collect()))
            }
            _ => Err(CredentialError::NotAReference),
        }
    }

    /// As config spells it.
    fn name(&self) -> String {
        match self {
            Self::File(path) => format!("file:{}", path.display()),
            Self::Env(name) => format!("env:{name}"),
            Self::Exec(path, _) => format!("exec:{}", path.display()),
            Self::Systemd(name) => format!("systemd:{name}"),
        }
    }

    /// The value now. Blocks, as long as a program may take.
    ///
    /// # Errors
    /// See [`CredentialError`].
    pub fn resolve(&self) -> Result<Secret, CredentialError> {
        let value = match self {
            Self::File(path) => read_closed(path)?,
            Self::Env(name) => {
                Zeroizing::new(env::var(name).map_err(|_| CredentialError::Unset(name.clone()))?.into_bytes())
            }
            Self::Exec(path, arguments) => printed(path, arguments, EXEC_WITHIN)?,
            Self::Systemd(name) => {
                let folder = env::var_os("CREDENTIALS_DIRECTORY").filter(|folder| !folder.is_empty());
                let folder = folder.ok_or_else(|| CredentialError::NotLoaded(name.clone()))?;
                loaded(folder, name)?
            }
        };
        let malformed = || CredentialError::Malformed(self.name());
        let text = std::str::from_utf8(&value).map_err(|_| malformed())?;
        let line = text.strip_suffix('\n').unwrap_or(text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        // A control character would let the value end its field and begin another (case 89).
        let good = !line.is_empty() && line.len() as u64 <= MAX_VALUE && !line.chars().any(char::is_control);
        if good { Ok(Secret::new(line.to_owned())) } else { Err(malformed()) }
    }
}

fn bounded(mut from: impl Read, path: &Path) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
    let mut value = Zeroizing::new(Vec::with_capacity(4096));
    let fault = |source| CredentialError::File { path: path.to_owned(), source };
    Read::by_ref(&mut from).take(MAX_VALUE + 3).read_to_end(&mut value).map_err(fault)?;
    Ok(value)
}

/// A file that nobody but its owner, who is root or this process's user, can open.
fn read_closed(path: &Path) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
    let fault = |source| CredentialError::File { path: path.to_owned(), source };
    // A FIFO would block the open.
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = fs::File::options().read(true).custom_flags(nonblock).open(path).map_err(fault)?;
    let meta = file.metadata().map_err(fault)?;
    if !meta.is_file() {
        return Err(CredentialError::NotAFile(path.to_owned()));
    }
    let own = rustix::process::geteuid().as_raw();
    if meta.mode() & 0o077 != 0 || (meta.uid() != 0 && meta.uid() != own) {
        return Err(CredentialError::Open(path.to_owned()));
    }
    bounded(file, path)
}

/// systemd's folder is the unit's alone; the mode of its files is systemd's own business.
fn loaded(folder: OsString, name: &str) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
    let path = Path::new(&folder).join(name);
    match fs::File::open(&path) {
        Ok(file) => bounded(file, &path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(CredentialError::NotLoaded(name.to_owned()))
        }
        Err(source) => Err(CredentialError::File { path, source }),
    }
}

/// What a program prints within its time. It gets no environment but a search path, and no input; it and what it
/// started are ended when time is over.
fn printed(
    path: &Path,
    arguments: &[String],
    within: Duration,
) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
    let fault = |source| CredentialError::File { path: path.to_owned(), source };
    let failed = |what: String| CredentialError::Program { path: path.to_owned(), what };
    let meta = fs::metadata(path).map_err(fault)?;
    if meta.mode() & 0o022 != 0 || meta.uid() != 0 {
        return Err(CredentialError::Writable(path.to_owned()));
    }
    let mut command = Command::new(path);
    command.args(arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(fault)?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (out, read) = mpsc::channel();
    let (stdout, own) = (child.stdout.take(), path.to_owned());
    std::thread::spawn(move || {
        let value = stdout.map_or_else(|| Ok(Zeroizing::default()), |stdout| bounded(stdout, &own));
        let _ = out.send(value);
    });
    let value = read.recv_timeout(within);
    let end = || {
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    };
    let Ok(value) = value else {
        end();
        let _ = child.wait();
        return Err(failed(format!("printed no credential within {} s", within.as_secs())));
    };
    let value = value.inspect_err(|_| end())?;
    // What prints too much would wait for a reader; what closed its output may still run.
    let mut status = child.try_wait().map_err(fault)?;
    for _ in 0..200 {
        if status.is_some() || value.len() as u64 > MAX_VALUE {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        status = child.try_wait().map_err(fault)?;
    }
    end();
    let status = match status {
        Some(status) => status,
        None => child.wait().map_err(fault)?,
    };
    if !status.success() && value.len() as u64 <= MAX_VALUE {
        return Err(failed(format!("failed: {status}")));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, time::Instant};

    use super::*;

    fn file(dir: &Path, name: &str, text: &[u8], mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn of(text: &str) -> Result<String, String> {
        let value = Reference::parse(text).and_then(|reference| reference.resolve());
        value.map(|value| value.expose().to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn values_come_from_closed_files_and_nothing_else_than_one_line_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let at =
            |name: &str, text: &[u8], mode| format!("file:{}", file(dir.path(), name, text, mode).display());
        assert_eq!(of(&at("a", b"s3cret%x\n", 0o600)).unwrap(), "s3cret%x");
        assert_eq!(of(&at("b", b"s3cret\r\n", 0o400)).unwrap(), "s3cret");
        for mode in [0o640, 0o644, 0o604, 0o620] {
            assert!(of(&at("c", b"x", mode)).unwrap_err().contains("chmod 600"), "{mode:o}");
        }
        for (name, text) in [
            ("d", &b""[..]),
            ("e", b"a\nb"),
            ("f", b"a\r\nX: y\n"),
            ("g", b"a\0b"),
            ("h", b"a\x1bb"),
            ("i", b"\xff"),
            ("j", &[b'x'; 17_000]),
        ] {
            let error = of(&at(name, text, 0o600)).unwrap_err();
            assert!(error.contains("control characters"), "{name}: {error}");
        }
        let other = file(dir.path(), "k", b"x", 0o600);
        std::os::unix::fs::chown(&other, Some(4_000_123), None).expect("these tests need root");
        assert!(of(&format!("file:{}", other.display())).unwrap_err().contains("chown root"));
        assert!(of(&format!("file:{}", dir.path().display())).unwrap_err().contains("regular"));
        assert!(of("file:/nonexistent/x").unwrap_err().contains("/nonexistent/x"));
    }

    #[test]
    fn a_value_in_the_place_of_a_reference_is_refused_and_not_shown() {
        for bad in [
            "hunter2",
            "bearer:hunter2",
            "file:hunter2",
            "exec:hunter2 x",
            "env:",
            "systemd:../hunter2",
            "env:hunter2=x",
        ] {
            let error = Reference::parse(bad).unwrap_err().to_string();
            assert!(error.contains("by reference") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_program_prints_a_value_within_its_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str, mode| {
            let path = file(dir.path(), name, format!("#!/bin/sh\n{text}\n").as_bytes(), mode);
            Reference::Exec(path, vec!["one".to_owned()])
        };
        let good = script(
            "good",
            "echo \"$1 $(env | cut -d= -f1 | grep -vE '^(PATH|PWD|SHLVL|_)$' | wc -l)\"",
            0o700,
        );
        assert_eq!(good.resolve().unwrap().expose(), "one 0", "no variable comes along");
        assert!(script("bad", "echo x; exit 3", 0o700).resolve().unwrap_err().to_string().contains("failed"));
        assert!(script("open", "echo x", 0o777).resolve().unwrap_err().to_string().contains("chmod 755"));
        let begun = Instant::now();
        let endless = script("endless", "yes", 0o700).resolve().unwrap_err().to_string();
        assert!(endless.contains("longer than"), "{endless}");
        let Reference::Exec(path, _) = script("slow", "sleep 60 & wait", 0o700) else { panic!() };
        let slow = printed(&path, &[], Duration::from_millis(300)).unwrap_err().to_string();
        assert!(slow.contains("within") && begun.elapsed() < Duration::from_secs(5), "{slow}");
    }

    #[test]
    fn systemd_hands_credentials_over_in_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        file(dir.path(), "github", b"ghp_x\n", 0o440);
        let value = loaded(dir.path().as_os_str().to_owned(), "github").unwrap();
        assert_eq!(value.as_slice(), b"ghp_x\n");
        let missing = loaded(dir.path().as_os_str().to_owned(), "slack").unwrap_err().to_string();
        assert!(missing.contains("LoadCredential=slack"), "{missing}");
    }
}
