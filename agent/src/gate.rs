//! The kernel gate: programs loaded once, a link per hook and run, and the tables that say what a run may do.
//!
//! Takes runs ([`Gate::admit`]) with their namespace, veth and cgroup; from then on the kernel refuses, redirects
//! and tells. Everything is pinned, so enforcement outlives the agent; a restarted agent opens the gate again
//! and admits its runs again, which verifies each link and renews what is missing.
//!
//! Architecture invariant: nothing here decides on content. A run that isn't in the tables is denied.

pub mod cgroup;
pub mod hook;
mod links;
pub mod object;
pub(crate) mod sys;
pub(crate) mod tables;

use std::{
    collections::HashMap,
    fs, io,
    net::Ipv4Addr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use strait_abi::map::{Account, FlowKey, KILLED, MAX_RUNS, OPAQUE, RANGED, State};
use strait_contract::{ids::RunId, run::Range};

use self::{
    object::{Origin, Programs},
    tables::{Tables, network_order},
};
use crate::{
    instance::Instance,
    netns::{self, NetnsError, Veth},
    selftest::Place,
};

/// Folder of the cgroup in which the listeners are made, below [`Instance::cgroup`]. No run is called this: a
/// [`RunId`] starts with a letter.
pub const LISTENERS: &str = ".gateway";

/// How long a SYN may take from the run to the `strait` namespace: a veth hands it over at once, but a CPU may be busy.
const SYN_ARRIVES: Duration = Duration::from_millis(200);

/// What went wrong at the gate; all of it is the host's doing or the installation's.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The object file isn't there.
    #[error("the kernel programs can't be read from `{path}`: {source}; build them with `cargo xtask build`")]
    Object { path: PathBuf, source: io::Error },
    /// The object file lacks a program or map.
    #[error("`{path}` has no `{program}`; build it again with `cargo xtask build`")]
    Incomplete { program: &'static str, path: PathBuf },
    /// bpffs can't be used.
    #[error("`{path}` on bpffs: {source}; this needs root (CAP_BPF, CAP_SYS_ADMIN)")]
    Bpffs { path: PathBuf, source: io::Error },
    /// The kernel refused a program.
    #[error("the kernel refuses `{program}`: {source}")]
    Load { program: &'static str, source: Box<aya::EbpfError> },
    /// A program or map can't be pinned.
    #[error("`{object}` can't be pinned: {source}")]
    Pin { object: &'static str, source: Box<aya::pin::PinError> },
    /// A map can't be read or written.
    #[error("map `{map}`: {source}")]
    Map { map: &'static str, source: Box<aya::maps::MapError> },
    /// A program can't be attached.
    #[error("`{hook}` can't be attached to cgroup `{cgroup}`: {source}")]
    Attach { hook: &'static str, cgroup: PathBuf, source: io::Error },
    /// The packet filter can't be attached.
    #[error("the packet filter can't be attached to `{veth}`: {source}")]
    Filter { veth: String, source: Box<aya::programs::ProgramError> },
    /// The namespaces.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// cgroup v2 isn't mounted.
    #[error("cgroup v2 isn't mounted; mount it with `mount -t cgroup2 none /sys/fs/cgroup/unified`")]
    NoCgroup,
    /// A cgroup can't be made or removed.
    #[error("cgroup `{path}`: {source}")]
    Cgroup { path: PathBuf, source: io::Error },
    /// The host can't tell something.
    #[error("the host doesn't tell {what}: {source}")]
    Host { what: &'static str, source: io::Error },
    /// No gate is loaded, or one of another object.
    #[error("no gate of this version is loaded under `{path}`; start the agent")]
    NotLoaded { path: PathBuf },
    /// Every place in the tables is taken.
    #[error("{MAX_RUNS} runs are at the gate, which is all it holds; end some")]
    Full,
    /// The run isn't known here.
    #[error("run `{0}` isn't admitted at the gate")]
    Unknown(RunId),
}

/// A run on its way through the gate.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Name of the run.
    pub run: RunId,
    /// Number the kernel uses for it: never 0, never used before on this host since boot.
    pub number: u64,
    /// Cookie of its network namespace.
    pub netns_cookie: u64,
    /// Its veth, still down, which has its address too.
    pub veth: Veth,
    /// Address ranges that it may name literally.
    pub ranges: Vec<Range>,
    /// Its cgroup (v2), usually [`Gate::cgroup_of`]; made if it isn't there.
    pub cgroup: PathBuf,
    /// Whether TCP to synthetic addresses and ranges is redirected to the gateway. If not, it's refused.
    pub transparent: bool,
    /// Quotas.
    pub quota: Quota,
}

/// What one run may use of the shared tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Flows, and sockets with an original destination.
    pub flows: u32,
    /// Keys of folded events at a time.
    pub folds: u32,
    /// Events a second.
    pub rate: u32,
    /// Events at once.
    pub burst: u32,
}

impl Default for Quota {
    fn default() -> Self {
        Self { flows: 2048, folds: 1024, rate: 2000, burst: 4000 }
    }
}

/// Accounts of a run, exact once it's quiet: `delivered + folded + lost == total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Verdicts that are events.
    pub total: u64,
    /// Of those, put into the ring.
    pub delivered: u64,
    /// Of those, counted as repeats.
    pub folded: u64,
    /// Of those, without room anywhere.
    pub lost: u64,
    /// Sockets with an original destination now.
    pub origins: u64,
    /// Flows now.
    pub flows: u64,
}

/// The gate of an instance. Shared by reference; its methods are quick system calls and block.
#[derive(Debug)]
pub struct Gate {
    instance: Instance,
    root: PathBuf,
    origin: Origin,
    programs: Programs,
    tables: Mutex<Tables>,
    runs: Mutex<HashMap<RunId, Admission>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The maps live in the kernel: a panic of another thread leaves nothing half-done here.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    /// Loads and pins the programs, or adopts those of an earlier agent. Needs the `strait` namespace only for
    /// [`Gate::admit`].
    ///
    /// # Errors
    /// If the object is missing or the kernel refuses any program but the optional one.
    pub fn open(instance: &Instance) -> Result<Self, GateError> {
        let mount = cgroup::v2_root().map_err(|source| GateError::Host { what: "its mounts", source })?;
        let root = mount.ok_or(GateError::NoCgroup)?.join(&instance.cgroup);
        let (programs, origin) = object::ensure(instance)?;
        let mut tables = Tables::open(instance)?;
        // Run 0 keeps the account of what no run can be blamed for.
        tables.set_state(&state(0, &Quota::default(), cpus()?))?;
        Ok(Self {
            instance: instance.clone(),
            root,
            origin,
            programs,
            tables: Mutex::new(tables),
            runs: Mutex::default(),
        })
    }

    /// Opens the gate that is there, and fails rather than load or replace anything: for diagnosis beside a
    /// running agent.
    ///
    /// # Errors
    /// If there's none, or it's of another object than the one installed.
    pub fn adopt(instance: &Instance) -> Result<Self, GateError> {
        if !object::is_there(instance)? {
            return Err(GateError::NotLoaded { path: instance.bpffs.clone() });
        }
        Self::open(instance)
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Whether the programs were loaded now or found.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether `lsm_cgroup/socket_create` is in force, which refuses foreign socket families to root too.
    pub fn has_lsm(&self) -> bool {
        self.programs.run.iter().any(|program| program.hook.optional)
    }

    /// The cgroup of a run: `<cgroup v2 mount>/<instance>/<run>`. The runtime makes its own below it.
    pub fn cgroup_of(&self, run: &RunId) -> PathBuf {
        self.root.join(run.as_str())
    }

    /// The cgroup in which the listeners are to be made.
    pub fn listeners_cgroup(&self) -> PathBuf {
        self.root.join(LISTENERS)
    }

    fn pins(&self, run: &RunId) -> PathBuf {
        self.instance.bpffs.join("run").join(run.as_str())
    }

    /// Puts a run under the gate: tables, packet filter, links. May be called again for the same run, which
    /// renews what is missing and keeps its counters and whether it was killed. On an error nothing is allowed.
    ///
    /// # Errors
    /// Names the step that failed; call [`Gate::release`] then.
    pub fn admit(&self, admission: &Admission) -> Result<(), GateError> {
        let cgroup = &admission.cgroup;
        fs::create_dir_all(cgroup).map_err(|source| GateError::Cgroup { path: cgroup.clone(), source })?;
        lock(&self.runs).insert(admission.run.clone(), admission.clone());
        {
            let mut tables = lock(&self.tables);
            let number = admission.number;
            tables.make_room(number)?;
            let mut fresh = state(number, &admission.quota, cpus()?);
            if !admission.transparent {
                fresh.flags |= OPAQUE;
            }
            if !admission.ranges.is_empty() {
                fresh.flags |= RANGED;
            }
            fresh.flags |= tables.state(number).map_or(0, |known| known.flags & KILLED);
            tables.set_state(&fresh)?;
            tables.set_ranges(number, &admission.ranges)?;
            tables.set_veth(number, &admission.veth)?;
        }
        links::attach_filter(&self.instance, &admission.veth, self.programs.filter)?;
        links::attach(&self.pins(&admission.run), &self.programs.run, cgroup)?;
        // Last: until now the hooks denied everything.
        lock(&self.tables).set_run(admission.netns_cookie, admission.number, admission.veth.addr)
    }

    /// Takes a run out: denied at once, then its links, its entries and its accounts go. Gives the final
    /// accounts. No error if it's unknown or half gone.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn release(&self, run: &RunId) -> Result<Stats, GateError> {
        let Some(admission) = lock(&self.runs).remove(run) else {
            links::detach(&self.pins(run))?;
            return Ok(Stats::default());
        };
        let mut tables = lock(&self.tables);
        tables.remove_run(admission.netns_cookie)?;
        tables.remove_veth(admission.veth.ifindex)?;
        links::detach(&self.pins(run))?;
        let stats = stats(&tables, admission.number);
        tables.purge(admission.number)?;
        Ok(stats)
    }

    /// Cuts a run off: one map write, after which every hook answers EPERM and every packet is dropped.
    ///
    /// # Errors
    /// If the run isn't known or the map can't be written.
    pub fn kill(&self, run: &RunId) -> Result<(), GateError> {
        let number = self.number(run)?;
        let mut tables = lock(&self.tables);
        let mut state = tables.state(number).ok_or_else(|| GateError::Unknown(run.clone()))?;
        state.flags |= KILLED;
        tables.set_state(&state)
    }

    /// As [`Gate::kill`], for a run that an earlier agent admitted: by its number alone.
    ///
    /// # Errors
    /// If the map can't be written. A number that isn't in it is no error: it is denied anyway.
    pub fn kill_number(&self, number: u64) -> Result<(), GateError> {
        let mut tables = lock(&self.tables);
        let Some(mut state) = tables.state(number) else { return Ok(()) };
        state.flags |= KILLED;
        tables.set_state(&state)
    }

    fn number(&self, run: &RunId) -> Result<u64, GateError> {
        self.admission(run).map(|admission| admission.number)
    }

    fn admission(&self, run: &RunId) -> Result<Admission, GateError> {
        lock(&self.runs).get(run).cloned().ok_or_else(|| GateError::Unknown(run.clone()))
    }

    /// Where a process of the run lives.
    pub(crate) fn place_of(&self, run: &RunId) -> Result<Place, GateError> {
        let admission = self.admission(run)?;
        let netns = self.instance.run_netns(run.as_str());
        Ok(Place { number: admission.number, cgroup: admission.cgroup, netns })
    }

    /// Accounts of every run in the tables, and of run 0.
    pub(crate) fn accounts(&self) -> Vec<(u64, Account)> {
        lock(&self.tables).accounts()
    }

    /// Gives places of folded keys back to a run.
    pub(crate) fn free_folds(&self, number: u64, count: u64) -> Result<(), GateError> {
        lock(&self.tables).add_freed(number, 0, count)
    }

    /// Name of the run with this kernel number.
    pub fn run_of(&self, number: u64) -> Option<RunId> {
        let runs = lock(&self.runs);
        runs.values().find(|admission| admission.number == number).map(|admission| admission.run.clone())
    }

    /// What is missing of a run's enforcement: names of hooks, or `packet filter`. Empty if all is in place.
    ///
    /// # Errors
    /// If the run isn't known or the packet filter can't be read.
    pub fn verify(&self, run: &RunId) -> Result<Vec<&'static str>, GateError> {
        let admission = self.admission(run)?;
        let mut missing = links::missing(&self.pins(run), &self.programs.run, &admission.cgroup);
        let filter = netns::filter(&self.instance, admission.veth.ifindex)?;
        if filter.map(|filter| filter.program) != Some(self.programs.filter) {
            missing.push("packet filter");
        }
        Ok(missing)
    }

    /// What is missing of the cgroup links of any run of the instance, admitted here or by another process.
    pub(crate) fn verify_pins(&self, run: &RunId) -> Vec<&'static str> {
        links::missing(&self.pins(run), &self.programs.run, &self.cgroup_of(run))
    }

    /// Renews what [`Gate::verify`] found missing.
    ///
    /// # Errors
    /// If the run isn't known or the kernel refuses.
    pub fn reattach(&self, run: &RunId) -> Result<(), GateError> {
        let admission = self.admission(run)?;
        self.admit(&admission)
    }

    /// Attaches to the cgroup of the listeners, so that accepted sockets answer for their flow. Make the
    /// listeners in that cgroup **after** this call, or at least from a process in it: a socket keeps the cgroup
    /// it was made in.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach_listeners(&self, cgroup: &Path) -> Result<(), GateError> {
        fs::create_dir_all(cgroup).map_err(|source| GateError::Cgroup { path: cgroup.to_owned(), source })?;
        links::attach(&self.instance.bpffs.join("listeners"), &self.programs.listeners, cgroup)
    }

    /// What is missing of the listeners' hooks.
    pub fn verify_listeners(&self, cgroup: &Path) -> Vec<&'static str> {
        links::missing(&self.instance.bpffs.join("listeners"), &self.programs.listeners, cgroup)
    }

    /// Accounts of a run.
    ///
    /// # Errors
    /// If the run isn't known.
    pub fn stats(&self, run: &RunId) -> Result<Stats, GateError> {
        let number = self.number(run)?;
        Ok(stats(&lock(&self.tables), number))
    }

    /// Accounts of what no run can be blamed for.
    pub fn stats_unknown(&self) -> Stats {
        stats(&lock(&self.tables), 0)
    }

    /// Removes what runs other than `live` have left: pins, entries, empty cgroups. Call it after every live
    /// run was admitted again.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn collect_garbage(&self, live: &[RunId]) -> Result<(), GateError> {
        let numbers: Vec<u64> = {
            let runs = lock(&self.runs);
            live.iter().filter_map(|run| runs.get(run)).map(|admission| admission.number).collect()
        };
        lock(&self.tables).remove_strangers(&numbers)?;
        let is_live = |name: &std::ffi::OsStr| live.iter().any(|run| name == run.as_str());
        for pins in entries(&self.instance.bpffs.join("run")) {
            if pins.file_name().is_some_and(|name| !is_live(name)) {
                links::detach(&pins)?;
            }
        }
        for cgroup in entries(&self.root) {
            if cgroup.is_dir() && cgroup.file_name().is_some_and(|name| !is_live(name) && name != LISTENERS) {
                remove_cgroup(&cgroup);
            }
        }
        Ok(())
    }

    /// Removes a cgroup and those below it, if nothing runs there.
    pub fn collect_garbage_of(&self, cgroup: &Path) {
        remove_cgroup(cgroup);
    }

    /// Deletes the flows of connections that the gateway never accepted and never will, as after its death:
    /// those without a socket in the `strait` namespace. Gives how many. Takes a fifth of a second if there are any.
    ///
    /// # Errors
    /// If the namespace can't be read or a map not be written.
    pub fn sweep_flows(&self) -> Result<u64, GateError> {
        let peers = || {
            netns::within(&self.instance.strait_netns(), peers)?
                .map_err(|source| GateError::Host { what: "the sockets of the strait namespace", source })
        };
        // A flow is there before its SYN leaves, so flows are read before sockets, and what has none is given time.
        let mut dead = lock(&self.tables).tcp_flows();
        for pause in [Duration::ZERO, SYN_ARRIVES] {
            if dead.is_empty() {
                return Ok(0);
            }
            thread::sleep(pause);
            let alive = peers()?;
            dead.retain(|(key, _)| !alive.contains(&(key.addr, key.port)));
        }
        lock(&self.tables).remove_flows(&dead)
    }

    /// How often each program ran and for how long in all (ns), while `kernel.bpf_stats_enabled` is on.
    ///
    /// # Errors
    /// If the kernel doesn't tell.
    pub fn costs(&self) -> io::Result<Vec<(&'static str, u64, u64)>> {
        let programs = self.programs.run.iter().chain(&self.programs.listeners);
        let mut costs = Vec::new();
        for program in programs {
            let (time, count) = sys::program_cost(program.fd.as_fd())?;
            costs.push((program.hook.name, count, time));
        }
        Ok(costs)
    }

    /// Unpins everything, which detaches everything. For the removal of an instance.
    ///
    /// # Errors
    /// If bpffs refuses.
    pub fn remove(self) -> Result<(), GateError> {
        links::detach(&self.instance.bpffs)
    }
}

fn cpus() -> Result<u32, GateError> {
    let cpus =
        aya::util::nr_cpus().map_err(|(_, source)| GateError::Host { what: "the number of CPUs", source })?;
    Ok(u32::try_from(cpus).unwrap_or(1).max(1))
}

/// Token buckets are per CPU, so each gets its share.
fn state(run: u64, quota: &Quota, cpus: u32) -> State {
    State {
        run,
        flags: 0,
        flow_quota: quota.flows,
        fold_quota: quota.folds,
        rate: (quota.rate / cpus).max(1),
        burst: (quota.burst / cpus).max(1),
        pad: 0,
    }
}

fn stats(tables: &Tables, number: u64) -> Stats {
    let account = tables.account(number).unwrap_or_default();
    let (usage, freed) = tables.usage(number).unwrap_or_default();
    Stats {
        total: account.total,
        delivered: account.delivered,
        folded: account.folded,
        lost: account.lost,
        origins: usage.origins,
        flows: usage.flows.wrapping_sub(freed.flows),
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Removes a cgroup and those below it; one that isn't empty stays.
pub(crate) fn remove_cgroup(cgroup: &Path) {
    for below in entries(cgroup) {
        if below.is_dir() {
            remove_cgroup(&below);
        }
    }
    if let Err(error) = fs::remove_dir(cgroup) {
        tracing::debug!(cgroup = %cgroup.display(), %error, "a cgroup can't be removed yet");
    }
}

/// Peers of all TCP sockets of this namespace, as keys of FLOW have them. `/proc/thread-self/net/tcp` prints
/// the address as one native word and the port in host order.
fn peers() -> io::Result<std::collections::HashSet<(u32, u16)>> {
    let text = fs::read_to_string("/proc/thread-self/net/tcp")?;
    Ok(text.lines().skip(1).filter_map(peer).collect())
}

fn peer(line: &str) -> Option<(u32, u16)> {
    let (addr, port) = line.split_whitespace().nth(2)?.split_once(':')?;
    Some((u32::from_str_radix(addr, 16).ok()?, u16::from_str_radix(port, 16).ok()?))
}

/// The key of a run's TCP flow, for tests and diagnosis.
pub fn flow_key(addr: Ipv4Addr, port: u16) -> FlowKey {
    FlowKey { addr: network_order(addr), port, proto: 6, pad: 0 }
}

#[cfg(test)]
mod tests;
