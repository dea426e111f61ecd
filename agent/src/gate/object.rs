//! Loading the object once, or adopting what an earlier agent loaded.
//!
//! Pins: `<bpffs>/prog/<program>`, `<bpffs>/map/<MAP>`, `<bpffs>/run/<run>/<hook>`, `<bpffs>/listeners/<hook>`.
//! A set of pins is adopted only if its META names the very object file and gateway address, every program is
//! there and every map has the right shape. Anything else is replaced: first the table of runs is emptied, so
//! that the old programs deny everything, then the new set takes the names. Links of the old set stay, denying,
//! until each run is admitted again.

use std::{
    fs, io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{HashMap, Map, MapData},
    programs::Program,
};
use rustix::mount::{MountFlags, mount};
use sha2::{Digest as _, Sha256};
use strait_abi::map::{self, Meta, Run};

use super::{
    GateError,
    hook::{CgroupHook, LISTENER_HOOKS, PACKET_FILTER, RUN_HOOKS},
    sys,
};
use crate::{instance::Instance, preflight};

/// Magic number of bpffs (`BPF_FS_MAGIC`, linux/magic.h).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// File name of the object in [`Instance::lib_dir`].
pub const OBJECT: &str = "gate.bpf.o";

/// Whether the programs were loaded now or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing was pinned.
    Loaded,
    /// An earlier agent's set was taken over.
    Adopted,
    /// Another set was in its place; every run it held is denied until admitted again.
    Replaced,
}

/// A pinned program.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) hook: CgroupHook,
    pub(super) fd: OwnedFd,
    pub(super) id: u32,
}

/// The programs of the set in force.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) run: Vec<Pinned>,
    pub(super) listeners: Vec<Pinned>,
    pub(super) filter: u32,
}

pub(super) fn program_pin(instance: &Instance, name: &str) -> PathBuf {
    instance.bpffs.join("prog").join(name)
}

pub(super) fn map_pin(instance: &Instance, name: &str) -> PathBuf {
    instance.bpffs.join("map").join(name)
}

/// Makes sure that the programs of this object are pinned, and opens them.
pub(super) fn ensure(instance: &Instance) -> Result<(Programs, Origin), GateError> {
    mount_bpffs(instance)?;
    let (bytes, meta) = read(instance)?;
    let found = instance.bpffs.join("prog").exists() || instance.bpffs.join("map").exists();
    if found && is_ours(instance, &meta)? {
        return Ok((open(instance)?, Origin::Adopted));
    }
    if found {
        close_old(instance)?;
    }
    load(instance, &bytes, &meta)?;
    Ok((open(instance)?, if found { Origin::Replaced } else { Origin::Loaded }))
}

/// Whether the pinned set is the installed object.
pub(super) fn is_there(instance: &Instance) -> Result<bool, GateError> {
    let (_, meta) = read(instance)?;
    is_ours(instance, &meta)
}

fn read(instance: &Instance) -> Result<(Vec<u8>, Meta), GateError> {
    let path = instance.lib_dir.join(OBJECT);
    let bytes = fs::read(&path).map_err(|source| GateError::Object { path, source })?;
    let meta = Meta {
        digest: Sha256::digest(&bytes).into(),
        gateway: u32::from_ne_bytes(instance.gateway().octets()),
        version: u32::from(strait_abi::VERSION),
    };
    Ok((bytes, meta))
}

/// Mounts bpffs on `/sys/fs/bpf` if no one has, and makes the instance's folder in it, for root alone.
fn mount_bpffs(instance: &Instance) -> Result<(), GateError> {
    let failed = |source: io::Error| GateError::Bpffs { path: instance.bpffs.clone(), source };
    let base = instance.bpffs.parent().unwrap_or_else(|| Path::new("/sys/fs/bpf"));
    if !on_bpffs(base).map_err(failed)? {
        mount("bpf", base, "bpf", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)
            .map_err(|errno| failed(errno.into()))?;
    }
    for folder in [instance.bpffs.clone(), instance.bpffs.join("run"), instance.bpffs.join("listeners")] {
        fs::create_dir_all(&folder).map_err(failed)?;
        let only_root = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&folder, only_root).map_err(failed)?;
    }
    Ok(())
}

/// Whether a folder is on bpffs.
pub(crate) fn on_bpffs(path: &Path) -> io::Result<bool> {
    let kind = rustix::fs::statfs(path)?.f_type;
    Ok(u64::try_from(kind).is_ok_and(|kind| kind == BPF_FS_MAGIC))
}

/// Type, key size, value size and entries of each map: `BPF_MAP_TYPE_*` of linux/bpf.h.
fn shapes() -> [(&'static str, [u32; 4]); 12] {
    const HASH: u32 = 1;
    const ARRAY: u32 = 2;
    const PERCPU_ARRAY: u32 = 6;
    const LPM_TRIE: u32 = 11;
    const RINGBUF: u32 = 27;
    let runs = map::MAX_RUNS;
    [
        (map::RUNS, [HASH, 8, 16, runs]),
        (map::STATE, [ARRAY, 4, 32, runs]),
        (map::USAGE, [ARRAY, 4, 24, runs]),
        (map::FREED, [ARRAY, 4, 16, runs]),
        (map::ACCOUNT, [PERCPU_ARRAY, 4, 48, runs]),
        (map::RANGES, [LPM_TRIE, 16, 4, map::MAX_RANGES]),
        (map::ORIG, [HASH, 8, 56, map::MAX_FLOWS]),
        (map::FLOW, [HASH, 8, 56, map::MAX_FLOWS]),
        (map::VETH, [HASH, 4, 32, runs]),
        (map::FOLD, [HASH, 40, 56, map::MAX_FOLDS]),
        (map::EVENTS, [RINGBUF, 0, 0, map::RING_BYTES]),
        (map::META, [ARRAY, 4, 40, 1]),
    ]
}

/// Whether the pinned set is this very object, whole.
fn is_ours(instance: &Instance, meta: &Meta) -> Result<bool, GateError> {
    for (name, shape) in shapes() {
        let Ok(fd) = sys::open_pin(&map_pin(instance, name)) else { return Ok(false) };
        if sys::map_shape(fd.as_fd()).ok() != Some(shape) {
            return Ok(false);
        }
    }
    let missing = RUN_HOOKS
        .iter()
        .chain(&LISTENER_HOOKS)
        .filter(|hook| !hook.optional)
        .map(|hook| hook.name)
        .chain([PACKET_FILTER])
        .any(|name| sys::open_pin(&program_pin(instance, name)).is_err());
    if missing {
        return Ok(false);
    }
    let found: [u8; Meta::LEN] = aya::maps::Array::try_from(open_map(instance, map::META)?)
        .and_then(|array| array.get(&0, 0))
        .map_err(|source| GateError::Map { map: map::META, source: Box::new(source) })?;
    Ok(Meta::from_bytes(&found) == *meta)
}

/// Takes every run out of the old set, so that what is still attached denies everything, and frees its names.
fn close_old(instance: &Instance) -> Result<(), GateError> {
    if let Ok(runs) = open_map(instance, map::RUNS)
        && let Ok(mut runs) = HashMap::<_, u64, [u8; Run::LEN]>::try_from(runs)
    {
        let cookies: Vec<u64> = runs.keys().flatten().collect();
        for cookie in cookies {
            runs.remove(&cookie)
                .map_err(|source| GateError::Map { map: map::RUNS, source: Box::new(source) })?;
        }
    }
    for folder in ["prog", "map"] {
        let path = instance.bpffs.join(folder);
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(GateError::Bpffs { path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens a pinned map as what its kernel type says it is.
pub(crate) fn open_map(instance: &Instance, name: &'static str) -> Result<Map, GateError> {
    MapData::from_pin(map_pin(instance, name))
        .and_then(Map::from_map_data)
        .map_err(|source| GateError::Map { map: name, source: Box::new(source) })
}

fn load(instance: &Instance, bytes: &[u8], meta: &Meta) -> Result<(), GateError> {
    let gateway = meta.gateway;
    // Reading the kernel's types takes as long as all the rest: it goes on meanwhile.
    let types = preflight::may_have_bpf_lsm().then(|| std::thread::spawn(Btf::from_sys_fs));
    let mut object = EbpfLoader::new()
        // Nothing in it is relocated by them.
        .btf(None)
        .override_global("GATEWAY", &gateway, true)
        .load(bytes)
        .map_err(|source| GateError::Load { program: OBJECT, source: Box::new(source) })?;
    for folder in ["prog", "map"] {
        let path = instance.bpffs.join(folder);
        fs::create_dir_all(&path).map_err(|source| GateError::Bpffs { path, source })?;
    }
    let hooks = RUN_HOOKS.iter().chain(&LISTENER_HOOKS);
    let required = hooks.clone().filter(|hook| !hook.optional).map(|hook| hook.name);
    for name in required.chain([PACKET_FILTER]) {
        place(instance, &mut object, name, None)?;
    }
    // A trampoline to a module that isn't on is never called, and would look as if it held.
    if let Some(types) = types {
        // A panic in it was reported; the kernel's types are then as good as absent.
        let types = types.join().ok().and_then(Result::ok);
        for hook in hooks.filter(|hook| hook.optional) {
            match place(instance, &mut object, hook.name, types.as_ref()) {
                Err(GateError::Load { program, source }) => {
                    tracing::info!(program, error = %source, "this kernel lacks an optional hook");
                }
                other => other?,
            }
        }
    }
    for (name, _) in shapes() {
        let map = object
            .map(name)
            .ok_or_else(|| GateError::Incomplete { program: name, path: instance.lib_dir.join(OBJECT) })?;
        map.pin(map_pin(instance, name))
            .map_err(|source| GateError::Pin { object: name, source: Box::new(source) })?;
    }
    // Last: a set without META is one whose loading was cut short.
    aya::maps::Array::<_, [u8; Meta::LEN]>::try_from(open_map(instance, map::META)?)
        .and_then(|mut array| array.set(0, meta.to_bytes(), 0))
        .map_err(|source| GateError::Map { map: map::META, source: Box::new(source) })
}

/// Loads a program and pins it.
fn place(
    instance: &Instance,
    object: &mut Ebpf,
    name: &'static str,
    types: Option<&Btf>,
) -> Result<(), GateError> {
    let program = object
        .program_mut(name)
        .ok_or_else(|| GateError::Incomplete { program: name, path: instance.lib_dir.join(OBJECT) })?;
    load_program(program, types)
        .map_err(|source| GateError::Load { program: name, source: Box::new(source) })?;
    program
        .pin(program_pin(instance, name))
        .map_err(|source| GateError::Pin { object: name, source: Box::new(source) })
}

fn load_program(program: &mut Program, types: Option<&Btf>) -> Result<(), aya::EbpfError> {
    match program {
        Program::CgroupSockAddr(program) => program.load()?,
        Program::CgroupSock(program) => program.load()?,
        Program::CgroupSkb(program) => program.load()?,
        Program::CgroupSockopt(program) => program.load()?,
        Program::SockOps(program) => program.load()?,
        Program::SchedClassifier(program) => program.load()?,
        Program::LsmCgroup(program) => match types {
            Some(types) => program.load("socket_create", types)?,
            // Says why.
            None => program.load("socket_create", &Btf::from_sys_fs()?)?,
        },
        _ => return Err(aya::programs::ProgramError::UnexpectedProgramType.into()),
    }
    Ok(())
}

/// Opens the pinned programs; an optional one that this kernel lacks is left out.
fn open(instance: &Instance) -> Result<Programs, GateError> {
    let open = |hooks: &[CgroupHook]| -> Result<Vec<Pinned>, GateError> {
        let mut pinned = Vec::new();
        for hook in hooks {
            let path = program_pin(instance, hook.name);
            if hook.optional && !path.exists() {
                continue;
            }
            let (fd, id) = open_program(&path)?;
            pinned.push(Pinned { hook: *hook, fd, id });
        }
        Ok(pinned)
    };
    Ok(Programs {
        run: open(&RUN_HOOKS)?,
        listeners: open(&LISTENER_HOOKS)?,
        filter: open_program(&program_pin(instance, PACKET_FILTER))?.1,
    })
}

fn open_program(path: &Path) -> Result<(OwnedFd, u32), GateError> {
    let opened = sys::open_pin(path).and_then(|fd| {
        let id = sys::program_id(fd.as_fd())?;
        Ok((fd, id))
    });
    opened.map_err(|source| GateError::Bpffs { path: path.to_owned(), source })
}
