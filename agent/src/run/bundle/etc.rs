//! `/etc` of a run: ours where it says who and where one is, the host's where it says how programs look things up,
//! nothing where it may hold a secret (`gitconfig`, `npmrc`, `pip.conf`, `shadow`).

use std::{fs, path::PathBuf};

use super::Plan;

/// Files that the host's programs read and that hold no secret. Copied: a mount each costs more.
const COPIED: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/protocols",
    "/etc/services",
    "/etc/mime.types",
    "/etc/inputrc",
    "/etc/bash.bashrc",
    "/etc/profile",
    "/etc/os-release",
    "/etc/debian_version",
    "/etc/ssl/openssl.cnf",
    "/etc/wgetrc",
    "/etc/locale.alias",
    "/etc/locale.conf",
];
/// Larger than this isn't copied.
const COPY_LIMIT: u64 = 1024 * 1024;

/// Folders that the host's programs read and that hold no secret. Names that end in `*` stand for all that begin so.
const FOLDERS: &[&str] = &[
    "/etc/alternatives",
    "/etc/terminfo",
    "/etc/fonts",
    "/etc/java*",
    "/etc/jvm*",
    "/etc/python3*",
    "/etc/perl",
    "/etc/crypto-policies",
    "/etc/pki/ca-trust",
    "/etc/pki/tls",
];

/// The files that are ours: path inside, content.
pub(super) fn files(plan: &Plan<'_>) -> Vec<(&'static str, String)> {
    let (uid, gid) = (plan.account.uid, plan.account.gid);
    let (name, home) = (&plan.account.name, plan.account.home.display());
    let mut passwd = String::new();
    let mut group = String::new();
    if uid != 0 {
        passwd.push_str("root:x:0:0:root:/root:/usr/sbin/nologin\n");
    }
    passwd.push_str(&format!("{name}:x:{uid}:{gid}::{home}:/bin/sh\n"));
    passwd.push_str("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n");
    if gid != 0 {
        group.push_str("root:x:0:\n");
    }
    group.push_str(&format!("{name}:x:{gid}:\ntty:x:5:\nnogroup:x:65534:\n"));
    let hosts = format!(
        "127.0.0.1 localhost {run}\n::1 localhost ip6-localhost ip6-loopback\n{gateway} strait.internal\n",
        run = plan.run,
        gateway = plan.gateway
    );
    vec![
        ("/etc/passwd", passwd),
        ("/etc/group", group),
        ("/etc/hosts", hosts),
        ("/etc/hostname", format!("{}\n", plan.run)),
        // One try is enough: the gateway answers at once or not at all. No search domains: no storm of suffixes.
        ("/etc/resolv.conf", format!("nameserver {}\noptions timeout:5 attempts:1\n", plan.gateway)),
        (
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n".to_owned(),
        ),
        ("/etc/host.conf", "multi on\n".to_owned()),
        ("/etc/shells", "/bin/sh\n/bin/bash\n".to_owned()),
        // Not the host's: that would tell which host it is.
        ("/etc/machine-id", format!("{}\n", "0".repeat(32))),
    ]
}

/// The host's files that are there: path inside, content.
pub(super) fn copied() -> Vec<(&'static str, Vec<u8>)> {
    let small =
        |path: &&&str| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= COPY_LIMIT);
    COPIED.iter().filter(small).filter_map(|path| Some((*path, fs::read(path).ok()?))).collect()
}

/// The host's folders that are there.
pub(super) fn folders() -> Vec<PathBuf> {
    let names: Vec<String> = fs::read_dir("/etc")
        .map(|entries| {
            entries
                .flatten()
                .filter_map(|entry| entry.file_name().into_string().ok())
                .map(|name| format!("/etc/{name}"))
                .collect()
        })
        .unwrap_or_default();
    let mut found = Vec::new();
    for pattern in FOLDERS {
        match pattern.strip_suffix('*') {
            Some(start) => {
                found.extend(names.iter().filter(|name| name.starts_with(start)).map(PathBuf::from))
            }
            None => found.push(PathBuf::from(pattern)),
        }
    }
    found.retain(|path| path.is_dir());
    found
}
