//! NFS mounts whose POSIX locks stay on this machine.
//!
//! Records of changes in progress, and unnamed copies, are locked while their daemon works on them
//! (`docs/dev/on-disk.md`). A pool on another host sees those locks only if the branch forwards them to its server.

use fsstack_sys::mounts::MountInfo;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::path::Path;

/// Returns the mount that `path` is on, if the table has it. Makes no request to its file system, which may hang.
pub fn mount_of<'a>(path: &Path, table: &'a [MountInfo]) -> Option<&'a MountInfo> {
    let how = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let status = statx(CWD, path, how, StatxFlags::MNT_ID).ok()?;
    table.iter().find(|mount| mount.id == status.stx_mnt_id)
}

/// Returns the mount option that keeps POSIX locks on this machine.
pub fn option(mount: &MountInfo) -> Option<&str> {
    let is_nfs = ["nfs", "nfs4"].iter().any(|kind| mount.fs_type == *kind);
    let keeps = |option: &&str| matches!(*option, "nolock" | "local_lock=posix" | "local_lock=all");
    mount.super_options.split(',').find(keeps).filter(|_| is_nfs)
}

/// Logs a warning if the branch at `path` does not forward locks.
pub fn warn(path: &Path, table: &[MountInfo]) {
    if let Some(option) = mount_of(path, table).and_then(option) {
        let branch = path.display();
        tracing::warn!(%branch, option, "NFS mount of the branch keeps locks on this machine; the same pool mounted by another host may clear changes under way; mount the branch without that option if several hosts use it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(line: &str) -> Option<String> {
        let table = fsstack_sys::mounts::parse(line.as_bytes()).unwrap();
        option(&table[0]).map(str::to_owned)
    }

    #[test]
    fn an_nfs_mount_with_local_locks_is_known() {
        let nfs = |kind: &str, options: &str| {
            kept(&format!("36 35 0:52 / /mnt rw shared:2 - {kind} server:/v rw,{options},addr=192.0.2.1\n"))
        };
        assert_eq!(nfs("nfs", "vers=3,nolock,local_lock=all"), Some("nolock".to_owned()));
        assert_eq!(nfs("nfs4", "vers=4.2,local_lock=posix"), Some("local_lock=posix".to_owned()));
        // The pool does not use BSD locks.
        for passed_on in ["vers=3,local_lock=none", "vers=3,local_lock=flock"] {
            assert_eq!(nfs("nfs", passed_on), None, "{passed_on}");
        }
        assert_eq!(nfs("fuse.other", "nolock"), None);
    }

    #[test]
    fn the_mount_of_a_directory_is_found() {
        let table = fsstack_sys::mounts::list().unwrap();
        assert_eq!(mount_of(Path::new("/proc/self"), &table).unwrap().fs_type, "proc");
    }
}
