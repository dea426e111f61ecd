//! A run with a terminal: the pty's master comes over the console socket.

use std::{
    fs::File,
    io::{IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixListener},
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::bundle::{Bundle, Shim};

struct Terminal {
    bundle: Bundle,
    shim: Shim,
    master: File,
}

impl Terminal {
    fn start(script: &str) -> Self {
        let args = ["/strait-tool", "init", "--wait", "--", "sh", "-c", script];
        let bundle = Bundle::new(&args, true);
        let socket = bundle.path("console.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut shim = bundle.shim(&["--console-socket", socket.to_str().unwrap()]);
        let master = File::from(receive(&listener));
        shim.start();
        Self { bundle, shim, master }
    }

    /// What the terminal shows until `needle`.
    fn wait_for(&mut self, needle: &str) -> String {
        let mut seen = String::new();
        let mut byte = [0];
        while !seen.contains(needle) {
            match self.master.read(&mut byte) {
                Ok(1) => seen.push(char::from(byte[0])),
                end => panic!("the terminal ended with {end:?} after `{seen}`"),
            }
        }
        seen
    }

    fn type_in(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn code(mut self) -> serde_json::Value {
        self.shim.finish();
        self.bundle.exit()["exitCode"].clone()
    }
}

fn receive(listener: &UnixListener) -> OwnedFd {
    let (stream, _) = listener.accept().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut name = [0; 256];
    recvmsg(&stream, &mut [IoSliceMut::new(&mut name)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let rights = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    rights.expect("runc sends the master")
}

#[test]
fn the_command_is_in_the_foreground_of_its_controlling_terminal() {
    let mut terminal = Terminal::start(
        "exec 3</dev/tty || exit 1; read -r pgrp rest </dev/null; \
         ps -o pgid=,tpgid= -p $$; read -r line; echo \"got:$line\"; exit 3",
    );
    terminal.type_in("hello\n");
    let seen = terminal.wait_for("got:hello");
    let ids = seen.lines().find(|line| line.split_whitespace().count() == 2).expect(&seen);
    let mut ids = ids.split_whitespace();
    assert_eq!(ids.next(), ids.next(), "process group and foreground group: {seen}");
    assert_eq!(terminal.code(), 3);
}

#[test]
fn control_c_interrupts_the_command() {
    let mut terminal = Terminal::start("echo ready; exec sleep 60");
    terminal.wait_for("ready");
    terminal.type_in("\u{3}");
    assert_eq!(terminal.code(), 130);
}

#[test]
fn control_z_does_not_hang_a_run_that_no_shell_could_resume() {
    let mut terminal = Terminal::start("echo ready; read -r line; echo \"got:$line\"; exit 8");
    terminal.wait_for("ready");
    terminal.type_in("\u{1a}");
    terminal.type_in("on\n");
    terminal.wait_for("got:on");
    assert_eq!(terminal.code(), 8);
}

#[test]
fn a_terminal_that_goes_away_ends_the_command() {
    let mut terminal = Terminal::start("echo ready; exec sleep 60");
    terminal.wait_for("ready");
    let Terminal { bundle, mut shim, master } = terminal;
    drop(master);
    shim.finish();
    assert_eq!(bundle.exit()["exitCode"], 129);
}
