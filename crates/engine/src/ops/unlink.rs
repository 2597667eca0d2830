//! Removing a file's name.
//!
//! Every copy is removed, hidden ones first. Their removal is on disk before the copy that hides them goes, so that no
//! old copy shows after a crash or a power cut.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::EntryName;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sys::{self as sys, Errno, Stat, SysError};
use smallvec::SmallVec;

use crate::files::check_not_given_up;
use crate::inode::Inode;
use crate::kept::slots;
use crate::member::Member;
use crate::pool::Pool;
use crate::settings::PageCache;
use crate::tree::Tree;
use crate::tree::beside_moves::ROUNDS;
use crate::tree::catalogued::catalogue_lost_name;
use crate::tree::resolve::DirStats;
use crate::tree::unsynced_dirs::NameEvent;
use crate::union::Union;

/// Blocks of 512 bytes that a removed object may keep until the kernel forgets it, also where space is short.
const SMALL: u64 = 128;

impl Union {
    /// Removes `name`, which must not be a directory, from `parent` on all branches.
    ///
    /// # Errors
    /// ENOENT if no branch has it; EROFS if a copy is on a branch that cannot be written, and then nothing
    /// is removed; EIO if a branch that might have a copy cannot be asked.
    pub fn unlink(&self, parent: Ino, name: EntryName<'_>) -> Result<()> {
        let pool = self.tree.pool.load();
        let parent = self.tree.dir(parent)?;
        let name = name.as_cstr();
        // A copy that stays behind would show later, so all must be removable before one is removed.
        self.tree.check_whole(&pool, &parent)?;
        self.tree.check_removable(&pool, &parent, name, |stat| !stat.is_dir())?;
        let known = self.tree.known_or_found(&pool, &parent, name);
        if let Some(inode) = &known {
            inode.outlives_name();
        }
        let open = known.as_ref().and_then(|inode| inode.open_file());
        let stays = open.as_ref().map(|file| file.hold()).transpose()?;
        if let Some((file, held)) = open.as_ref().zip(stays.as_ref()) {
            self.note_moved(file, held);
        }
        if let Some(inode) = &known {
            self.tree.keep_removed(&pool, inode, &parent, name);
        }
        let removal = known.as_ref().map(|inode| self.tree.removal(&pool, inode, (&parent, name)));
        slots::acts(0);
        let mut removed = false;
        for round in 1.. {
            let moves = self.tree.relocations.load(SeqCst);
            let shown = known.as_ref().and_then(|inode| inode.branch());
            // It may have been opened and moved meanwhile.
            let may_have_moved = || round < ROUNDS && self.tree.relocations.load(SeqCst) != moves;
            match unlink_copies(&self.tree, &pool, &parent, name, shown) {
                Ok(was_there) => {
                    removed = true;
                    if was_there || !may_have_moved() {
                        break;
                    }
                }
                Err(error) if error.is_missing() && may_have_moved() => {}
                Err(error) if error.is_missing() && removed => break,
                Err(error) => return Err(error),
            }
        }
        if let Some(inode) = &known {
            inode.lost_name(&parent, name);
        }
        if let Some(removal) = removal {
            self.tree.gone(&pool, removal);
        }
        drop(stays);
        catalogue_lost_name(&self.tree, &pool, known.as_ref());
        self.tree.sync_changed(&pool, &parent)
    }
}

/// Whether `removed` may keep its space for the milliseconds until the kernel forgets it: always if it is small, else if the `branch`
/// has so much free space that nobody misses it.
fn may_keep_space(pool: &Pool, branch: &Member, removed: &Stat) -> bool {
    removed.blocks <= SMALL
        || branch.space().is_ok_and(|space| {
            let floor = branch.floor().unwrap_or(pool.settings.floor).bytes_of(space.total);
            let wanted = floor.saturating_add(pool.settings.passthrough_headroom);
            space.available > wanted.saturating_add(removed.blocks.saturating_mul(512))
        })
}

/// Removes all copies of `name`. Whether the one on `shown`, that of the known file, was there.
///
/// # Errors
/// ENOENT if no branch has it; EISDIR; a branch's error.
fn unlink_copies(
    tree: &Tree,
    pool: &Pool,
    parent: &Arc<Inode>,
    name: &CStr,
    shown: Option<BranchIx>,
) -> Result<bool> {
    let mut reported = OpError::MISSING;
    let copies = tree.removable(pool, parent, name, shown, &mut reported)?;
    let (mut removed, mut was_there) = (false, shown.is_none());
    let mut hidden: SmallVec<[BranchIx; 2]> = SmallVec::new();
    for at in copies.into_iter().rev() {
        // Each branch is a journal of its own: after a power cut hidden copies could be back, and show. So their
        // removal is synced before the shown copy goes.
        if shown.is_none_or(|shown| shown == at) {
            hidden.drain(..).try_for_each(|other| tree.sync_copy(pool, parent, other))?;
        }
        match tree.unlink_on(pool, parent, name, at) {
            Ok(()) => {
                removed = true;
                was_there |= shown == Some(at);
                hidden.push(at);
            }
            Err(error) if error.is_missing() => {}
            // A directory: hidden by a file on an earlier branch, or, if there is none, what the name shows.
            Err(error) if error.errno() == Errno::ISDIR => reported = error,
            Err(error) => return Err(error),
        }
    }
    if removed { Ok(was_there) } else { Err(reported) }
}

impl Tree {
    /// Holds `inode`, whose `name` is about to be removed, until the kernel forgets it: its number must not be used
    /// again meanwhile.
    pub(crate) fn keep_removed(&self, pool: &Pool, inode: &Inode, parent: &Arc<Inode>, name: &CStr) {
        let Some(at) = inode.branch() else { return };
        let branch = pool.branch(at);
        let stat = |fd: BorrowedFd<'_>| branch.ask(|| sys::at::stat_fd(fd));
        // With page-cache=writeback the kernel sends times of removed files too, and takes ESTALE for a failed write.
        let writes_back = pool.settings.page_cache == PageCache::WriteBack;
        // An object with other names keeps its space anyway.
        let may_keep_space =
            |stat: &Stat| writes_back || stat.nlink > 1 || may_keep_space(pool, branch, stat);
        if let Some(held) = inode.unlinked_fd() {
            if !stat(held.as_fd()).is_ok_and(|stat| may_keep_space(&stat)) {
                inode.drop_unlinked();
            }
            return;
        }
        if !self.unlinked_inodes.has_room() || branch.renames_what_is_held() {
            return;
        }
        let held = self.dirfd(pool, parent, at).and_then(|dir| {
            let opened = branch.ask(|| sys::at::open(dir.as_fd(), name, sys::OFlags::PATH, 0, branch.mounts));
            opened.map(|fd| dir.opened(fd))
        });
        // An object that cannot be held is removed all the same. One with other names may stay in the kernel's cache for hours, so such
        // objects get half of the budget only.
        if let Ok(fd) = held
            && let Ok(stat) = stat(fd.as_fd())
            && (stat.nlink <= 1 || self.unlinked_inodes.is_half_free())
            && may_keep_space(&stat)
        {
            inode.keep_unlinked(branch, Arc::new(self.unlinked_inodes.count(fd)));
        }
    }

    /// Checks that every copy of `name` can be removed that `goes`: an object of another kind stays where it is hidden.
    ///
    /// # Errors
    /// EROFS if one is on a branch that cannot be written; the error of a branch that cannot be asked.
    pub(crate) fn check_removable(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        goes: impl Fn(&Stat) -> bool,
    ) -> Result<()> {
        for at in parent.copies() {
            let branch = pool.branch(at);
            if branch.is_writable() {
                continue;
            }
            match self.stat_in(pool, parent, at, name) {
                Ok(stat) if goes(&stat) => {
                    return Err(branch.said(SysError { call: sys::Call::Unlink, errno: Errno::ROFS }));
                }
                Ok(_) => {}
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Branches to remove `name` from, in order: the one that shows it, `shown`, and those that have a hidden file of that name. If there
    /// are several, all can be removed. `reported`: EISDIR if one has a directory there, which is not removed.
    ///
    /// # Errors
    /// EPERM if a copy, or a directory with one, is immutable or append-only; the error of a branch that cannot be asked.
    fn removable(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        shown: Option<BranchIx>,
        reported: &mut OpError,
    ) -> Result<SmallVec<[BranchIx; 2]>> {
        let copies = parent.copies();
        if copies.len() == 1 {
            return Ok(copies.into_iter().collect());
        }
        let mut holders = DirStats::new();
        // Of the others it is known that they have none (`check_removable`).
        let may_have = |at: &BranchIx| Some(*at) != shown && pool.branch(*at).is_writable();
        for at in copies.iter().copied().filter(may_have) {
            match self.stat_in(pool, parent, at, name) {
                Ok(stat) if stat.is_dir() => *reported = Errno::ISDIR.into(),
                Ok(stat) => holders.push((at, stat)),
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(at) = shown.filter(|_| !holders.is_empty()) {
            match self.stat_in(pool, parent, at, name) {
                Ok(stat) => holders.push((at, stat)),
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        if holders.len() > 1 {
            self.check_not_fixed(pool, parent, &holders)?;
        }
        let has = |at: &BranchIx| Some(*at) == shown || holders.iter().any(|(holder, _)| holder == at);
        Ok(copies.into_iter().filter(has).collect())
    }

    /// Checks that the objects of one name in `parent`, on the branches of `holders`, may be removed: of several none is, or all are.
    ///
    /// # Errors
    /// EPERM if one, or a directory with one, is immutable or append-only.
    pub(crate) fn check_not_fixed(&self, pool: &Pool, parent: &Arc<Inode>, holders: &DirStats) -> Result<()> {
        for (at, stat) in holders {
            let (branch, dir) = (pool.branch(*at), self.dirfd(pool, parent, *at)?);
            let above = branch.ask(|| sys::at::stat_fd(dir.as_fd()))?;
            if [stat, &above].into_iter().any(|stat| stat.is_immutable() || stat.is_append_only()) {
                return Err(branch.said(SysError { call: sys::Call::Unlink, errno: Errno::PERM }));
            }
        }
        Ok(())
    }

    /// Removes the copy of `name` on the branch `at`, and reports the change of names.
    pub(crate) fn unlink_on(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        at: BranchIx,
    ) -> Result<()> {
        self.remove_on(pool, parent, name, at, sys::at::unlink)
    }

    /// Removes the copy of `name` on the branch `at` by the call `remove`, and reports the change of names.
    ///
    /// # Errors
    /// ENOENT if the branch has none, and EROFS only if it has one.
    pub(crate) fn remove_on(
        &self,
        pool: &Pool,
        parent: &Arc<Inode>,
        name: &CStr,
        at: BranchIx,
        remove: impl Fn(BorrowedFd<'_>, &CStr) -> Result<(), SysError>,
    ) -> Result<()> {
        let branch = pool.branch(at);
        if branch.mode() == fsstack_pool::BranchMode::ReadOnly {
            return Err(OpError::MISSING); // checked before: it has none
        }
        let fd = self.dirfd(pool, parent, at)?;
        // Another branch may have hung before: its program may have written the file anew since.
        check_not_given_up()?;
        match branch.ask(|| remove(fd.as_fd(), name)) {
            // A read-only mount refuses before it looks for the name.
            Err(error) if error.errno() == Errno::ROFS => {
                self.stat_in(pool, parent, at, name)?;
                return Err(error);
            }
            removed => removed?,
        }
        self.changed(pool, at, (parent, name), NameEvent::Went);
        Ok(())
    }
}
