//! Finds what a command is made of, so that `strait run -- claude` finds its program: npm, nvm, pyenv and pipx install
//! below the home, which a run doesn't see.
//!
//! Runs in the command line, as the person. Takes a command name; gives folders to mount read-only and the search
//! path inside. What a run already sees (`/usr`) needs neither.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    path::{Component, Path, PathBuf},
};

use rustix::fs::{Access, access};

/// What a command needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// What to call it by inside, if not by the name that was given.
    pub called: Option<PathBuf>,
    /// Folders (or single files) to mount read-only.
    pub mounts: Vec<PathBuf>,
    /// Folders to search before the system's.
    pub path: Vec<PathBuf>,
}

/// Seen by every run.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib64", "/tools"];

/// Folders of version managers, mounted whole: what is in one refers to the rest of it. `.cargo` is not among them,
/// because it holds credentials beside `bin`.
const MANAGERS: &[&str] = &[
    ".asdf",
    ".bun",
    ".deno",
    ".fnm",
    ".nodenv",
    ".npm-global",
    ".nvm",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".rye",
    ".sdkman",
    ".volta",
    "miniconda3",
    "miniforge3",
    "anaconda3",
];
/// Longest chain of scripts and interpreters.
const DEPTH: usize = 6;
/// Longest first line of a script that is read.
const FIRST_LINE: usize = 512;

/// Looks a command up as a shell would and follows its links and interpreters. A command that isn't found needs
/// nothing: the run's init then answers 127.
pub fn find(command: &str, search: &OsStr, home: &Path) -> Program {
    let mut found = Search { search, home, program: Program::default() };
    if let Some(path) = found.command(command, 0) {
        let by_name = !command.contains('/');
        let link_is_seen = found.is_seen(&path);
        if by_name && !link_is_seen {
            found.program.called = fs::canonicalize(&path).ok();
        }
    }
    found.finish()
}

struct Search<'a> {
    search: &'a OsStr,
    home: &'a Path,
    program: Program,
}

impl Search<'_> {
    fn command(&mut self, command: &str, depth: usize) -> Option<PathBuf> {
        let path = if command.contains('/') {
            std::path::absolute(command).ok().filter(|path| is_program(path))?
        } else {
            let folders = std::env::split_paths(self.search).filter(|folder| folder.is_absolute());
            folders.map(|folder| folder.join(command)).find(|path| is_program(path))?
        };
        // The mount shows the folder under its real name.
        let folder = fs::canonicalize(path.parent()?).ok()?;
        let path = folder.join(path.file_name()?);
        self.add(&path, depth);
        if !command.contains('/') && !is_system(&folder) && self.is_seen(&path) {
            self.program.path.push(folder);
        }
        Some(path)
    }

    /// Adds what holds `path`, what it links to, and what interprets it.
    fn add(&mut self, path: &Path, depth: usize) {
        if depth > DEPTH {
            return;
        }
        if !is_system(path) {
            self.program.mounts.push(holder(path, self.home));
        }
        if let Ok(target) = fs::read_link(path) {
            let target = path.parent().unwrap_or_else(|| Path::new("/")).join(target);
            return self.add(&lexical(&target), depth + 1);
        }
        match interpreter(path) {
            Some(Interpreter::Path(interpreter)) => self.add(&interpreter, depth + 1),
            Some(Interpreter::Name(name)) => {
                self.command(&name, depth + 1);
            }
            None => {}
        }
    }

    fn is_seen(&self, path: &Path) -> bool {
        let real = |mount: &PathBuf| fs::symlink_metadata(mount).is_ok_and(|meta| !meta.is_symlink());
        is_system(path) || self.program.mounts.iter().any(|mount| path.starts_with(mount) && real(mount))
    }

    /// Without what another mount already holds.
    fn finish(self) -> Program {
        let mut program = self.program;
        program.mounts.sort();
        program.mounts.dedup_by(|inner, outer| inner.starts_with(&*outer));
        let mut seen = Vec::new();
        program.path.retain(|folder| {
            let new = !seen.contains(folder);
            seen.push(folder.clone());
            new
        });
        program
    }
}

/// The folder to mount for a program at `path`: its installation if that can be told, else its folder, else, where
/// that would show more than the program (a home, `~/.local/bin`), the file alone.
fn holder(path: &Path, home: &Path) -> PathBuf {
    let components: Vec<Component<'_>> = path.components().collect();
    let name = |component: &Component<'_>| component.as_os_str().to_str().unwrap_or_default().to_owned();
    if let Some(at) = components.iter().position(|component| MANAGERS.contains(&name(component).as_str())) {
        return components.iter().take(at + 1).collect();
    }
    if let Some(at) = components.iter().position(|component| name(component) == "node_modules") {
        let above: PathBuf = components.iter().take(at).collect();
        let prefix = above.parent().filter(|_| above.file_name().is_some_and(|name| name == "lib"));
        if let Some(prefix) = prefix.filter(|prefix| !is_broad(prefix, home)) {
            return prefix.to_owned();
        }
        // `~/.local/lib/node_modules`, or that of a project (`npm install`, `npx`): packages need their neighbours, and
        // nothing else of the folder that they are in.
        return components.iter().take(at + 1).collect();
    }
    let Some(folder) = path.parent() else { return path.to_owned() };
    if folder.file_name().is_some_and(|name| name == "bin")
        && let Some(prefix) = folder.parent().filter(|prefix| !is_broad(prefix, home))
    {
        return prefix.to_owned();
    }
    if is_broad(folder, home) { path.to_owned() } else { folder.to_owned() }
}

/// Whether a folder holds much more than one program: a home or above, and the shared folders below.
fn is_broad(folder: &Path, home: &Path) -> bool {
    const BELOW_HOME: &[&str] = &[".cargo", ".config", ".local", ".local/share", ".local/bin", "bin"];
    const SYSTEM_WIDE: &[&str] =
        &["/opt", "/srv", "/mnt", "/media", "/tmp", "/var", "/var/tmp", "/var/lib", "/etc", "/run"];
    home.starts_with(folder)
        || BELOW_HOME.iter().any(|below| folder == home.join(below))
        || SYSTEM_WIDE.iter().any(|wide| folder == Path::new(wide))
}

fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|system| path.starts_with(system))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

/// Removes `.` and `..` by their letters: links were made relative to the folder they are in.
fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

enum Interpreter {
    Path(PathBuf),
    Name(String),
}

/// The interpreter that a script's first line names.
fn interpreter(path: &Path) -> Option<Interpreter> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(u64::try_from(FIRST_LINE).ok()?).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if first.ends_with("/env") {
        let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
        return Some(Interpreter::Name(name.to_owned()));
    }
    Some(Interpreter::Path(PathBuf::from(first)))
}

#[cfg(test)]
mod tests;
