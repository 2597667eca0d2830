//! Whether a branch answers, and whether it is still itself.
//!
//! A FUSE branch whose daemon died, or a disk that was taken out, answers with an error for ever, through every
//! descriptor opened on it. When somebody mounts it again at its path it is another mount, and the pool has to
//! open its root anew; but only if what lies at the path is the branch: the same type of file system, the same root
//! inode, and the id that the pool stored there. The bare directory below a mount that vanished is none of that,
//! and is not touched. A mount that was detached (umount -l) goes on answering through descriptors: that it is gone is
//! seen in the mount table only.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_sys::dirents::Dirents;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Errno, OFlags, Stat, SysError};

use super::subvolumes::Subvolumes;
use crate::branch::Branch;
use crate::dir_fd::DirFd;
use crate::mount_root::MountedRoot;
use crate::mounted_fd::MountedFd;

/// Result of a probe.
#[derive(Debug)]
pub(super) enum ProbeResult {
    /// It answers, without these of its parts.
    Good(Vec<String>),
    /// It is mounted again, here, without these of its parts.
    Elsewhere(MountedRoot, Vec<String>),
    /// It does not answer, or not as itself.
    Bad(ProbeFailure),
    /// Its mount is gone.
    Vanished,
}

/// Fault that a probe found.
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
    /// Asks the branch, which may take as long as it hangs.
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

    /// The mount at the branch's path, if it is the branch and another mount than the one in use.
    fn found(&self) -> Result<Option<MountedRoot>, SysError> {
        let root = sys::at::open_root(&self.path)?;
        let here = sys::at::stat_kept(root.as_fd())?;
        if !self.has_left_mount() && (here.dev, here.mnt_id) == (self.dev(), self.mnt_id()) {
            return Ok(None);
        }
        let space = sys::file::statfs(root.as_fd())?;
        let stat = answers(root.as_fd())?;
        let proven = match &self.mount_root.proof {
            Some(proof) => {
                let mut value = [0; 16];
                matches!(xattr::get(On::Fd(root.as_fd()), proof.attribute, &mut value), Ok(16))
                    && value == proof.value
            }
            None => space.fsid == self.mount_root.fsid,
        };
        if !proven || stat.ino != self.root_ino || space.f_type != self.mount_root.f_type {
            return Ok(None);
        }
        let root = Arc::new(DirFd::pinned(MountedFd::root(root, self.mount_generation() + 1)));
        let subvolumes = Subvolumes::of(stat.mnt_id, &sys::mounts::list().unwrap_or_default());
        Ok(Some(MountedRoot { root, dev: stat.dev, mnt_id: stat.mnt_id, left: false, subvolumes }))
    }

    /// Whether another mount than the one in use lies at the path: asked without asking either.
    pub(super) fn has_another_mount(&self) -> bool {
        let here = sys::at::open_root(&self.path).and_then(|root| sys::at::stat_kept(root.as_fd()));
        here.is_ok_and(|here| (here.dev, here.mnt_id) != (self.dev(), self.mnt_id()))
    }

    /// Whether the mount in use is no longer in the mount table, where it once was.
    pub(super) fn is_unmounted(&self) -> bool {
        let mnt_id = self.mnt_id();
        self.mount_root.was_listed
            && sys::mounts::list().is_ok_and(|all| all.iter().all(|mount| mount.id != mnt_id))
    }
}

fn bad(error: SysError) -> ProbeResult {
    ProbeResult::Bad(ProbeFailure::Sys(error))
}

/// Missing parts of a branch with these parts.
fn missing(subvolumes: Option<&Subvolumes>) -> Result<Vec<String>, SysError> {
    subvolumes.map_or(Ok(Vec::new()), Subvolumes::missing)
}

/// Has the file system itself answer: its size, the attributes of `root` now, and the first of its entries.
fn answers(root: BorrowedFd<'_>) -> Result<Stat, SysError> {
    sys::file::statfs(root)?;
    let stat = sys::at::stat_now(root)?;
    let dir = sys::at::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY)?;
    match Dirents::new(dir, 1024).next() {
        // The daemon may be kept from reading, not from entering.
        Err(error) if !matches!(error.errno, Errno::ACCESS | Errno::PERM) => Err(error),
        _ => Ok(stat),
    }
}
