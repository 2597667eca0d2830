//! Moves that no write asked for: a job has files leave a branch (`jobs`).
//!
//! The move is the one of `relocate.rs`. What differs: the file need not be open, and the directory's times stay, as the pool's
//! directory does not change.
//!
//! A file that nobody has open is opened for its move, so that every request that begins from then on meets the open file: it
//! shares its place, or calls the move off. Requests that began before have met a closed file, and act on the branch's own; so
//! the mover waits until they have ended (`PoolChanges::requests_ended`). For many files it waits once. After the move the file stays
//! open until the requests under way have ended: one that met it on the old branch asks again where a file is open.
//!
//! A symbolic link, fifo, socket or device has no content, and no request opens it. It is held open by its name, and its move
//! is ordered before the requests are waited for: a request for it calls the move off (`tree/pin.rs`).

use std::num::NonZeroU64;
use std::sync::Arc;

use fsstack_branch::error::{OpError, Result};
use fsstack_pool::BranchIx;
use fsstack_sync::Mutex;
use fsstack_sys::{Kind, OFlags};
use serde::{Deserialize, Serialize};

use crate::files::departure::{Departure, DepartureOutcome};
use crate::files::{Access, MoveRequest, OpenFile};
use crate::inode::Inode;
use crate::moves::Moves;
use crate::moves::batch::{self, OrderedBatch};
use crate::moves::movers::OrderedMove;
use crate::moves::moving::Names;
use crate::moves::reasons::why_past_us;
use crate::pool::Pool;
use crate::settings::{Relocation, Verify};

/// How a job moves files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manner {
    /// Bytes a second at most.
    pub rate: Option<NonZeroU64>,
    /// Each copy is read back and compared before the old one goes, whatever the pool's own setting.
    pub verify: bool,
    /// A file that is open by passthrough goes stacked from its next first open, until it has moved.
    pub make_way: bool,
    /// Only tell.
    pub dry_run: bool,
}

impl Manner {
    /// How the content is copied in a pool that copies like `pools`.
    pub(crate) fn of(self, pools: &Relocation) -> Relocation {
        let verify = if self.verify { Verify::Content } else { pools.verify };
        Relocation { speed: self.rate.or(pools.speed), verify, ..pools.clone() }
    }
}

/// Reason of a move.
#[derive(Debug)]
pub(crate) enum MoveCause {
    /// A write found the branch full.
    Full {
        /// Bytes that the target needs besides those of the file.
        more: u64,
    },
    /// A job has it leave.
    Job(Arc<JobMove>),
}

impl MoveCause {
    pub(crate) fn more(&self) -> u64 {
        match self {
            Self::Full { more } => *more,
            Self::Job(_) => 0,
        }
    }

    pub(crate) fn job(&self) -> Option<&JobMove> {
        match self {
            Self::Full { .. } => None,
            Self::Job(job) => Some(job),
        }
    }

    /// How the content is copied.
    pub(crate) fn how(&self, pools: &Relocation) -> Relocation {
        self.job().map(|job| job.manner).unwrap_or_default().of(pools)
    }
}

/// A job's wish for one move, and what became of it.
#[derive(Debug)]
pub(crate) struct JobMove {
    /// Branches that may take the file.
    pub(crate) targets: Arc<[BranchIx]>,
    pub(crate) manner: Manner,
    /// All names of the file that were found.
    pub(crate) names: Names,
    result: Mutex<Option<Result<(), &'static str>>>,
}

impl JobMove {
    pub(crate) fn takes(&self, branch: BranchIx) -> bool {
        self.targets.contains(&branch)
    }

    pub(crate) fn is_done(&self) {
        *self.result.lock() = Some(Ok(()));
    }

    pub(crate) fn stays(&self, why: &'static str) {
        *self.result.lock() = Some(Err(why));
    }
}

/// A file that is held open for its move.
pub(crate) struct HeldFile {
    inode: Arc<Inode>,
    file: Arc<OpenFile>,
    /// The move that was ordered already.
    departure: Option<Arc<Departure>>,
}

impl HeldFile {
    /// Reason for the file to stay while the kernel reads and writes it past the daemon.
    pub(crate) fn why_past_us(&self) -> Option<&'static str> {
        why_past_us(&self.file)
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        if let Some(departure) = &self.departure {
            departure.call_off(DepartureOutcome::TryAgain);
        }
        if let Some(last) = self.inode.close_handle() {
            OpenFile::dispose(last);
        }
    }
}

impl Moves {
    /// Holds the file `inode`, which is on the branch `from`, for [`Self::move_held`].
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn hold_for_move(&self, inode: &Arc<Inode>, from: BranchIx) -> Result<HeldFile> {
        let pool = self.tree.pool.load();
        let is_content = inode.kind == Kind::File;
        let open = || match is_content {
            true => self.files.open_on_branch(&self.tree, &pool, inode, false, OFlags::RDONLY),
            false => self.open_by_name(&pool, inode),
        };
        let file = inode.open_with(|file| self.tree.freshen(inode, file), open)?;
        let mut held = HeldFile { inode: inode.clone(), file, departure: None };
        if is_content {
            held.file.make_readable()?;
            // A copy that is called off leaves the old file, whose access time may be its turn in a tier.
            held.file.has_reader(true);
        } else if let MoveRequest::Ordered(departure) = held.file.leave(from)? {
            held.departure = Some(departure);
        }
        Ok(held)
    }

    fn open_by_name(&self, pool: &Pool, inode: &Arc<Inode>) -> Result<Arc<OpenFile>> {
        let (at, fd, stat) = self.tree.open_inode(pool, inode, OFlags::PATH)?;
        let branch = pool.branch(at).acquire()?;
        Ok(Arc::new(OpenFile::new(branch, fd, Access::Name, &stat, self.files.backings.clone())))
    }

    /// Moves those of the held files that are small off the branch `from`, as one batch, if there are a few; the requests that
    /// began before they were held have ended. Each with its names and targets; `tell` is given the move, to be called off.
    /// Returns which have moved. The others are not changed, and can be moved by themselves.
    pub(crate) fn move_batch_held<'h>(
        &self,
        held: impl Iterator<Item = (&'h HeldFile, &'h Names, &'h Arc<[BranchIx]>)>,
        from: BranchIx,
        manner: Manner,
        tell: impl FnOnce(&Arc<Departure>),
        meanwhile: impl Fn(&Departure),
    ) -> Vec<bool> {
        let (mut moves, mut jobs) = (Vec::new(), Vec::new());
        for (held, names, targets) in held {
            let fits = moves.len() < batch::MOST && held.inode.kind == Kind::File;
            let departure = if fits { held.file.leave_in_batch(from) } else { None };
            jobs.push(departure.map(|departure| {
                let (targets, names) = (targets.clone(), names.clone());
                let job = Arc::new(JobMove { targets, manner, names, result: Mutex::default() });
                let cause = MoveCause::Job(job.clone());
                moves.push(OrderedMove::new(&held.inode, &held.file, departure, from, cause));
                job
            }));
        }
        let batch = OrderedBatch { moves, departure: Arc::new(Departure::ordered()), from };
        if batch.moves.len() >= batch::FEWEST {
            tell(&batch.departure);
            self.have_batch_moved(batch, meanwhile);
        }
        let has_moved = |job: Arc<JobMove>| matches!(*job.result.lock(), Some(Ok(())));
        jobs.into_iter().map(|job| job.is_some_and(has_moved)).collect()
    }

    /// Moves the held file off the branch `from`; the requests that began before it was held have ended. `tell` is given the
    /// move, to be called off; `meanwhile` is done now and then until its end.
    ///
    /// # Errors
    /// Why it stays; None: it is not as it was a moment ago.
    pub(crate) fn move_held(
        &self,
        held: &mut HeldFile,
        from: BranchIx,
        (targets, manner, names): (&Arc<[BranchIx]>, Manner, Names),
        tell: impl FnOnce(&Arc<Departure>),
        meanwhile: impl Fn(&Departure),
    ) -> Result<(), Option<&'static str>> {
        let departure = match held.departure.take() {
            Some(departure) => departure,
            None => match held.file.leave(from) {
                Ok(MoveRequest::Ordered(departure)) => departure,
                Ok(MoveRequest::Gone | MoveRequest::UnderWay(_)) => return Err(None),
                Err(_) => return Err(Some("its branch, or a thread that uses the file, does not answer")),
            },
        };
        tell(&departure);
        let job = Arc::new(JobMove { targets: targets.clone(), manner, names, result: Mutex::default() });
        let cause = MoveCause::Job(job.clone());
        self.have_moved(OrderedMove::new(&held.inode, &held.file, departure.clone(), from, cause));
        let outcome = departure.wait(|| {
            self.start_movers(from);
            meanwhile(&departure);
        });
        let result = *job.result.lock();
        match (result, outcome) {
            (Some(result), _) => result.map_err(Some),
            (None, DepartureOutcome::Unknown) => {
                Err(Some("a branch does not answer in the middle of its move"))
            }
            (None, _) => Err(None),
        }
    }
}

/// Meaning of `error` for an object that is to move, in words.
pub(crate) fn in_words(error: OpError) -> &'static str {
    if error.is_fault() {
        "a branch that may have it does not answer"
    } else {
        "its branch refuses to open it"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_manner_goes_before_the_pools() {
        let pools = Relocation { speed: NonZeroU64::new(7), ..Relocation::to_the_roomiest() };
        let with = |rate, verify| {
            let manner = Manner { rate: NonZeroU64::new(rate), verify, ..Manner::default() };
            let (targets, names) = (Arc::new([]), Names::new());
            let cause =
                MoveCause::Job(Arc::new(JobMove { targets, manner, names, result: Mutex::default() }));
            let how = cause.how(&pools);
            (how.speed.map(NonZeroU64::get), how.verify)
        };
        assert_eq!(with(0, false), (Some(7), Verify::Size));
        assert_eq!(with(300, true), (Some(300), Verify::Content));
    }
}
