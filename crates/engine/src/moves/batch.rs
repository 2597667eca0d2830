//! Moves of many small files at once.
//!
//! A small file costs less to copy than to sync. So a job's small files move in batches (`OrderedBatch`): all are copied to one
//! branch, without names; one syncfs(2) makes the copies durable; one record on both branches names all files
//! (`recovery/batch.rs`); then all get their new names, the directories are synced, the old names go, and the directories are
//! synced. Killed at any point, each file is settled by itself, as after a move of its own (`naming.rs`).
//!
//! Nobody waits for a batch: until the names are exchanged a thread that wants to change one of its files calls that file's move
//! off (`Departure::yields`). For the exchange the mover takes the places of all files that nobody uses at that moment, without
//! waiting, and gives them back after the last sync of directories: that is as long as for a single file, and the links.
//!
//! A batch is for the ordinary case. What is called off, in use, changed or refused by the branch stays here without a reason, and
//! is moved by itself afterwards (`relocate.rs`), where its writers wait. Not in a batch: large files, files with several names
//! or without content, files on remote branches, and branches without nameless files.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_identity::index::birth;
use fsstack_identity::mark;
use fsstack_identity::number::{self, Identity};
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::file::sync_dir;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, OFlags, Stat};

use crate::files::departure::{Departure, DepartureOutcome};
use crate::files::{ExclusiveFile, FdOrigin};
use crate::inode::{Inode, InodeName};
use crate::member::Member;
use crate::moves::Moves;
use crate::moves::clone_metadata::{Durable, copy_file, verify};
use crate::moves::movers::OrderedMove;
use crate::moves::moving::Move;
use crate::moves::naming::{distinct, set_times, stands, times};
use crate::moves::reasons::why_not;
use crate::pool::Pool;
use crate::recovery::batch::{BatchedMove, LeftOver, NotedBatch};
use crate::recovery::blank::blank;
use crate::recovery::told::{Decided, Stamp};

/// Size of the largest file that moves in a batch: copying it takes about as long as syncing it.
pub(crate) const LARGEST: u64 = 256 << 10;
/// Files in a batch.
pub(crate) const MOST: usize = 256;
/// A batch of fewer files is none.
pub(crate) const FEWEST: usize = 2;

/// Files that are to leave their branch together, for a job.
#[derive(Debug)]
pub(crate) struct OrderedBatch {
    pub(crate) moves: Vec<OrderedMove>,
    pub(crate) departure: Arc<Departure>,
    pub(crate) from: BranchIx,
}

impl OrderedBatch {
    /// Ends the moves: nobody waits for them any more.
    pub(crate) fn end(&self) {
        for order in &self.moves {
            order.let_go();
            order.departure.end(DepartureOutcome::TryAgain);
        }
        self.departure.end(DepartureOutcome::TryAgain);
    }
}

impl Drop for OrderedBatch {
    fn drop(&mut self) {
        self.end();
    }
}

/// A file of a batch on its old branch.
struct Source<'a> {
    order: &'a OrderedMove,
    was: FdOrigin,
    from: Arc<Branch>,
    fd: OwnedFd,
}

/// A file of a batch that was copied.
struct Copied<'a> {
    source: &'a Source<'a>,
    moving: Move<'a>,
    dir: Arc<DirFd>,
    mount_root: OpenFileRef,
    fd: MountedFd,
    /// The copy before it had content, and the number that it would have.
    made: Stat,
    natural: Ino,
    shared: bool,
}

impl Copied<'_> {
    fn name(&self) -> &InodeName {
        self.moving.name()
    }

    fn id(&self) -> Identity {
        self.moving.inode.id
    }
}

/// A copied file that has its new name, and whose place is held.
struct Named<'a> {
    /// Its place among the copied ones.
    at: usize,
    placed: ExclusiveFile<'a>,
    old_dir: Arc<DirFd>,
    /// Its new name was surely made.
    is_sure: bool,
    end: BatchEnd,
}

/// State of a file after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchEnd {
    /// It is where it was, and nothing else of it is there.
    Stays,
    /// It is where it was; the new name may be there, too, until the new branch is back.
    Left,
    /// It has moved.
    Moved,
    /// It has moved; the old name may be there, too, until the old branch is back.
    MayStand,
}

impl Moves {
    /// Moves the files of the batch that can be moved so: the job's wish for these is done.
    pub(crate) fn move_batch(&self, batch: &OrderedBatch) {
        let pool = &*self.tree.pool.load_full();
        let begun = batch.moves.iter().filter(|order| order.departure.begin());
        let source = |order| {
            let order: &OrderedMove = order;
            let (was, from, fd) = order.file.source().ok()?;
            Some(Source { order, was, from, fd })
        };
        let sources: Vec<Source<'_>> = begun.filter_map(source).collect();
        let moved = self.begin_batch(pool, &sources).and_then(|(to, moving)| {
            let copies = self.copy_batch(pool, batch, to, moving)?;
            self.switch_batch(pool, batch, to, copies)
        });
        if let Err(error) = moved {
            tracing::debug!(%error, "files that were to move together move by themselves");
        }
    }

    /// The files that can go in one batch, and the branch that all of them go to.
    fn begin_batch<'a>(
        &self,
        pool: &'a Pool,
        sources: &'a [Source<'a>],
    ) -> Result<(&'a Member, Vec<(&'a Source<'a>, Move<'a>)>)> {
        let begin = |source: &'a Source<'a>| {
            let Source { order, from, fd, .. } = source;
            let moving = self.tree.begin_alone(order, from.clone(), fd.as_fd()).ok()?;
            let is_small = moving.is_content() && moving.stat.size <= LARGEST;
            (is_small && !moving.is_group()).then_some((source, moving))
        };
        let mut begun: Vec<(&Source<'_>, Move<'_>)> = sources.iter().filter_map(begin).collect();
        let need = begun.iter().map(|(_, moving)| moving.stat.blocks.saturating_mul(512)).sum();
        let mut known: Vec<(*const Inode, &[BranchIx], Option<BranchIx>)> = Vec::new();
        let mut targets = begun.iter().map(|(source, moving)| {
            let parent = Arc::as_ptr(&moving.name().parent);
            let job = source.order.cause.job();
            let planned = job.map_or(&[][..], |job| &job.targets);
            if let Some((.., to)) = known.iter().find(|(dir, of, _)| (*dir, *of) == (parent, planned)) {
                return *to;
            }
            let names = (&moving.names, &*moving.from);
            let ranking = self.tree.targets(pool, names, need, job);
            let to = ranking.order.first().copied();
            known.push((parent, planned, to));
            to
        });
        let targets: Vec<Option<BranchIx>> = targets.by_ref().collect();
        let to = targets.iter().find_map(|to| *to).ok_or(Errno::NOSPC)?;
        let to = pool.branch(to);
        let room = to.space().map_or(0, |space| space.available);
        let mut targets = targets.into_iter();
        begun.retain(|(_, moving)| {
            let need = moving.stat.blocks.saturating_mul(512);
            let refused = || self.refusals.of((moving.inode.id.ino, to.ix), room, need).is_some();
            targets.next() == Some(Some(to.ix)) && !refused()
        });
        match to.is_remote() || begun.iter().any(|(_, moving)| moving.from.is_remote()) {
            true => Err(Errno::OPNOTSUPP.into()),
            false => Ok((to, begun)),
        }
    }

    /// Copies of the files, on disk. What cannot be copied is left out.
    fn copy_batch<'a>(
        &self,
        pool: &Pool,
        batch: &OrderedBatch,
        to: &Member,
        begun: Vec<(&'a Source<'a>, Move<'a>)>,
    ) -> Result<Vec<Copied<'a>>> {
        // Older than the copies: their write-back errors are reported to it.
        let all = to.ask(|| sys::at::reopen(to.root().as_fd(), OFlags::RDONLY | OFlags::DIRECTORY))?;
        let mut copies: Vec<Copied<'_>> = Vec::with_capacity(begun.len());
        for (source, moving) in begun {
            if !batch.departure.goes_on() {
                return Err(Errno::INTR.into());
            }
            if batch.departure.is_short() {
                break;
            }
            match self.copy_for_batch(pool, (batch, to), source, moving) {
                Ok(copied) => copies.push(copied),
                Err(error) => tracing::debug!(%error, "a file is left out of a batch"),
            }
        }
        let row = |copied: &Copied<'_>| (copied.id(), copied.natural, birth(&copied.made));
        let rows: Vec<(Identity, Ino, u32)> = copies.iter().map(row).collect();
        let fewest = if batch.departure.is_short() { 1 } else { FEWEST };
        if copies.len() < fewest {
            return Err(Errno::AGAIN.into());
        }
        let noted = self.tree.index.note_files(to, &rows);
        let synced = to.ask_long(|| sys::file::syncfs(all.as_fd()));
        if !noted || synced.is_err() {
            self.forget_copies(copies.iter());
            synced?;
            return Err(OpError::UNSURE);
        }
        let how = copies.first().map(|copied| copied.source.order.cause.how(&pool.settings.relocation));
        copies.retain(|copied| {
            let (new, old) = (copied.fd.as_fd(), copied.moving.source);
            let same = || how.as_ref().is_none_or(|how| to.ask_long(|| verify(new, old, how)).is_ok());
            let whole = copied.shared || same();
            if !whole {
                self.forget_copies(std::iter::once(copied));
            }
            whole
        });
        Ok(copies)
    }

    fn copy_for_batch<'a>(
        &self,
        pool: &Pool,
        (batch, to): (&OrderedBatch, &Member),
        source: &'a Source<'a>,
        moving: Move<'a>,
    ) -> Result<Copied<'a>> {
        let order = source.order;
        let dir = self.tree.skeleton(pool, &moving.name().parent, to.ix)?;
        let (fd, staged) = to.ask(|| blank(to, &dir, &moving.stat))?;
        if let Some(staged) = staged {
            staged.discard(to);
            return Err(Errno::OPNOTSUPP.into());
        }
        let mount_root = to.acquire()?;
        let made = to.ask(|| to.stat_fd(fd.as_fd()))?;
        let how = order.cause.how(&pool.settings.relocation);
        let goes_on = || order.departure.goes_on() && batch.departure.goes_on_copying();
        let shared = {
            let _inside = moving.from.come_in(CallKind::Long)?;
            to.ask_long(|| {
                let how = (&how, Durable::WithOthers);
                let shared = copy_file(fd.as_fd(), moving.source, &moving.stat, how, &goes_on)?;
                // Its identity is on disk, on the copy and in the index, before the copy has a name.
                mark::put(On::Fd(fd.as_fd()), mark::FILE, moving.inode.id, made.ino)?;
                Ok(shared)
            })?
        };
        let natural = number::number(to, made.dev, made.ino);
        Ok(Copied { source, moving, dir, mount_root, fd, made, natural, shared })
    }

    /// The index forgets copies that get no name.
    fn forget_copies<'c, 'a: 'c>(&self, copies: impl Iterator<Item = &'c Copied<'a>>) {
        let rows: Vec<_> = copies.map(|copied| (copied.id(), Some(copied.natural))).collect();
        self.tree.index.forget_each(&rows);
    }

    /// The copies get their names, and the old ones go.
    fn switch_batch(
        &self,
        pool: &Pool,
        batch: &OrderedBatch,
        to: &Member,
        copies: Vec<Copied<'_>>,
    ) -> Result<()> {
        let Some(from) = copies.first().map(|copied| copied.moving.from.clone()) else { return Ok(()) };
        let exchange = Exchange { moves: self, pool, from: &from, to, copies: &copies };
        let follow = |copied| self.files.listings_follow(&self.tree, pool, Copied::name(copied), from.ix);
        let followed: Vec<_> = copies.iter().map(follow).collect();
        let named = exchange.names(&batch.departure);
        drop(followed);
        let named = named.inspect_err(|_| self.forget_copies(copies.iter()))?;
        let mut ends: Vec<(BatchEnd, Option<ExclusiveFile<'_>>)> =
            copies.iter().map(|_| (BatchEnd::Stays, None)).collect();
        for named in named {
            ends[named.at] = (named.end, Some(named.placed));
        }
        // The rules of a single move (`Moves::move_to`).
        let nameless = |end: &BatchEnd, made: &Stat| {
            *end == BatchEnd::Stays || *end == BatchEnd::Left && birth(made) == 0
        };
        let mut rows = Vec::new();
        for (copied, (end, _)) in copies.iter().zip(&ends) {
            let old = &copied.moving.stat;
            if nameless(end, &copied.made) {
                rows.push((copied.id(), Some(copied.natural)));
            } else if *end == BatchEnd::Moved || *end == BatchEnd::MayStand && birth(old) == 0 {
                rows.push((copied.id(), Some(number::number(&from, old.dev, old.ino))));
            }
        }
        self.tree.index.forget_each(&rows);
        for (copied, (end, placed)) in copies.into_iter().zip(ends) {
            let Some(mut placed) = placed.filter(|_| matches!(end, BatchEnd::Moved | BatchEnd::MayStand))
            else {
                continue;
            };
            let order = copied.source.order;
            let (mount_root, fd) = (copied.mount_root, copied.fd);
            let gone = self.arrive(pool, &copied.moving, &order.file, &mut placed, (mount_root, fd));
            drop(placed);
            self.movers.one_has_left(order.full);
            order.cause.job().inspect(|job| job.is_done());
            copied.moving.from.clone().dispose(copied.source.was.mount_generation, gone);
        }
        Ok(())
    }
}

/// The exchange of the names of a batch, between two branches.
struct Exchange<'c, 'a> {
    moves: &'c Moves,
    pool: &'c Pool,
    from: &'c Branch,
    to: &'c Member,
    copies: &'c [Copied<'a>],
}

impl<'a> Exchange<'_, 'a> {
    /// Exchanges the names. Those of the files that got a new one for a moment at least are in the result.
    ///
    /// # Errors
    /// No name was touched.
    fn names(&self, departure: &Departure) -> Result<Vec<Named<'a>>> {
        let Self { moves, pool, from, to, copies } = *self;
        // `exchange_names` says why.
        let _tree_lock = moves.tree.tree_lock.read(pool)?;
        let files: Vec<BatchedMove> =
            copies.iter().map(|copied| self.noted(copied)).collect::<Result<_>>()?;
        // The ways to the new names were synced with the copies.
        moves.tree.sync_ways(pool, copies.iter().map(Copied::name), &[from.ix])?;
        let record = NotedBatch::write(from, to, &files)?;
        if !departure.name() {
            record.done(&LeftOver::new(), &pool.taken_back);
            return Err(Errno::INTR.into());
        }
        let mut named: Vec<Named<'_>> = Vec::with_capacity(copies.len());
        let times_there = times(to, distinct(copies.iter().map(|copied| &copied.dir)));
        for at in 0..copies.len() {
            match self.name(at) {
                Ok(one) => named.extend(one),
                Err(error) => tracing::debug!(%error, "a file is left out of a batch"),
            }
        }
        // At once, so that what programs do there meanwhile shows in the times.
        set_times(to, times_there);
        let olds: Vec<Arc<DirFd>> =
            distinct(named.iter().map(|named| &named.old_dir)).into_iter().cloned().collect();
        let synced = self.sync_new(&named);
        let times_here = times(from, &olds);
        match synced {
            Ok(()) => named.iter_mut().for_each(|named| self.remove_old(named)),
            Err(error) => {
                tracing::warn!(%error, branch = %to.path.display(), "relocation: the new names of several files cannot be synced; the files stay where they were");
            }
        }
        set_times(from, times_here);
        self.take_back(&mut named);
        moves.tree.catalogue_names(pool, [from.ix, to.ix], copies.iter().map(Copied::name));
        if let Err(error) = olds.iter().try_for_each(|dir| from.ask_long(|| sync_dir(dir.as_fd()))) {
            // Should they come back after a power cut, the next mount removes them.
            tracing::warn!(%error, branch = %from.path.display(), "relocation: removal of old names not synced; after a power cut the next mount repeats it");
            let moved = named.iter_mut().filter(|named| named.end == BatchEnd::Moved);
            moved.for_each(|named| named.end = BatchEnd::MayStand);
        }
        let moved = |named: &&Named<'_>| matches!(named.end, BatchEnd::Moved | BatchEnd::MayStand);
        // Settling records when a branch is back, with the tree lock held exclusively, asks where an open file is.
        named.iter().filter(moved).for_each(|named| copies[named.at].moving.inode.moved_to(to.ix));
        let left = named.iter().filter_map(|named| match named.end {
            BatchEnd::Stays | BatchEnd::Moved => None,
            BatchEnd::Left => Some((named.at, Decided::Old)),
            BatchEnd::MayStand => Some((named.at, Decided::New)),
        });
        record.done(&left.collect(), &pool.taken_back);
        Ok(named)
    }

    fn noted(&self, copied: &Copied<'_>) -> Result<BatchedMove> {
        let new = self.to.ask(|| sys::at::stat_fd(copied.fd.as_fd()))?;
        let path = copied.name().path().ok_or(OpError::STALE)?;
        Ok(BatchedMove { old: Stamp::of(&copied.moving.stat), new: Stamp::of(&new), path })
    }

    /// Takes the file's place and gives the copy its name, if the file is as it was and nobody uses it. None: somebody does.
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
        let (mut olds, _) = moves.tree.old_names(pool, moving)?;
        let Some((name, old_dir)) = olds.pop() else { return Ok(None) };
        if !order.departure.name() {
            return Ok(None);
        }
        let linked = to.ask(|| sys::at::link_fd(copied.fd.as_fd(), copied.dir.as_fd(), &name.name));
        // A branch that fails may have made it.
        if let Err(error) = linked
            && !error.is_fault()
        {
            order.departure.copy_again();
            return Err(error);
        }
        // Before the old names go: a lookup that saw neither name asks again.
        name.parent.has_new(&name.name);
        moves.tree.relocations.fetch_add(1, SeqCst);
        Ok(Some(Named { at, placed, old_dir, is_sure: linked.is_ok(), end: BatchEnd::Left }))
    }

    /// The new names are on disk.
    fn sync_new(&self, named: &[Named<'_>]) -> Result<()> {
        let dirs = distinct(named.iter().map(|named| &self.copies[named.at].dir));
        dirs.into_iter().try_for_each(|dir| self.to.ask_long(|| sync_dir(dir.as_fd())))
    }

    /// The file loses its old name, if that still leads to what was copied.
    fn remove_old(&self, named: &mut Named<'_>) {
        let copied = &self.copies[named.at];
        let (moving, name, dir) = (&copied.moving, copied.name(), &*named.old_dir);
        // The new names were synced meanwhile: compared once more. What cannot be asked cannot be removed.
        let is_other = moving.look(dir, &name.name).is_ok_and(|there| !moving.is(&there));
        if !named.is_sure || is_other {
            return;
        }
        named.end = match self.from.ask(|| sys::at::unlink(dir.as_fd(), &name.name)) {
            Ok(()) => BatchEnd::Moved,
            Err(error) => match stands(moving, name, dir) {
                Ok(true) => BatchEnd::Left,
                Ok(false) => BatchEnd::Moved,
                Err(unknown) => {
                    // A single move ends so too.
                    tracing::warn!(%error, name = ?name.name, branch = %self.from.path.display(), %unknown, "relocation: the old name may remain; the next mount settles it");
                    BatchEnd::MayStand
                }
            },
        };
    }

    /// Removes the new names of files that keep their old ones. Another object of a name stays.
    fn take_back(&self, named: &mut [Named<'_>]) {
        let remove = |copied: &Copied<'_>| {
            let (dir, name) = (copied.dir.as_fd(), &copied.name().name);
            match self.to.ask(|| sys::at::stat(dir, name)) {
                Ok(there) if there.ino == copied.made.ino => self.to.ask(|| sys::at::unlink(dir, name)),
                Err(error) if !error.is_missing() => Err(error),
                _ => Ok(()),
            }
        };
        let undone = named
            .iter_mut()
            .filter(|named| named.end == BatchEnd::Left && remove(&self.copies[named.at]).is_ok());
        let undone: Vec<&mut Named<'_>> = undone.collect();
        // If the record went first, a power cut would leave both copies for good.
        let dirs = distinct(undone.iter().map(|named| &self.copies[named.at].dir));
        let synced = dirs.into_iter().try_for_each(|dir| self.to.ask_long(|| sync_dir(dir.as_fd())));
        for named in undone {
            let copied = &self.copies[named.at];
            if synced.is_ok() {
                named.end = BatchEnd::Stays;
            }
            copied.source.order.departure.copy_again();
        }
        let kept = |named: &&Named<'_>| matches!(named.end, BatchEnd::Stays | BatchEnd::Left);
        for named in named.iter().filter(kept) {
            tracing::warn!(?synced, name = ?self.copies[named.at].name().name, branch = %self.to.path.display(), "relocation given up; the file stays where it was");
        }
    }
}
