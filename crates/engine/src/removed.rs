//! Removal of an object's index entries with its last name.
//!
//! Where objects are opened by their numbers, whether it was the last is asked of the number (`identify.rs`). Elsewhere the
//! object itself is held while its name goes, and asked afterwards: another name may have come meanwhile. A server that
//! keeps what is held under another name (NFS) is asked before, and nobody links anything there meanwhile. All of this only for
//! what the index has.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::{self as sys, Errno, OFlags, SysError};
use parking_lot::RwLockWriteGuard;
use smallvec::SmallVec;

use crate::index::Place;
use crate::inode::Inode;
use crate::inode::dirfd::DirFd;
use crate::inode::number::{self, Identity};
use crate::pool::Pool;
use crate::union::Union;

/// Timeout of waiting for threads that link something: the index may have too much.
const PATIENCE: Duration = Duration::from_millis(200);

/// An object whose name is about to be removed.
pub(crate) struct Going<'a> {
    id: Identity,
    places: SmallVec<[(BranchIx, Ino, How<'a>); 1]>,
}

/// How it is known whether the last name went.
enum How<'a> {
    File(OwnedFd),
    Dir(Arc<DirFd>),
    /// This one was the last, and nobody gives it another until this drops.
    Alone {
        _links: RwLockWriteGuard<'a, ()>,
    },
}

impl Union {
    /// `name` in `parent` is about to be removed from `inode`: for [`Self::gone`], when it is.
    pub(crate) fn going<'a>(
        &self,
        pool: &'a Pool,
        inode: &Arc<Inode>,
        (parent, name): (&Arc<Inode>, &CStr),
    ) -> Going<'a> {
        let mut going = Going { id: inode.id, places: SmallVec::new() };
        for Place { id, naturals, .. } in self.index.places(inode.id.ino) {
            if id != inode.id {
                continue;
            }
            let known = |(_, natural, _): &(BranchIx, Ino, How<'a>)| naturals.contains(natural);
            match inode.is_dir() {
                true => going.places.extend(self.copies_that_go(pool, inode).filter(known)),
                false => going.places.extend(self.file_that_goes(pool, inode, (parent, name)).filter(known)),
            }
        }
        going
    }

    fn copies_that_go<'a>(
        &self,
        pool: &'a Pool,
        dir: &Arc<Inode>,
    ) -> impl Iterator<Item = (BranchIx, Ino, How<'a>)> {
        let searched = dir.copies().into_iter().filter(|at| pool.branch(*at).by_number.is_none());
        searched.filter_map(move |at| {
            let branch = pool.branch(at);
            let natural = number::number(branch, branch.dev(), dir.copy_ino(at)?);
            Some((at, natural, How::Dir(self.dirfd(pool, dir, at).ok()?)))
        })
    }

    fn file_that_goes<'a>(
        &self,
        pool: &'a Pool,
        file: &Inode,
        (parent, name): (&Arc<Inode>, &CStr),
    ) -> Option<(BranchIx, Ino, How<'a>)> {
        let at = file.branch()?;
        let branch = pool.branch(at);
        if branch.by_number.is_some() {
            return None;
        }
        let natural = |stat: &sys::Stat| number::number(branch, stat.dev, stat.ino);
        if branch.renames_what_is_held() {
            let links = branch.searches.alone(PATIENCE)?;
            let stat = self.stat_in(pool, parent, at, name).ok()?;
            return (stat.nlink == 1).then(|| (at, natural(&stat), How::Alone { _links: links }));
        }
        let dir = self.dirfd(pool, parent, at).ok()?;
        let open = || sys::at::open(dir.as_fd(), name, OFlags::PATH, 0, branch.mounts);
        let fd = branch.ask(open).ok()?;
        let stat = branch.ask(|| sys::at::stat_fd(fd.as_fd())).ok()?;
        Some((at, natural(&stat), How::File(fd)))
    }

    /// The name that was about to be removed is gone: if it was the last, the index need not know the object any more.
    pub(crate) fn gone(&self, pool: &Pool, going: Going<'_>) {
        for (at, natural, how) in going.places {
            let branch = pool.branch(at);
            let asked = |fd| {
                let asked = branch.ask(|| is_unlinked(fd));
                asked.unwrap_or_else(|error| error.is_missing())
            };
            let is_gone = match &how {
                How::File(fd) => asked(fd.as_fd()),
                How::Dir(fd) => asked(fd.as_fd()),
                How::Alone { .. } => true,
            };
            if is_gone {
                self.index.forget(going.id, Some(natural));
            }
        }
        self.forget_removed(pool, going.id);
    }
}

/// Whether it has no name any more.
fn is_unlinked(fd: BorrowedFd<'_>) -> Result<bool, SysError> {
    match sys::at::stat_now(fd) {
        Err(error) if error.errno == Errno::STALE => Ok(true),
        stat => Ok(stat?.nlink == 0),
    }
}
