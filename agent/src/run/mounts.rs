//! What of the host a run may see: checks every folder or file a person offers before it is mounted.
//!
//! Takes `O_PATH` descriptors that the command line opened *as the person*, so nobody mounts what they could not
//! reach. The path is the kernel's name for the descriptor, never what the caller says.

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::unistd::{Uid, User};
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::account::Account;
use crate::instance::Instance;

/// What a run may do with a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// Read and execute.
    ReadOnly,
    /// Change too.
    ReadWrite,
}

/// What a mount is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// The folder the agent works on; also its current folder.
    Workspace,
    /// Asked for by `--ro` or `--rw`.
    Extra,
    /// Where the program and what it is made of are installed.
    Program,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Workspace => "workspace",
            Self::Extra => "extra mount",
            Self::Program => "program folder",
        })
    }
}

/// A mount as a person offers it.
#[derive(Debug)]
pub struct Offered {
    /// Opened by the person, `O_PATH`.
    pub source: OwnedFd,
    /// Asked for.
    pub access: Access,
    /// What for.
    pub purpose: Purpose,
}

/// A mount that passed [`admit`].
#[derive(Debug)]
pub struct Admitted {
    /// The offered descriptor.
    pub source: OwnedFd,
    /// Where it is on the host, and will be in the run.
    pub path: PathBuf,
    /// What the run may do with it.
    pub access: Access,
    /// What for.
    pub purpose: Purpose,
    /// Whether it is a folder.
    pub folder: bool,
}

/// Why a mount was refused: always the caller's to change.
#[derive(Debug, thiserror::Error)]
pub enum MountRefused {
    /// `/`, a home folder, or a folder above one.
    #[error("the {purpose} `{path}` holds the home folder `{home}`: name a project folder instead (--workspace DIR)",
            path = path.display(), home = home.display())]
    HoldsHome {
        /// Offered path.
        path: PathBuf,
        /// The home.
        home: PathBuf,
        /// What for.
        purpose: Purpose,
    },
    /// A folder of the system.
    #[error("the {purpose} `{path}` is a folder of the system: name a project folder instead (--workspace DIR)",
            path = path.display())]
    System {
        /// Offered path.
        path: PathBuf,
        /// What for.
        purpose: Purpose,
    },
    /// Keys are kept there.
    #[error("the {purpose} `{path}` would show `{secret}` to the run: credentials stay outside, \
             the gateway adds them to permitted calls", path = path.display(), secret = secret.display())]
    Secret {
        /// Offered path.
        path: PathBuf,
        /// The secret place it is, is in or holds.
        secret: PathBuf,
        /// What for.
        purpose: Purpose,
    },
    /// What a person's next login or command executes.
    #[error("the {purpose} `{path}` would let the run change `{startup}`, which runs outside at the next login or command: \
             show it read-only (--ro), or name a project folder", path = path.display(), startup = startup.display())]
    StartUp {
        /// Offered path.
        path: PathBuf,
        /// The place it is, is in or holds.
        startup: PathBuf,
        /// What for.
        purpose: Purpose,
    },
    /// A socket through which the host can be steered.
    #[error("the {purpose} `{path}` would hand `{socket}` to the run, and whoever reaches that socket steers the host",
            path = path.display(), socket = socket.display())]
    ControlSocket {
        /// Offered path.
        path: PathBuf,
        /// The socket it is or holds.
        socket: PathBuf,
        /// What for.
        purpose: Purpose,
    },
    /// Strait's own folders.
    #[error("the {purpose} `{path}` would show Strait's own folder `{own}` to the run",
            path = path.display(), own = own.display())]
    Own {
        /// Offered path.
        path: PathBuf,
        /// Strait's folder.
        own: PathBuf,
        /// What for.
        purpose: Purpose,
    },
    /// Neither folder nor regular file.
    #[error("the {purpose} `{path}` is neither a folder nor a regular file", path = path.display())]
    Kind {
        /// Offered path.
        path: PathBuf,
        /// What for.
        purpose: Purpose,
    },
    /// The path is not text; the OCI configuration is.
    #[error("the path of a {0} is not UTF-8 or has been deleted")]
    Path(Purpose),
    /// The kernel could not tell.
    #[error("a {purpose} can't be examined")]
    Examine {
        /// What for.
        purpose: Purpose,
        /// Why.
        source: std::io::Error,
    },
}

/// Folders that are never mounted, nor anything in them: they are the kernel's, the system's or the run's own.
const CLOSED: &[&str] = &["/proc", "/sys", "/dev", "/run", "/var/run", "/etc", "/boot", "/tools", "/beige"];

/// Folders in which nothing is mounted writable: what is there is executed or trusted by the host.
const EXECUTED: &[&str] =
    &["/bin", "/lib", "/lib64", "/sbin", "/usr", "/var/lib/dpkg", "/var/log", "/var/spool"];

/// Folders that are never mounted themselves, though folders in them may be.
const BROAD: &[&str] = &[
    "/", "/bin", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/root", "/sbin", "/srv", "/tmp",
    "/usr", "/var", "/var/lib", "/var/tmp",
];

/// Places below a home where keys live. Nothing that is, is in or holds one is mounted.
pub const SECRETS: &[&str] = &[
    ".ssh",
    ".aws",
    ".azure",
    ".gnupg",
    ".kube",
    ".docker",
    ".netrc",
    ".git-credentials",
    ".password-store",
    ".pypirc",
    ".npmrc",
    ".vault-token",
    ".terraform.d",
    ".cargo/credentials.toml",
    ".config/gcloud",
    ".config/gh",
    ".config/op",
    ".config/containers/auth.json",
    ".local/share/keyrings",
    ".mozilla",
    ".config/google-chrome",
    ".config/chromium",
];

/// Places below a home that a login, a shell, an editor, git or a desktop executes. Nothing that is, is in or holds one
/// is mounted writable.
pub const STARTUP: &[&str] = &[
    ".bash_aliases",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".profile",
    ".zlogin",
    ".zprofile",
    ".zshenv",
    ".zshrc",
    ".inputrc",
    ".pam_environment",
    ".xinitrc",
    ".xprofile",
    ".xsession",
    ".vimrc",
    ".vim",
    ".emacs",
    ".emacs.d",
    ".gitconfig",
    ".config/autostart",
    ".config/environment.d",
    ".config/fish",
    ".config/git",
    ".config/nvim",
    ".config/systemd",
    ".local/bin",
    ".local/share/applications",
    ".local/share/systemd",
    "bin",
];

/// Sockets that steer the host, apart from those under `/run`, which is closed altogether.
const CONTROL_SOCKETS: &[&str] =
    &["/var/lib/docker", "/var/lib/containerd", "/var/snap/lxd/common/lxd/unix.socket"];

/// Decides whether a person's offer may be mounted.
///
/// # Errors
/// [`MountRefused`] says what is wrong with it and what to do instead.
pub fn admit(offer: Offered, account: &Account, instance: &Instance) -> Result<Admitted, MountRefused> {
    let purpose = offer.purpose;
    let path = kernel_path(&offer)?;
    let stat = rustix::fs::fstat(&offer.source)
        .map_err(|errno| MountRefused::Examine { purpose, source: errno.into() })?;
    let folder = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => true,
        FileType::RegularFile if purpose != Purpose::Workspace => false,
        _ => return Err(MountRefused::Kind { path, purpose }),
    };
    let access = if purpose == Purpose::Program { Access::ReadOnly } else { offer.access };
    let homes = homes(&path, account, stat.st_uid);
    check(&path, purpose, &homes, instance)?;
    if access == Access::ReadWrite {
        check_writable(&path, purpose, &homes, instance)?;
    }
    Ok(Admitted { source: offer.source, path, access, purpose, folder })
}

/// The homes that an offer may be about: the caller's, that of whom it belongs to, and the one whose place it's in.
/// Root reaches everybody's, and so does who calls with sudo.
fn homes(path: &Path, account: &Account, owner: u32) -> Vec<PathBuf> {
    let mut homes = vec![account.home.clone()];
    if let Ok(Some(owner)) = User::from_uid(Uid::from_raw(owner)) {
        // Service accounts have the root folder, or `/usr/sbin`, for a home.
        if owner.dir.components().count() > 2 || owner.dir == Path::new("/root") {
            homes.push(owner.dir);
        }
    }
    if let Some(name) = path.strip_prefix("/home").ok().and_then(|below| below.components().next()) {
        homes.push(Path::new("/home").join(name));
    }
    homes.push(PathBuf::from("/root"));
    homes
}

fn check(path: &Path, purpose: Purpose, homes: &[PathBuf], instance: &Instance) -> Result<(), MountRefused> {
    let owned = || path.to_owned();
    if let Some(home) = homes.iter().find(|home| home.starts_with(path)) {
        return Err(MountRefused::HoldsHome { path: owned(), home: home.clone(), purpose });
    }
    let own = [&instance.run_dir, &instance.state_dir, &instance.config_dir, &instance.bpffs];
    if let Some(own) = own.into_iter().find(|own| touches(path, own)) {
        return Err(MountRefused::Own { path: owned(), own: own.clone(), purpose });
    }
    if let Some(secret) = below(homes, SECRETS).find(|secret| touches(path, secret)) {
        return Err(MountRefused::Secret { path: owned(), secret, purpose });
    }
    if let Some(socket) = CONTROL_SOCKETS.iter().map(Path::new).find(|socket| touches(path, socket)) {
        return Err(MountRefused::ControlSocket { path: owned(), socket: socket.to_owned(), purpose });
    }
    let closed = CLOSED.iter().any(|closed| path.starts_with(closed));
    if closed || BROAD.iter().any(|broad| path == Path::new(broad)) {
        return Err(MountRefused::System { path: owned(), purpose });
    }
    Ok(())
}

fn below<'a>(homes: &'a [PathBuf], places: &'a [&str]) -> impl Iterator<Item = PathBuf> + 'a {
    homes.iter().flat_map(move |home| places.iter().map(move |place| home.join(place)))
}

/// What a run may not change though it may be shown: programs that the host, a person or Strait itself executes.
fn check_writable(
    path: &Path,
    purpose: Purpose,
    homes: &[PathBuf],
    instance: &Instance,
) -> Result<(), MountRefused> {
    if let Some(startup) = below(homes, STARTUP).find(|startup| touches(path, startup)) {
        return Err(MountRefused::StartUp { path: path.to_owned(), startup, purpose });
    }
    let programs = [
        Some(instance.lib_dir.clone()),
        std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned())),
    ];
    if let Some(own) = programs.into_iter().flatten().find(|own| touches(path, own)) {
        return Err(MountRefused::Own { path: path.to_owned(), own, purpose });
    }
    if EXECUTED.iter().any(|closed| path.starts_with(closed)) {
        return Err(MountRefused::System { path: path.to_owned(), purpose });
    }
    Ok(())
}

/// Whether one of the two holds the other, or they are the same.
fn touches(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// The kernel's name of an open descriptor.
fn kernel_path(offer: &Offered) -> Result<PathBuf, MountRefused> {
    let purpose = offer.purpose;
    let link = format!("/proc/self/fd/{}", offer.source.as_fd().as_raw_fd());
    let path = std::fs::read_link(link).map_err(|source| MountRefused::Examine { purpose, source })?;
    match path.to_str() {
        Some(text) if path.is_absolute() && !text.ends_with(" (deleted)") => Ok(path),
        _ => Err(MountRefused::Path(purpose)),
    }
}

#[cfg(test)]
mod tests {
    use strait_contract::ids::AgentName;

    use super::*;

    fn verdict_for(home: &str, path: &str, access: Access) -> Result<(), MountRefused> {
        let account = Account { uid: 1000, gid: 1000, name: "ann".into(), home: home.into(), admin: false };
        let instance = Instance::standard("strait".parse::<AgentName>().unwrap());
        // An owner that no host knows.
        let homes = homes(Path::new(path), &account, 4_000_123);
        check(Path::new(path), Purpose::Workspace, &homes, &instance)?;
        match access {
            Access::ReadOnly => Ok(()),
            Access::ReadWrite => check_writable(Path::new(path), Purpose::Workspace, &homes, &instance),
        }
    }

    fn verdict(path: &str) -> Result<(), MountRefused> {
        verdict_for("/home/ann", path, Access::ReadOnly)
    }

    /// Root, or who calls with sudo, reaches everybody's home.
    #[test]
    fn anothers_home_and_keys_are_as_closed_as_ones_own() {
        for (path, reason) in [
            ("/home/bob", "holds the home"),
            ("/home/bob/.ssh", "credentials stay outside"),
            ("/home/bob/.aws/cli", "credentials stay outside"),
            ("/root/.ssh", "credentials stay outside"),
        ] {
            let refused = verdict_for("/root", path, Access::ReadOnly).expect_err(path).to_string();
            assert!(refused.contains(reason), "{path}: {refused}");
        }
        assert!(verdict_for("/root", "/home/bob/src/app", Access::ReadWrite).is_ok(), "the control");
        let folder = tempfile::tempdir().unwrap();
        let account = Account::of(4_000_123, 4_000_123).unwrap();
        let roots = homes(folder.path(), &account, 0);
        assert!(roots.contains(&PathBuf::from("/root")), "{roots:?}");
    }

    #[test]
    fn what_a_login_executes_may_be_shown_and_not_changed() {
        for path in
            ["/home/ann/.bashrc", "/home/ann/.config/fish/conf.d", "/home/ann/.local/bin", "/home/ann/bin"]
        {
            let refused = verdict_for("/home/ann", path, Access::ReadWrite).expect_err(path).to_string();
            assert!(refused.contains("at the next login"), "{path}: {refused}");
        }
        assert!(verdict_for("/home/ann", "/home/ann/.bashrc", Access::ReadOnly).is_ok(), "the control");
        assert!(
            verdict_for("/home/ann", "/home/ann/src/.bashrc", Access::ReadWrite).is_ok(),
            "another's is fine"
        );
    }

    #[test]
    fn a_project_folder_is_fine() {
        for path in
            ["/home/ann/src/app", "/srv/app", "/tmp/scratch", "/mnt/disk/app", "/home/ann/.config/app"]
        {
            assert!(verdict(path).is_ok(), "{path}: {:?}", verdict(path));
        }
    }

    /// Case 08 and design section 10: what would open the host is refused with a reason.
    #[test]
    fn homes_system_folders_keys_and_control_sockets_are_refused() {
        let table = [
            ("/", "holds the home"),
            ("/home", "holds the home"),
            ("/home/ann", "holds the home"),
            ("/usr", "folder of the system"),
            ("/etc/app", "folder of the system"),
            ("/proc/1/root", "folder of the system"),
            ("/run/user/1000", "folder of the system"),
            ("/run/docker.sock", "folder of the system"),
            ("/home/ann/.ssh", "credentials stay outside"),
            ("/home/ann/.aws/cli", "credentials stay outside"),
            ("/home/ann/.config", "credentials stay outside"),
            ("/var/lib/docker/volumes", "steers the host"),
            ("/var/lib/strait/homes", "Strait's own"),
            ("/run/strait", "Strait's own"),
        ];
        for (path, reason) in table {
            let refused = verdict(path).expect_err(path).to_string();
            assert!(refused.contains(reason), "{path}: {refused}");
        }
    }

    #[test]
    fn the_path_is_the_kernels_and_a_link_does_not_hide_it() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("innocent");
        std::os::unix::fs::symlink("/etc/ssl", &link).unwrap();
        let source = rustix::fs::open(&link, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let offer = Offered { source, access: Access::ReadOnly, purpose: Purpose::Extra };
        let account = Account::of(4_000_123, 4_000_123).unwrap();
        let instance = Instance::standard("strait".parse().unwrap());
        let refused = admit(offer, &account, &instance).unwrap_err();
        assert!(
            matches!(refused, MountRefused::System { ref path, .. } if path == Path::new("/etc/ssl")),
            "{refused}"
        );
    }

    #[test]
    fn a_socket_is_not_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let source = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let offer = Offered { source, access: Access::ReadWrite, purpose: Purpose::Extra };
        let account = Account::of(4_000_123, 4_000_123).unwrap();
        let refused = admit(offer, &account, &Instance::standard("strait".parse().unwrap())).unwrap_err();
        assert!(matches!(refused, MountRefused::Kind { .. }), "{refused}");
    }
}
