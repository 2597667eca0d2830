//! Names that changed on a branch and may not be on its disk.
//!
//! Each branch is a journal of its own. The object that replaces a name on another branch may be on disk first: after a power
//! cut the old name is back, and may hide the new object. So a branch knows the names that left each of its directories, or
//! came there by a rename, since their last sync. An fsync first syncs those on the path to its object. If only one branch
//! took part, its own journal keeps the order.
//! The same holds for a directory's rights, which decide who may read the synced objects below it.
//!
//! A name that was renamed away is synced before another branch gets an object of that name. If the rename were lost, that
//! object would hide the renamed file, which would have no name then.
//!
//! Besides, each copy of a directory knows whether any name changed in it, and on which mount of its branch
//! (`inode/copies.rs`). A change on a lost mount may be lost too: the directory's fsync says so, once to each handle.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::branch::Branch;
use fsstack_branch::error::{OpError, Result};
use fsstack_identity::number::hash_name;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::Mutex;
use fsstack_sync::atomic::{AtomicBool, Ordering::Relaxed};
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Call, Errno, OFlags, SysError};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::member::Member;
use crate::pool::Pool;
use crate::settings::Synced;
use crate::tree::Tree;
use crate::tree::inode::Inode;
use crate::tree::inode::handed::generation;

/// Directories of a branch that are remembered; with more, the whole branch counts as changed.
const DIRS: usize = 4096;
/// Names of one directory that are remembered; with more, all of its names count as changed.
const NAMES: usize = 4;
/// Names renamed away in one directory that are remembered; with more, any of its names may have been. Programs that write
/// aside and rename leave one for each file, and a name that counts as renamed costs the next user of it an fsync.
const RENAMED: usize = 256;

/// Change of a name in a branch's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameEvent {
    /// It is new. Whether another branch had it before is recorded there.
    Came,
    /// It was removed, or means another object.
    Went,
    /// Its object has another name on the branch.
    Renamed,
}

/// The directories of a branch with names that went since they were synced.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedDirs {
    any: AtomicBool,
    dirs: Mutex<Dirs>,
}

#[derive(Debug, Default)]
struct Dirs {
    known: HashMap<Ino, Went>,
    /// Directories that are not in `known`, too many to keep.
    others: Option<Mark>,
    /// Counts the changes.
    clock: u64,
}

#[derive(Debug)]
struct Went {
    /// Hashes of the names; more than [`NAMES`] stand for all.
    names: SmallVec<[u64; NAMES]>,
    /// Hashes of those that were renamed away; more than [`RENAMED`] stand for all.
    renamed: Vec<u64>,
    /// The directory's own mode, owner, attributes or flags were changed.
    attributes_changed: bool,
    mark: Mark,
}

/// Change of a directory.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The name of that hash was removed.
    Went(u64),
    /// It was renamed away.
    Renamed(u64),
    /// The directory's own attributes were changed.
    AttributesChanged,
}

/// State of a directory's names, distinct from later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// When the last name went.
    at: u64,
    /// Mount of the branch on which the first did.
    mount_generation: u32,
}

impl UnsyncedDirs {
    /// Whether there may be any.
    fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    fn note(&self, dir: Ino, event: Event, mount_generation: u32) {
        let mut dirs = self.dirs.lock();
        self.any.store(true, Relaxed);
        dirs.clock += 1;
        let mark = Mark { at: dirs.clock, mount_generation };
        if dirs.known.len() >= DIRS && !dirs.known.contains_key(&dir) {
            dirs.others = Some(Mark {
                mount_generation: dirs.others.map_or(mount_generation, |first| first.mount_generation),
                ..mark
            });
            return;
        }
        let none = Went { names: SmallVec::new(), renamed: Vec::new(), attributes_changed: false, mark };
        let went = dirs.known.entry(dir).or_insert(none);
        went.mark.at = mark.at;
        let name = match event {
            Event::Went(name) => name,
            Event::Renamed(name) => {
                if went.renamed.len() <= RENAMED && !went.renamed.contains(&name) {
                    went.renamed.push(name);
                }
                name
            }
            Event::AttributesChanged => {
                went.attributes_changed = true;
                return;
            }
        };
        if went.names.len() <= NAMES && !went.names.contains(&name) {
            went.names.push(name);
        }
    }

    /// The state of `dir`, if the name may have gone from it, or its own attributes were changed.
    fn of(&self, dir: Ino, name: u64) -> Option<Mark> {
        let dirs = self.dirs.lock();
        let went = dirs.known.get(&dir)?;
        (went.attributes_changed || went.has(name)).then_some(went.mark)
    }

    /// Whether the name may have been renamed away.
    fn is_renamed(&self, dir: Ino, name: u64) -> bool {
        self.dirs.lock().known.get(&dir).is_some_and(|went| went.was_renamed(name))
    }

    fn of_dir(&self, dir: Ino) -> Option<Mark> {
        if self.any() { self.dirs.lock().known.get(&dir).map(|went| went.mark) } else { None }
    }

    /// The state of `dir`, if its own attributes were changed.
    fn of_attributes(&self, dir: Ino) -> Option<Mark> {
        self.dirs.lock().known.get(&dir).filter(|went| went.attributes_changed).map(|went| went.mark)
    }

    fn of_others(&self) -> Option<Mark> {
        self.dirs.lock().others
    }

    /// Names that left `dir` up to `mark` are on disk, or known to be lost.
    fn settled(&self, dir: Ino, mark: Mark) {
        let mut dirs = self.dirs.lock();
        if dirs.known.get(&dir).is_some_and(|went| went.mark == mark) {
            dirs.known.remove(&dir);
        }
        self.any.store(!dirs.known.is_empty() || dirs.others.is_some(), Relaxed);
    }

    /// When the whole branch is about to be synced: for [`Self::settled_until`].
    pub(crate) fn now(&self) -> u64 {
        self.dirs.lock().clock
    }

    /// Names that left any directory up to then are on disk, or known to be lost.
    pub(crate) fn settled_until(&self, then: u64) {
        let mut dirs = self.dirs.lock();
        dirs.known.retain(|_, went| went.mark.at > then);
        dirs.others = dirs.others.filter(|mark| mark.at > then);
        self.any.store(!dirs.known.is_empty() || dirs.others.is_some(), Relaxed);
    }

    /// The directory was removed: that is a change of the one above.
    pub(crate) fn forget(&self, dir: Ino) {
        if self.any() {
            self.dirs.lock().known.remove(&dir);
        }
    }
}

/// The names of a branch that may not be on its disk, for another program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UnsyncedRow {
    known: Vec<WentRow>,
    others: Option<(u64, bool)>,
    clock: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct WentRow {
    dir: u64,
    names: Vec<u64>,
    renamed: Vec<u64>,
    attributes_changed: bool,
    /// When the last name went, and whether the first did on the current mount.
    mark: (u64, bool),
}

impl UnsyncedDirs {
    /// Its row; the branch is at the mount `current`.
    pub(crate) fn row(&self, current: u32) -> UnsyncedRow {
        let dirs = self.dirs.lock();
        let mark = |mark: Mark| (mark.at, mark.mount_generation == current);
        let known = dirs.known.iter().map(|(dir, went)| WentRow {
            dir: dir.0,
            names: went.names.to_vec(),
            renamed: went.renamed.clone(),
            attributes_changed: went.attributes_changed,
            mark: mark(went.mark),
        });
        UnsyncedRow { known: known.collect(), others: dirs.others.map(mark), clock: dirs.clock }
    }

    /// Takes over what another program has recorded.
    pub(crate) fn take_row(&self, row: &UnsyncedRow) {
        let mark = |(at, is_current)| Mark { at, mount_generation: generation(is_current) };
        let mut dirs = self.dirs.lock();
        let went = |went: &WentRow| Went {
            names: went.names.iter().copied().collect(),
            renamed: went.renamed.clone(),
            attributes_changed: went.attributes_changed,
            mark: mark(went.mark),
        };
        dirs.known = row.known.iter().map(|row| (Ino(row.dir), went(row))).collect();
        dirs.others = row.others.map(mark);
        dirs.clock = row.clock;
        self.any.store(!dirs.known.is_empty() || dirs.others.is_some(), Relaxed);
    }
}

impl Went {
    fn has(&self, name: u64) -> bool {
        self.names.len() > NAMES || self.names.contains(&name)
    }

    fn was_renamed(&self, name: u64) -> bool {
        self.renamed.len() > RENAMED || self.renamed.contains(&name)
    }
}

/// A name in a directory, as a hash.
fn hash(dir: &Inode, name: &CStr) -> u64 {
    hash_name(dir.id.ino, name.to_bytes())
}

impl Tree {
    /// A name in the copy of `dir` on the branch `at` was changed.
    pub(crate) fn changed(
        &self,
        pool: &Pool,
        at: BranchIx,
        (dir, name): (&Arc<Inode>, &CStr),
        change: NameEvent,
    ) {
        let branch = pool.branch(at);
        let mount_generation = branch.mount_generation();
        dir.note_change(at, mount_generation);
        self.catalogue_name(pool, at, (dir, name));
        if pool.branches.len() == 1 {
            return;
        }
        let event = match change {
            NameEvent::Came => return,
            NameEvent::Went => Event::Went(hash(dir, name)),
            NameEvent::Renamed => Event::Renamed(hash(dir, name)),
        };
        branch.unsynced.note(dir.id.ino, event, mount_generation);
    }

    /// Mode, owner, attributes or flags of `dir` were changed, on all of its copies.
    pub(crate) fn attributes_changed(&self, pool: &Pool, dir: &Inode) {
        if pool.branches.len() > 1 {
            for branch in dir.copies().into_iter().map(|at| pool.branch(at)) {
                branch.unsynced.note(dir.id.ino, Event::AttributesChanged, branch.mount_generation());
            }
        }
    }

    /// Syncs the new names of objects renamed away from `name` in `dir` on branches other than `own`, which is about to get an
    /// object of that name. A branch that cannot be asked does not prevent it: no sync was requested.
    pub(crate) fn sync_renamed(&self, pool: &Pool, (dir, name): (&Arc<Inode>, &CStr), own: &[BranchIx]) {
        for branch in pool.branches.iter().filter(|branch| branch.unsynced.any()) {
            if !own.contains(&branch.ix)
                && branch.unsynced.is_renamed(dir.id.ino, hash(dir, name))
                && let Err(error) = self.sync_copy(pool, dir, branch.ix)
            {
                tracing::debug!(%error, ?name, "a rename may be lost by a power cut, and what takes its old name kept");
            }
        }
    }

    /// Syncs removals on other branches than `own` on the way to `inode`: no such name comes back in the place of the object
    /// about to be synced. Also syncs the rights of the directories on the way.
    ///
    /// # Errors
    /// The branch's error; EIO if its mount is gone, and removed names may be back.
    pub(crate) fn sync_way(&self, pool: &Pool, inode: &Arc<Inode>, own: Option<BranchIx>) -> Result<()> {
        let is_other = |branch: &&Arc<Member>| Some(branch.ix) != own && branch.unsynced.any();
        if !pool.branches.iter().any(|branch| is_other(&branch)) {
            return Ok(());
        }
        let mut way = Vec::new();
        for first in inode.names() {
            let mut next = Some(first);
            while let Some(name) = next {
                next = name.parent.name();
                way.push(name);
            }
        }
        for branch in pool.branches.iter().filter(is_other) {
            if let Some(mark) = branch.unsynced.of_others() {
                let now = branch.unsynced.now();
                let synced = branch.ask_long(|| sync_all(branch.root().as_fd()));
                synced?;
                branch.unsynced.settled_until(now);
                check_mount_generation(branch, mark.mount_generation)?;
            }
            for name in way.iter().rev() {
                let dir = &name.parent;
                let Some(mark) = branch.unsynced.of(dir.id.ino, hash(dir, &name.name)) else { continue };
                match self.sync_copy(pool, dir, branch.ix) {
                    // The copy itself was removed: that is recorded in the directory above.
                    Err(error) if error.is_missing() => branch.unsynced.settled(dir.id.ino, mark),
                    synced => synced?,
                }
                check_mount_generation(branch, mark.mount_generation)?;
            }
        }
        Ok(())
    }

    /// Syncs rights and marks of `dir` on branches other than `own`, which is about to get a copy of it: the copies must not
    /// differ after a power cut.
    ///
    /// # Errors
    /// The branch's error; EIO if its mount is gone, and the change may be lost.
    pub(crate) fn sync_attributes(&self, pool: &Pool, dir: &Arc<Inode>, own: BranchIx) -> Result<()> {
        for branch in pool.branches.iter().filter(|branch| branch.ix != own && branch.unsynced.any()) {
            let Some(mark) = branch.unsynced.of_attributes(dir.id.ino) else { continue };
            self.sync_copy(pool, dir, branch.ix)?;
            check_mount_generation(branch, mark.mount_generation)?;
        }
        Ok(())
    }

    /// The names in the copy of `dir` on the branch `at` are on disk.
    ///
    /// # Errors
    /// What the branch answered.
    pub(crate) fn sync_copy(&self, pool: &Pool, dir: &Arc<Inode>, at: BranchIx) -> Result<()> {
        self.sync_copy_by(pool, dir, at, sync_dir)
    }

    /// Like [`Self::sync_copy`], by `sync`.
    ///
    /// # Errors
    /// What the branch answered.
    pub(crate) fn sync_copy_by(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        at: BranchIx,
        sync: impl FnOnce(BorrowedFd<'_>) -> Result<(), SysError>,
    ) -> Result<()> {
        let branch = pool.branch(at);
        let (mark, change) = (branch.unsynced.of_dir(dir.id.ino), dir.take_change(at));
        let synced = self.dirfd(pool, dir, at).and_then(|fd| branch.ask_long(|| sync(fd.as_fd())));
        match (synced, change, mark) {
            (Err(_), Some(mount_generation), _) => dir.note_change(at, mount_generation),
            (Ok(()), Some(mount_generation), _) if mount_generation != branch.mount_generation() => {
                dir.lose_changes()
            }
            _ => {}
        }
        if let (Ok(()), Some(mark)) = (synced, mark) {
            branch.unsynced.settled(dir.id.ino, mark);
        }
        synced
    }

    /// With `dirsync` and `sync`, syncs changed names in `dir`, and the path to them, before the answer.
    ///
    /// # Errors
    /// The branch's error: the change stays.
    pub(crate) fn sync_changed(&self, pool: &Pool, dir: &Arc<Inode>) -> Result<()> {
        if pool.settings.synced == Synced::ByRequest {
            return Ok(());
        }
        let mut next = Some(dir.clone());
        while let Some(dir) = next {
            for at in dir.copies() {
                if dir.has_change(at) {
                    self.sync_copy(pool, &dir, at)?;
                }
            }
            next = dir.name().map(|name| name.parent);
        }
        Ok(())
    }
}

fn sync_all(root: BorrowedFd<'_>) -> Result<(), SysError> {
    let root = sys::at::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY)?;
    sys::file::syncfs(root.as_fd())
}

/// Changes on a lost mount of `branch` may be lost with it.
fn check_mount_generation(branch: &Branch, mount_generation: u32) -> Result<()> {
    if mount_generation == branch.mount_generation() { Ok(()) } else { Err(lost(branch.ix)) }
}

/// An acknowledged change may not be on the branch `at`, which is not at fault by that.
pub(crate) fn lost(at: BranchIx) -> OpError {
    OpError::Branch { branch: at, sys: SysError::new(Call::Fsync, Errno::IO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Ino = Ino(7);

    #[test]
    fn a_name_that_went_is_known_until_its_directory_is_synced() {
        let unsynced = UnsyncedDirs::default();
        assert!(!unsynced.any());
        unsynced.note(D, Event::Went(1), 0);
        assert!(unsynced.any() && unsynced.of(D, 2).is_none() && unsynced.of(Ino(8), 1).is_none());
        let mark = unsynced.of(D, 1).unwrap();
        unsynced.note(D, Event::Went(2), 1);
        unsynced.settled(D, mark);
        let later = unsynced.of(D, 1).expect("one went while it was synced");
        assert_eq!(later.mount_generation, 0, "the first");
        unsynced.settled(D, later);
        assert!(!unsynced.any() && unsynced.of(D, 1).is_none());
    }

    #[test]
    fn a_renamed_name_and_changed_rights_are_distinguished_from_a_removed_name() {
        let unsynced = UnsyncedDirs::default();
        unsynced.note(D, Event::Went(1), 0);
        assert!(!unsynced.is_renamed(D, 1));
        unsynced.note(D, Event::Renamed(2), 0);
        assert!(unsynced.is_renamed(D, 2) && !unsynced.is_renamed(D, 3) && unsynced.of(D, 3).is_none());
        unsynced.note(D, Event::AttributesChanged, 0);
        assert!(unsynced.of(D, 3).is_some(), "on the way to whatever is in it");
        unsynced.settled(D, unsynced.of_dir(D).unwrap());
        assert!(!unsynced.any() && !unsynced.is_renamed(D, 2));
    }

    #[test]
    fn a_busy_directory_has_few_names_that_count_as_renamed() {
        let unsynced = UnsyncedDirs::default();
        (0..100).for_each(|name| unsynced.note(D, Event::Renamed(name), 0));
        (100..200).for_each(|name| unsynced.note(D, Event::Went(name), 0));
        assert!(unsynced.is_renamed(D, 99) && !unsynced.is_renamed(D, 150) && !unsynced.is_renamed(D, 200));
        (200..500).for_each(|name| unsynced.note(D, Event::Renamed(name), 0));
        assert!(unsynced.is_renamed(D, 999), "more than are kept in mind");
    }

    #[test]
    fn too_many_names_or_directories_stand_for_all() {
        let unsynced = UnsyncedDirs::default();
        (0..10).for_each(|name| unsynced.note(D, Event::Went(name), 0));
        assert!(unsynced.of(D, 99).is_some());
        assert!(unsynced.of_others().is_none());
        (0..2 * DIRS as u64).for_each(|dir| unsynced.note(Ino(100 + dir), Event::Went(1), 0));
        assert!(unsynced.of_others().is_some() && unsynced.dirs.lock().known.len() <= DIRS);
        let then = unsynced.now();
        unsynced.note(D, Event::Went(5), 0);
        unsynced.settled_until(then);
        assert!(unsynced.of(D, 5).is_some() && unsynced.of_others().is_none());
        unsynced.forget(D);
        assert!(unsynced.of(D, 5).is_none());
    }
}
