//! The gateway's listening sockets: opened by a child of the agent inside the `strait` netns and the cgroup
//! whose programs answer for accepted sockets, and handed to the gateway.
//!
//! It's the cgroup in which a listener was *made* that decides which programs see the sockets accepted from it,
//! so the child joins `.gateway` first. After a gateway's death the sockets are held a moment, so that a
//! restart loses no connection.

use std::{
    fs, io,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, socketpair,
    sockopt::set_socket_reuseaddr,
};
use serde::{Deserialize, Serialize};
use strait_contract::{
    message::{GATEWAY_PORT, LISTENERS, Listener, MAX_PACKET, TRANSPARENT_PORT},
    seqpacket::{self, LinkError},
};

use crate::{
    child::{self, Program},
    instance::Instance,
};

/// How long listeners outlive a gateway.
const HELD: Duration = Duration::from_secs(2);
/// First argument of the child.
pub const CHILD: &str = "__listen";

/// Opens and holds the listeners; clones share them.
#[derive(Clone, Debug)]
pub struct Listeners {
    program: Program,
    place: Arc<Place>,
    held: Arc<Mutex<Held>>,
    /// One opens at a time: a second would find the addresses in use.
    opening: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Held {
    sockets: Vec<Arc<OwnedFd>>,
    /// Counts uses, so that an old timer doesn't close what a new gateway was given.
    uses: u64,
}

/// Where listeners are opened, as told to the child.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Place {
    netns: PathBuf,
    cgroup: PathBuf,
    gateway: Ipv4Addr,
}

/// Why listeners could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A step of the child failed; the text names it.
    #[error("the gateway's listeners can't be opened: {0}")]
    Child(String),
    /// The child could not be started or spoken to.
    #[error("the process that opens the gateway's listeners can't be run: {0}")]
    Start(io::Error),
}

/// What the child answers; on success the sockets ride along.
#[derive(Debug, Serialize, Deserialize)]
struct Opened {
    error: Option<String>,
}

impl Listeners {
    /// Listeners of an instance; nothing is opened yet. `cgroup_root` is the cgroup v2 mount.
    pub fn new(instance: &Instance, cgroup_root: &Path, program: Program) -> Self {
        let place = Place {
            netns: instance.strait_netns(),
            cgroup: cgroup_root.join(&instance.cgroup).join(".gateway"),
            gateway: instance.gateway(),
        };
        Self { program, place: Arc::new(place), held: Arc::default(), opening: Arc::default() }
    }

    /// The listeners in the order of [`LISTENERS`]: those held from an earlier gateway, or new ones.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub async fn get(&self) -> Result<Vec<Arc<OwnedFd>>, ListenError> {
        let _turn = self.opening.lock().await;
        {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.uses += 1;
            if !held.sockets.is_empty() {
                return Ok(held.sockets.clone());
            }
        }
        let place = Arc::clone(&self.place);
        let program = self.program.clone();
        let opened = tokio::task::spawn_blocking(move || open(&program, &place)).await;
        let sockets: Vec<_> = opened
            .map_err(|error| ListenError::Start(io::Error::other(error)))??
            .into_iter()
            .map(Arc::new)
            .collect();
        self.held.lock().unwrap_or_else(PoisonError::into_inner).sockets.clone_from(&sockets);
        Ok(sockets)
    }

    /// The gateway is gone: the listeners are closed unless another asks for them in time.
    pub fn gateway_gone(&self) {
        let held = Arc::clone(&self.held);
        let uses = held.lock().unwrap_or_else(PoisonError::into_inner).uses;
        tokio::spawn(async move {
            tokio::time::sleep(HELD).await;
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            if held.uses == uses {
                held.sockets.clear();
            }
        });
    }
}

/// Runs the child and takes the sockets from it.
fn open(program: &Program, place: &Place) -> Result<Vec<OwnedFd>, ListenError> {
    let start = |error: io::Error| ListenError::Start(error);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|error| start(error.into()))?;
    let argument = serde_json::to_string(place).map_err(|error| start(error.into()))?;
    let mut child = program.command(CHILD);
    let mut running =
        child.arg(argument).stdin(Stdio::from(theirs)).stdout(Stdio::null()).spawn().map_err(start)?;
    // The command keeps its copy of the child's end, which would hide the child's death.
    drop(child);
    let _ = running.wait().map_err(start)?;
    let mut buffer = vec![0; MAX_PACKET];
    match seqpacket::receive::<Opened>(&ours, &mut buffer) {
        Ok((Opened { error: None }, sockets)) if sockets.len() == LISTENERS.len() => Ok(sockets),
        Ok((Opened { error }, _)) => {
            Err(ListenError::Child(error.unwrap_or_else(|| "sockets are missing".into())))
        }
        Err(LinkError::Io(error)) => Err(start(error)),
        Err(error) => Err(ListenError::Child(error.to_string())),
    }
}

/// The child: joins cgroup and netns, opens the sockets, sends them over standard input.
///
/// # Errors
/// The parent can't be told; what else fails is told to it.
pub fn child_main(argument: &str) -> anyhow::Result<()> {
    let place: Place = serde_json::from_str(argument)?;
    let stdin = io::stdin();
    let (error, sockets) = match enter_and_open(&place) {
        Ok(sockets) => (None, sockets),
        Err(error) => (Some(format!("{error:#}")), Vec::new()),
    };
    let fds: Vec<_> = sockets.iter().map(|socket| socket.as_fd()).collect();
    seqpacket::send(stdin.as_fd(), &seqpacket::encode(&Opened { error })?, &fds)?;
    Ok(())
}

fn enter_and_open(place: &Place) -> anyhow::Result<Vec<OwnedFd>> {
    use anyhow::Context as _;
    let procs = place.cgroup.join("cgroup.procs");
    fs::OpenOptions::new()
        .write(true)
        .open(&procs)
        .and_then(|mut file| file.write_all(b"0"))
        .with_context(|| format!("joining the cgroup `{}`", place.cgroup.display()))?;
    child::enter_netns(&place.netns)
        .with_context(|| format!("entering the netns `{}`", place.netns.display()))?;
    LISTENERS
        .iter()
        .map(|listener| {
            let (port, datagram) = port(*listener);
            let addr = SocketAddrV4::new(place.gateway, port);
            open_socket(addr, datagram)
                .with_context(|| format!("opening {} {addr}", if datagram { "UDP" } else { "TCP" }))
        })
        .collect()
}

fn port(listener: Listener) -> (u16, bool) {
    match listener {
        Listener::Transparent => (TRANSPARENT_PORT, false),
        Listener::Gateway => (GATEWAY_PORT, false),
        Listener::DnsUdp => (53, true),
        Listener::DnsTcp => (53, false),
    }
}

fn open_socket(addr: SocketAddrV4, datagram: bool) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (kind, protocol) =
        if datagram { (SocketType::DGRAM, ipproto::UDP) } else { (SocketType::STREAM, ipproto::TCP) };
    let socket = socket_with(AddressFamily::INET, kind, flags, Some(protocol))?;
    if datagram {
        // Room for a burst of lookups while the gateway is busy or restarting.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 * 1024 * 1024);
    } else {
        // A restart binds while old connections are in TIME_WAIT. For UDP it would let another socket share.
        set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &SocketAddr::V4(addr))?;
    if !datagram {
        listen(&socket, 4096)?;
    }
    Ok(socket)
}
