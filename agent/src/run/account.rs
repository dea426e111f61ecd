//! The person behind a peer socket, from the kernel's word (`SO_PEERCRED`) and the host's user database.

use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use nix::unistd::{Group, Uid, User};

/// Group whose members see and stop every run and change policy.
pub const ADMIN_GROUP: &str = "strait-admin";
/// Group whose members read records and counts.
pub const AUDIT_GROUP: &str = "strait-audit";

/// Who is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// User id.
    pub uid: u32,
    /// Group id: the one of the calling process.
    pub gid: u32,
    /// Login name; the number if the host knows no name for it.
    pub name: String,
    /// Home folder.
    pub home: PathBuf,
    /// Whether this person sees and stops the runs of others: root, or a member of [`ADMIN_GROUP`].
    pub admin: bool,
}

/// Why a person could not be told.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// The kernel would not say who the peer is.
    #[error("the peer of the socket can't be told")]
    Peer(#[source] rustix::io::Errno),
    /// The user database failed.
    #[error("user {uid} can't be looked up")]
    Lookup {
        /// The number that was asked for.
        uid: u32,
        /// Why.
        source: nix::Error,
    },
}

impl Account {
    /// The account of the process at the other end of a connected Unix socket.
    ///
    /// # Errors
    /// [`AccountError`] if the kernel or the user database doesn't answer.
    pub fn of_peer(socket: impl AsFd) -> Result<Self, AccountError> {
        let peer = rustix::net::sockopt::socket_peercred(socket).map_err(AccountError::Peer)?;
        Self::of(peer.uid.as_raw(), peer.gid.as_raw())
    }

    /// The account with these numbers.
    ///
    /// # Errors
    /// [`AccountError::Lookup`] if the user database fails. An unknown number is no error.
    pub fn of(uid: u32, gid: u32) -> Result<Self, AccountError> {
        let user =
            User::from_uid(Uid::from_raw(uid)).map_err(|source| AccountError::Lookup { uid, source })?;
        let (name, home) = match user {
            Some(user) => (user.name, user.dir),
            None => (uid.to_string(), PathBuf::from("/")),
        };
        let admin = uid == 0 || is_member(ADMIN_GROUP, &name, gid);
        Ok(Self { uid, gid, home: usable_home(&home), name, admin })
    }

    /// Whether this person is a member of [`AUDIT_GROUP`]. Asks the user database.
    pub fn audits(&self) -> bool {
        is_member(AUDIT_GROUP, &self.name, self.gid)
    }
}

/// Service accounts have homes like `/` or `/nonexistent`: such a person gets a home of the run's own.
fn usable_home(home: &Path) -> PathBuf {
    let usable = home.is_absolute() && home.components().count() > 1 && home != Path::new("/nonexistent");
    if usable { home.to_owned() } else { PathBuf::from("/home/agent") }
}

fn is_member(group: &str, name: &str, gid: u32) -> bool {
    match Group::from_name(group) {
        Ok(Some(group)) => group.gid.as_raw() == gid || group.mem.iter().any(|member| member == name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_name_is_a_person_without_rights() {
        let someone = Account::of(4_000_123, 4_000_123).unwrap();
        assert_eq!(someone.name, "4000123");
        assert_eq!(someone.home, Path::new("/home/agent"));
        assert!(!someone.admin);
        assert!(Account::of(0, 0).unwrap().admin, "root sees all");
    }
}
