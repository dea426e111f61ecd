//! The command line's end: opens what goes into the run as the person, hands it over, and stays until the run ends.

use std::{
    fs,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    stdio::{stderr, stdin, stdout},
};
use strait_contract::{ids::RunId, seqpacket::LinkError};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{
    channel::Channel,
    protocol::{MAX_MOUNTS, MOUNTS_A_PACKET, Request, ToAgent, ToCaller, VERSION},
    stdio::{Fitness, fitness},
    terminal,
};
use crate::run::mounts::{Access, Purpose};

/// A mount that the person asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// On the host.
    pub path: PathBuf,
    /// Asked for.
    pub access: Access,
    /// What for.
    pub purpose: Purpose,
}

/// Why there is no run, or its end isn't known.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Nobody listens.
    #[error("the agent isn't running (no one answers at `{path}`): start it with `systemctl start strait` \
             or `strait-agent`", path = path.display())]
    NoAgent {
        /// Its socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The person may not talk to it.
    #[error("you may not start runs (`{path}`): ask to be put in the group `strait`", path = path.display())]
    NotAllowed {
        /// Its socket.
        path: PathBuf,
    },
    /// A mount can't be opened.
    #[error("`{path}` can't be opened", path = path.display())]
    Open {
        /// What was named.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Too many mounts.
    #[error("{0} mounts are more than a run can have ({MAX_MOUNTS}): name a folder above them")]
    TooManyMounts(usize),
    /// Stdio that can't be copied.
    #[error("{0} is a folder or something else that isn't a stream: redirect it to a file or a pipe")]
    Stdio(&'static str),
    /// `-t` without a terminal.
    #[error("-t needs a terminal on stdin and stdout: leave it out, or don't redirect them")]
    NoTerminal,
    /// The agent refused.
    #[error("{0}")]
    Refused(String),
    /// The agent said something else than it should.
    #[error("the agent speaks another protocol: are `strait` and `strait-agent` of the same version?")]
    Protocol,
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The agent went away and didn't come back; the run goes on.
    #[error(
        "the agent is gone; the run `{0}` goes on without it: see it with `strait ps` when the agent is back"
    )]
    Lost(RunId),
    /// The system refused something of our own.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
}

/// How long the command line waits for an agent that went away.
const COME_BACK: Duration = Duration::from_secs(30);

/// How long the command line waits for its turn if many others call.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(5);

/// A request and what goes with it.
#[derive(Debug)]
pub struct Launch {
    /// What is asked for.
    pub request: Request,
    /// Mounts.
    pub mounts: Vec<Wanted>,
}

/// Starts a run and stays with it; gives its exit code.
///
/// # Errors
/// [`LaunchError`].
pub async fn run(socket: &Path, launch: Launch, on_start: impl FnOnce(&RunId)) -> Result<u8, LaunchError> {
    let channel = connect(socket).await?;
    let with_terminal = launch.request.terminal.is_some();
    let streams = if with_terminal { Streams::none()? } else { Streams::of_caller()? };
    // Before the run exists: a signal that comes early is kept for it.
    let mut signals = Signals::new().map_err(|error| LaunchError::System("no signal handlers", error))?;
    let sent = send(&channel, &launch, &streams).await;
    let Streams { inside, mut copies } = streams;
    // The run has them; a copy here would keep a reader of the run's output waiting.
    drop(inside);
    // An agent that hangs up may have said why before.
    match sent {
        Err(error @ LaunchError::Link(_)) => {
            let answer = started(&channel).await;
            return Err(answer.err().filter(|told| matches!(told, LaunchError::Refused(_))).unwrap_or(error));
        }
        other => other?,
    }
    let (run, master) = started(&channel).await?;
    on_start(&run);
    let _raw = match master {
        Some(master) => Some(take_terminal(master, &mut signals, &mut copies)?),
        None => None,
    };
    let code = follow(socket, channel, &run, &mut signals).await?;
    // What the run wrote last; a terminal ends with its last process.
    for copy in copies {
        let _ = copy.join();
    }
    Ok(code)
}

async fn connect(path: &Path) -> Result<Channel, LaunchError> {
    let refused = |source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied => LaunchError::NotAllowed { path: path.to_owned() },
        _ => LaunchError::NoAgent { path: path.to_owned(), source },
    };
    let socket = open_socket().map_err(|errno| LaunchError::System("no socket", errno.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|errno| refused(errno.into()))?;
    let until = tokio::time::Instant::now() + ACCEPTED_WITHIN;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            // The queue of those who wait to be accepted is full (connect(2), for Unix sockets).
            Err(rustix::io::Errno::AGAIN) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(errno) => return Err(refused(errno.into())),
        }
    }
    Channel::new(socket).map_err(|error| LaunchError::System("no channel", error))
}

fn open_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

async fn send(channel: &Channel, launch: &Launch, streams: &Streams) -> Result<(), LaunchError> {
    if launch.mounts.len() > MAX_MOUNTS {
        return Err(LaunchError::TooManyMounts(launch.mounts.len()));
    }
    let opened = launch.mounts.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let request =
        memfd(&launch.request).map_err(|error| LaunchError::System("no memory for the request", error))?;
    let mut fds = vec![request.as_fd()];
    fds.extend(streams.inside.iter().map(AsFd::as_fd));
    channel.send(&ToAgent::Launch { version: VERSION, mounts: opened.len() }, &fds).await?;
    let mounts: Vec<_> = launch.mounts.iter().zip(&opened).collect();
    for part in mounts.chunks(MOUNTS_A_PACKET) {
        let list = part.iter().map(|(wanted, _)| (wanted.access, wanted.purpose)).collect();
        let fds: Vec<BorrowedFd<'_>> = part.iter().map(|(_, fd)| fd.as_fd()).collect();
        channel.send(&ToAgent::Mounts(list), &fds).await?;
    }
    Ok(())
}

fn open(wanted: &Wanted) -> Result<OwnedFd, LaunchError> {
    rustix::fs::open(&wanted.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| LaunchError::Open { path: wanted.path.clone(), source: errno.into() })
}

fn memfd(request: &Request) -> io::Result<OwnedFd> {
    let bytes =
        postcard::to_stdvec(request).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let fd = rustix::fs::memfd_create("strait-request", MemfdFlags::CLOEXEC)?;
    fs::File::from(fd.try_clone()?).write_all(&bytes)?;
    Ok(fd)
}

async fn started(channel: &Channel) -> Result<(RunId, Option<OwnedFd>), LaunchError> {
    let answer = match channel.receive().await {
        // The kernel tells first that the agent hung up on what it hadn't read, then what it had said (unix(7)).
        Err(LinkError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
            channel.receive().await
        }
        other => other,
    };
    let (message, fds) = answer?;
    match message {
        ToCaller::Started { run } => Ok((run, fds.into_iter().next())),
        ToCaller::Refused { message } => Err(LaunchError::Refused(message)),
        ToCaller::Ended { .. } => Err(LaunchError::Protocol),
    }
}

/// The run's stdio and the threads that copy where a descriptor itself may not go in.
#[derive(Debug)]
struct Streams {
    inside: Vec<OwnedFd>,
    copies: Vec<JoinHandle<()>>,
}

impl Streams {
    /// With a terminal the run gets its stdio from that.
    fn none() -> Result<Self, LaunchError> {
        let null = fs::File::options().read(true).write(true).open("/dev/null");
        let null = OwnedFd::from(null.map_err(|error| LaunchError::System("no /dev/null", error))?);
        let clone = || null.try_clone().map_err(|error| LaunchError::System("no /dev/null", error));
        Ok(Self { inside: vec![clone()?, clone()?, clone()?], copies: Vec::new() })
    }

    fn of_caller() -> Result<Self, LaunchError> {
        let mut streams = Self { inside: Vec::new(), copies: Vec::new() };
        streams.add("stdin", stdin(), true)?;
        streams.add("stdout", stdout(), false)?;
        streams.add("stderr", stderr(), false)?;
        Ok(streams)
    }

    fn add(&mut self, name: &'static str, fd: BorrowedFd<'_>, input: bool) -> Result<(), LaunchError> {
        let failed = |error: io::Error| LaunchError::System("no pipe for stdio", error);
        let own = fd.try_clone_to_owned().map_err(failed)?;
        match fitness(fd).map_err(|_| LaunchError::Stdio(name))? {
            Fitness::Fit => self.inside.push(own),
            Fitness::Unfit => return Err(LaunchError::Stdio(name)),
            Fitness::ByPipe => {
                let (read, write) = io::pipe().map_err(failed)?;
                let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
                if input {
                    // Not waited for: a person who doesn't type doesn't keep the command line from ending.
                    terminal::copy(own, write).map_err(failed)?;
                    self.inside.push(read);
                } else {
                    self.copies.push(terminal::copy(read, own).map_err(failed)?);
                    self.inside.push(write);
                }
            }
        }
        Ok(())
    }
}

/// Connects the person's terminal with the run's.
fn take_terminal(
    master: OwnedFd,
    signals: &mut Signals,
    copies: &mut Vec<JoinHandle<()>>,
) -> Result<terminal::Raw, LaunchError> {
    let failed = |error: io::Error| LaunchError::System("the terminal can't be used", error);
    let raw = terminal::Raw::new(stdin()).map_err(failed)?;
    terminal::copy(stdin().try_clone_to_owned().map_err(failed)?, master.try_clone().map_err(failed)?)
        .map_err(failed)?;
    let output = stdout().try_clone_to_owned().map_err(failed)?;
    copies.push(terminal::copy(master.try_clone().map_err(failed)?, output).map_err(failed)?);
    signals.terminal = Some(master);
    signals.resize();
    Ok(raw)
}

/// Passes signals on until the run has ended. If the agent goes away the run doesn't: wait for the next agent.
async fn follow(
    socket: &Path,
    mut channel: Channel,
    run: &RunId,
    signals: &mut Signals,
) -> Result<u8, LaunchError> {
    loop {
        tokio::select! {
            message = channel.receive::<ToCaller>() => match message {
                Ok((ToCaller::Ended { code }, _)) => return Ok(code),
                Ok((ToCaller::Refused { message }, _)) => return Err(LaunchError::Refused(message)),
                Ok((ToCaller::Started { .. }, _)) => {}
                Err(_) => channel = rejoin(socket, run).await?,
            },
            // A failure shows at the next receive.
            number = signals.next() => { let _ = channel.send(&ToAgent::Signal(number), &[]).await; }
        }
    }
}

async fn rejoin(socket: &Path, run: &RunId) -> Result<Channel, LaunchError> {
    let until = tokio::time::Instant::now() + COME_BACK;
    while tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let Ok(channel) = connect(socket).await else { continue };
        let rejoin = ToAgent::Rejoin { version: VERSION, run: run.clone() };
        if channel.send(&rejoin, &[]).await.is_ok() {
            return Ok(channel);
        }
    }
    Err(LaunchError::Lost(run.clone()))
}

/// Signals that belong to the run while it lasts.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    quit: Signal,
    user_one: Signal,
    user_two: Signal,
    window: Signal,
    terminal: Option<OwnedFd>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            user_one: signal(SignalKind::user_defined1())?,
            user_two: signal(SignalKind::user_defined2())?,
            window: signal(SignalKind::window_change())?,
            terminal: None,
        })
    }

    /// The next signal to pass on; a change of the window's size is dealt with on the way.
    async fn next(&mut self) -> i32 {
        loop {
            let kind = tokio::select! {
                _ = self.interrupt.recv() => SignalKind::interrupt(),
                _ = self.terminate.recv() => SignalKind::terminate(),
                _ = self.hang_up.recv() => SignalKind::hangup(),
                _ = self.quit.recv() => SignalKind::quit(),
                _ = self.user_one.recv() => SignalKind::user_defined1(),
                _ = self.user_two.recv() => SignalKind::user_defined2(),
                _ = self.window.recv() => { self.resize(); continue }
            };
            return kind.as_raw_value();
        }
    }

    fn resize(&self) {
        if let (Some(master), Some(size)) = (&self.terminal, terminal::size(stdin())) {
            // A terminal that is going away needs no size.
            let _ = terminal::resize(master, size);
        }
    }
}
