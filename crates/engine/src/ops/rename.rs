//! Renaming.
//!
//! A file is renamed on its branch, where the target's parent is made if it is missing: EXDEV never shows.
//! The order keeps the last copy of everything: hidden copies of the source go first (else they would come to
//! light under the old name), then hidden copies of the target, then the file is renamed (which replaces a
//! target on the same branch in one step), and last a target that was visible on another branch goes. If that
//! branch comes before the file's own, the target hides the file: the file keeps its old name until it is gone.
//!
//! A directory is renamed on every branch that has a copy, under the tree's shape held exclusively: no thread
//! gives a branch a new copy meanwhile. All branches are checked before any is changed. What a branch refuses
//! in the middle is undone on the others.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_pool::EntryName;
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::{self as sys, Errno, SysError};

use crate::error::{OpError, Result};
use crate::inode::Inode;
use crate::pool::Pool;
use crate::resolve::{DirStats, Found};
use crate::union::Union;

/// One end of a rename.
#[derive(Clone, Copy)]
struct End<'a> {
    dir: &'a Arc<Inode>,
    name: &'a CStr,
}

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
        let pool = self.pool.load();
        let (from_dir, to_dir) = (self.dir(from.0)?, self.dir(to.0)?);
        for (dir, name) in [(&from_dir, from.1), (&to_dir, to.1)] {
            crate::resolve::check_public(dir, name.as_cstr())?;
        }
        let from = End { dir: &from_dir, name: from.1.as_cstr() };
        let to = End { dir: &to_dir, name: to.1.as_cstr() };
        if flags.contains(RenameFlags::EXCHANGE) {
            return self.exchange(&pool, from, to);
        }
        if !RenameFlags::NOREPLACE.contains(flags) {
            return Err(Errno::INVAL.into());
        }
        if flags.contains(RenameFlags::NOREPLACE) {
            self.must_be_missing(&pool, to.dir, to.name)?;
            to.dir.note_miss(to.name); // asked again below, for free
        }
        match self.source(&pool, from)? {
            Some(at) => self.rename_file(&pool, from, to, at, flags),
            None => self.rename_dir(&pool, from, to, flags),
        }
    }

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
        let known = self.known_or_found(pool, from.dir, from.name);
        let open = known.as_ref().and_then(|inode| inode.open_file());
        let _stays = open.as_ref().map(|file| file.hold());
        let at = known.as_ref().and_then(|inode| inode.branch()).unwrap_or(at); // it may just have moved
        let branch = pool.branch(at);
        let hidden = self.hidden(pool, from, at)?;
        if hidden.first().is_some_and(|(other, _)| pool.turn(*other) < pool.turn(at)) {
            // Not hidden: an earlier branch has the file that the name means. It could not be asked when the
            // name was looked up, or has it since then; the kernel is to look again.
            self.seen.set(from.dir.id.ino, from.name.to_bytes(), Ino(0));
            return Err(OpError::STALE);
        }
        let targets = if to.dir.take_miss(to.name) {
            DirStats::new()
        } else {
            self.find_all(pool, to.dir, to.name, None)?
        };
        if targets.first().is_some_and(|(_, stat)| stat.is_dir()) {
            return Err(Errno::ISDIR.into());
        }
        self.check_writable(pool, &hidden)?;
        self.check_writable(pool, &targets)?;
        if self.same_object(pool, from, at, &targets)? {
            return Ok(()); // two names of one file: rename(2) does nothing
        }
        let from_fd = self.dirfd(pool, from.dir, at)?;
        let to_fd = self.skeleton(pool, to.dir, at)?;
        for (other, _) in hidden.iter().rev() {
            self.unlink_on(pool, from.dir, from.name, *other)?;
        }
        let visible = targets.first().map(|(first, _)| *first);
        if visible.is_some()
            && let Some(replaced) = self.known(to.dir, to.name)
        {
            self.keep_removed(pool, &replaced, to.dir, to.name);
        }
        for (other, _) in targets.iter().rev().filter(|(other, _)| *other != at && Some(*other) != visible) {
            self.unlink_on(pool, to.dir, to.name, *other)?;
        }
        match visible.filter(|other| *other != at) {
            Some(shown) if pool.turn(shown) < pool.turn(at) => {
                self.rename_behind(pool, from, to, at, shown)?
            }
            behind => {
                branch.ask(|| sys::at::rename(from_fd.as_fd(), from.name, to_fd.as_fd(), to.name, flags))?;
                if let Some(behind) = behind
                    && let Err(error) = self.unlink_on(pool, to.dir, to.name, behind)
                {
                    let back = RenameFlags::NOREPLACE;
                    note(sys::at::rename(to_fd.as_fd(), to.name, from_fd.as_fd(), from.name, back), to.name);
                    return Err(error);
                }
            }
        }
        self.moved(pool, known, from, to, at);
        Ok(())
    }

    /// The target is on an earlier branch, where it hides the file until it is gone: until that moment nothing
    /// has changed, and from then on the file is there under its new name.
    fn rename_behind(
        &self,
        pool: &Pool,
        from: End<'_>,
        to: End<'_>,
        at: BranchIx,
        shown: BranchIx,
    ) -> Result<()> {
        let branch = pool.branch(at);
        let (from_fd, to_fd) = (self.dirfd(pool, from.dir, at)?, self.dirfd(pool, to.dir, at)?);
        match self.unlink_on(pool, to.dir, to.name, at) {
            Err(error) if !error.is_missing() => return Err(error),
            _ => {}
        }
        let linked = branch.ask(|| sys::at::link(from_fd.as_fd(), from.name, to_fd.as_fd(), to.name));
        let linked = match linked {
            Err(error) if has_no_links(error) => {
                // No hard links here: out of sight for a moment.
                let how = RenameFlags::NOREPLACE;
                branch.ask(|| sys::at::rename(from_fd.as_fd(), from.name, to_fd.as_fd(), to.name, how))?;
                false
            }
            linked => linked.map(|()| true)?,
        };
        if let Err(error) = self.unlink_on(pool, to.dir, to.name, shown) {
            let back = RenameFlags::NOREPLACE;
            note(
                if linked {
                    sys::at::unlink(to_fd.as_fd(), to.name)
                } else {
                    sys::at::rename(to_fd.as_fd(), to.name, from_fd.as_fd(), from.name, back)
                },
                to.name,
            );
            return Err(error);
        }
        if linked { branch.ask(|| sys::at::unlink(from_fd.as_fd(), from.name)) } else { Ok(()) }
    }

    /// The files that other branches than `at` have under the name.
    fn hidden(&self, pool: &Pool, end: End<'_>, at: BranchIx) -> Result<DirStats> {
        let mut others = self.find_all(pool, end.dir, end.name, Some(at))?;
        others.retain(|(_, stat)| !stat.is_dir()); // a hidden directory: reported by the lookup, left alone
        Ok(others)
    }

    fn same_object(&self, pool: &Pool, from: End<'_>, at: BranchIx, targets: &DirStats) -> Result<bool> {
        let Some((_, target)) = targets.first().filter(|(first, stat)| *first == at && stat.nlink > 1) else {
            return Ok(false);
        };
        let source = self.stat_in(pool, from.dir, at, from.name)?;
        Ok(source.ino == target.ino && source.dev == target.dev)
    }

    fn check_writable(&self, pool: &Pool, holders: &DirStats) -> Result<()> {
        for (at, _) in holders {
            let branch = pool.branch(*at);
            if !branch.is_writable() {
                return Err(branch.said(SysError { call: sys::Call::Rename, errno: Errno::ROFS }));
            }
        }
        Ok(())
    }

    /// Whatever was under `to` lost that name, and what was under `from` has it.
    fn moved(&self, pool: &Pool, known: Option<Arc<Inode>>, from: End<'_>, to: End<'_>, at: BranchIx) {
        if let Some(replaced) = self.known(to.dir, to.name) {
            replaced.lost_name(to.dir, to.name);
        }
        let moved = known.or_else(|| {
            // The hint was pushed out of its slot: ask for the number.
            let stat = self.stat_in(pool, to.dir, at, to.name).ok()?;
            self.inodes.get(self.identity(pool.branch(at), &stat).ino)
        });
        if let Some(inode) = moved {
            inode.renamed((from.dir, from.name), (to.dir, to.name));
            self.seen.set(to.dir.id.ino, to.name.to_bytes(), inode.id.ino);
        }
    }

    fn rename_dir(&self, pool: &Pool, from: End<'_>, to: End<'_>, flags: RenameFlags) -> Result<()> {
        let _shape = self.shape.write();
        to.dir.take_miss(to.name); // something is there from now on
        let sources = self.find_all(pool, from.dir, from.name, None)?;
        let targets = self.find_all(pool, to.dir, to.name, None)?;
        if targets.first().is_some_and(|(_, stat)| !stat.is_dir()) {
            return Err(Errno::NOTDIR.into());
        }
        self.check_writable(pool, &sources)?;
        self.check_writable(pool, &targets)?;
        for (at, _) in &targets {
            self.check_empty(pool, to.dir, to.name, *at)?;
        }
        // The hint may have been pushed out of its slot; the copies' own numbers are still known then.
        let known = self.known(from.dir, from.name).or_else(|| {
            let id = self.dir_identity(pool, from.dir, from.name, &sources).ok()?;
            self.inodes.get(id.ino)
        });
        let first = sources.first().map(|(at, _)| *at).ok_or(OpError::MISSING)?;
        // The parents first: making one may fail, and then nothing was renamed.
        for (at, _) in &sources {
            self.skeleton_in_shape(pool, to.dir, *at)?;
        }
        let copies: Vec<BranchIx> = sources.iter().map(|(at, _)| *at).collect();
        self.rename_copies(pool, from, to, &copies, flags)?;
        for (at, _) in targets.iter().rev().filter(|(at, _)| !copies.contains(at)) {
            let fd = self.dirfd(pool, to.dir, *at);
            let gone = fd.and_then(|fd| pool.branch(*at).ask(|| sys::at::rmdir(fd.as_fd(), to.name)));
            if let Err(error) = gone {
                // This copy of the target is left, so the target still is.
                self.rename_copies(pool, to, from, &copies, RenameFlags::NOREPLACE)?;
                return Err(error);
            }
        }
        self.moved(pool, known, from, to, first);
        Ok(())
    }

    /// Renames every copy, or none: the later ones first, so that the first decides last.
    fn rename_copies(
        &self,
        pool: &Pool,
        from: End<'_>,
        to: End<'_>,
        copies: &[BranchIx],
        flags: RenameFlags,
    ) -> Result<()> {
        for (done, at) in copies.iter().rev().enumerate() {
            let Err(error) = self.rename_copy(pool, from, to, *at, flags) else { continue };
            if error.is_missing() && done + 1 < copies.len() {
                continue; // gone behind the pool's back
            }
            for undone in copies.iter().rev().take(done) {
                if let Err(stuck) = self.rename_copy(pool, to, from, *undone, RenameFlags::NOREPLACE) {
                    tracing::error!(%stuck, name = ?from.name, "a directory is left renamed on this branch only");
                }
            }
            return Err(error);
        }
        Ok(())
    }

    fn rename_copy(
        &self,
        pool: &Pool,
        from: End<'_>,
        to: End<'_>,
        at: BranchIx,
        flags: RenameFlags,
    ) -> Result<()> {
        let from_fd = self.dirfd(pool, from.dir, at)?;
        let to_fd = self.dirfd(pool, to.dir, at)?;
        pool.branch(at).ask(|| sys::at::rename(from_fd.as_fd(), from.name, to_fd.as_fd(), to.name, flags))
    }

    /// Each of the two names gets what the other had, branch by branch.
    fn exchange(&self, pool: &Pool, a: End<'_>, b: End<'_>) -> Result<()> {
        let _shape = self.shape.write();
        let (in_a, in_b) =
            (self.find_all(pool, a.dir, a.name, None)?, self.find_all(pool, b.dir, b.name, None)?);
        if in_a.is_empty() || in_b.is_empty() {
            return Err(OpError::MISSING);
        }
        self.check_writable(pool, &in_a)?;
        self.check_writable(pool, &in_b)?;
        let known = |end: End<'_>| self.known_or_found(pool, end.dir, end.name);
        let (known_a, known_b) = (known(a), known(b));
        let holds = |holders: &DirStats, at: BranchIx| holders.iter().any(|(holder, _)| *holder == at);
        let at: Vec<BranchIx> = pool
            .branches
            .iter()
            .map(|branch| branch.ix)
            .filter(|at| holds(&in_a, *at) || holds(&in_b, *at))
            .collect();
        for at in &at {
            self.skeleton_in_shape(pool, a.dir, *at)?;
            self.skeleton_in_shape(pool, b.dir, *at)?;
        }
        if let ([(at_a, of_a)], [(at_b, of_b)]) = (&*in_a, &*in_b)
            && at_a != at_b
            && !of_a.is_dir()
            && !of_b.is_dir()
        {
            let mut pair = [(a, *at_a), (b, *at_b)];
            pair.sort_by_key(|(_, at)| pool.turn(*at));
            self.exchange_files(pool, pair[0], pair[1])?;
            self.exchanged((known_a, a), (known_b, b));
            return Ok(());
        }
        let swap = |at: BranchIx, undo: bool| {
            let (from, to) = if holds(&in_a, at) == undo { (b, a) } else { (a, b) };
            let both = holds(&in_a, at) && holds(&in_b, at);
            let how = if both { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
            self.rename_copy(pool, from, to, at, how)
        };
        for (done, now) in at.iter().enumerate() {
            let Err(error) = swap(*now, false) else { continue };
            for undone in at[..done].iter().rev() {
                if let Err(stuck) = swap(*undone, true) {
                    tracing::error!(%stuck, name = ?a.name, "two names are left exchanged on this branch only");
                }
            }
            return Err(error);
        }
        self.exchanged((known_a, a), (known_b, b));
        Ok(())
    }

    /// Two files on two branches: the later one is put behind the earlier one, whose rename then shows both in
    /// one step.
    fn exchange_files(
        &self,
        pool: &Pool,
        earlier: (End<'_>, BranchIx),
        later: (End<'_>, BranchIx),
    ) -> Result<()> {
        let ((x, at_x), (y, at_y)) = (earlier, later);
        let (x_fd, y_fd) = (self.dirfd(pool, x.dir, at_y)?, self.dirfd(pool, y.dir, at_y)?);
        let branch = pool.branch(at_y);
        let linked = branch.ask(|| sys::at::link(y_fd.as_fd(), y.name, x_fd.as_fd(), x.name));
        if let Err(error) = linked {
            if !has_no_links(error) {
                return Err(error);
            }
            self.rename_copy(pool, y, x, at_y, RenameFlags::NOREPLACE)?;
        }
        if let Err(error) = self.rename_copy(pool, x, y, at_x, RenameFlags::NOREPLACE) {
            let back = RenameFlags::NOREPLACE;
            let undone = match linked {
                Ok(()) => sys::at::unlink(x_fd.as_fd(), x.name),
                Err(_) => sys::at::rename(x_fd.as_fd(), x.name, y_fd.as_fd(), y.name, back),
            };
            note(undone, x.name);
            return Err(error);
        }
        if linked.is_err() {
            return Ok(());
        }
        let unlinked = branch.ask(|| sys::at::unlink(y_fd.as_fd(), y.name));
        unlinked.or_else(|error| {
            self.rename_copy(pool, y, x, at_x, RenameFlags::empty())?;
            note(sys::at::unlink(x_fd.as_fd(), x.name), x.name);
            Err(error)
        })
    }

    /// Each of two inodes has the other's name.
    fn exchanged(&self, a: (Option<Arc<Inode>>, End<'_>), b: (Option<Arc<Inode>>, End<'_>)) {
        let ends = (a.1, b.1);
        for (inode, from, to) in [(a.0, ends.0, ends.1), (b.0, ends.1, ends.0)] {
            if let Some(inode) = inode {
                inode.renamed((from.dir, from.name), (to.dir, to.name));
                self.seen.set(to.dir.id.ino, to.name.to_bytes(), inode.id.ino);
            }
        }
    }
}

/// The file system has no hard links, or not one more of this file.
fn has_no_links(error: OpError) -> bool {
    matches!(error.errno(), Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::NOSYS)
}

/// What came of undoing half a rename.
fn note(undone: Result<(), SysError>, name: &CStr) {
    if let Err(stuck) = undone {
        tracing::error!(%stuck, ?name, "half a rename is left");
    }
}
