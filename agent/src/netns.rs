//! Network namespaces: the one the gateway listens in, and one per run, joined by a veth and nothing else.
//!
//! Takes an [`Instance`] and the address of a run; gives pinned namespaces whose only exit is the gateway's
//! address. Everything that acts inside a namespace does so on a thread of its own ([`within`]), so the process
//! stays where it is.
//!
//! Architecture invariant: with every eBPF program gone a run still reaches nothing but the gateway's
//! listeners: no default route, no forwarding, no neighbour but the gateway, no IPv6.

mod link;
mod sysctl;

use std::{
    fs, io,
    net::Ipv4Addr,
    os::fd::{AsFd as _, AsRawFd as _},
    path::{Path, PathBuf},
    thread,
};

use rustix::{
    mount::{UnmountFlags, mount_bind, unmount},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use strait_contract::ids::RunId;

use crate::{gate::sys, instance::Instance};

/// Name of a run's only interface besides `lo`.
pub const RUN_INTERFACE: &str = "eth0";
/// Magic number of nsfs (`NSFS_MAGIC`, linux/magic.h).
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// What went wrong with a namespace or its plumbing; all of it is the host's doing.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// A namespace can't be opened.
    #[error("network namespace `{path}` can't be opened: {source}")]
    Open { path: PathBuf, source: io::Error },
    /// The thread can't move into a namespace.
    #[error("network namespace `{path}` can't be entered: {source}; this needs root (CAP_SYS_ADMIN)")]
    Enter { path: PathBuf, source: io::Error },
    /// A namespace can't be made or pinned.
    #[error("network namespace `{path}` can't be created: {source}; this needs root (CAP_SYS_ADMIN)")]
    Create { path: PathBuf, source: io::Error },
    /// A namespace can't be removed.
    #[error("network namespace `{path}` can't be removed: {source}")]
    Remove { path: PathBuf, source: io::Error },
    /// A file of that name exists and is no namespace.
    #[error("`{path}` exists and isn't a network namespace; remove it")]
    Foreign { path: PathBuf },
    /// A kernel setting can't be written.
    #[error("`{path}` can't be set to `{value}`: {source}")]
    Sysctl { path: PathBuf, value: &'static str, source: io::Error },
    /// A netlink request failed.
    #[error("{step} failed: {source}")]
    Netlink { step: &'static str, source: Box<rtnetlink::Error> },
    /// The veth doesn't come up.
    #[error("the veth isn't operational after {0:?}; the host is overloaded, try again")]
    Down(std::time::Duration),
    /// A thread or its socket could not be made, or the thread panicked.
    #[error("a thread inside a network namespace failed: {0}")]
    Thread(io::Error),
}

/// A run's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunNetns {
    /// Where it's pinned; what `linux.namespaces[].path` of an OCI bundle names.
    pub path: PathBuf,
    /// The kernel's cookie for it, never reused while the host is up.
    pub cookie: u64,
}

/// A run's veth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Veth {
    /// Name of its end in the `strait` namespace.
    pub name: String,
    /// Index of that end, which keys the packet filter.
    pub ifindex: u32,
    /// Address of the run.
    pub addr: Ipv4Addr,
    /// MAC of the run's end.
    pub mac: [u8; 6],
    /// MAC of the gateway's end.
    pub gateway_mac: [u8; 6],
}

/// Runs `act` on a thread inside the namespace pinned at `path`.
///
/// # Errors
/// If the namespace can't be opened or entered, or `act` panics.
pub fn within<T: Send>(path: &Path, act: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    let netns = fs::File::open(path).map_err(|source| NetnsError::Open { path: path.to_owned(), source })?;
    on_thread(|| {
        move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| NetnsError::Enter { path: path.to_owned(), source: errno.into() })?;
        Ok(act())
    })?
}

fn on_thread<T: Send>(act: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, act)
            .map_err(NetnsError::Thread)?;
        thread.join().map_err(|_| NetnsError::Thread(io::Error::other("it panicked")))
    })
}

/// Makes the `strait` namespace if it isn't there, and puts it into its one right state: the gateway's address
/// on `lo`, no forwarding, strict source checks, no IPv6.
///
/// # Errors
/// Names the step that the kernel refused.
pub fn ensure_strait(instance: &Instance) -> Result<(), NetnsError> {
    let path = instance.strait_netns();
    ensure(&path)?;
    let gateway = instance.gateway();
    within(&path, move || {
        sysctl::closed()?;
        link::block_on(link::serve(gateway))
    })?
}

/// Removes the `strait` namespace; veths of runs go with it.
///
/// # Errors
/// If it's there and can't be removed.
pub fn remove_strait(instance: &Instance) -> Result<(), NetnsError> {
    remove(&instance.strait_netns())
}

/// Makes a run's namespace, closed: only `lo`, no IPv6, no MPTCP, no ping sockets.
///
/// # Errors
/// If it can't be made, or if one of that name is in use.
pub fn create_run(instance: &Instance, run: &RunId) -> Result<RunNetns, NetnsError> {
    let path = instance.run_netns(run.as_str());
    ensure(&path)?;
    let cookie = within(&path, || {
        sysctl::closed()?;
        sysctl::run()?;
        link::block_on(link::loopback_up())?;
        sys::netns_cookie().map_err(NetnsError::Thread)
    })??;
    Ok(RunNetns { path, cookie })
}

/// Removes a run's namespace. Remove its veth first ([`unplumb`]): the kernel takes its time with the rest.
///
/// # Errors
/// If it's there and can't be removed.
pub fn remove_run(instance: &Instance, run: &RunId) -> Result<(), NetnsError> {
    remove(&instance.run_netns(run.as_str()))
}

/// The cookie of the namespace pinned at `path`.
///
/// # Errors
/// If it can't be entered.
pub fn cookie(path: &Path) -> Result<u64, NetnsError> {
    within(path, sys::netns_cookie)?.map_err(NetnsError::Thread)
}

/// Lays a veth between the `strait` namespace and a run's. Both ends stay down: raise them ([`raise`]) once the
/// packet filter is attached. `index` is unique among the instance's live runs and names the veth `st<index>`.
///
/// # Errors
/// Names the netlink request that failed.
pub fn plumb(instance: &Instance, run: &RunNetns, addr: Ipv4Addr, index: u32) -> Result<Veth, NetnsError> {
    let netns =
        fs::File::open(&run.path).map_err(|source| NetnsError::Open { path: run.path.clone(), source })?;
    let [a, b, c, d] = addr.octets();
    let mut veth = Veth {
        name: format!("st{index}"),
        ifindex: 0,
        addr,
        mac: [0x02, 0x53, a, b, c, d],
        gateway_mac: [0x02, 0x47, a, b, c, d],
    };
    within(&instance.strait_netns(), || {
        veth.ifindex = link::block_on(link::lay(&veth, netns.as_raw_fd()))?;
        Ok(veth)
    })?
}

/// Takes both ends of a veth up and sets the two routes. Packets pass when this returns.
///
/// # Errors
/// Names the netlink request that failed.
pub fn raise(instance: &Instance, run: &RunNetns, veth: &Veth) -> Result<(), NetnsError> {
    let gateway = instance.gateway();
    within(&run.path, || link::block_on(link::open_run(veth)))??;
    within(&instance.strait_netns(), || link::block_on(link::open_gateway(veth)))??;
    within(&run.path, || link::block_on(link::route_run(veth, gateway)))?
}

/// Deletes a veth, both ends at once. No error if it's gone already.
///
/// # Errors
/// Names the netlink request that failed.
pub fn unplumb(instance: &Instance, index: u32) -> Result<(), NetnsError> {
    within(&instance.strait_netns(), move || link::block_on(link::delete(&format!("st{index}"))))?
}

/// A packet filter that's attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Id of its program.
    pub(crate) program: u32,
    /// Its priority: the lowest is asked first, and decides.
    pub(crate) priority: u16,
}

/// The packet filter on a veth, if there's one.
///
/// # Errors
/// If the `strait` namespace can't be entered or netlink fails.
pub(crate) fn filter(instance: &Instance, ifindex: u32) -> Result<Option<Filter>, NetnsError> {
    within(&instance.strait_netns(), move || link::block_on(link::filter_at(ifindex)))?
}

/// Whether packets could be forwarded in the `strait` namespace: the devices or the namespace for which
/// forwarding is on, none if all is well.
///
/// # Errors
/// If the namespace can't be entered.
pub fn forwarding(instance: &Instance) -> Result<Vec<String>, NetnsError> {
    within(&instance.strait_netns(), sysctl::forwarding)
}

fn ensure(path: &Path) -> Result<(), NetnsError> {
    let failed = |source: io::Error| NetnsError::Create { path: path.to_owned(), source };
    if path.exists() {
        if is_namespace(path).map_err(failed)? {
            return Ok(());
        }
        // A mount point that a crash left bare is an empty file; anything else isn't ours.
        if fs::metadata(path).map_err(failed)?.len() != 0 {
            return Err(NetnsError::Foreign { path: path.to_owned() });
        }
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::File::create(path).map_err(failed)?;
    on_thread(|| {
        sys::unshare(UnshareFlags::NEWNET).map_err(failed)?;
        mount_bind("/proc/thread-self/ns/net", path).map_err(|errno| failed(errno.into()))
    })?
}

fn is_namespace(path: &Path) -> io::Result<bool> {
    let kind = rustix::fs::statfs(path)?.f_type;
    Ok(u64::try_from(kind).is_ok_and(|kind| kind == NSFS_MAGIC))
}

fn remove(path: &Path) -> Result<(), NetnsError> {
    let failed = |source: io::Error| NetnsError::Remove { path: path.to_owned(), source };
    if !path.exists() {
        return Ok(());
    }
    if is_namespace(path).map_err(failed)? {
        unmount(path, UnmountFlags::DETACH).map_err(|errno| failed(errno.into()))?;
    }
    fs::remove_file(path).map_err(failed)
}
