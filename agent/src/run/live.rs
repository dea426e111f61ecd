//! What is known of a run that may outlive the agent: one file per live run, `<state_dir>/live/<run>.json`, on disk so
//! that a reboot is told from an end.

use std::{
    fs, io,
    net::Ipv4Addr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use strait_contract::{
    ids::RunId,
    run::{Range, RunInfo},
    token::TokenHash,
};

use super::{account::Account, process::ProcessName};
use crate::{instance::Instance, netns::Veth};

/// A live run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Live {
    /// Boot it belongs to (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// Name.
    pub id: RunId,
    /// Kernel number.
    pub number: u64,
    /// Address.
    pub addr: Ipv4Addr,
    /// Agent.
    pub agent: String,
    /// Its version.
    pub version: String,
    /// Its labels.
    pub labels: Vec<String>,
    /// Ranges that may be named by literal address: network and prefix length.
    pub addresses: Vec<(Ipv4Addr, u8)>,
    /// Hash of its workload token.
    pub token: TokenHash,
    /// Login name of who started it.
    pub user: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Command, shortened; for lists.
    pub command: String,
    /// Workspace on the host.
    pub workspace: Option<PathBuf>,
    /// Unix time of the start, milliseconds.
    pub started_ms: u64,
    /// Cookie of its netns.
    pub netns_cookie: u64,
    /// Index that names its veth.
    pub veth_index: u32,
    /// Interface index of its veth's end in the `strait` netns.
    pub veth_ifindex: u32,
    /// Its init, once there is one.
    pub init: Option<ProcessName>,
    /// Its shim, once there is one.
    pub shim: Option<ProcessName>,
    /// Login name of who killed it while no agent ran.
    #[serde(default)]
    pub killed_by: Option<String>,
}

impl Live {
    /// Where the files are.
    pub fn folder(instance: &Instance) -> PathBuf {
        instance.state_dir.join("live")
    }

    fn path(instance: &Instance, run: &RunId) -> PathBuf {
        Self::folder(instance).join(format!("{run}.json"))
    }

    /// Writes the file, whole or not at all, synced.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write(&self, instance: &Instance) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(Self::folder(instance))?;
        let path = Self::path(instance, &self.id);
        let new = path.with_extension("new");
        let file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        serde_json::to_writer(&file, self)?;
        file.sync_data()?;
        fs::rename(new, path)
    }

    /// Removes the file of a run; one that is gone is no error.
    ///
    /// # Errors
    /// I/O errors.
    pub fn remove(instance: &Instance, run: &RunId) -> io::Result<()> {
        match fs::remove_file(Self::path(instance, run)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Every file that can be read. What can't be read is said in the log and left for a person.
    ///
    /// # Errors
    /// If the folder can't be listed.
    pub fn all(instance: &Instance) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(Self::folder(instance)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                match read(&path) {
                    Ok(live) => all.push(live),
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, "a live run's file can't be read")
                    }
                }
            }
        }
        Ok(all)
    }

    /// Removes files that an agent died over before they had their name. Gives the runs.
    pub(super) fn remove_unfinished(instance: &Instance) -> Vec<RunId> {
        let mut unfinished = Vec::new();
        for entry in fs::read_dir(Self::folder(instance)).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "new") {
                let _ = fs::remove_file(&path);
                unfinished.extend(path.file_stem().and_then(|name| name.to_str()?.parse().ok()));
            }
        }
        unfinished
    }

    /// The account it runs under. Rights are looked up anew.
    pub fn account(&self) -> Account {
        Account::of(self.uid, self.gid).unwrap_or_else(|_| Account {
            uid: self.uid,
            gid: self.gid,
            name: self.user.clone(),
            home: PathBuf::from("/"),
            admin: false,
        })
    }

    /// What the gateway is told, but for what the run is shown: that is kept in the run's folder alone.
    ///
    /// # Errors
    /// If the agent's name isn't one.
    pub fn info(&self) -> Result<RunInfo, strait_contract::ids::BadName> {
        Ok(RunInfo {
            id: self.id.clone(),
            number: self.number,
            addr: self.addr,
            agent: self.agent.parse()?,
            version: self.version.clone(),
            started_by: self.user.clone(),
            labels: self.labels.clone(),
            addresses: self.ranges(),
            token: self.token,
            exposed: Vec::new(),
        })
    }

    /// Ranges it may name by literal address.
    pub fn ranges(&self) -> Vec<Range> {
        self.addresses.iter().map(|(addr, prefix)| Range { addr: *addr, prefix: *prefix }).collect()
    }

    /// Its veth.
    pub fn veth(&self) -> Veth {
        let [a, b, c, d] = self.addr.octets();
        Veth {
            name: format!("st{}", self.veth_index),
            ifindex: self.veth_ifindex,
            addr: self.addr,
            mac: [0x02, 0x53, a, b, c, d],
            gateway_mac: [0x02, 0x47, a, b, c, d],
        }
    }
}

fn read(path: &Path) -> io::Result<Live> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// The id of this boot.
///
/// # Errors
/// If `/proc` isn't there.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
