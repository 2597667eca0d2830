//! The exchange of the names of a batch of files (`batch.rs`), all of them between the same two branches.
//!
//! Files with one name and files with several share one record. Once all new names are on disk, one replacement of the record on
//! each branch says of all files with several names that the new copies are the files (`naming.rs`), and only then old names go.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_identity::number::Identity;
use fsstack_pool::Ino;
use fsstack_sync::atomic::Ordering::SeqCst;
use fsstack_sys::file::sync_dir;
use fsstack_sys::{self as sys, Errno, Stat};

use crate::files::departure::Departure;
use crate::files::{ExclusiveFile, FdOrigin};
use crate::inode::InodeName;
use crate::member::Member;
use crate::moves::Moves;
use crate::moves::movers::OrderedMove;
use crate::moves::moving::Move;
use crate::moves::naming::{NameAt, check_modes, distinct, stands};
use crate::moves::reasons::why_not;
use crate::pool::Pool;
use crate::recovery::batch::{BatchedMove, LeftOver, NotedBatch, Undecided};
use crate::recovery::told::{Decided, SEPARATOR, Stamp};

/// A file of a batch on its old branch.
pub(super) struct Source<'a> {
    pub(super) order: &'a OrderedMove,
    pub(super) was: FdOrigin,
    pub(super) from: Arc<Branch>,
    pub(super) fd: MountedFd,
}

/// A file of a batch that was copied.
pub(super) struct Copied<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) moving: Move<'a>,
    /// For each name the directory that gets it.
    pub(super) dirs: Vec<Arc<DirFd>>,
    pub(super) mount_root: OpenFileRef,
    pub(super) fd: MountedFd,
    /// The copy before it had content, and the number that it would have.
    pub(super) made: Stat,
    pub(super) natural: Ino,
    pub(super) shared: bool,
}

impl Copied<'_> {
    /// The first of its names.
    fn name(&self) -> &InodeName {
        self.moving.name()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &InodeName> {
        self.moving.names.iter()
    }

    /// The names, each with the directory that gets it.
    fn new_names(&self) -> impl Iterator<Item = (&InodeName, &Arc<DirFd>)> {
        self.moving.names.iter().zip(&self.dirs)
    }

    pub(super) fn id(&self) -> Identity {
        self.moving.inode.id
    }
}

/// A copied file whose place is held, and that has its new names, or some of them.
pub(super) struct Named<'a> {
    /// Its place among the copied ones.
    pub(super) at: usize,
    pub(super) placed: ExclusiveFile<'a>,
    olds: Vec<NameAt>,
    /// All its new names were surely made, and nothing speaks against removing the old ones.
    may_leave: bool,
    pub(super) end: BatchEnd,
}

/// State of a file after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchEnd {
    /// It is where it was, and nothing else of it is there.
    Stays,
    /// It is where it was; new names may be there, too, until the new branch is back.
    Left,
    /// Like `Left`. No new name may go before both branches can be asked: the records may say that the new copy is the file.
    Undecided,
    /// It has moved.
    Moved,
    /// It has moved; old names may be there, too, until the old branch is back.
    MayStand,
}

/// The exchange of the names of a batch, between two branches.
pub(super) struct Exchange<'c, 'a> {
    pub(super) moves: &'c Moves,
    pub(super) pool: &'c Pool,
    pub(super) from: &'c Branch,
    pub(super) to: &'c Member,
    pub(super) copies: &'c [Copied<'a>],
}

impl<'a> Exchange<'_, 'a> {
    /// Exchanges the names. Those of the files that got a new one for a moment at least are in the result.
    ///
    /// # Errors
    /// No name was touched.
    pub(super) fn names(&self, departure: &Departure) -> Result<Vec<Named<'a>>> {
        let Self { moves, pool, from, to, copies } = *self;
        copies.iter().try_for_each(|copied| copied.moving.sync_group(&copied.source.order.file))?;
        // `exchange_names` says why.
        let _tree_lock = moves.tree.tree_lock.read(pool)?;
        check_modes(from, to)?;
        let files: Vec<BatchedMove> =
            copies.iter().map(|copied| self.noted(copied)).collect::<Result<_>>()?;
        // The ways to the new names were synced with the copies.
        moves.tree.sync_ways(pool, copies.iter().flat_map(Copied::names), &[from.ix])?;
        let mut record = NotedBatch::write(from, to, &files)?;
        if !departure.name() {
            record.done(&LeftOver::new(), &pool.taken_back);
            return Err(Errno::INTR.into());
        }
        let mut named: Vec<Named<'_>> = Vec::with_capacity(copies.len());
        let to_dirs = distinct(copies.iter().flat_map(|copied| &copied.dirs));
        let times_there = moves.tree.quiet_dirs.keep(to, to_dirs);
        for at in 0..copies.len() {
            match self.name(at) {
                Ok(one) => named.extend(one),
                Err(error) => tracing::debug!(%error, "a file is left out of a batch"),
            }
        }
        // At once, so that what programs do there meanwhile shows in the times.
        drop(times_there);
        let old_dirs = distinct(named.iter().flat_map(|named| named.olds.iter().map(|(_, dir)| dir)));
        let old_dirs: Vec<Arc<DirFd>> = old_dirs.into_iter().cloned().collect();
        match self.sync_new(&named) {
            Ok(()) => {
                self.decide(&mut record, &mut named);
                let times_here = moves.tree.quiet_dirs.keep(from, &old_dirs);
                named.iter_mut().for_each(|named| self.remove_old(&mut record, named));
                drop(times_here);
            }
            Err(error) => {
                tracing::warn!(%error, branch = %to.path.display(), "relocation: the new names of several files cannot be synced; the files stay where they were");
            }
        }
        self.take_back(&mut named);
        moves.tree.catalogue_names(pool, [from.ix, to.ix], copies.iter().flat_map(Copied::names));
        if let Err(error) = old_dirs.iter().try_for_each(|dir| from.ask_long(|| sync_dir(dir.as_fd()))) {
            // Should they come back after a power cut, the next mount removes them.
            tracing::warn!(%error, branch = %from.path.display(), "relocation: removal of old names not synced; after a power cut the next mount repeats it");
            let moved = named.iter_mut().filter(|named| named.end == BatchEnd::Moved);
            moved.for_each(|named| named.end = BatchEnd::MayStand);
        }
        let moved = |named: &&Named<'_>| matches!(named.end, BatchEnd::Moved | BatchEnd::MayStand);
        // Settling records when a branch is back, with the tree lock held exclusively, asks where an open file is.
        named.iter().filter(moved).for_each(|named| copies[named.at].moving.has_moved(to.ix));
        let left = named.iter().filter_map(|named| match named.end {
            BatchEnd::Stays | BatchEnd::Moved => None,
            BatchEnd::Left | BatchEnd::Undecided => Some((named.at, Decided::Old)),
            BatchEnd::MayStand => Some((named.at, Decided::New)),
        });
        record.done(&left.collect(), &pool.taken_back);
        Ok(named)
    }

    fn noted(&self, copied: &Copied<'_>) -> Result<BatchedMove> {
        let new = self.to.ask(|| sys::at::stat_fd(copied.fd.as_fd()))?;
        let paths: Option<Vec<Vec<u8>>> = copied.names().map(InodeName::path).collect();
        let paths = paths.ok_or(OpError::STALE)?.join(&SEPARATOR);
        Ok(BatchedMove { old: Stamp::of(&copied.moving.stat), new: Stamp::of(&new), paths })
    }

    /// Takes the file's place and gives the copy its names, if the file is as it was and nobody uses it. None: somebody does.
    fn name(&self, at: usize) -> Result<Option<Named<'a>>> {
        let Self { moves, pool, to, copies, .. } = *self;
        let copied = &copies[at];
        let (Source { order, was, .. }, moving) = (copied.source, &copied.moving);
        let Some(placed) = order.file.try_hold_exclusively() else { return Ok(None) };
        let now = placed.was();
        let is_other = (now.branch, now.mount_generation) != (was.branch, was.mount_generation);
        if is_other || why_not(&order.file, &moving.stat, 0, moving.names.len()).is_some() {
            return Ok(None);
        }
        let (olds, _) = moves.tree.old_names(pool, moving)?;
        if !order.departure.name() {
            return Ok(None);
        }
        let mut new = copied.new_names();
        let linked = new.try_for_each(|(name, dir)| {
            to.ask(|| sys::at::link_fd(copied.fd.as_fd(), dir.as_fd(), &name.name))
        });
        if let Err(error) = linked {
            // A branch that fails may have made the name, and some names of several are made: `take_back` removes them.
            if !error.is_fault() && !moving.is_group() {
                order.departure.copy_again();
                return Err(error);
            }
            tracing::debug!(%error, "a file of a batch has not got all of its new names");
        }
        // Before the old names go: a lookup that saw neither name asks again.
        copied.names().for_each(|name| name.parent.has_new(&name.name));
        moves.tree.relocations.fetch_add(1, SeqCst);
        Ok(Some(Named { at, placed, olds, may_leave: linked.is_ok(), end: BatchEnd::Left }))
    }

    /// The new names are on disk.
    fn sync_new(&self, named: &[Named<'_>]) -> Result<()> {
        let dirs = distinct(named.iter().flat_map(|named| &self.copies[named.at].dirs));
        dirs.into_iter().try_for_each(|dir| self.to.ask_long(|| sync_dir(dir.as_fd())))
    }

    /// The file may leave if its old names still lead to what was copied: the new ones were synced meanwhile.
    fn compare(&self, named: &mut Named<'_>) {
        let moving = &self.copies[named.at].moving;
        // A name that cannot be looked up cannot be removed either, which `remove_old` reports.
        let is_other =
            |(name, dir): &NameAt| moving.look(dir, &name.name).is_ok_and(|there| !moving.is(&there));
        named.may_leave &= !named.olds.iter().any(is_other);
    }

    /// The record says of the files with several names that their new copies are the files.
    fn decide(&self, record: &mut NotedBatch<'_>, named: &mut [Named<'_>]) {
        let is_group = |named: &&mut Named<'_>| self.copies[named.at].moving.is_group();
        let mut groups: Vec<&mut Named<'_>> = named.iter_mut().filter(is_group).collect();
        groups.iter_mut().for_each(|named| self.compare(named));
        groups.retain(|named| named.may_leave);
        let ats: Vec<usize> = groups.iter().map(|named| named.at).collect();
        if ats.is_empty() {
            return;
        }
        let Err(undecided) = record.decides_new(&ats) else { return };
        let end = match undecided {
            Undecided::Old(_) => BatchEnd::Left,
            Undecided::Unknown(_) => BatchEnd::Undecided,
        };
        let (Undecided::Old(error) | Undecided::Unknown(error)) = undecided;
        tracing::warn!(%error, from = %self.from.path.display(), to = %self.to.path.display(), "relocation: the record of files with several hard links cannot be changed; the files stay where they were");
        groups.iter_mut().for_each(|named| (named.may_leave, named.end) = (false, end));
    }

    /// The file loses its old names.
    fn remove_old(&self, record: &mut NotedBatch<'_>, named: &mut Named<'_>) {
        let moving = &self.copies[named.at].moving;
        if !moving.is_group() {
            self.compare(named);
        }
        if !named.may_leave {
            return;
        }
        let mut olds = named.olds.iter().enumerate();
        let removed = olds.try_for_each(|(nth, (name, dir))| {
            let removed = self.from.ask(|| sys::at::unlink(dir.as_fd(), &name.name));
            removed.map_err(|error| (error, nth, name, dir))
        });
        let Err((error, nth, name, dir)) = removed else { return named.end = BatchEnd::Moved };
        // The record says of a file with several names that its new copy is the file: some old names may not stay.
        let stands = if moving.is_group() && nth > 0 { Err(error) } else { stands(moving, name, dir) };
        named.end = match stands {
            // No name can be removed from its directory any more, and the group still has all of them.
            Ok(true) if moving.is_group() => match record.decides_old(named.at) {
                Ok(()) => BatchEnd::Left,
                Err(_) => BatchEnd::Undecided,
            },
            Ok(true) => BatchEnd::Left,
            Ok(false) if !moving.is_group() => BatchEnd::Moved,
            unknown => {
                // A single move ends so too.
                tracing::warn!(%error, name = ?name.name, branch = %self.from.path.display(), ?unknown, "relocation: the old name may remain; the next mount settles it");
                BatchEnd::MayStand
            }
        };
    }

    /// Removes the new names of files that keep their old ones. Another object of a name stays.
    fn take_back(&self, named: &mut [Named<'_>]) {
        let remove = |copied: &Copied<'_>, name: &InodeName, dir: &DirFd| match self
            .to
            .ask(|| sys::at::stat(dir.as_fd(), &name.name))
        {
            Ok(there) if there.ino == copied.made.ino => {
                self.to.ask(|| sys::at::unlink(dir.as_fd(), &name.name))
            }
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        };
        let remove =
            |copied: &Copied<'_>| copied.new_names().try_for_each(|(name, dir)| remove(copied, name, dir));
        let undone = named
            .iter_mut()
            .filter(|named| named.end == BatchEnd::Left && remove(&self.copies[named.at]).is_ok());
        let undone: Vec<&mut Named<'_>> = undone.collect();
        // If the record went first, a power cut would leave both copies for good.
        let dirs = distinct(undone.iter().flat_map(|named| &self.copies[named.at].dirs));
        let synced = dirs.into_iter().try_for_each(|dir| self.to.ask_long(|| sync_dir(dir.as_fd())));
        for named in undone {
            let copied = &self.copies[named.at];
            if synced.is_ok() {
                named.end = BatchEnd::Stays;
            }
            copied.source.order.departure.copy_again();
        }
        let kept =
            |named: &&Named<'_>| matches!(named.end, BatchEnd::Stays | BatchEnd::Left | BatchEnd::Undecided);
        for named in named.iter().filter(kept) {
            tracing::warn!(?synced, name = ?self.copies[named.at].name().name, branch = %self.to.path.display(), "relocation given up; the file stays where it was");
        }
    }
}
