//! `strait run`: what a person types becomes a request; the agent does the rest.

use std::{
    env,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};

use crate::{
    instance::Instance,
    launch::{
        client::{self, Launch, LaunchError, Wanted},
        program::{self, Program},
        protocol::Request,
        terminal,
    },
    run::{
        account::Account,
        environment::PASSED,
        mounts::{Access, Purpose},
    },
};

/// Run a command that can reach only the gate
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Inside, the command sees the host's programs, its own private home (kept for the next run of \
        this agent), the workspace at its own path, and nothing else of the host's files. It has no way to the \
        network but the gate.\n\n\
        Examples:\n  \
        strait run -- claude\n  \
        strait run --workspace ~/src/app --ro ~/src/lib -- npm test\n  \
        strait run --env GIT_AUTHOR_NAME -- git commit -m done\n\n\
        Exit code: the command's own (128 + signal if one ended it), 127 if there is no such command, 126 if it \
        can't be executed, 125 if Strait itself failed."
)]
pub struct Args {
    /// Agent whose rules apply: `[agents.NAME]` of the configuration [default: the program's name if that is
    /// configured, else `default`]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Folder that the command may change, and starts in [default: the current one]
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Another folder or file to show, read-only
    #[arg(long, value_name = "PATH")]
    ro: Vec<PathBuf>,
    /// Another folder or file to show, writable
    #[arg(long, value_name = "PATH")]
    rw: Vec<PathBuf>,
    /// Variable to set inside, or to take along if no value is given
    #[arg(long = "env", short = 'e', value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Give the command a terminal [default: if stdin, stdout and stderr are one]
    #[arg(short = 't', long = "tty")]
    tty: bool,
    /// Say nothing but what the command says
    #[arg(short, long)]
    quiet: bool,
    /// Command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs it and gives its exit code.
///
/// # Errors
/// What kept it from running.
pub fn run(args: Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let quiet = args.quiet;
    let launch = launch(args)?;
    if !quiet && rustix::process::getuid().is_root() && terminal::size(std::io::stderr()).is_some() {
        eprintln!(
            "strait: you are root, so the command runs as root without any capability; a user of its own is better"
        );
    }
    let socket = instance.launch_socket();
    let code = super::block_on(client::run(&socket, launch, |_| {}))??;
    // What was copied by a thread of ours has been written; stdout itself has no buffer left.
    let _ = std::io::stdout().flush();
    Ok(ExitCode::from(code))
}

fn launch(args: Args) -> anyhow::Result<Launch> {
    let terminal = terminal_of(args.tty)?;
    let mut argv = args.command;
    let account = Account::of(rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())?;
    let search = env::var_os("PATH").unwrap_or_default();
    let program =
        argv.first().map(|command| program::find(command, &search, &account.home)).unwrap_or_default();
    if let (Some(called), Some(first)) = (&program.called, argv.first_mut()) {
        *first = text(called)?;
    }
    let workspace = match args.workspace {
        Some(workspace) => workspace,
        None => env::current_dir().context("the current folder is gone: name one with --workspace")?,
    };
    let request = Request {
        agent: args.agent,
        argv,
        env: asked(&args.env)?,
        offered_env: env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        cwd: None,
        program_path: program.path.iter().map(|path| text(path)).collect::<Result<_, _>>()?,
        terminal,
    };
    Ok(Launch { request, mounts: mounts(workspace, &args.ro, &args.rw, &program) })
}

fn mounts(workspace: PathBuf, ro: &[PathBuf], rw: &[PathBuf], program: &Program) -> Vec<Wanted> {
    let wanted = |access, purpose| move |path: &PathBuf| Wanted { path: path.clone(), access, purpose };
    let mut mounts = vec![Wanted { path: workspace, access: Access::ReadWrite, purpose: Purpose::Workspace }];
    mounts.extend(ro.iter().map(wanted(Access::ReadOnly, Purpose::Extra)));
    mounts.extend(rw.iter().map(wanted(Access::ReadWrite, Purpose::Extra)));
    // A program in the workspace is there already, and must not make a part of it read-only.
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let shown: Vec<PathBuf> = mounts.iter().map(|mount| real(&mount.path)).collect();
    let hidden =
        program.mounts.iter().filter(|path| !shown.iter().any(|shown| real(path).starts_with(shown)));
    mounts.extend(hidden.map(wanted(Access::ReadOnly, Purpose::Program)));
    mounts
}

/// A terminal of its own, if the person sits at one: never theirs.
fn terminal_of(wanted: bool) -> Result<Option<(u16, u16)>, LaunchError> {
    let input = terminal::size(std::io::stdin());
    let output = terminal::size(std::io::stdout());
    let errors = terminal::size(std::io::stderr());
    match (input, output) {
        (Some(_), Some(size)) if wanted || errors.is_some() => Ok(Some(size)),
        _ if wanted => Err(LaunchError::NoTerminal),
        _ => Ok(None),
    }
}

/// What goes along of the caller's environment: what describes the terminal, and what was named.
fn asked(named: &[String]) -> anyhow::Result<Vec<(String, String)>> {
    let here = |name: &str| env::var(name).ok().map(|value| (name.to_owned(), value));
    let mut variables: Vec<_> = PASSED.iter().filter_map(|name| here(name)).collect();
    for item in named {
        match item.split_once('=') {
            Some(("", _)) => bail!("--env `{item}` has no name: write NAME=VALUE"),
            Some((name, value)) => variables.push((name.to_owned(), value.to_owned())),
            None => match here(item) {
                Some(variable) => variables.push(variable),
                None => bail!("--env `{item}`: it is not set here (or not UTF-8): write {item}=VALUE"),
            },
        }
    }
    Ok(variables)
}

fn text(path: &Path) -> anyhow::Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("`{}` is not UTF-8", path.display()))
}
