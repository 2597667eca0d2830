//! Root of a branch as a descriptor, replaced when its mount was replaced.
//!
//! `health/probe.rs` detects that. Descriptors carry the mount generation in which they were opened; those of an
//! earlier one belong to a mount that is gone, and are opened anew.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use fsstack_sys::file::FsSpace;
use fsstack_sys::{self as sys, Stat};

use crate::branch::{Branch, FsKind};
use crate::dir_fd::DirFd;
use crate::health::subvolumes::Subvolumes;
use crate::known_root::KnownRoot;
use crate::mounted_fd::MountedFd;

/// The id stored with a branch, by which it is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Attribute of the branch's root.
    pub attribute: &'static CStr,
    /// Its value.
    pub value: [u8; 16],
}

/// The present root of a branch, and the identity that it must have.
#[derive(Debug)]
pub(crate) struct MountRoot {
    now: ArcSwap<MountedRoot>,
    pub f_type: u64,
    pub fsid: u64,
    pub proof: Option<Proof>,
    /// Its mount was in the mount table when it was opened, so it is in this namespace: missing from the table later
    /// means that it is gone.
    pub was_listed: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct MountedRoot {
    pub root: Arc<DirFd>,
    pub dev: u64,
    pub mnt_id: u64,
    /// The mount is gone, and the pool holds nothing there any more.
    pub left: bool,
    /// Subvolumes that it may lack while it answers.
    pub subvolumes: Option<Arc<Subvolumes>>,
    /// The mount that `mnt_id` names did not answer when it was taken over: descriptors of it are of this generation.
    pub unasked: bool,
}

impl MountRoot {
    pub(crate) fn new(root: OwnedFd, stat: &Stat, space: &FsSpace, proof: Option<Proof>) -> Self {
        let root = Arc::new(DirFd::pinned(MountedFd::root(root, 0)));
        let mounts = sys::mounts::list().unwrap_or_default();
        let listed = mounts.iter().any(|mount| mount.id == stat.mnt_id);
        let subvolumes = Subvolumes::of(stat.mnt_id, &mounts);
        let mounted =
            MountedRoot { root, dev: stat.dev, mnt_id: stat.mnt_id, left: false, subvolumes, unasked: false };
        Self {
            now: ArcSwap::from_pointee(mounted),
            f_type: space.f_type,
            fsid: space.fsid,
            proof,
            was_listed: listed,
        }
    }

    /// A root below which nothing can be opened.
    pub(crate) fn nowhere() -> Result<Self, sys::SysError> {
        Ok(Self {
            now: ArcSwap::from_pointee(MountedRoot::nowhere_since(0)?),
            f_type: 0,
            fsid: 0,
            proof: None,
            was_listed: false,
        })
    }
}

impl MountRoot {
    /// The root of a mount that was noted and is not there, or is the one with the id `silent`, which does not answer.
    pub(crate) fn away(known: &KnownRoot, silent: Option<u64>) -> Result<Self, sys::SysError> {
        let nowhere = MountedRoot { dev: known.dev, ..MountedRoot::nowhere_since(0)? };
        let (mnt_id, unasked) = (silent.unwrap_or(nowhere.mnt_id), silent.is_some());
        Ok(Self {
            now: ArcSwap::from_pointee(MountedRoot { mnt_id, unasked, ..nowhere }),
            f_type: known.f_type,
            fsid: known.fsid,
            proof: known.proof,
            was_listed: known.was_listed,
        })
    }
}

impl MountRoot {
    /// The same, as that of `branch`, which is a file system of this `kind`.
    pub(crate) fn of(self, branch: &Weak<Branch>, kind: FsKind) -> Self {
        if !kind.is_local() {
            self.now.load().root.is_root_of(branch);
        }
        self
    }
}

impl MountedRoot {
    /// A pipe in place of the root: opening below it fails, because it is no directory.
    fn nowhere_since(mount_generation: u32) -> Result<Self, sys::SysError> {
        let (end, _) = sys::process::readiness_pipe().map_err(|error| sys::SysError {
            call: sys::Call::Open,
            errno: sys::Errno::from_io_error(&error).unwrap_or(sys::Errno::MFILE),
        })?;
        let root = Arc::new(DirFd::pinned(MountedFd::root(end, mount_generation)));
        Ok(Self { root, dev: 0, mnt_id: 0, left: true, subvolumes: None, unasked: false })
    }
}

impl Branch {
    /// Returns its root directory.
    pub fn root(&self) -> Arc<DirFd> {
        self.mount_root.now.load().root.clone()
    }

    /// True if its mount was in the mount table when it was opened.
    pub fn was_listed(&self) -> bool {
        self.mount_root.was_listed
    }

    /// Device of its root.
    pub fn dev(&self) -> u64 {
        self.mount_root.now.load().dev
    }

    /// Mount id of its root; 0 if the kernel does not return it.
    pub fn mnt_id(&self) -> u64 {
        self.mount_root.now.load().mnt_id
    }

    /// Number of mounts that have replaced the first one. Descriptors of earlier generations are dead.
    pub fn mount_generation(&self) -> u32 {
        self.mount_root.now.load().root.mount_generation
    }

    /// Releases the root of a branch that has left the pool, so that its disk can be unmounted.
    pub fn let_go(&self) {
        match MountedRoot::nowhere_since(self.mount_generation() + 1) {
            Ok(mounted) => self.mount_root.now.store(Arc::new(mounted)),
            Err(error) => {
                tracing::warn!(%error, branch = %self.path.display(), "cannot release the root of a removed branch; umount(8) of it fails with EBUSY")
            }
        }
    }

    /// Uses `mounted` as the root from now on.
    pub(crate) fn replace_root(&self, mounted: MountedRoot) {
        if !self.kind.is_local() {
            mounted.root.is_root_of(&self.me);
        }
        let is_another = mounted.root.mount_generation != self.mount_generation();
        self.mount_root.now.store(Arc::new(mounted));
        // The branch has left the pool since the probe, and its former root may have been released before this one was
        // stored.
        if self.is_gone() {
            return self.let_go();
        }
        // One mount has one set, however often its root is opened.
        if is_another {
            self.has_new_permits();
        }
        // Anything on it may have changed while it was away.
        self.report(|pool| pool.mount_replaced(self));
    }

    /// Releases the root of a mount that is gone, so that its file system can be mounted anew. Calls until then fail.
    pub(crate) fn leave_mount(&self) {
        if self.has_left_mount() {
            return;
        }
        let mounted = MountedRoot::clone(&self.mount_root.now.load());
        match MountedRoot::nowhere_since(mounted.root.mount_generation + 1) {
            Ok(nowhere) => {
                self.mount_root.now.store(Arc::new(MountedRoot {
                    root: nowhere.root,
                    left: true,
                    subvolumes: None,
                    ..mounted
                }));
                self.has_new_permits();
                self.report(|pool| pool.mount_gone(self));
            }
            Err(error) => {
                tracing::warn!(%error, branch = %self.path.display(), "cannot release the old mount of a branch; umount(8) of it fails with EBUSY")
            }
        }
    }

    /// Starts a full set of permits: calls stuck in the old mount take none of the new one.
    fn has_new_permits(&self) {
        if let Some(inflight_limit) = &self.health.inflight_limit {
            inflight_limit.renew(self.mount_generation());
        }
    }

    /// True for a GlusterFS volume: it may consist of subvolumes of which some are missing while it answers.
    pub fn has_subvolumes(&self) -> bool {
        self.subvolumes().is_some()
    }

    pub(crate) fn subvolumes(&self) -> Option<Arc<Subvolumes>> {
        if self.kind.is_local() { None } else { self.mount_root.now.load().subvolumes.clone() }
    }

    pub(crate) fn has_left_mount(&self) -> bool {
        self.mount_root.now.load().left
    }

    /// True if the mount with this device and id did not answer when it was taken over, and has not since.
    pub(crate) fn is_unasked(&self, mount: (u64, u64)) -> bool {
        let now = self.mount_root.now.load();
        now.unasked && (now.dev, now.mnt_id) == mount
    }
}
