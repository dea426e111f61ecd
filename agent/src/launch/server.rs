//! The agent's end: reads a request, checks what came with it, and stays until the run ends.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
    os::unix::fs::{FileExt, PermissionsExt, chown},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::Signal,
};
use strait_contract::{
    ids::{BadName, RunId},
    seqpacket::LinkError,
};
use tokio::{task::spawn_blocking, time::timeout};

use super::{
    callers::Callers,
    channel::Channel,
    protocol::{MAX_MOUNTS, MAX_REQUEST, Request, ToAgent, ToCaller, VERSION},
    stdio::{Fitness, fitness},
};
use crate::run::{
    Run, Runs,
    account::{Account, AccountError},
    mounts::Offered,
    order::{Order, StartError, Started},
};

/// Group whose members may start runs.
pub const GROUP: &str = "strait";
/// How long a caller may take to say what it wants.
const ASK_WITHIN: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted; the kernel's `net.core.somaxconn` bounds it too.
const BACKLOG: i32 = 4096;
/// Connections that one user may have: as many as runs that are being started or going on.
const MOST_PER_USER: usize = 256;
/// Signals that a caller may pass on: those a terminal or a service manager sends.
const SIGNALS: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// Why a request was refused; the text goes to the person.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("`strait` and `strait-agent` are of different versions: install both anew, or restart the agent")]
    Version,
    #[error("the request is not acceptable: {0}")]
    Malformed(&'static str),
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error(transparent)]
    Agent(#[from] BadName),
    #[error("{0} can't go into a run: a socket, terminal, device or folder from outside would be a way out")]
    Stdio(&'static str),
    #[error("no run `{0}` of yours is alive")]
    NoRun(RunId),
    #[error("the request could not be read")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Listens on `launch.sock`: 0660, group `strait` if the host has it, else root's.
///
/// # Errors
/// If the socket can't be made.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    open_to_group(path)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// 0660 and the group [`GROUP`], if the host has it.
///
/// # Errors
/// If the file's owner or mode can't be set.
pub fn open_to_group(path: &Path) -> io::Result<()> {
    let group = nix::unistd::Group::from_name(GROUP).ok().flatten();
    chown(path, Some(0), Some(group.map_or(0, |group| group.gid.as_raw())))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
}

/// Serves callers until the task is dropped.
///
/// # Errors
/// If the listener can't be watched.
pub async fn serve(listener: OwnedFd, runs: Arc<Runs>) -> io::Result<()> {
    let listener = crate::readiness::watch(listener)?;
    let callers = Callers::new(MOST_PER_USER);
    loop {
        let mut ready = listener.readable().await?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&listener, flags) {
            Ok(socket) => match Channel::new(socket) {
                Ok(channel) => match callers.admit(channel.socket()) {
                    Ok(place) => {
                        let runs = Arc::clone(&runs);
                        tokio::spawn(async move {
                            attend(channel, runs).await;
                            drop(place);
                        });
                    }
                    // There is room in a fresh socket: this doesn't wait.
                    Err(why) => channel.tell(&ToCaller::Refused { message: why.to_string() }),
                },
                Err(error) => tracing::warn!(%error, "a caller can't be served"),
            },
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(errno) => {
                // Out of descriptors, say: callers wait in the backlog meanwhile.
                tracing::warn!(error = %errno, "a caller could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn attend(channel: Channel, runs: Arc<Runs>) {
    match open(&channel, &runs).await {
        Ok(run) => stay(&channel, &runs, &run).await,
        Err(refusal) => {
            let message = chain(&refusal);
            // The caller may be gone already.
            let _ = channel.send(&ToCaller::Refused { message }, &[]).await;
        }
    }
}

/// An error with its causes, for a person.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// Takes the first packets: a new run or an old one.
async fn open(channel: &Channel, runs: &Arc<Runs>) -> Result<Arc<Run>, Refusal> {
    let account = Account::of_peer(channel.socket())?;
    let asked =
        timeout(ASK_WITHIN, ask(channel)).await.map_err(|_| Refusal::Malformed("it took too long"))??;
    match asked {
        Asked::Rejoin(id) => {
            let run = runs.get(&id).filter(|run| run.belongs_to(&account)).ok_or(Refusal::NoRun(id))?;
            channel.send(&ToCaller::Started { run: run.id().clone() }, &[]).await?;
            Ok(run)
        }
        Asked::Launch { request, stdio, mounts } => {
            // Looking at a file that the caller serves (FUSE) takes as long as the caller likes.
            let looked_at = spawn_blocking(move || order(account, request, stdio, mounts)).await;
            let (order, stdio) = looked_at.map_err(io::Error::from)??;
            let Started { run, master } = runs.start(order, stdio).await?;
            let fds: Vec<_> = master.iter().map(AsFd::as_fd).collect();
            // A caller that is gone already is dealt with as any that goes.
            let _ = channel.send(&ToCaller::Started { run: run.id().clone() }, &fds).await;
            Ok(run)
        }
    }
}

enum Asked {
    Launch { request: Request, stdio: Vec<OwnedFd>, mounts: Vec<Offered> },
    Rejoin(RunId),
}

async fn ask(channel: &Channel) -> Result<Asked, Refusal> {
    let (first, mut fds): (ToAgent, _) = channel.receive().await?;
    let count = match first {
        ToAgent::Rejoin { version: VERSION, run } => return Ok(Asked::Rejoin(run)),
        ToAgent::Launch { version: VERSION, mounts } => mounts,
        ToAgent::Launch { .. } | ToAgent::Rejoin { .. } => return Err(Refusal::Version),
        ToAgent::Mounts(_) | ToAgent::Signal(_) => return Err(Refusal::Malformed("no launch comes first")),
    };
    if fds.len() != 4 || count > MAX_MOUNTS {
        return Err(Refusal::Malformed("it has not the descriptors it should have"));
    }
    let stdio = fds.split_off(1);
    let request = fds.pop().ok_or(Refusal::Malformed("it has no text"))?;
    let request = read(request)?;
    let mut mounts = Vec::new();
    while mounts.len() < count {
        let (ToAgent::Mounts(list), fds) = channel.receive().await? else {
            return Err(Refusal::Malformed("mounts are missing"));
        };
        if list.is_empty() || list.len() != fds.len() {
            return Err(Refusal::Malformed("a mount has no descriptor"));
        }
        let offers = list.into_iter().zip(fds);
        mounts.extend(offers.map(|((access, purpose), source)| Offered { source, access, purpose }));
    }
    Ok(Asked::Launch { request, stdio, mounts })
}

/// Reads the request from its memfd, at most [`MAX_REQUEST`] bytes. Read, not mapped: the sender could shrink it.
fn read(memfd: OwnedFd) -> Result<Request, Refusal> {
    // Asked first, since only memory has an answer: a file of the caller's own file system (FUSE) would keep whoever
    // looks at it waiting for ever.
    if rustix::fs::fcntl_get_seals(&memfd).is_err() {
        return Err(Refusal::Malformed("its text is not in memory"));
    }
    let file = File::from(memfd);
    let mut bytes = Vec::new();
    let mut source = At { file: &file, offset: 0 };
    (&mut source).take(MAX_REQUEST + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_REQUEST {
        return Err(Refusal::Malformed("the command line is too long"));
    }
    postcard::from_bytes(&bytes).map_err(|_| Refusal::Malformed("its text can't be read"))
}

/// Reads from the beginning whatever the shared offset is.
struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += u64::try_from(count).unwrap_or(0);
        Ok(count)
    }
}

fn order(
    account: Account,
    request: Request,
    stdio: Vec<OwnedFd>,
    mounts: Vec<Offered>,
) -> Result<(Order, [OwnedFd; 3]), Refusal> {
    let stdio: [OwnedFd; 3] = stdio.try_into().map_err(|_| Refusal::Malformed("it needs three streams"))?;
    for (fd, name) in stdio.iter().zip(["stdin", "stdout", "stderr"]) {
        match fitness(fd) {
            Ok(Fitness::Fit) => {}
            _ => return Err(Refusal::Stdio(name)),
        }
    }
    if request.argv.first().is_none_or(String::is_empty) {
        return Err(Refusal::Malformed("it names no command"));
    }
    let nul = |text: &String| text.contains('\0');
    if request.argv.iter().any(nul) || request.env.iter().any(|(name, value)| nul(name) || nul(value)) {
        return Err(Refusal::Malformed("a NUL is in it"));
    }
    if request.env.iter().any(|(name, _)| name.is_empty() || name.contains('=')) {
        return Err(Refusal::Malformed("a variable has no name"));
    }
    let program_path: Vec<PathBuf> = request.program_path.iter().map(PathBuf::from).collect();
    if program_path.iter().any(|path| !is_plain(path) || path.to_string_lossy().contains(':')) {
        return Err(Refusal::Malformed("a search path is not absolute"));
    }
    let cwd = request.cwd.map(PathBuf::from);
    if cwd.as_deref().is_some_and(|path| !is_plain(path)) {
        return Err(Refusal::Malformed("the current folder is not absolute"));
    }
    let order = Order {
        agent: request.agent.map(|agent| agent.parse()).transpose()?,
        account,
        argv: request.argv,
        env: request.env,
        offered_env: request.offered_env,
        cwd,
        program_path,
        terminal: request.terminal,
        mounts,
    };
    Ok((order, stdio))
}

/// Absolute and without `..`.
fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

/// Passes signals on until the run ends. A caller that goes away without a word takes the run with it: nobody is left
/// to see what it says.
async fn stay(channel: &Channel, runs: &Arc<Runs>, run: &Arc<Run>) {
    loop {
        tokio::select! {
            ended = run.wait() => {
                let _ = channel.send(&ToCaller::Ended { code: ended.code() }, &[]).await;
                return;
            }
            message = channel.receive::<ToAgent>() => match message {
                Ok((ToAgent::Signal(number), _)) => pass_on(runs, run, number),
                // Said twice, or out of turn: no harm.
                Ok(_) => {}
                Err(_) => {
                    let by = run.live().user.clone();
                    if let Err(error) = runs.stop(run, &by, crate::run::end::GRACE).await {
                        tracing::warn!(run = %run.id(), %error, "a run whose caller went away could not be stopped");
                    }
                    return;
                }
            }
        }
    }
}

fn pass_on(runs: &Runs, run: &Run, number: i32) {
    let Some(signal) = Signal::from_named_raw(number).filter(|signal| SIGNALS.contains(signal)) else {
        return;
    };
    if let Err(error) = runs.signal(run, signal) {
        tracing::warn!(run = %run.id(), %error, "a signal could not be passed on");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file that its owner serves could keep its reader waiting for ever: `/proc` stands in for it.
    #[test]
    fn a_request_is_read_from_memory_alone() {
        let memory = || rustix::fs::memfd_create("request", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let not_in_memory = |read: Result<Request, Refusal>| {
            matches!(read, Err(Refusal::Malformed("its text is not in memory")))
        };
        for other in ["/proc/self/status", "/dev/zero", "/"] {
            assert!(not_in_memory(read(File::open(other).unwrap().into())), "{other}");
        }
        assert!(not_in_memory(read(io::pipe().unwrap().0.into())));
        let mut file = File::from(memory());
        file.write_all(&[0xff; 16]).unwrap();
        let read = read(file.into());
        assert!(matches!(read, Err(Refusal::Malformed("its text can't be read"))), "{read:?}");
    }
}
