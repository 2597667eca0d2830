//! Moving an open file to a roomier branch, under its writers.
//!
//! A call on the file holds `placed` shared meanwhile. A writer that saw ENOSPC lets go, takes it exclusively for a moment and
//! notes there that the file is to leave (`files/departure.rs`): from then on readers go on, and changes of the file wait. A mover
//! (`movers.rs`) makes the copy with nothing held, and takes `placed` exclusively again for the last comparison and the exchange
//! of the names. Rename, link and unlink of an open file hold it shared and cancel the move: the writer tries again.
//!
//! The copy is made without a name (`O_TMPFILE`), or in a hidden folder where the branch has no such thing, and synced; an intent
//! on the target branch says what is to be done; then it gets the name, the directory is synced, the old name goes, the intent
//! goes. Killed before the name: the old copy stands, and the new one is gone or is cleared by the next mount. Killed after: both
//! are whole, and the next mount removes the old one.
//!
//! If the target goes out of reach, the file stays, and no other target is tried until this one is cleaned (`intent.rs`).
//! A branch that refused a file is not tried again for it at once (`refusals.rs`). For want of room these are not moved: a file with several links, or one
//! that the kernel reads, writes or may have mapped by passthrough; no mapping is made later, as passthrough opens have ended.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use fsstack_branch::admin_state::OpenFileRef;
use fsstack_branch::branch::Branch;
use fsstack_branch::dir_fd::DirFd;
use fsstack_branch::error::{OpError, Result};
use fsstack_branch::health::inflight_limit::CallKind;
use fsstack_branch::health::reply_takeover;
use fsstack_branch::metrics::BranchCounter;
use fsstack_branch::mounted_fd::MountedFd;
use fsstack_identity::index::birth;
use fsstack_identity::number;
use fsstack_pool::{BranchIx, Ranking, Rejection};
use fsstack_sync::time::Instant;
use fsstack_sys::{self as sys, Errno};

use crate::files::departure::{Departure, DepartureOutcome};
use crate::files::{Access, ExclusiveFile, FdOrigin, MAPPED, MoveRequest, OpenFile};
use crate::handles::identify::MarkedCopy;
use crate::inode::{Inode, InodeName};
use crate::member::Member;
use crate::moves::Moves;
use crate::moves::clone_metadata::clone_metadata;
use crate::moves::job_move::{JobMove, MoveCause};
use crate::moves::movers::OrderedMove;
use crate::moves::moving::{Move, Names, lifted_restrictions};
use crate::moves::naming::{NewCopy, OldName, Unmoved};
use crate::moves::reasons::{HIDES, READ_ONLY, RESTRICTED, RULED, is_of_source, why_failed, why_not};
use crate::moves::room::{ReservedBytes, ReservedRoom, floor_of};
use crate::moves::special;
use crate::moves::transfer::split_source_error;
use crate::pool::Pool;
use crate::recovery::blank::blank;
use crate::tree::Tree;
use crate::tree::placement::placement_of;

impl Moves {
    /// The branch `full` had no room for `more` bytes of the open file: moves it to one that has. Ok: try again.
    ///
    /// # Errors
    /// ENOSPC if it cannot be moved or no branch has room for it; what was tried is undone.
    pub(crate) fn relocate(
        &self,
        pool: &Pool,
        inode: &Arc<Inode>,
        file: &Arc<OpenFile>,
        full: BranchIx,
        more: u64,
    ) -> Result<()> {
        pool.branch(full).distrust_space();
        if !pool.settings.relocate {
            return Err(Errno::NOSPC.into());
        }
        let departure = match file.leave(full)? {
            MoveRequest::Gone => return Ok(()), // another writer had it moved
            MoveRequest::UnderWay(departure) => departure,
            MoveRequest::Ordered(departure) => {
                let cause = MoveCause::Full { more };
                self.have_moved(OrderedMove::new(inode, file, departure.clone(), full, cause));
                departure
            }
        };
        match reply_takeover::aside(|| departure.wait(|| self.start_movers(full))) {
            DepartureOutcome::TryAgain => Ok(()),
            DepartureOutcome::Stays => Err(Errno::NOSPC.into()),
            DepartureOutcome::Unknown => Err(OpError::UNSURE),
        }
    }

    /// Moves the file to a branch that has room, on the calling thread.
    pub(crate) fn move_file(&self, order: &OrderedMove) -> DepartureOutcome {
        if self.has_room_again(order) {
            return DepartureOutcome::TryAgain;
        }
        let moved = self.try_to_move(order);
        if moved.is_ok() {
            self.movers.one_has_left(order.full);
        }
        match (moved, order.cause.job()) {
            (Ok(()), None) => DepartureOutcome::TryAgain,
            (Err(_), None) => DepartureOutcome::Stays,
            // Other waiters wait for another reason.
            (moved, Some(job)) => {
                if moved.is_ok() {
                    job.is_done();
                }
                DepartureOutcome::TryAgain
            }
        }
    }

    /// Whether the file need not leave its full branch any more: writers that find it full at once would all leave it.
    fn has_room_again(&self, order: &OrderedMove) -> bool {
        let MoveCause::Full { more } = order.cause else { return false };
        if !self.movers.has_one_left_since(order) {
            return false;
        }
        let pool = self.tree.pool.load();
        let branch = pool.branch(order.full);
        branch.distrust_space();
        branch.space().is_ok_and(|space| space.available >= more)
    }

    fn try_to_move(&self, order: &OrderedMove) -> Result<()> {
        let OrderedMove { inode, file, departure, cause, .. } = order;
        let pool = &*self.tree.pool.load_full();
        let (was, from, source) = file.source()?;
        let moving = self.tree.begin(pool, order, from, source.as_fd())?;
        let need = moving.taken().saturating_add(cause.more());
        let reserved = ReservedBytes::of(pool);
        let ranking = self.tree.targets(pool, (&moving.names, &moving.from), need, cause.job());
        let mut why = why_nowhere(&ranking);
        for at in ranking.order {
            let room = pool.branch(at).space().map_or(0, |space| space.available);
            if let Some(known) = self.refusals.of((inode.id.ino, at), room, need) {
                why = known;
                if is_of_source(why) {
                    break;
                }
                continue;
            }
            let Ok(lifted) = lifted_restrictions(&moving.from, pool.branch(at)) else { continue };
            if !moving.stays_restricted(lifted) {
                why = RESTRICTED;
                continue;
            }
            let began = Instant::now();
            let Ok(mount_root) = pool.branch(at).acquire() else { continue };
            let to = (&**pool.branch(at), reserved.on(at));
            match self.move_to(pool, &moving, to, order, || alone(&moving, file, was, departure)) {
                Ok((fd, mut placed)) => {
                    let (from, to) = (moving.from.path.display(), pool.branch(at).path.display());
                    match cause {
                        MoveCause::Full { .. } => {
                            tracing::info!(name = ?moving.name().name, %from, %to, "file relocated to a roomier branch");
                        }
                        MoveCause::Job(_) => {
                            tracing::debug!(name = ?moving.name().name, %from, %to, "moved by a job")
                        }
                    }
                    let gone = self.arrive(pool, &moving, file, &mut placed, (mount_root, fd));
                    drop(placed); // a close may hang
                    moving.from.clone().dispose(was.mount_generation, (gone, source));
                    return Ok(());
                }
                Err(_) if departure.is_over() => return Err(Errno::NOSPC.into()), // called off
                Err(unmoved) => {
                    let (Unmoved::Undone(error) | Unmoved::Left(error)) = unmoved;
                    let left = matches!(unmoved, Unmoved::Left(_));
                    why = why_not_to(pool.branch(at), &moving, error, why);
                    self.refusals.add((inode.id.ino, at), room, began, why);
                    // A file that has changed, or cannot be read or synced, would not go to another branch, either.
                    let is_changed = matches!(error.errno(), Errno::STALE | Errno::BUSY | Errno::EXIST);
                    if left || is_changed || is_of_source(why) {
                        break;
                    }
                }
            }
        }
        Err(self.tree.not_moved(order, why))
    }

    /// The file is the new copy from now on, on the branch of `mount_root`. Returns the descriptor of the old one.
    pub(crate) fn arrive(
        &self,
        pool: &Pool,
        moving: &Move<'_>,
        file: &OpenFile,
        placed: &mut ExclusiveFile<'_>,
        (mount_root, fd): (OpenFileRef, MountedFd),
    ) -> MountedFd {
        let to = mount_root.branch().clone();
        self.tree.note_rule_of_move(pool, moving, to.ix);
        moving.from.metrics.add(BranchCounter::MovedAway, 1);
        to.metrics.add(BranchCounter::MovedHere, 1);
        if !moving.is_content() {
            return placed.arrive(mount_root, fd, Access::Name);
        }
        ask_for_late_errors(file, moving);
        file.is_synced();
        let gone = placed.arrive(mount_root, fd, Access::Write);
        file.set_noatime_again(&moving.from, placed);
        gone
    }

    /// Room on the branch `to` for the file and `more` bytes.
    fn reserve_room<'a>(
        &self,
        pool: &Pool,
        moving: &Move<'_>,
        to: &'a Member,
        more: u64,
    ) -> ReservedRoom<'a> {
        let total = to.space().map_or(0, |space| space.total);
        let floor = floor_of(pool, &placement_of(pool, &moving.names), to, total);
        ReservedRoom::new(&self.files, to, moving.taken().saturating_add(more), floor)
    }

    /// Copies the file to the branch `to`, on which `reserved` bytes were reserved when it had room, and gives the copy its name with its
    /// place held by `alone`.
    fn move_to<'f>(
        &self,
        pool: &Pool,
        moving: &Move<'_>,
        (to, reserved): (&Member, u64),
        order: &OrderedMove,
        alone: impl FnOnce() -> Result<ExclusiveFile<'f>>,
    ) -> Result<(MountedFd, ExclusiveFile<'f>), Unmoved> {
        let departure = &*order.departure;
        let room = self.reserve_room(pool, moving, to, order.cause.more());
        if room.is_taken(reserved) {
            return Err(OpError::from(Errno::NOSPC).into());
        }
        let dirs = moving.names.iter().map(|name| self.tree.skeleton(pool, &name.parent, to.ix));
        let dirs: Vec<Arc<DirFd>> = dirs.collect::<Result<_>>()?;
        let (fd, staged) = match moving.is_content() {
            true => to.ask(|| blank(to, &dirs[0], &moving.stat))?,
            false => special::make(&moving.from, moving.source, &moving.stat, to)?,
        };
        let new = NewCopy { to, dirs, fd, staged, quiet: order.cause.job().is_some() };
        let id = moving.inode.id;
        let done = to.ask(|| to.stat_fd(new.fd.as_fd())).map_err(Unmoved::from).and_then(|made| {
            // On disk with the content, before the copy has a name.
            let copy = MarkedCopy::mark(to, &new.fd, made, id);
            copy_across(pool, moving, (&new, &room), order)
                .and_then(|()| alone())
                .map_err(Unmoved::from)
                .and_then(|alone| {
                    let synced = moving.sync_group(&order.file).map_err(Unmoved::from);
                    let named = synced.and_then(|()| self.exchange_names(pool, moving, &new, &copy));
                    Ok((named.inspect_err(|_| departure.copy_again())?, alone))
                })
        });
        let is_gone = |old: &OldName| matches!(old, OldName::Gone) || birth(&moving.stat) == 0;
        if done.as_ref().is_ok_and(|(old, _)| is_gone(old)) {
            let before = number::number(&moving.from, moving.stat.dev, moving.stat.ino);
            self.tree.index.forget(id, Some(before));
        }
        if done.is_err()
            && let Some(staged) = &new.staged
        {
            staged.discard(to);
        }
        done.map(|(_, alone)| (new.fd, alone))
    }
}

impl Tree {
    /// Like [`Self::begin_alone`], if no other branch has a name of the file.
    ///
    /// # Errors
    /// ENOSPC if it may not be moved.
    fn begin<'a>(
        &self,
        pool: &Pool,
        order: &'a OrderedMove,
        from: Arc<Branch>,
        fd: BorrowedFd<'a>,
    ) -> Result<Move<'a>> {
        let moving = self.begin_alone(order, from, fd)?;
        let why = moving.names.iter().find_map(|name| self.why_not_from(pool, name, moving.from.ix));
        why.map_or(Ok(moving), |why| Err(self.not_moved(order, why)))
    }

    /// The open file as it is on the branch `from`, where it is `fd`, if it may be moved from there. Other branches are not asked.
    ///
    /// # Errors
    /// ENOSPC if it may not.
    pub(crate) fn begin_alone<'a>(
        &self,
        order: &'a OrderedMove,
        from: Arc<Branch>,
        fd: BorrowedFd<'a>,
    ) -> Result<Move<'a>> {
        let (inode, file) = (&order.inode, &order.file);
        if !from.is_writable() {
            return Err(self.not_moved(order, READ_ONLY));
        }
        let mut stat = from.ask(|| sys::at::stat_fd(fd))?;
        // Where flags cannot be asked for there are none.
        let flags = from.ask(|| Ok(sys::ioctl::getflags(fd).unwrap_or(0)))?;
        let names = order.names(&stat).ok_or("it has no name").and_then(|names| {
            let mapped = || (inode.was_past() && file.may_be_mapped(&from, fd)).then_some(MAPPED);
            let why = why_not(file, &stat, flags, names.len()).or_else(mapped);
            why.map_or(Ok(names), Err)
        });
        let names = names.map_err(|why| self.not_moved(order, why))?;
        if from.is_remote() && stat.is_file() {
            let stored = file.store_all(&from, fd);
            stored.map_err(|_| self.not_moved(order, "what was written to it before may not be stored"))?;
            stat = from.ask(|| sys::at::stat_now(fd))?;
        }
        Ok(Move::new(inode, names, from, fd, stat))
    }

    /// Branches with room for `need` bytes and their floor, as the policy ranks them, for a file with these `names` on the branch
    /// `from`; never that one, and of a job's only those.
    pub(crate) fn targets(
        &self,
        pool: &Pool,
        (names, from): (&Names, &Branch),
        need: u64,
        job: Option<&JobMove>,
    ) -> Ranking {
        pool.branches.iter().for_each(|branch| branch.distrust_space());
        let placement = placement_of(pool, names).by_policy(&pool.settings.relocation.policy);
        self.ranking(pool, &names[0].parent, &placement, |branch, space| {
            let floor = floor_of(pool, &placement, branch, space.total);
            branch.ix != from.ix
                && job.map_or_else(|| branch.dev() != from.dev(), |job| job.takes(branch.ix))
                && branch.takes_moves()
                && space.available >= need.saturating_add(floor)
        })
    }

    /// Reason that a file of this name does not leave the branch `full`: hidden files would show, since the first
    /// branch in order that has the name wins.
    pub(crate) fn why_not_from(&self, pool: &Pool, name: &InodeName, full: BranchIx) -> Option<&'static str> {
        match self.find_all(pool, &name.parent, &name.name, Some(full)) {
            Ok(others) if others.is_empty() => None,
            Ok(_) => Some(HIDES),
            Err(_) => Some("a branch cannot be asked for its name"),
        }
    }

    /// Counts the file if only its new branch is against the rules for its names.
    pub(crate) fn note_rule_of_move(&self, pool: &Pool, moving: &Move<'_>, to: BranchIx) {
        let placement = placement_of(pool, &moving.names);
        if placement.is_against(to) && !placement.is_against(moving.from.ix) {
            self.note_misplaced();
        }
    }

    fn not_moved(&self, order: &OrderedMove, why: &'static str) -> OpError {
        if let Some(job) = order.cause.job() {
            job.stays(why);
        } else if order.file.set_why(why) {
            let name = order.inode.name().map(|name| name.name);
            tracing::warn!(?name, why, "branch full and the file not moved; its writer gets ENOSPC");
        }
        Errno::NOSPC.into()
    }
}

/// Reason that no branch is tried, should the ranking be empty.
fn why_nowhere(ranking: &Ranking) -> &'static str {
    let is_ruled = |(_, why): &(BranchIx, Rejection)| *why == Rejection::Excluded;
    match (ranking.order.is_empty(), ranking.refused.is_empty()) {
        (true, false) if ranking.refused.iter().all(is_ruled) => RULED,
        (true, false) => "the policy for moves takes none of the branches that have room for it",
        _ => "no other branch has room for the whole of it",
    }
}

/// Logs that a move to the branch `to` failed with `error`. Returns the reason; `known` is that of the others.
fn why_not_to(to: &Branch, moving: &Move<'_>, error: OpError, known: &'static str) -> &'static str {
    let name = &moving.name().name;
    if let Some(fault) = moving.source_fault(error) {
        let branch = moving.from.path.display();
        tracing::error!(%error, ?name, %branch, "file not moved: {fault}");
        return fault;
    }
    tracing::warn!(%error, ?name, branch = %to.path.display(), "relocation to this branch failed; trying the next");
    why_failed(error, known)
}

/// Copies all of the file, with a permit in both branches, so that its caller is answered whichever hangs. Permits are
/// taken in the order of the branches: a copy the other way does not hold one and wait for the other.
fn copy_across(
    pool: &Pool,
    moving: &Move<'_>,
    (new, room): (&NewCopy<'_>, &ReservedRoom<'_>),
    order: &OrderedMove,
) -> Result<()> {
    if !moving.is_content() {
        return Ok(()); // made like it
    }
    let departure = &*order.departure;
    let (from, to): (&Branch, &Branch) = (&moving.from, new.to);
    let (first, second) = if from.ix < to.ix { (from, to) } else { (to, from) };
    let _inside = (first.come_in(CallKind::Long)?, second.come_in(CallKind::Long)?);
    let (how, copy) = (order.cause.how(&pool.settings.relocation), new.fd.as_fd());
    let goes_on = || departure.goes_on_copying() && room.has_more(copy);
    let copied = to
        .ask_inside(|| split_source_error(clone_metadata(copy, moving.source, &moving.stat, &how, &goes_on)));
    if copied.is_err() && room.is_short() {
        return Err(Errno::NOSPC.into());
    }
    copied?.map_err(|error| {
        moving.unreadable.set(true);
        from.said(error)
    })?;
    to.ask_inside(|| room.check(copy))?;
    moving.check(copy)
}

/// Locks the place of the copied file, if the move is still wanted.
///
/// # Errors
/// EIO if another holder of the file is stuck in its branch; ESTALE if the file has changed; EINTR if the move was
/// cancelled.
fn alone<'f>(
    moving: &Move<'_>,
    file: &'f OpenFile,
    was: FdOrigin,
    departure: &Departure,
) -> Result<ExclusiveFile<'f>> {
    let placed = file.hold_exclusively()?;
    let now = placed.was();
    let is_other = (now.branch, now.mount_generation) != (was.branch, was.mount_generation);
    if is_other || why_not(file, &moving.stat, 0, moving.names.len()).is_some() {
        return Err(OpError::STALE);
    }
    if departure.name() { Ok(placed) } else { Err(Errno::INTR.into()) }
}

/// Write-back errors of the old copy that no handle got yet go to all handles of the file: the new copy may lack those bytes.
pub(crate) fn ask_for_late_errors(file: &OpenFile, moving: &Move<'_>) {
    let sync = if moving.from.is_remote() { sys::file::flush } else { sys::file::await_written };
    let _logged = moving.report_late_error(file, sync);
}
