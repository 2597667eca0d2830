//! Renaming.
//!
//! A file is renamed on its branch, where the target's parent is made if it is missing: EXDEV is left for a parent that the branch cannot be given.
//! The order keeps the last copy of everything: hidden copies of the source go first (else they would come to
//! light under the old name), then hidden copies of the target, then the file is renamed, which replaces a
//! target on the same branch in one step. A target that is visible on another branch: `replace.rs`.
//!
//! A directory is renamed on every branch that has a copy, under the tree lock held exclusively: no thread
//! gives a branch a new copy meanwhile. All branches are checked before any is changed. What a branch refuses
//! in the middle is undone on the others.
//!
//! Where that takes more than one step, a record says so while it lasts (`journal.rs`), and a daemon that is
//! killed in between leaves it to the next mount.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::EntryName;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{self as sys, Errno, Kind, SysError};

use crate::changes::names::{
    End, Half, begin_durably, check_dir_replaceable, check_replaceable, finish_durably, own_kind,
};
use crate::files::check_not_given_up;
use crate::handles::removed::NameRemoval;
use crate::inode::{Inode, InodeName};
use crate::kept::slots;
use crate::ops::rmdir::keep_object;
use crate::pool::Pool;
use crate::recovery::journal::{Act, Object};
use crate::tree::Tree;
use crate::tree::beside_moves::beside_moves;
use crate::tree::catalogued::catalogue_lost_name;
use crate::tree::resolve::{DirStats, Found};
use crate::tree::unsynced_dirs::NameEvent;
use crate::union::Union;

impl Union {
    /// Renames `from` to `to`, as renameat2(2) with `flags`.
    ///
    /// # Errors
    /// ENOTEMPTY whichever branch the target directory's entries are on; EROFS if a copy is where it cannot be
    /// renamed; EINVAL for whiteouts. Nothing is changed then.
    pub fn rename(
        &self,
        from: (Ino, EntryName<'_>),
        to: (Ino, EntryName<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        let pool = self.tree.pool.load();
        let (from_dir, to_dir) = (self.tree.dir(from.0)?, self.tree.dir(to.0)?);
        for (dir, name) in [(&from_dir, from.1), (&to_dir, to.1)] {
            crate::tree::resolve::check_public(&pool, dir, name.as_cstr())?;
        }
        let moving = pool.moving([&from_dir, &to_dir])?;
        let _renaming = self.tree.index.renaming();
        let from = End { dir: &from_dir, name: from.1.as_cstr() };
        let to = End { dir: &to_dir, name: to.1.as_cstr() };
        if flags.contains(RenameFlags::EXCHANGE) {
            // Either may be on no branch for a moment.
            let create_guard = self.tree.create_guard(&pool, from.dir, from.name)?;
            let too = !create_guard.keeps(to.dir, to.name);
            let _create_guard_too =
                if too { Some(self.tree.create_guard(&pool, to.dir, to.name)?) } else { None };
            slots::acts(0);
            let exchanged = self.tree.exchange(&pool, &self.files, from, to);
            // A lookup in the middle of it may have found neither.
            [from, to].iter().for_each(|end| end.dir.has_new(end.name));
            exchanged?;
            self.tree.sync_changed(&pool, from.dir)?;
            return self.tree.sync_changed(&pool, to.dir);
        }
        if !RenameFlags::NOREPLACE.contains(flags) {
            return Err(Errno::INVAL.into());
        }
        let _create_guard = if flags.contains(RenameFlags::NOREPLACE) {
            let born = to.dir.born();
            let create_guard = self.tree.must_be_missing(&pool, to.dir, to.name)?;
            to.dir.note_miss(to.name, born); // asked again below, for free
            create_guard
        } else {
            self.tree.create_guard(&pool, to.dir, to.name)?
        };
        let renamed = beside_moves(&self.tree, || {
            let at = self.tree.source(&pool, from)?;
            slots::acts(0);
            match at {
                Some(at) => self.rename_file(&pool, from, to, at, flags).map(|()| (Some(at), Ok(()))),
                None => Ok((None, self.tree.rename_dir(&pool, from, to, flags))),
            }
        });
        // Whatever was answered: the name may be there. One that was renamed back may have been found missing.
        to.dir.has_new(to.name);
        if !matches!(renamed, Ok((_, Ok(())))) {
            from.dir.has_new(from.name);
        }
        let (at, renamed) = renamed?;
        renamed?;
        let known = self.tree.known(to.dir, to.name);
        if let Some(at) = at {
            let at = known.and_then(|inode| inode.branch()).unwrap_or(at);
            self.tree.file_was_renamed(&pool, moving, (to.dir, to.name), at);
            self.tree.note_rule_of(&pool, from.dir, to.dir, &[at]);
        } else if let Some(dir) = known {
            self.tree.note_rule_of(&pool, from.dir, to.dir, &dir.copies());
        }
        self.tree.sync_changed(&pool, from.dir)?;
        self.tree.sync_changed(&pool, to.dir)
    }

    fn rename_file(
        &self,
        pool: &Pool,
        from: End<'_>,
        to: End<'_>,
        at: BranchIx,
        flags: RenameFlags,
    ) -> Result<()> {
        let branch = pool.branch(at);
        if !branch.is_writable() {
            return Err(branch.said(SysError { call: sys::Call::Rename, errno: Errno::ROFS }));
        }
        let known = self.tree.known_or_found(pool, from.dir, from.name);
        // It may have to open what is replaced: with no other file's place held, as another rename may hold these two.
        let moves = self.tree.relocations.load(SeqCst);
        let (replaced, targets) = self.tree.targets_of(pool, to)?;
        let open = known.as_ref().and_then(|inode| inode.open_file());
        let stays = open.as_ref().map(|file| file.hold()).transpose()?;
        let at = known.as_ref().and_then(|inode| inode.branch()).unwrap_or(at); // it may just have moved
        let hidden = self.tree.hidden(pool, from, at)?;
        let look_again = || {
            self.tree.seen.set(from.dir.id.ino, from.name.to_bytes(), Ino(0));
            OpError::STALE
        };
        if hidden.first().is_some_and(|(other, _)| pool.turn(*other) < pool.turn(at)) {
            // Not hidden: an earlier branch has the file that the name means. It could not be asked when the
            // name was looked up, or has it since then; the kernel is to look again.
            return Err(look_again());
        }
        // What is replaced is not moved meanwhile either: it would show again on another branch.
        let replaced_open = replaced.as_ref().and_then(|inode| inode.open_file());
        let stays_too = replaced_open.as_ref().map(|file| file.hold()).transpose()?;
        if let Some((file, held)) = replaced_open.as_ref().zip(stays_too.as_ref()) {
            self.note_moved(file, held);
        }
        // Maybe, before it was held; or it was, and closed since.
        let moved = replaced_open.is_some() || self.tree.relocations.load(SeqCst) != moves;
        let targets = if moved { self.tree.find_all(pool, to.dir, to.name, None)? } else { targets };
        let targets = own_kind(targets, Kind::File, |other| pool.turn(other) <= pool.turn(at))?;
        [&hidden, &targets].into_iter().try_for_each(|holders| self.tree.check_writable(pool, holders))?;
        if self.tree.same_object(pool, from, at, &targets)? {
            return Ok(()); // two names of one file: rename(2) does nothing
        }
        self.tree.skeleton(pool, to.dir, at).map_err(OpError::of_a_new_parent)?;
        // One that is missing was moved out of band: what counts as hidden is the file.
        check_replaceable(&self.tree, pool, (from, at), to, (&hidden, &targets))
            .map_err(|error| if error.is_missing() && !hidden.is_empty() { look_again() } else { error })?;
        self.tree.sync_renamed(pool, (to.dir, to.name), &[at]);
        self.tree.unlink_hidden(pool, from, hidden.iter().map(|(other, _)| *other))?;
        let shown = targets.first().copied();
        let visible = shown.map(|(first, _)| first);
        if visible.is_some()
            && let Some(replaced) = &replaced
        {
            self.tree.keep_removed(pool, replaced, to.dir, to.name);
        }
        let removal = replaced.as_ref().map(|replaced| self.tree.removal(pool, replaced, (to.dir, to.name)));
        let others = targets.iter().map(|(other, _)| *other);
        self.tree.unlink_hidden(pool, to, others.filter(|other| *other != at && Some(*other) != visible))?;
        match shown.filter(|(other, _)| *other != at) {
            Some((other, stat)) => {
                // The name is one of another branch from now on, for listings as if its file had moved there.
                let name = InodeName::new(to.dir, to.name);
                let _followed = self.files.listings_follow(&self.tree, pool, &name, (other, stat.ino));
                self.tree.rename_over(pool, from, to, at, other)?;
            }
            None => {
                check_not_given_up()?;
                self.tree.rename_copy(pool, from, to, at, flags)?;
            }
        }
        self.tree.moved(pool, known, from, to, at, replaced.clone().zip(removal));
        drop((stays, stays_too));
        catalogue_lost_name(&self.tree, pool, replaced.as_ref());
        Ok(())
    }
}

impl Tree {
    /// The branch of the file that is renamed, as remembered if the kernel has just looked it up: the rename
    /// itself finds out whether it is still there. None: a directory.
    fn source(&self, pool: &Pool, from: End<'_>) -> Result<Option<BranchIx>> {
        if let Some(known) = self.known(from.dir, from.name)
            && let Some(at) = known.branch()
            && !known.is_dir()
            && from.dir.is_on(at)
        {
            return Ok(Some(at));
        }
        match self.find(pool, from.dir, from.name)? {
            Found::File(at, _) => Ok(Some(at)),
            Found::Dir(..) => Ok(None),
        }
    }

    /// Objects under the target name of a rename, and the inode that it shows, if the kernel knows it.
    fn targets_of(&self, pool: &Pool, to: End<'_>) -> Result<(Option<Arc<Inode>>, DirStats)> {
        if to.dir.take_miss(to.name) {
            return Ok((None, DirStats::new()));
        }
        let targets = self.find_all(pool, to.dir, to.name, None)?;
        let replaced = self.known(to.dir, to.name).or_else(|| {
            let (at, stat) = targets.first().filter(|(_, stat)| !stat.is_dir())?;
            let id = self.identity(pool, pool.branch(*at), stat);
            self.inodes.get(id.ino).filter(|inode| inode.id == id)
        });
        if let Some(inode) = &replaced {
            inode.outlives_name();
        }
        Ok((replaced, targets))
    }

    /// Removes the files that `others` have under a name that another file shows. They are surely gone before that changes: one
    /// that comes back after a power cut would show.
    fn unlink_hidden(
        &self,
        pool: &Pool,
        end: End<'_>,
        others: impl DoubleEndedIterator<Item = BranchIx> + Clone,
    ) -> Result<()> {
        for other in others.clone().rev() {
            self.unlink_on(pool, end.dir, end.name, other)?;
        }
        others.rev().try_for_each(|other| self.sync_copy(pool, end.dir, other))
    }

    /// The files that other branches than `at` have under the name.
    fn hidden(&self, pool: &Pool, end: End<'_>, at: BranchIx) -> Result<DirStats> {
        let mut others = self.find_all(pool, end.dir, end.name, Some(at))?;
        others.retain(|(_, stat)| !stat.is_dir()); // a hidden directory: reported by the lookup, left alone
        Ok(others)
    }

    /// Inode that the kernel knows under the name of `end`, which `holders` have. The cache entry may have been evicted; the
    /// object's own numbers are still known then.
    pub(crate) fn known_as(&self, pool: &Pool, end: End<'_>, holders: &DirStats) -> Option<Arc<Inode>> {
        match holders.first() {
            None => return self.known(end.dir, end.name),
            Some((_, stat)) if !stat.is_dir() => return self.known_or_found(pool, end.dir, end.name),
            Some(_) => {}
        }
        let has_one = |dir: &Arc<Inode>| holders.iter().any(|(at, stat)| dir.copy_ino(*at) == Some(stat.ino));
        self.known(end.dir, end.name).filter(has_one).or_else(|| {
            let copies: DirStats = holders.iter().filter(|(_, stat)| stat.is_dir()).copied().collect();
            let id = self.dir_identity(pool, end.dir, end.name, &copies).ok()?;
            self.inodes.get(id.ino)
        })
    }

    fn same_object(&self, pool: &Pool, from: End<'_>, at: BranchIx, targets: &DirStats) -> Result<bool> {
        let Some((_, target)) = targets.first().filter(|(first, stat)| *first == at && stat.nlink > 1) else {
            return Ok(false);
        };
        let source = self.stat_in(pool, from.dir, at, from.name)?;
        Ok(source.ino == target.ino && source.dev == target.dev)
    }

    pub(crate) fn check_writable(&self, pool: &Pool, holders: &DirStats) -> Result<()> {
        for (at, _) in holders {
            let branch = pool.branch(*at);
            if !branch.is_writable() {
                return Err(branch.said(SysError { call: sys::Call::Rename, errno: Errno::ROFS }));
            }
        }
        Ok(())
    }

    /// The object `replaced` lost the name `to`, and the object under `from` has it.
    fn moved(
        &self,
        pool: &Pool,
        known: Option<Arc<Inode>>,
        from: End<'_>,
        to: End<'_>,
        at: BranchIx,
        replaced: Option<(Arc<Inode>, NameRemoval<'_>)>,
    ) {
        if let Some((replaced, removal)) = replaced {
            replaced.lost_name(to.dir, to.name);
            self.gone(pool, removal);
        }
        let moved = known.or_else(|| {
            // The hint was pushed out of its slot: ask for the number.
            let stat = self.stat_in(pool, to.dir, at, to.name).ok()?;
            self.inodes.get(self.identity(pool, pool.branch(at), &stat).ino)
        });
        if let Some(inode) = moved {
            inode.renamed((from.dir, from.name), (to.dir, to.name));
            self.seen.set(to.dir.id.ino, to.name.to_bytes(), inode.id.ino);
            self.tell_index(pool, &inode);
            if !inode.is_dir() {
                self.tell_index_of_file(pool, to, at);
            }
        }
    }

    /// A file on the branch `at` has the name `to` now: the search for marks may have passed by it.
    pub(crate) fn tell_index_of_file(&self, pool: &Pool, to: End<'_>, at: BranchIx) {
        let branch = pool.branch(at);
        if branch.asks_marks()
            && let Ok(stat) = self.stat_in(pool, to.dir, at, to.name)
        {
            self.identity(pool, branch, &stat); // and so the index learns of it
        }
    }

    /// A directory has another path: the search for marks may have passed by what is in it.
    pub(crate) fn tell_index(&self, pool: &Pool, inode: &Arc<Inode>) {
        for at in inode.copies() {
            self.index.renamed(pool.branch(at).marked(), || inode.path());
        }
    }

    fn rename_dir(&self, pool: &Pool, from: End<'_>, to: End<'_>, flags: RenameFlags) -> Result<()> {
        let _tree_lock = self.tree_lock.write(pool)?;
        to.dir.has_new(to.name);
        let sources = self.find_all(pool, from.dir, from.name, None)?;
        let targets = self.find_all(pool, to.dir, to.name, None)?;
        let first = sources.first().map(|(at, _)| *at).ok_or(OpError::MISSING)?;
        let is_source = |other| sources.iter().any(|(at, _)| *at == other);
        let targets =
            own_kind(targets, Kind::Dir, |other| is_source(other) || pool.turn(other) < pool.turn(first))?;
        [&sources, &targets].into_iter().try_for_each(|holders| self.check_writable(pool, holders))?;
        for (at, _) in &targets {
            self.check_empty(pool, to.dir, to.name, *at)?;
        }
        let known = self.known_as(pool, from, &sources);
        let replaced = self.known_as(pool, to, &targets);
        let object = replaced.as_ref().and_then(|replaced| self.object_of(pool, replaced));
        let removal = replaced.as_ref().map(|replaced| self.removal(pool, replaced, (to.dir, to.name)));
        let replaced = replaced.zip(removal);
        // The parents first: making one may fail, and then nothing was renamed.
        for (at, _) in &sources {
            self.skeleton_under_tree_lock(pool, to.dir, *at).map_err(OpError::of_a_new_parent)?;
        }
        let copies = rename_order(&sources, &targets);
        check_dir_replaceable(self, pool, (from, &sources), (to, &targets))?;
        self.sync_renamed(pool, (to.dir, to.name), &copies);
        let extra: Vec<(BranchIx, Object)> = targets
            .iter()
            .rev()
            .filter(|(at, _)| !copies.contains(at))
            .map(|(at, stat)| (*at, Object::to_go(stat)))
            .collect();
        let renames = sources.iter().map(|(at, stat)| (*at, Object::of(stat), Act::There));
        let parts: Vec<_> = renames.chain(extra.iter().map(|(at, gone)| (*at, *gone, Act::Remove))).collect();
        let record = begin_durably(self, pool, (from, to), replaced.as_ref().map(|one| &one.0), &parts)?;
        let _changing =
            (parts.len() > 1).then(|| self.changing_names.begin([(from.dir, from.name), (to.dir, to.name)]));
        let done = self.rename_all(pool, (from, to), &copies, &extra, flags).and_then(|()| match record {
            // Done, but not surely on disk: the next mount looks at it again.
            Some(_) => self.sync_names(pool, to.dir, &parts).map_err(Half::done),
            None => Ok(()),
        });
        let done = finish_durably(self, pool, (from, to), (&parts, record), done);
        if let Err(half) = done
            && !half.done
        {
            if let Some(inode) = known.filter(|_| !half.stuck) {
                inode.keeps_copies(&sources);
            }
            // Some copies of the target may be gone.
            if let Some((target, _)) = replaced
                && let Ok(Found::Dir(_, copies)) = self.find(pool, to.dir, to.name)
            {
                target.update_copies(&copies);
            }
            return Err(half.error);
        }
        if let Some(((replaced, _), object)) = replaced.as_ref().zip(object) {
            keep_object(self, pool, replaced, object);
        }
        self.moved(pool, known.clone(), from, to, first, replaced);
        if let Some(inode) = known {
            inode.keeps_copies(&sources);
        }
        Ok(())
    }

    /// Renames every copy, and removes the target's copies where no other took their place.
    fn rename_all(
        &self,
        pool: &Pool,
        (from, to): (End<'_>, End<'_>),
        copies: &[BranchIx],
        extra: &[(BranchIx, Object)],
        flags: RenameFlags,
    ) -> Result<(), Half> {
        check_not_given_up()?;
        self.rename_copies(pool, from, to, copies, flags)?;
        for (at, _) in extra {
            let fd = self.dirfd(pool, to.dir, *at);
            let gone = fd.and_then(|fd| pool.branch(*at).ask(|| sys::at::rmdir(fd.as_fd(), to.name)));
            self.changed(pool, *at, (to.dir, to.name), NameEvent::Went);
            if let Err(error) = gone {
                // This copy of the target is left, so the target still is.
                let back: Vec<BranchIx> = copies.iter().rev().copied().collect();
                let back = self.rename_copies(pool, to, from, &back, RenameFlags::NOREPLACE);
                return Err(Half::left(error, back.is_err()));
            }
        }
        Ok(())
    }

    /// The names in `dir` are on disk on the branches that take part.
    pub(crate) fn sync_names(
        &self,
        pool: &Pool,
        dir: &Arc<Inode>,
        parts: &[(BranchIx, Object, Act)],
    ) -> Result<()> {
        parts.iter().try_for_each(|(at, ..)| self.sync_copy(pool, dir, *at))
    }

    /// Renames every copy in the order of `copies`, or none.
    fn rename_copies(
        &self,
        pool: &Pool,
        from: End<'_>,
        to: End<'_>,
        copies: &[BranchIx],
        flags: RenameFlags,
    ) -> Result<(), Half> {
        let mut renamed = Vec::new();
        for at in copies {
            let Err(error) = self.rename_copy(pool, from, to, *at, flags) else {
                renamed.push(*at);
                continue;
            };
            if error.is_missing() && Some(at) != copies.last() {
                continue; // gone out of band
            }
            let mut half = Half::from(error);
            for undone in renamed.into_iter().rev() {
                if let Err(stuck) = self.rename_copy(pool, to, from, undone, RenameFlags::NOREPLACE) {
                    tracing::error!(%stuck, branch = %pool.branch(undone).path.display(), name = ?from.name, "rename of a directory: rollback failed; it stays renamed on this branch only");
                    half.stuck = true;
                }
            }
            return Err(half);
        }
        Ok(())
    }

    pub(crate) fn rename_copy(
        &self,
        pool: &Pool,
        from: End<'_>,
        to: End<'_>,
        at: BranchIx,
        flags: RenameFlags,
    ) -> Result<()> {
        let from_fd = self.dirfd(pool, from.dir, at)?;
        let to_fd = self.dirfd(pool, to.dir, at)?;
        let (from_fd, to_fd) = (from_fd.as_fd(), to_fd.as_fd());
        pool.branch(at).ask(|| sys::at::rename_if_free(from_fd, from.name, to_fd, to.name, flags))?;
        self.both_changed(pool, at, from, to);
        if flags.contains(RenameFlags::EXCHANGE) {
            self.changed(pool, at, (to.dir, to.name), NameEvent::Renamed);
        }
        Ok(())
    }

    /// Both names mean something else on the branch `at`, or nothing.
    pub(crate) fn both_changed(&self, pool: &Pool, at: BranchIx, from: End<'_>, to: End<'_>) {
        self.changed(pool, at, (from.dir, from.name), NameEvent::Renamed);
        self.changed(pool, at, (to.dir, to.name), NameEvent::Went);
    }
}

/// The branches of `sources`, copies of a directory, in the order of their renames over `targets`: the later ones first, so
/// that the first decides last.
///
/// Those with a copy of the target come after the others, as what is replaced does not come back: until the last of them is
/// renamed the target has a copy, and before the first of them nothing is lost.
fn rename_order(sources: &DirStats, targets: &DirStats) -> Vec<BranchIx> {
    let mut order: Vec<BranchIx> = sources.iter().rev().map(|(at, _)| *at).collect();
    order.sort_by_key(|at| targets.iter().any(|(other, _)| other == at));
    order
}
