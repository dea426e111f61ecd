//! Where cgroup v2 is mounted: read from mountinfo, never assumed. On hybrid hosts it's
//! `/sys/fs/cgroup/unified`, elsewhere `/sys/fs/cgroup`.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path, path::PathBuf};

/// Root of the cgroup v2 hierarchy, if it's mounted.
///
/// # Errors
/// If `/proc/self/mountinfo` can't be read.
pub fn v2_root() -> io::Result<Option<PathBuf>> {
    Ok(parse(&fs::read_to_string("/proc/self/mountinfo")?))
}

/// mountinfo(5): `id parent major:minor root mountpoint options [tags…] - type source options`. A mount whose
/// root isn't `/` shows only a part of the hierarchy and is passed over.
fn parse(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        (root == "/" && filesystem.split(' ').next() == Some("cgroup2"))
            .then(|| PathBuf::from(unescape(point)))
    })
}

/// Blanks, tabs, newlines and backslashes are octal in mountinfo.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// Id of a cgroup: the inode of its folder.
pub(crate) fn id(cgroup: &Path) -> io::Result<u64> {
    Ok(fs::metadata(cgroup)?.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_v2_mount_is_found_on_hybrid_and_on_pure_hosts() {
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(parse(hybrid), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        let pure = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(parse(pure), Some(PathBuf::from("/sys/fs/cgroup")));
        let odd = "31 23 0:28 /part /mnt/part rw - cgroup2 none rw\n31 23 0:28 / /mnt/a\\040b rw - cgroup2 none rw\n";
        assert_eq!(parse(odd), Some(PathBuf::from("/mnt/a b")));
        assert_eq!(parse("31 23 0:28 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu\n"), None);
    }
}
