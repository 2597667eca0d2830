//! The exchange of a moved file's names: the new copy gets them, and the old one loses them.
//!
//! A file with one name: intent, new name, old name gone; either of the two states in between is settled by what the branches show.
//! A file with several hard links cannot change in one step. Until the intent on the target says otherwise the old copy is the
//! file, and a mount that finds the intent removes the new names. Once all of them are on disk the intent says that the new
//! copy is the file, on the target and then on the source: from then on no new name is taken back, and a mount that finds the intent
//! removes the old ones (`group.rs`).

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_identity::index::{Index, birth};
use fsstack_identity::number;
use fsstack_pool::BranchIx;
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Errno, OFlags, Stat};
use smallvec::SmallVec;

use crate::handles::identify::MarkedCopy;
use crate::inode::{Inode, InodeName};
use crate::member::Member;
use crate::moves::Moves;
use crate::moves::moving::Move;
use crate::pool::Pool;
use crate::recovery::blank::StagedCopy;
use crate::recovery::intent::{Intent, Noted};
use crate::recovery::record::let_go;
use crate::recovery::told::Stamp;
use crate::tree::Tree;
use crate::tree::place::ancestors;

/// Reason that a file was not moved to a branch.
pub(crate) enum Unmoved {
    /// Nothing of it is there, nor will be after a power cut.
    Undone(OpError),
    /// Part of it may be there: cleared when the branch is back, or made the file by the next mount.
    Left(OpError),
}

impl From<OpError> for Unmoved {
    fn from(error: OpError) -> Self {
        Self::Undone(error)
    }
}

/// State of the old names of a file that was moved.
pub(crate) enum OldName {
    Gone,
    /// It may be there, or be back after a power cut; it goes with the branch's return unless the file was written to there.
    MayStand,
}

/// Its copy, which has no name yet.
pub(crate) struct NewCopy<'a> {
    pub(crate) to: &'a Member,
    /// For each name the directory that gets it.
    pub(crate) dirs: Vec<Arc<DirFd>>,
    pub(crate) fd: MountedFd,
    pub(crate) staged: Option<StagedCopy>,
    /// The times of the directories on both branches stay: the pool's directory does not change.
    pub(crate) quiet: bool,
}

/// A name, and its directory on a branch.
pub(crate) type NameAt = (InodeName, Arc<DirFd>);

impl NewCopy<'_> {
    /// Where the names are to be.
    fn names<'n>(&'n self, moving: &'n Move<'_>) -> impl Iterator<Item = (&'n InodeName, &'n Arc<DirFd>)> {
        moving.names.iter().zip(&self.dirs)
    }
}

/// Checks that a move from `from` to `to` may still end: either may have been set read-only, or be leaving the pool, since they were
/// chosen.
///
/// # Errors
/// EROFS if it may not.
pub(super) fn check_modes(from: &Branch, to: &Branch) -> Result<()> {
    if to.takes_moves() && from.is_writable() { Ok(()) } else { Err(Errno::ROFS.into()) }
}

impl Moves {
    /// The new copy gets the names and the old one loses them.
    pub(crate) fn exchange_names(
        &self,
        pool: &Pool,
        moving: &Move<'_>,
        new: &NewCopy<'_>,
        copy: &MarkedCopy,
    ) -> Result<OldName, Unmoved> {
        let follow =
            |name| self.files.listings_follow(&self.tree, pool, name, (moving.from.ix, moving.stat.ino));
        let _followed: SmallVec<[_; 1]> = moving.names.iter().map(follow).collect();
        // Until the intent, which names the path, is settled, no directory on the path is renamed and no two names are
        // exchanged. So the name that is checked now is the one that goes.
        let _tree_lock = self.tree.tree_lock.read(pool)?;
        check_modes(&moving.from, new.to).map_err(Unmoved::Undone)?;
        let named = self.tree.exchange_names_under_tree_lock(pool, moving, new, copy);
        self.tree.catalogue_names(pool, [moving.from.ix, new.to.ix], moving.names.iter());
        let old = named?;
        // Settling intents when a branch is back, with the tree lock held exclusively, asks where an open file is.
        moving.has_moved(new.to.ix);
        Ok(old)
    }
}

impl Tree {
    fn exchange_names_under_tree_lock(
        &self,
        pool: &Pool,
        moving: &Move<'_>,
        new: &NewCopy<'_>,
        copy: &MarkedCopy,
    ) -> Result<OldName, Unmoved> {
        let (NewCopy { to, fd, .. }, from) = (new, &*moving.from);
        let (olds, there) = self.old_names(pool, moving)?;
        let paths: Option<Vec<Vec<u8>>> = moving.names.iter().map(InodeName::path).collect();
        let paths = paths.ok_or(OpError::STALE)?;
        self.sync_ways(pool, &moving.names, &[to.ix, from.ix])?;
        let (old, new_stamp) = (Stamp::of(&there), Stamp::of(&to.ask(|| sys::at::stat_fd(fd.as_fd()))?));
        let mut intent = Intent { from, to, old, new: new_stamp, paths: &paths }.write()?;
        // Only now: the settling of the intent takes this back if the copy has got no name.
        if let Err(error) = self.note_moved(to, copy) {
            intent.done();
            return Err(error.into());
        }
        let times_there = new.quiet.then(|| self.quiet_dirs.keep(to, &new.dirs));
        let named = self.give_names(moving, new, &olds);
        drop(times_there);
        if let Err(error) = named {
            return Err(give_up((&self.index, pool), moving, new, (intent, copy), error)); // no old name was touched
        }
        if moving.is_group()
            && let Err(error) = intent.decides_new()
        {
            return Err(give_up_decided((&self.index, pool), moving, new, (intent, copy), error));
        }
        let times_here = new.quiet.then(|| self.quiet_dirs.keep(from, olds.iter().map(|(_, dir)| dir)));
        let removed = olds.iter().enumerate().try_for_each(|(nth, (name, dir))| {
            from.ask(|| sys::at::unlink(dir.as_fd(), &name.name)).map_err(|error| (error, nth))
        });
        drop(times_here);
        if let Err((error, nth)) = removed {
            let (name, dir) = &olds[nth];
            let stands = if nth > 0 { Err(error) } else { stands(moving, name, dir) };
            match (stands, moving.is_group()) {
                (Ok(true), false) => {
                    return Err(give_up((&self.index, pool), moving, new, (intent, copy), error));
                }
                // No name of the group has been removed: its directory refuses removals by now.
                (Ok(true), true) => {
                    return Err(give_up_decided((&self.index, pool), moving, new, (intent, copy), error));
                }
                (Ok(false), false) => {}
                (unknown, _) => {
                    // The new copy is whole and has its name, so it counts; the old one goes when its branch is back.
                    tracing::warn!(%error, name = ?name.name, branch = %from.path.display(), ?unknown, "relocation: the old name may remain; the next mount settles it");
                    intent.keeps_new();
                    return Ok(OldName::MayStand);
                }
            }
        }
        let mut dirs = distinct(olds.iter().map(|(_, dir)| dir)).into_iter();
        let synced = dirs.try_for_each(|dir| from.ask(|| sync_dir(dir.as_fd())));
        if let Err(error) = synced {
            // Should it come back after a power cut, the next mount removes it.
            tracing::warn!(%error, name = ?moving.name().name, branch = %from.path.display(), "relocation: removal of the old name not synced; after a power cut the next mount repeats it");
            intent.keeps_new();
            return Ok(OldName::MayStand);
        }
        // On disk before the intent goes: a later object that has the old copy's number would be taken for the file. Birth times tell
        // the two apart.
        if birth(&there) == 0 {
            self.index.forget_places(&[(number::number(from, there.dev, there.ino), 0)]);
        }
        intent.done();
        Ok(OldName::Gone)
    }

    /// The names, with their directories on the branch that the file leaves: each leads to the file as it was copied, and no other
    /// branch has it. And how it is.
    pub(crate) fn old_names(&self, pool: &Pool, moving: &Move<'_>) -> Result<(Vec<NameAt>, Stat)> {
        let (mut olds, mut now) = (Vec::with_capacity(moving.names.len()), moving.stat);
        for name in &moving.names {
            let dir = self.dirfd(pool, &name.parent, moving.from.ix)?;
            now = moving.look(&dir, &name.name)?;
            if !moving.is(&now) {
                return Err(OpError::STALE);
            }
            // The copying took its time.
            if !self.find_all(pool, &name.parent, &name.name, Some(moving.from.ix))?.is_empty() {
                return Err(Errno::EXIST.into());
            }
            // Of several names all can be removed, or none is.
            if moving.is_group() && moving.from.ask(|| is_frozen(&dir))? {
                return Err(Errno::PERM.into());
            }
            olds.push((name.clone(), dir));
        }
        Ok((olds, now))
    }

    /// The ways to the names are on disk on both branches: the one to a new name may just have been made, and the one to the old
    /// name renamed. Otherwise the file could not be found after a power cut.
    pub(crate) fn sync_ways<'n>(
        &self,
        pool: &Pool,
        names: impl IntoIterator<Item = &'n InodeName>,
        branches: &[BranchIx],
    ) -> Result<()> {
        let mut synced: Vec<Arc<Inode>> = Vec::new();
        for name in names {
            for above in ancestors(&name.parent) {
                if synced.iter().any(|other| Arc::ptr_eq(other, &above)) {
                    break; // what is above that, too
                }
                for at in branches {
                    let above = self.dirfd(pool, &above, *at)?;
                    pool.branch(*at).ask_long(|| sync_dir(above.as_fd()))?;
                }
                synced.push(above);
            }
        }
        Ok(())
    }

    /// Gives the copy its names, unless another object has one by now, and makes that durable.
    fn give_names(&self, moving: &Move<'_>, new: &NewCopy<'_>, olds: &[NameAt]) -> Result<()> {
        let NewCopy { to, fd, staged, .. } = new;
        to.ask(|| {
            for (at, (name, dir)) in new.names(moving).enumerate() {
                match staged {
                    Some(staged) if at == 0 => {
                        staged.name(to, dir, &name.name)?;
                        let_go(fd);
                    }
                    _ => sys::at::link_fd(fd.as_fd(), dir.as_fd(), &name.name)?,
                }
            }
            if staged.is_none() {
                // btrfs logs nothing of a file without a name, and of the names in a directory that the inode exists.
                sys::file::fsync(fd.as_fd())?;
            }
            distinct(&new.dirs).into_iter().try_for_each(|dir| sync_dir(dir.as_fd()))
        })?;
        // Before the old names go: a lookup that saw neither name asks again.
        moving.names.iter().for_each(|name| name.parent.has_new(&name.name));
        self.relocations.fetch_add(1, SeqCst);
        // The copies were synced meanwhile: compared once more.
        for (name, dir) in olds {
            match moving.look(dir, &name.name) {
                Ok(there) if !moving.is(&there) => return Err(OpError::STALE),
                _ => {} // what cannot be asked cannot be removed: reported by the caller
            }
        }
        Ok(())
    }
}

/// The directories, each once.
pub(crate) fn distinct<'a>(dirs: impl IntoIterator<Item = &'a Arc<DirFd>>) -> SmallVec<[&'a Arc<DirFd>; 1]> {
    let mut each: SmallVec<[&Arc<DirFd>; 1]> = SmallVec::new();
    for dir in dirs {
        if !each.iter().any(|known| Arc::ptr_eq(known, dir)) {
            each.push(dir);
        }
    }
    each
}

/// Whether the old copy still has its name.
pub(crate) fn stands(moving: &Move<'_>, name: &InodeName, old_dir: &DirFd) -> Result<bool> {
    match moving.from.ask(|| sys::at::stat(old_dir.as_fd(), &name.name)) {
        Ok(there) => Ok(there.ino == moving.stat.ino),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether no name can be removed from the directory.
fn is_frozen(dir: &DirFd) -> Result<bool, sys::SysError> {
    let dir = sys::at::reopen(dir.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    // Where flags cannot be asked for there are none.
    Ok(sys::ioctl::getflags(dir.as_fd()).unwrap_or(0) & sys::ioctl::FREEZING != 0)
}

/// Removes the names of the new copy, so that it does not stay beside the old one. Another object of a name stays.
fn give_up(
    (index, pool): (&Index, &Pool),
    moving: &Move<'_>,
    new: &NewCopy<'_>,
    (intent, copy): (Noted<'_>, &MarkedCopy),
    error: OpError,
) -> Unmoved {
    let to = new.to;
    let remove = |name: &CStr, dir: &DirFd| match to.ask(|| sys::at::stat(dir.as_fd(), name)) {
        Ok(there) if there.ino == copy.made.ino => to.ask(|| sys::at::unlink(dir.as_fd(), name)),
        Err(error) if !error.is_missing() => Err(error),
        _ => Ok(()),
    };
    let undone = new.names(moving).try_for_each(|(name, dir)| remove(&name.name, dir));
    // If the intent went first, a power cut would leave both copies for good.
    let mut dirs = distinct(&new.dirs).into_iter();
    let undone = undone.and_then(|()| dirs.try_for_each(|dir| to.ask(|| sync_dir(dir.as_fd()))));
    tracing::warn!(%error, ?undone, name = ?moving.name().name, branch = %to.path.display(), "relocation given up; the file stays where it was");
    if undone.is_ok() {
        index.forget_places(&[copy.place()]);
        intent.done();
        Unmoved::Undone(error)
    } else {
        leave(index, pool, (intent, copy), error)
    }
}

/// Like [`give_up`], where the record may say that the new copy is the file.
fn give_up_decided(
    at: (&Index, &Pool),
    moving: &Move<'_>,
    new: &NewCopy<'_>,
    (mut intent, copy): (Noted<'_>, &MarkedCopy),
    error: OpError,
) -> Unmoved {
    // Unless the record surely says otherwise, no new name may go.
    match intent.decides_old() {
        Ok(()) => give_up(at, moving, new, (intent, copy), error),
        Err(_) => leave(at.0, at.1, (intent, copy), error),
    }
}

/// The file stays where it was, and its new copy may have names until both branches can be asked.
fn leave(index: &Index, pool: &Pool, (intent, copy): (Noted<'_>, &MarkedCopy), error: OpError) -> Unmoved {
    // The copy keeps its former identity: it may become the file. (Not where it could not be distinguished from a later object with its
    // inode number. There its mark has it.)
    if birth(&copy.made) == 0 {
        index.forget_places(&[copy.place()]);
    }
    intent.keeps_old(&pool.taken_back);
    Unmoved::Left(error)
}
