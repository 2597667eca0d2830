//! Where a branch is: its root by descriptor, and finding it again when its mount was replaced.
//!
//! A FUSE branch whose daemon died, or a disk that was taken out, answers with an error for ever, through every
//! descriptor opened on it. When somebody mounts it again at its path it is another mount, and the pool has to
//! open its root anew. That happens when a call says that the branch is gone, at most once a second, and only if
//! what lies at the path is the branch: the same type of file system, the same root inode, and the id that
//! the pool stored there. The bare directory below a mount that vanished is none of that, and is not touched.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use fsstack_sys::file::FsSpace;
use fsstack_sys::xattr::{self, On};
use fsstack_sys::{self as sys, Stat};

use crate::branch::Branch;
use crate::crowd::Crowd;
use crate::inode::dirfd::DirFd;

/// How often a branch that is gone is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The id stored with a branch, by which it is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The attribute of the branch's root.
    pub attribute: &'static CStr,
    /// Its value.
    pub value: [u8; 16],
}

/// Where a branch is now, and what it must be.
#[derive(Debug)]
pub(crate) struct Home {
    now: ArcSwap<Place>,
    f_type: u64,
    fsid: u64,
    proof: Option<Proof>,
    since: Instant,
    /// When it was last looked for: milliseconds since `since`.
    looked: AtomicU64,
}

#[derive(Debug)]
struct Place {
    root: Arc<DirFd>,
    dev: u64,
    mnt_id: u64,
}

impl Home {
    pub(crate) fn new(root: OwnedFd, stat: &Stat, space: &FsSpace, proof: Option<Proof>) -> Self {
        let place = Place { root: Arc::new(DirFd::pinned(root, 0)), dev: stat.dev, mnt_id: stat.mnt_id };
        Self {
            now: ArcSwap::from_pointee(place),
            f_type: space.f_type,
            fsid: space.fsid,
            proof,
            since: Instant::now(),
            looked: AtomicU64::new(0),
        }
    }

    /// Nowhere: nothing can be opened below it.
    pub(crate) fn nowhere() -> Result<Self, sys::SysError> {
        Ok(Self {
            now: ArcSwap::from_pointee(Place::nowhere()?),
            f_type: 0,
            fsid: 0,
            proof: None,
            since: Instant::now(),
            looked: AtomicU64::new(0),
        })
    }
}

impl Place {
    /// A pipe has the place of a root: no directory.
    fn nowhere() -> Result<Self, sys::SysError> {
        let (end, _) = sys::process::readiness_pipe().map_err(|error| sys::SysError {
            call: sys::Call::Open,
            errno: sys::Errno::from_io_error(&error).unwrap_or(sys::Errno::MFILE),
        })?;
        Ok(Self { root: Arc::new(DirFd::pinned(end, 0)), dev: 0, mnt_id: 0 })
    }
}

impl Branch {
    /// Its root directory.
    pub fn root(&self) -> Arc<DirFd> {
        self.home.now.load().root.clone()
    }

    /// Device of its root.
    pub fn dev(&self) -> u64 {
        self.home.now.load().dev
    }

    /// Mount id of its root; 0 where the kernel does not tell.
    pub fn mnt_id(&self) -> u64 {
        self.home.now.load().mnt_id
    }

    /// How often it was found again: descriptors of an earlier epoch are dead.
    pub fn epoch(&self) -> u32 {
        self.home.now.load().root.epoch
    }

    /// It has left the pool: its disk may be unmounted.
    pub(crate) fn let_go(&self) {
        match Place::nowhere() {
            Ok(place) => self.home.now.store(Arc::new(place)),
            Err(error) => tracing::warn!(%error, branch = %self.path.display(), "its root is kept open"),
        }
    }

    /// The branch said that it is gone: opens it anew if it has been mounted again.
    pub(crate) fn look_for(&self) {
        if self.is_gone() {
            return;
        }
        let now = u64::try_from(self.home.since.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let last = self.home.looked.load(Relaxed);
        let early = last != 0 && now - last.min(now) < u64::try_from(LOOK_EVERY.as_millis()).unwrap_or(1000);
        if early || self.home.looked.compare_exchange(last, now, Relaxed, Relaxed).is_err() {
            return;
        }
        if self.crowd.as_ref().is_some_and(Crowd::is_suspect) {
            return; // it hangs: whoever looks for it would too
        }
        match self.found() {
            Ok(Some(place)) => {
                tracing::warn!(branch = %self.path.display(), "the branch is mounted again");
                self.home.now.store(Arc::new(place));
                self.distrust_space();
                if let Some(watch) = self.watcher() {
                    watch.returned(self);
                }
            }
            Ok(None) => tracing::warn!(branch = %self.path.display(), "the branch is out of order"),
            Err(error) => tracing::warn!(branch = %self.path.display(), %error, "the branch is out of order"),
        }
    }

    /// What lies at the branch's path, if it is the branch and another mount than the one in use.
    fn found(&self) -> Result<Option<Place>, sys::SysError> {
        let root = sys::at::open_root(&self.path)?;
        let stat = sys::at::stat_fd(root.as_fd())?;
        if (stat.dev, stat.mnt_id) == (self.dev(), self.mnt_id()) {
            return Ok(None);
        }
        let space = sys::file::statfs(root.as_fd())?;
        let proven = match &self.home.proof {
            Some(proof) => {
                let mut value = [0; 16];
                matches!(xattr::get(On::Fd(root.as_fd()), proof.attribute, &mut value), Ok(16))
                    && value == proof.value
            }
            None => space.fsid == self.home.fsid,
        };
        if !proven || stat.ino != self.root_ino || space.f_type != self.home.f_type {
            return Ok(None);
        }
        let root = Arc::new(DirFd::pinned(root, self.epoch() + 1));
        Ok(Some(Place { root, dev: stat.dev, mnt_id: stat.mnt_id }))
    }
}
