use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

/// A home with programs installed the way people have them.
struct Home {
    folder: tempfile::TempDir,
    root: PathBuf,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        Self { folder, root }
    }

    fn script(&self, path: &str, first_line: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("{first_line}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    fn find(&self, command: &str, path: &[&str]) -> Program {
        let mut folders: Vec<PathBuf> = path.iter().map(|folder| self.root.join(folder)).collect();
        folders.push("/usr/bin".into());
        let mut found = find(command, &std::env::join_paths(folders).unwrap(), &self.root);
        for path in found.mounts.iter_mut().chain(&mut found.path).chain(&mut found.called) {
            *path = path.strip_prefix(&self.root).unwrap_or(path).to_owned();
        }
        found
    }
}

fn program(called: Option<&str>, mounts: &[&str], path: &[&str]) -> Program {
    let list = |list: &[&str]| list.iter().map(PathBuf::from).collect();
    Program { called: called.map(PathBuf::from), mounts: list(mounts), path: list(path) }
}

#[test]
fn a_system_program_needs_nothing() {
    assert_eq!(Home::new().find("sh", &[]), Program::default());
    assert_eq!(Home::new().find("no-such-program", &[]), Program::default());
}

#[test]
fn an_npm_program_under_nvm_brings_its_node() {
    let home = Home::new();
    home.script(".nvm/versions/node/v22/lib/node_modules/@x/agent/cli.js", "#!/usr/bin/env node");
    home.script(".nvm/versions/node/v22/bin/node", "\x7fELF");
    home.link(".nvm/versions/node/v22/bin/agent", "../lib/node_modules/@x/agent/cli.js");
    let bin = ".nvm/versions/node/v22/bin";
    assert_eq!(home.find("agent", &[bin]), program(None, &[".nvm"], &[bin]));
}

/// `npm install` without `-g`: what a package needs lies beside it, and the project's own files are not shown.
#[test]
fn an_npm_program_of_a_project_brings_its_neighbours_alone() {
    let home = Home::new();
    home.script("tools/node_modules/@x/agent/bin/cli.js", "#!/usr/bin/env node");
    home.script("tools/node_modules/@x/agent/node_modules/y/index.js", "");
    home.link("tools/node_modules/.bin/agent", "../@x/agent/bin/cli.js");
    let bin = "tools/node_modules/.bin";
    assert_eq!(home.find("agent", &[bin]), program(None, &["tools/node_modules"], &[bin]));
    home.link(".local/bin/agent", "../lib/node_modules/@x/agent/bin/cli.js");
    home.script(".local/lib/node_modules/@x/agent/bin/cli.js", "#!/usr/bin/env node");
    let found = home.find("agent", &[".local/bin"]);
    assert!(found.mounts.contains(&PathBuf::from(".local/lib/node_modules")), "{found:?}");
    assert_eq!(found.called.as_deref(), Some(Path::new(".local/lib/node_modules/@x/agent/bin/cli.js")));
}

#[test]
fn a_pipx_program_brings_its_environment_and_python() {
    let home = Home::new();
    let python = home.root.join(".local/share/pipx/venvs/tool/bin/python");
    home.script(".local/share/pipx/venvs/tool/bin/tool", &format!("#!{}", python.display()));
    home.link(".local/share/pipx/venvs/tool/bin/python", "/usr/bin/python3");
    home.link(".local/bin/tool", "../share/pipx/venvs/tool/bin/tool");
    let venv = ".local/share/pipx/venvs/tool";
    let found = home.find("tool", &[".local/bin"]);
    assert_eq!(found.called.as_deref(), Some(Path::new(".local/share/pipx/venvs/tool/bin/tool")));
    assert!(found.mounts.contains(&PathBuf::from(venv)), "{found:?}");
    assert!(!found.mounts.iter().any(|mount| Path::new(".local/share").starts_with(mount)), "{found:?}");
}

#[test]
fn a_native_installation_is_called_by_what_its_link_means() {
    let home = Home::new();
    home.script(".local/share/claude/versions/2.1.197", "\x7fELF");
    let target = home.root.join(".local/share/claude/versions/2.1.197");
    home.link(".local/bin/claude", target.to_str().unwrap());
    let found = home.find("claude", &[".local/bin"]);
    assert_eq!(found.called.as_deref(), Some(Path::new(".local/share/claude/versions/2.1.197")));
    assert!(found.mounts.contains(&PathBuf::from(".local/share/claude/versions")), "{found:?}");
}

#[test]
fn a_program_in_a_shared_folder_is_mounted_alone() {
    let home = Home::new();
    home.script("bin/mine", "#!/bin/sh");
    home.script(".cargo/bin/just", "\x7fELF");
    assert_eq!(home.find("mine", &["bin"]), program(None, &["bin/mine"], &["bin"]));
    let found = home.find("just", &[".cargo/bin"]);
    assert_eq!(found.mounts, [PathBuf::from(".cargo/bin")], "not .cargo: it holds credentials");
    drop(home.folder);
}

#[test]
fn a_loop_of_scripts_ends() {
    let home = Home::new();
    home.script("tool/bin/a", "#!/usr/bin/env b");
    home.script("tool/bin/b", "#!/usr/bin/env a");
    assert_eq!(home.find("a", &["tool/bin"]).mounts, [PathBuf::from("tool")]);
}
