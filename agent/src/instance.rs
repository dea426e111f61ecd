//! Everything one running Strait owns on a host, in one value, so that tests and the demo can have their own
//! beside an installed one.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use strait_contract::{ids::AgentName, run::Range};

/// Names and places of an instance. Two instances differ in `name` and share nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Name: `strait` for the installed one. Alphabet of [`AgentName`].
    pub name: AgentName,
    /// Sockets, tokens, netns pins: `/run/<name>`.
    pub run_dir: PathBuf,
    /// Records, keys: `/var/lib/<name>`.
    pub state_dir: PathBuf,
    /// Config and policies: `/etc/<name>`.
    pub config_dir: PathBuf,
    /// `gate.bpf.o`, `strait-tool`, `strait-gateway`.
    pub lib_dir: PathBuf,
    /// Pins: `/sys/fs/bpf/<name>`.
    pub bpffs: PathBuf,
    /// Folder of the cgroup below the cgroup v2 mount: `<name>`.
    pub cgroup: String,
    /// Addresses of runs; the gateway has its first host address.
    pub pool: Range,
    /// Network namespace that the gateway dials from; `None` is the host's.
    pub dial_netns: Option<PathBuf>,
    /// User id the gateway runs under.
    pub gateway_uid: u32,
    /// Group id the gateway runs under.
    pub gateway_gid: u32,
}

impl Instance {
    /// The installed instance called `name` with its standard places.
    pub fn standard(name: AgentName) -> Self {
        let at = |base: &str| Path::new(base).join(name.as_str());
        Self {
            run_dir: at("/run"),
            state_dir: at("/var/lib"),
            config_dir: at("/etc"),
            lib_dir: PathBuf::from("/usr/lib/strait"),
            bpffs: at("/sys/fs/bpf"),
            cgroup: name.to_string(),
            pool: Range { addr: Ipv4Addr::new(10, 203, 0, 0), prefix: 16 },
            dial_netns: None,
            gateway_uid: 64_203,
            gateway_gid: 64_203,
            name,
        }
    }

    /// The gateway's address: the pool's first host address.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.pool.addr).wrapping_add(1))
    }

    /// Where the `strait` netns is pinned.
    pub fn strait_netns(&self) -> PathBuf {
        self.run_dir.join("netns/strait")
    }

    /// Where a run's netns is pinned.
    pub fn run_netns(&self, run: &str) -> PathBuf {
        self.run_dir.join("netns").join(run)
    }

    /// Socket the gateway dials ([`strait_contract::seqpacket`]).
    pub fn link_socket(&self) -> PathBuf {
        self.run_dir.join("link.sock")
    }

    /// Socket of the control API (HTTP + JSON).
    pub fn control_socket(&self) -> PathBuf {
        self.run_dir.join("control.sock")
    }

    /// Socket on which `strait run` hands over descriptors (SEQPACKET).
    pub fn launch_socket(&self) -> PathBuf {
        self.run_dir.join("launch.sock")
    }

    /// Folder of a run's records.
    pub fn run_records(&self, run: &str) -> PathBuf {
        self.state_dir.join("runs").join(run)
    }
}
