//! Moves of many small files at once.
//!
//! A small file costs less to copy than to sync. So a job's small files move in batches (`OrderedBatch`): all are copied to one
//! branch, without names; one syncfs(2) makes the copies durable; one record on both branches names all files
//! (`recovery/batch.rs`); then all get their new names, the directories are synced, the old names go, and the directories are
//! synced. Killed at any point, each file is settled by itself, as after a move of its own (`naming.rs`).
//!
//! Nobody waits for a batch: until the names are exchanged a thread that wants to change one of its files calls that file's move
//! off (`Departure::yields`). For the exchange the mover takes the places of all files that nobody uses at that moment, without
//! waiting, and gives them back after the last sync of directories. With files of several names that is two syncs of the record
//! more, and the syncs of the directories of all names.
//!
//! A batch is for the ordinary case. What is called off, in use, changed or refused by the branch stays here without a reason, and
//! is moved by itself afterwards (`relocate.rs`), where its writers wait. Not in a batch: large files, files without content,
//! files on remote branches, and branches without nameless files.

use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_identity::index::birth;
use fsstack_identity::mark;
use fsstack_identity::number::{self, Identity};
use fsstack_pool::{BranchIx, Ino};
use fsstack_sys::file::MountRestrictions;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, OFlags, Stat};

use crate::files::ExclusiveFile;
use crate::files::departure::{Departure, DepartureOutcome};
use crate::inode::Inode;
use crate::member::Member;
use crate::moves::Moves;
use crate::moves::batch_exchange::{BatchEnd, Copied, Exchange, Source};
use crate::moves::clone_metadata::{CopiesTogether, copy_file, verify};
use crate::moves::movers::OrderedMove;
use crate::moves::moving::{Move, lifted_restrictions};
use crate::moves::room::ReservedRoom;
use crate::moves::transfer::split_source_error;
use crate::pool::Pool;
use crate::recovery::blank::blank;

/// Size of the largest file that moves in a batch: copying it takes about as long as syncing it.
pub(crate) const LARGEST: u64 = 256 << 10;
/// Files in a batch.
pub(crate) const MOST: usize = 256;
/// Bytes of the paths of all names of a batch at most: its record has them.
const LONGEST_PATHS: usize = 256 << 10;
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
        for (to, moving) in self.begin_batch(pool, &sources) {
            let copies = self.copy_batch(pool, batch, to, moving);
            let moved = copies.and_then(|copies| self.switch_batch(pool, batch, to, copies));
            if let Err(error) = moved {
                tracing::debug!(%error, "files that were to move together move by themselves");
            }
            // It was at its exchange of names; copies for the next branch begin.
            batch.departure.copy_again();
        }
    }

    /// The files that can go together, by the branch that they go to.
    fn begin_batch<'a>(
        &self,
        pool: &'a Pool,
        sources: &'a [Source<'a>],
    ) -> Vec<(&'a Member, Vec<(&'a Source<'a>, Move<'a>)>)> {
        let begin = |source: &'a Source<'a>| {
            let Source { order, from, fd, .. } = source;
            let moving = self.tree.begin_alone(order, from.clone(), fd.as_fd()).ok()?;
            let is_small = moving.is_content() && moving.stat.size <= LARGEST && !moving.from.is_remote();
            is_small.then_some((source, moving))
        };
        let mut paths = 0;
        let mut is_recorded = |moving: &Move<'_>| {
            let lengths = moving.names.iter().map(|name| name.path().map_or(0, |path| path.len() + 1));
            let more = lengths.sum::<usize>();
            let fits = paths + more <= LONGEST_PATHS;
            paths += if fits { more } else { 0 };
            fits
        };
        let begun: Vec<(&Source<'_>, Move<'_>)> =
            sources.iter().filter_map(begin).filter(|(_, moving)| is_recorded(moving)).collect();
        let need = begun.iter().map(|(_, moving)| moving.taken()).sum();
        let mut known: Vec<(*const Inode, &[BranchIx], Option<BranchIx>)> = Vec::new();
        let targets = begun.iter().map(|(source, moving)| {
            let parent = Arc::as_ptr(&moving.name().parent);
            let job = source.order.cause.job();
            let planned = job.map_or(&[][..], |job| &job.targets);
            let is_same = |(dir, of, _): &&(*const Inode, &[BranchIx], _)| (*dir, *of) == (parent, planned);
            let is_group = moving.is_group();
            if let Some((.., to)) = known.iter().find(is_same).filter(|_| !is_group) {
                return *to;
            }
            let names = (&moving.names, &*moving.from);
            let ranking = self.tree.targets(pool, names, need, job);
            let to = ranking.order.first().copied();
            if !is_group {
                known.push((parent, planned, to));
            }
            to
        });
        let targets: Vec<Option<BranchIx>> = targets.collect();
        let mut groups: Vec<(BranchIx, Vec<(&Source<'_>, Move<'_>)>)> = Vec::new();
        for (one, to) in begun.into_iter().zip(targets) {
            let Some(to) = to else { continue };
            match groups.iter_mut().find(|(other, _)| *other == to) {
                Some((_, group)) => group.push(one),
                None => groups.push((to, vec![one])),
            }
        }
        let groups = groups.into_iter().map(|(to, mut group)| {
            let to: &Member = pool.branch(to);
            let room = to.space().map_or(0, |space| space.available);
            group.retain(|(_, moving)| {
                let need = moving.taken();
                self.refusals.of((moving.inode.id.ino, to.ix), room, need).is_none()
            });
            (to, group)
        });
        groups.filter(|(to, group)| !to.is_remote() && group.len() >= FEWEST).collect()
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
        let Some((_, first)) = begun.first() else { return Err(Errno::AGAIN.into()) };
        let (lifted, together) = (lifted_restrictions(&first.from, to)?, CopiesTogether::new());
        let need = begun.iter().map(|(_, moving)| moving.taken()).sum();
        let _room = ReservedRoom::new(&self.files, to, need, 0);
        let mut copies: Vec<Copied<'_>> = Vec::with_capacity(begun.len());
        for (source, moving) in begun {
            if !batch.departure.goes_on() {
                return Err(Errno::INTR.into());
            }
            if batch.departure.is_short() {
                break;
            }
            match self.copy_for_batch(pool, (batch, to), (lifted, &together), source, moving) {
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
        (lifted, together): (MountRestrictions, &CopiesTogether),
        source: &'a Source<'a>,
        moving: Move<'a>,
    ) -> Result<Copied<'a>> {
        let order = source.order;
        if !moving.stays_restricted(lifted) {
            return Err(Errno::PERM.into());
        }
        let dirs = moving.names.iter().map(|name| self.tree.skeleton(pool, &name.parent, to.ix));
        let dirs: Vec<Arc<DirFd>> = dirs.collect::<Result<_>>()?;
        let (fd, staged) = to.ask(|| blank(to, &dirs[0], &moving.stat))?;
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
                let (new, old) = ((fd.as_fd(), &made), (moving.source, &moving.stat));
                let shared = match split_source_error(copy_file(new, old, &how, Some(together), &goes_on))? {
                    Err(unread) => return Ok(Err(unread)),
                    Ok(shared) => shared,
                };
                // Its identity is on disk, on the copy and in the index, before the copy has a name.
                mark::put(On::Fd(fd.as_fd()), mark::FILE, moving.inode.id, made.ino)?;
                Ok(Ok(shared))
            })?
            .map_err(|error| moving.from.said(error))?
        };
        let natural = number::number(to, made.dev, made.ino);
        Ok(Copied { source, moving, dirs, mount_root, fd, made, natural, shared })
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
        let follow = |copied: &Copied<'_>| {
            let file = (from.ix, copied.moving.stat.ino);
            copied.names().map(|name| self.files.listings_follow(&self.tree, pool, name, file)).collect()
        };
        let followed: Vec<Vec<_>> = copies.iter().map(follow).collect();
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
            let may_stand = matches!(end, BatchEnd::Left | BatchEnd::Undecided);
            *end == BatchEnd::Stays || may_stand && birth(made) == 0
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
