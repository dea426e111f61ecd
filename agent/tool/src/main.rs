//! The small static helper beside a run: `init` is PID 1 inside it, `shim` watches over it from outside.
//!
//! Takes an argument list, gives an exit code. The role is the name it was called by or else its first
//! argument. It depends on nothing of the host at run time: no libraries, no config, no environment.
//!
//! Architecture invariant: nothing here opens a network socket or reads a policy.

use std::{ffi::OsString, fmt::Display, io::Write, path::Path, process::ExitCode};

mod descriptors;
mod init;
mod shim;
mod spawn;

/// Exit code for faults of Strait itself, as `docker run` and `env` use it.
const STRAIT_FAILED: u8 = 125;

const USAGE: &str = "usage: strait-tool init [--wait] -- COMMAND [ARGUMENT]...
       strait-tool shim --bundle DIR --id ID --runc PATH --exit-file FILE --control-fd N
                        [--root DIR] [--cgroup DIR] [--console-socket PATH] [--pid-file FILE]";

/// What the helper was called for.
enum Role {
    Init,
    Shim,
}

impl Role {
    fn of(name: &OsString) -> Option<Self> {
        let name = Path::new(name).file_name()?;
        match name.to_str()? {
            "init" => Some(Self::Init),
            "shim" => Some(Self::Shim),
            _ => None,
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let called = arguments.next().as_ref().and_then(Role::of);
    let role = called.or_else(|| arguments.next().as_ref().and_then(Role::of));
    match role {
        Some(Role::Init) => init::run(arguments),
        Some(Role::Shim) => shim::run(&arguments.collect::<Vec<_>>()),
        None => failed(USAGE),
    }
}

/// Says why on stderr and gives the code for faults of Strait itself. A closed stderr is no further fault.
fn failed(why: impl Display) -> ExitCode {
    complain(why);
    ExitCode::from(STRAIT_FAILED)
}

fn complain(why: impl Display) {
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "strait: {why}");
}
