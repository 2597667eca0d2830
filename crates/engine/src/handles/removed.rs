//! Removal of an object's index entries with its last name.
//!
//! Where objects are opened by their numbers, whether it was the last is asked of the number (`identify.rs`). Elsewhere the
//! object itself is held while its name goes, and asked afterwards: another name may have come meanwhile. A server that
//! keeps what is held under another name (NFS) is asked before, and nothing is linked there meanwhile. All of this only for
//! what the index has.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fsstack_branch::dir_fd::DirFd;
use fsstack_identity::index::IndexEntry;
use fsstack_identity::number::{self, Identity};
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::ranked::LINKS;
use fsstack_sys::{self as sys, Errno, OFlags, SysError};
use smallvec::SmallVec;

use crate::handles::identify::keep_further;
use crate::inode::Inode;
use crate::member::searches::LockedAlone;
use crate::pool::Pool;
use crate::tree::Tree;

/// Timeout of waiting for threads that link something: the index may have too much.
const LINK_LOCK_TIMEOUT: Duration = Duration::from_millis(200);

/// An object whose name is about to be removed.
pub(crate) struct NameRemoval<'a> {
    id: Identity,
    places: SmallVec<[(BranchIx, Ino, LastNameCheck<'a>); 1]>,
}

/// How it is known whether the last name went.
enum LastNameCheck<'a> {
    File(OwnedFd),
    Dir(Arc<DirFd>),
    /// This name was the last, and the file gets no other until this is dropped.
    ExclusiveFile {
        _links: LockedAlone<'a, LINKS>,
    },
}

impl Tree {
    /// `name` in `parent` is about to be removed from `inode`: for [`Self::gone`], when it is.
    pub(crate) fn removal<'a>(
        &self,
        pool: &'a Pool,
        inode: &Arc<Inode>,
        (parent, name): (&Arc<Inode>, &CStr),
    ) -> NameRemoval<'a> {
        let mut removal = NameRemoval { id: inode.id, places: SmallVec::new() };
        for IndexEntry { id, naturals, .. } in self.index.places(inode.id.ino) {
            if id != inode.id {
                continue;
            }
            if !inode.is_dir() {
                keep_further(self, pool, id);
            }
            let known = |(_, natural, _): &(BranchIx, Ino, LastNameCheck<'a>)| naturals.contains(natural);
            match inode.is_dir() {
                true => removal.places.extend(self.removed_copies(pool, inode).filter(known)),
                false => removal.places.extend(self.removed_file(pool, inode, (parent, name)).filter(known)),
            }
        }
        removal
    }

    fn removed_copies<'a>(
        &self,
        pool: &'a Pool,
        dir: &Arc<Inode>,
    ) -> impl Iterator<Item = (BranchIx, Ino, LastNameCheck<'a>)> {
        let searched = dir.copies().into_iter().filter(|at| pool.branch(*at).by_number.is_none());
        searched.filter_map(move |at| {
            let branch = pool.branch(at);
            let natural = number::number(branch, branch.dev(), dir.copy_ino(at)?);
            Some((at, natural, LastNameCheck::Dir(self.dirfd(pool, dir, at).ok()?)))
        })
    }

    fn removed_file<'a>(
        &self,
        pool: &'a Pool,
        file: &Inode,
        (parent, name): (&Arc<Inode>, &CStr),
    ) -> Option<(BranchIx, Ino, LastNameCheck<'a>)> {
        let at = file.branch()?;
        let branch = pool.branch(at);
        if branch.by_number.is_some() {
            return None;
        }
        let natural = |stat: &sys::Stat| number::number(branch, stat.dev, stat.ino);
        if branch.renames_what_is_held() {
            let links = branch.searches.exclusively(LINK_LOCK_TIMEOUT)?;
            let stat = self.stat_in(pool, parent, at, name).ok()?;
            return (stat.nlink == 1)
                .then(|| (at, natural(&stat), LastNameCheck::ExclusiveFile { _links: links }));
        }
        let dir = self.dirfd(pool, parent, at).ok()?;
        let open = || sys::at::open(dir.as_fd(), name, OFlags::PATH, 0, branch.mounts);
        let fd = branch.ask(open).ok()?;
        let stat = branch.ask(|| sys::at::stat_fd(fd.as_fd())).ok()?;
        Some((at, natural(&stat), LastNameCheck::File(fd)))
    }

    /// The name that was about to be removed is gone: if it was the last, the index need not know the object any more.
    pub(crate) fn gone(&self, pool: &Pool, removal: NameRemoval<'_>) {
        for (at, natural, how) in removal.places {
            let branch = pool.branch(at);
            let asked = |fd| {
                let asked = branch.ask(|| is_unlinked(fd));
                asked.unwrap_or_else(|error| error.is_missing())
            };
            let is_gone = match &how {
                LastNameCheck::File(fd) => asked(fd.as_fd()),
                LastNameCheck::Dir(fd) => asked(fd.as_fd()),
                LastNameCheck::ExclusiveFile { .. } => true,
            };
            if is_gone {
                self.index.forget(removal.id, Some(natural));
            }
        }
        self.forget_removed(pool, removal.id);
    }
}

/// Whether it has no name any more.
fn is_unlinked(fd: BorrowedFd<'_>) -> Result<bool, SysError> {
    match sys::at::stat_now(fd) {
        Err(error) if error.errno == Errno::STALE => Ok(true),
        stat => Ok(stat?.nlink == 0),
    }
}
