//! How many connections each user has open to one socket: a user who opens thousands takes none from the others.
//!
//! Root is exempt: it could end the agent by simpler means.

use std::{
    collections::HashMap,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Connections of one socket, counted by user id.
#[derive(Clone, Debug)]
pub struct Callers {
    most: usize,
    open: Arc<Mutex<HashMap<u32, usize>>>,
}

/// One connection's place, given back on drop.
#[derive(Debug)]
pub struct Place {
    uid: u32,
    open: Arc<Mutex<HashMap<u32, usize>>>,
}

/// Why a caller isn't heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHeard {
    /// The kernel would not say who it is.
    #[error("the kernel did not say who you are")]
    Unknown,
    /// It has as many connections open as it may.
    #[error(
        "you have {0} connections to the agent open, which is as many as one user may: end some of your runs"
    )]
    TooMany(usize),
}

impl Callers {
    /// Nobody yet; each user but root may have `most` connections at a time.
    pub fn new(most: usize) -> Self {
        Self { most, open: Arc::default() }
    }

    /// Takes the caller at the other end of a connected Unix socket in.
    ///
    /// # Errors
    /// [`NotHeard`]: close the connection then.
    pub fn admit(&self, socket: impl AsFd) -> Result<Place, NotHeard> {
        let peer = rustix::net::sockopt::socket_peercred(socket).map_err(|_| NotHeard::Unknown)?;
        self.admit_uid(peer.uid.as_raw())
    }

    fn admit_uid(&self, uid: u32) -> Result<Place, NotHeard> {
        let mut open = lock(&self.open);
        let count = open.entry(uid).or_default();
        if uid != 0 && *count >= self.most {
            return Err(NotHeard::TooMany(self.most));
        }
        *count = count.saturating_add(1);
        Ok(Place { uid, open: Arc::clone(&self.open) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        if let Some(count) = open.get_mut(&self.uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.uid);
            }
        }
    }
}

fn lock(open: &Mutex<HashMap<u32, usize>>) -> MutexGuard<'_, HashMap<u32, usize>> {
    // Every change under this lock is complete in itself.
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_user_is_refused_while_others_and_root_are_heard_and_places_come_back() {
        let callers = Callers::new(2);
        let mut first: Vec<Place> = (0..2).map(|_| callers.admit_uid(1000).unwrap()).collect();
        assert_eq!(callers.admit_uid(1000).unwrap_err(), NotHeard::TooMany(2));
        let _other = callers.admit_uid(1001).unwrap();
        let _roots: Vec<Place> = (0..5).map(|_| callers.admit_uid(0).unwrap()).collect();
        first.pop();
        first.push(callers.admit_uid(1000).unwrap());
        drop(first);
        assert!(!lock(&callers.open).contains_key(&1000), "nothing is kept of who has gone");
    }
}
