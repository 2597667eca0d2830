//! Probe: whether a branch answers, and whether it is still the same branch.
//!
//! A FUSE branch whose daemon died, or a removed disk, returns an error for ever through every descriptor opened on it.
//! When it is mounted again at its path, that is another mount, and the pool opens its root anew, provided that the
//! mount is the branch: the same type of file system, the same root inode, and the id that the pool stored there. The
//! bare directory below a vanished mount is none of these and is not used. A detached mount (umount -l) goes on
//! answering through descriptors: only the mount table shows that it is gone.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use fsstack_sys::dirents::Dirents;
use fsstack_sys::mounts::MountInfo;
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use super::subvolumes::Subvolumes;
use crate::branch::Branch;
use crate::dir_fd::DirFd;
use crate::known_root::is_unlisted;
use crate::mount_root::MountedRoot;
use crate::mounted_fd::MountedFd;

/// Result of a probe.
#[derive(Debug)]
pub(super) enum ProbeResult {
    /// It answers; these subvolumes are missing.
    Good(Vec<String>),
    /// It was mounted again, at this root, or answers the first time; these subvolumes are missing.
    Elsewhere(MountedRoot, Vec<String>),
    /// It does not answer, or is not the same branch.
    Bad(ProbeFailure),
    /// Its mount is gone.
    Vanished,
}

/// Fault found by a probe.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProbeFailure {
    Sys(SysError),
    AnotherRoot,
}

impl fmt::Display for ProbeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sys(error) => error.fmt(f),
            Self::AnotherRoot => f.write_str("its root is another directory"),
        }
    }
}

impl Branch {
    /// Probes the branch. May block for as long as the branch hangs.
    pub(super) fn probe(&self) -> ProbeResult {
        match self.found() {
            Ok(Some(mounted)) => {
                let missing = missing(mounted.subvolumes.as_deref());
                return missing.map_or_else(bad, |missing| ProbeResult::Elsewhere(mounted, missing));
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, branch = %self.path.display(), "at the branch's path"),
        }
        if self.has_left_mount() || self.is_unmounted() {
            return ProbeResult::Vanished;
        }
        match answers(self.root().as_fd()) {
            Ok(root) if root.ino == self.root_ino => {
                missing(self.subvolumes().as_deref()).map_or_else(bad, ProbeResult::Good)
            }
            Ok(_) => ProbeResult::Bad(ProbeFailure::AnotherRoot),
            Err(error) => bad(error),
        }
    }

    /// Returns the mount at the branch's path, if that is the branch and not the mount in use.
    fn found(&self) -> Result<Option<MountedRoot>, SysError> {
        let root = sys::at::open_root(&self.path)?;
        let here = sys::at::stat_kept(root.as_fd())?;
        if !self.has_left_mount() && (here.dev, here.mnt_id) == (self.dev(), self.mnt_id()) {
            return Ok(None);
        }
        let Some(stat) = self.known_root().stat_of(root.as_fd())? else { return Ok(None) };
        let is_another = !self.is_unasked((stat.dev, stat.mnt_id));
        let mount_generation = self.mount_generation() + u32::from(is_another);
        let root = Arc::new(DirFd::pinned(MountedFd::root(root, mount_generation)));
        let subvolumes = Subvolumes::of(stat.mnt_id, &sys::mounts::list().unwrap_or_default());
        let (dev, mnt_id) = (stat.dev, stat.mnt_id);
        Ok(Some(MountedRoot { root, dev, mnt_id, left: false, subvolumes, unasked: false }))
    }

    /// True if the mount table shows another mount at the path than the one in use. Walks no path: one that leads through the
    /// mount in use would wait for a server that hangs.
    pub(super) fn has_another_mount(&self) -> bool {
        let Ok(mounts) = sys::mounts::list() else { return false };
        self.mount_root.was_listed && is_elsewhere(&self.path, self.mnt_id(), &mounts)
    }

    /// True if the mount in use was once in the mount table and is not any more.
    pub(super) fn is_unmounted(&self) -> bool {
        self.mount_root.was_listed && is_unlisted(self.mnt_id())
    }
}

/// Whether `path`, which led into the mount `mnt_id`, leads elsewhere by now: that is not among `mounts`, or another one is
/// mounted on it on the way.
fn is_elsewhere(path: &Path, mnt_id: u64, mounts: &[MountInfo]) -> bool {
    let Some(used) = mounts.iter().find(|mount| mount.id == mnt_id) else { return true };
    mounts.iter().filter(|mount| mount.parent == mnt_id && mount.id != mnt_id).any(|above| {
        // The path may lead there by a symbolic link.
        above.mount_point == used.mount_point || path.starts_with(&above.mount_point)
    })
}

fn bad(error: SysError) -> ProbeResult {
    ProbeResult::Bad(ProbeFailure::Sys(error))
}

/// Returns the missing ones of `subvolumes`.
fn missing(subvolumes: Option<&Subvolumes>) -> Result<Vec<String>, SysError> {
    subvolumes.map_or(Ok(Vec::new()), Subvolumes::missing)
}

/// Makes the file system itself answer: its space, fresh attributes of `root`, and the first entry.
pub(crate) fn answers(root: BorrowedFd<'_>) -> Result<Stat, SysError> {
    sys::file::statfs(root)?;
    let stat = sys::at::stat_now(root)?;
    let dir = sys::at::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY)?;
    match Dirents::new(dir, 1024).next() {
        // The daemon may lack read permission, which says nothing about the branch.
        Err(error) if !matches!(error.errno, Errno::ACCESS | Errno::PERM) => Err(error),
        _ => Ok(stat),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn mount(id: u64, parent: u64, at: &str) -> MountInfo {
        MountInfo {
            id,
            parent,
            dev: (0, 0),
            root: "/".into(),
            mount_point: at.into(),
            fs_type: OsString::new(),
            source: OsString::new(),
            options: String::new(),
            super_options: String::new(),
        }
    }

    #[test]
    fn the_mount_table_tells_whether_a_path_leads_to_another_mount() {
        let root = || mount(1, 1, "/");
        let leads = |mounts: &[MountInfo]| is_elsewhere(Path::new("/srv/volume/sub"), 7, mounts);
        let used = || mount(7, 1, "/srv/volume");
        assert!(!leads(&[root(), used()]));
        assert!(!leads(&[root(), used(), mount(8, 1, "/srv/volume2"), mount(9, 7, "/srv/volume/su")]));
        // It was detached; another one covers it, or the branch in it.
        assert!(leads(&[root()]));
        assert!(leads(&[root(), used(), mount(8, 7, "/srv/volume")]));
        assert!(leads(&[root(), used(), mount(8, 7, "/srv/volume/sub")]));
        // By a symbolic link.
        let linked = |mounts: &[MountInfo]| is_elsewhere(Path::new("/link/sub"), 7, mounts);
        assert!(!linked(&[root(), used()]));
        assert!(linked(&[root(), used(), mount(8, 7, "/srv/volume")]));
    }
}
