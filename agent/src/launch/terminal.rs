//! The person's terminal while a run has one of its own: raw for the time being, whatever happens.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread::JoinHandle,
};

use rustix::termios::{
    OptionalActions, Termios, Winsize, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};

/// Restores the terminal when it goes.
#[derive(Debug)]
pub struct Raw {
    terminal: OwnedFd,
    before: Termios,
}

impl Raw {
    /// Makes the terminal pass every key through.
    ///
    /// # Errors
    /// If it isn't a terminal.
    pub fn new(terminal: BorrowedFd<'_>) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Drain, &raw)?;
        Ok(Self { terminal: terminal.try_clone_to_owned()?, before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}

/// Rows and columns of the terminal at `fd`; `None` if it isn't one.
pub fn size(fd: impl AsFd) -> Option<(u16, u16)> {
    if !isatty(&fd) {
        return None;
    }
    let size = tcgetwinsize(&fd).ok()?;
    Some((size.ws_row, size.ws_col))
}

/// Gives the run's terminal the size of the person's.
///
/// # Errors
/// If `master` isn't a terminal's.
pub fn resize(master: impl AsFd, (rows, columns): (u16, u16)) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}

/// Copies until the end in a thread of its own: terminals and sockets have no common non-blocking way.
///
/// # Errors
/// If there is no thread to be had.
pub fn copy(from: OwnedFd, to: OwnedFd) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("copy".to_owned()).spawn(move || {
        let (mut from, mut to) = (File::from(from), File::from(to));
        let mut buffer = [0; 16 * 1024];
        loop {
            match from.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // EIO: the last process with the terminal's other side has gone.
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    if buffer.get(..count).is_none_or(|bytes| to.write_all(bytes).is_err()) {
                        return;
                    }
                }
            }
        }
    })
}
