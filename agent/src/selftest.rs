//! Proof that a run is held, before its workload starts: from inside its namespace and cgroup a canary connect
//! must be refused **and** its event must arrive with the run's number.
#![expect(unsafe_code, reason = "std's pre_exec, to act as a process of the run")]

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::{fd::AsFd as _, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use strait_contract::ids::RunId;

use crate::{
    firewall::Witness,
    gate::{Gate, GateError, remove_cgroup},
};

/// Where no run may go: TEST-NET-1 (RFC 5737).
pub const CANARY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 443);
/// How long an event may take to arrive.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a connection to the gateway may take.
const DIAL: Duration = Duration::from_secs(1);

/// Why a run isn't proven to be held.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The child could not take the run's place.
    #[error("a probe can't enter cgroup `{cgroup}` and the run's namespace: {source}")]
    Enter { cgroup: PathBuf, source: io::Error },
    /// The canary wasn't refused, or not by us.
    #[error(
        "a connection to {CANARY} from inside the run ended with `{got}` instead of a refusal by the kernel programs"
    )]
    NotRefused { got: String },
    /// It was refused, but nobody was told.
    #[error(
        "the refusal of {CANARY} was not told within {PATIENCE:?}: the ring of events isn't read or isn't ours"
    )]
    Untold,
    /// The gateway doesn't answer.
    #[error("the gateway at {gateway} can't be reached from inside the run: {source}")]
    Gateway { gateway: SocketAddrV4, source: io::Error },
    /// Links are missing, or the run isn't known.
    #[error("the run's enforcement isn't whole: {0}")]
    Missing(String),
    /// The gate.
    #[error(transparent)]
    Gate(#[from] GateError),
}

/// Proves that a run is held. `gateway` is dialled too, if its listeners are up.
///
/// # Errors
/// Names what isn't as it must be; the run must not start then.
pub async fn prove(
    gate: &Gate,
    witness: &Witness,
    run: &RunId,
    gateway: Option<SocketAddrV4>,
) -> Result<(), SelfTestError> {
    let missing = gate.verify(run)?;
    if !missing.is_empty() {
        return Err(SelfTestError::Missing(missing.join(", ")));
    }
    let place = gate.place_of(run)?;
    let told = witness.expect(place.number, SocketAddr::V4(CANARY)).await;
    let probe = {
        let place = place.clone();
        move || place.dial(CANARY)
    };
    match blocking(probe).await? {
        Err(Errno::PERM) => {}
        other => return Err(SelfTestError::NotRefused { got: describe(other) }),
    }
    match tokio::time::timeout(PATIENCE, told).await {
        Ok(Ok(_)) => {}
        _ => return Err(SelfTestError::Untold),
    }
    let Some(gateway) = gateway else { return Ok(()) };
    blocking(move || place.dial(gateway))
        .await?
        .map_err(|errno| SelfTestError::Gateway { gateway, source: errno.into() })
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, SelfTestError> + Send + 'static,
) -> Result<T, SelfTestError> {
    let joined = tokio::task::spawn_blocking(act).await;
    joined.map_err(|error| SelfTestError::Missing(format!("the probe ended early: {error}")))?
}

fn describe(result: Result<(), Errno>) -> String {
    match result {
        Ok(()) => "success".to_owned(),
        Err(errno) => io::Error::from(errno).to_string(),
    }
}

/// Where a process of a run lives.
#[derive(Clone, Debug)]
pub struct Place {
    /// Kernel number of the run.
    pub number: u64,
    /// Its cgroup.
    pub cgroup: PathBuf,
    /// Its namespace.
    pub netns: PathBuf,
}

/// Added to the error number of a step before the dialling itself, so that the two can't be confused.
const ENTERING: i32 = 1000;

impl Place {
    /// Dials `to` by TCP as a process of the run: `Ok(Ok)` if it connected, `Ok(Err)` with what `connect(2)` said.
    ///
    /// # Errors
    /// If a process can't be put there.
    pub fn dial(&self, to: SocketAddrV4) -> Result<Result<(), Errno>, SelfTestError> {
        // A cgroup of its own: one with children may not hold processes (cgroup v2, "no internal processes").
        let cgroup = self.cgroup.join(".probe");
        let failed = |source| SelfTestError::Enter { cgroup: cgroup.clone(), source };
        std::fs::create_dir_all(&cgroup).map_err(failed)?;
        let outcome = self.spawn(&cgroup, to).map_err(failed);
        remove_cgroup(&cgroup);
        outcome
    }

    fn spawn(&self, cgroup: &Path, to: SocketAddrV4) -> io::Result<Result<(), Errno>> {
        let procs = File::options().write(true).open(cgroup.join("cgroup.procs"))?;
        let netns = File::open(&self.netns)?;
        let mut child = Command::new("/proc/self/exe");
        let act = move || -> io::Result<()> {
            let entered = rustix::io::write(&procs, b"0")
                .and_then(|_| move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)));
            if let Err(errno) = entered {
                return Err(io::Error::from_raw_os_error(errno.raw_os_error() + ENTERING));
            }
            // Always an error, so that nothing is executed: the parent reads its number.
            Err(io::Error::from_raw_os_error(dial(to).map_or_else(Errno::raw_os_error, |()| 0)))
        };
        // SAFETY: between fork and exec the closure makes system calls only; it allocates nothing and takes no
        // lock.
        unsafe { child.pre_exec(act) };
        match child.spawn() {
            Ok(_) => Err(io::Error::other("the probe ran on")),
            Err(error) => match error.raw_os_error() {
                Some(0) => Ok(Ok(())),
                Some(code) if code >= ENTERING => Err(io::Error::from_raw_os_error(code - ENTERING)),
                Some(code) => Ok(Err(Errno::from_raw_os_error(code))),
                None => Err(error),
            },
        }
    }
}

/// One TCP connection attempt, without allocation.
fn dial(to: SocketAddrV4) -> Result<(), Errno> {
    let tcp = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Bounds connect(2) too (socket(7)).
    sockopt::set_socket_timeout(&tcp, sockopt::Timeout::Send, Some(DIAL))?;
    connect(&tcp, &to)
}
