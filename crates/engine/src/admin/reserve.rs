//! Bulk copy's side of the pool: reserved places for files, and their names when they are whole.
//!
//! The copying process writes to the branch's file system itself: into a directory of its own in the branch's hidden folder,
//! which the pool never shows. So no half file is visible. Leftovers of an interrupted copy are cleared when it ends, or by
//! the next mount. A file gets its name here, in one step, in the intended directory, whatever that is called by then. The
//! kernel, which may have cached that the name is missing, is notified. Reserved bytes count as taken until then, so that
//! concurrent copies do not overfill a branch. A branch with part of a copy on it is in use, and does not leave the pool.
//!
//! The kernel is notified with no lock held: it may wait for a request that waits for a lock's holder.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::Arc;

use fsstack_branch::admin_state::{WrittenPart, staged};
use fsstack_branch::error::{OpError, Result};
use fsstack_pool::{BranchIx, Candidate, DirPlacement, Ino, verdict};
use fsstack_sys::at::RenameFlags;
use fsstack_sys::xattr::On;
use fsstack_sys::{self as sys, Errno, OFlags};

use crate::bulk_copy::{Copying, Reservation, Staging};
use crate::inode::Inode;
use crate::pool::Pool;
use crate::tree::Tree;
use crate::tree::inode_flags;
use crate::tree::place::random;
use crate::tree::placement::placement_in;
use crate::tree::resolve::check_public;
use crate::union::Union;

pub use crate::bulk_copy::StagingPlace;

/// A bulk copy under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyId(u64);

/// A file that is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: CString,
    /// Bytes that it will take.
    pub size: u64,
    /// Branches that could not take it after all.
    pub not_on: Vec<BranchIx>,
}

/// A reserved place for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// By this it is committed or abandoned; in decimal digits it is the file's name in the staging directory.
    pub id: u64,
    /// The branch.
    pub branch: BranchIx,
}

impl Union {
    /// A bulk copy begins; [`Self::end_copy`] ends it.
    pub fn start_copy(&self) -> CopyId {
        let id = self.files.new_handle().0;
        self.copies.lock().insert(id, Copying::default());
        CopyId(id)
    }

    /// Reserves places for files in the directory `dir`, which the kernel knows. Each is on the first branch of the ranking that
    /// has room for it and the branch's floor; reserved space counts as taken.
    ///
    /// # Errors
    /// ESTALE if there is no such directory. Of a file: ENOSPC if no branch has room, or why none takes any.
    pub fn reserve(&self, copy: CopyId, dir: Ino, wanted: &[Wanted]) -> Result<Vec<Result<Reserved>>> {
        let pool = self.tree.pool.load();
        let parent = self.tree.dir(dir)?;
        let placement = placement_in(&pool, &parent);
        let known = || self.tree.candidates(&pool, &parent, &placement, |_, _| true);
        let mut facts = known();
        let mut asked_again = false;
        let mut reserved = Vec::with_capacity(wanted.len());
        for file in wanted {
            let place = (&parent, &placement);
            let mut one = self.reserve_one(&pool, copy, place, &mut facts, (file, asked_again));
            if matches!(one, Err(error) if error.errno() == Errno::NOSPC) && !asked_again {
                // The known space of the branches may be a second old.
                asked_again = true;
                pool.branches.iter().for_each(|branch| branch.distrust_space());
                facts = known();
                one = self.reserve_one(&pool, copy, place, &mut facts, (file, true));
            }
            reserved.push(one);
        }
        Ok(reserved)
    }

    fn reserve_one(
        &self,
        pool: &Pool,
        copy: CopyId,
        (parent, placement): (&Arc<Inode>, &DirPlacement<'_>),
        facts: &mut [Candidate],
        (file, may_go_below): (&Wanted, bool),
    ) -> Result<Reserved> {
        check_public(pool, parent, &file.name)?;
        let ranking = placement.rank(facts, &mut random);
        if ranking.order.is_empty() {
            return Err(OpError::NoBranch(verdict(&ranking.refused)));
        }
        let mut last = None;
        let order = || ranking.order.iter().filter(|at| !file.not_on.contains(at));
        // The policy's last resort, below the floors, is not for files that are known to be too large.
        let below_floors =
            order().filter(|at| may_go_below && placement.is_last_resort(**at)).map(|at| (at, true));
        for (at, below_floor) in order().map(|at| (at, false)).chain(below_floors) {
            let known = facts.iter_mut().find(|facts| facts.branch == *at);
            let has_room = |facts: &&mut Candidate| match below_floor {
                true => file.size < facts.space.available,
                false => placement.fits(facts, file.size),
            };
            let Some(known) = known.filter(has_room) else { continue };
            // When the file is whole it is too late for another branch.
            if !parent.is_on(*at)
                && let Err(error) = self.tree.skeleton(pool, parent, *at)
                && (error.is_unfit() || error.is_obstructed())
            {
                last = Some(error);
                continue;
            }
            match self.staging(pool, copy, *at) {
                Ok(staging) => {
                    let id = self.files.new_handle().0;
                    staging.branch.promise(id, file.size, WrittenPart::Staged(staging.locked.dir.clone()));
                    let space = &mut known.space;
                    space.available = space.available.saturating_sub(file.size);
                    space.free = space.free.saturating_sub(file.size);
                    space.inodes_free = space.inodes_free.saturating_sub(1);
                    let kept = Reservation {
                        id,
                        staging,
                        parent: parent.clone(),
                        name: file.name.clone(),
                        size: file.size,
                    };
                    let mut copies = self.copies.lock();
                    copies.get_mut(&copy.0).ok_or(OpError::STALE)?.reservations.insert(id, kept);
                    return Ok(Reserved { id, branch: *at });
                }
                Err(error) if error.is_about_the_branch() || error.is_fault() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or(Errno::NOSPC.into()))
    }

    /// The copy's directory on the branch `at`.
    fn staging(&self, pool: &Pool, copy: CopyId, at: BranchIx) -> Result<Arc<Staging>> {
        if let Some(known) = self.staging_on(copy, at) {
            return Ok(known);
        }
        let made = Arc::new(Staging::make(pool.branch(at))?);
        let mut copies = self.copies.lock();
        copies.get_mut(&copy.0).ok_or(OpError::STALE)?.stagings.push(made.clone());
        Ok(made)
    }

    fn staging_on(&self, copy: CopyId, at: BranchIx) -> Option<Arc<Staging>> {
        let copies = self.copies.lock();
        copies.get(&copy.0)?.stagings.iter().find(|staging| staging.branch.ix == at).cloned()
    }

    /// Where the copy makes its files on the branch `at`, once something is reserved there.
    pub fn staging_place(&self, copy: CopyId, at: BranchIx) -> Option<StagingPlace> {
        self.staging_on(copy, at).map(|staging| staging.place())
    }

    /// Gives the whole files `ids` their names. Their content must be on disk by then if it is to outlive a power cut.
    ///
    /// # Errors
    /// Of a file: EEXIST if the name is taken by now, ENOENT if the directory is gone, or there is no such reservation.
    /// The file is removed then.
    pub fn commit(&self, copy: CopyId, ids: &[u64]) -> Vec<Result<()>> {
        let pool = self.tree.pool.load();
        let mut reported: Vec<(Ino, CString)> = Vec::with_capacity(ids.len());
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(mut kept) = self.take_reservation(copy, *id) else {
                answers.push(Err(OpError::MISSING));
                continue;
            };
            let named = self.tree.name_staged(&pool, &kept);
            self.names_may_have_changed(kept.parent.id.ino);
            match &named {
                Ok(()) => reported.push((kept.parent.id.ino, std::mem::take(&mut kept.name))),
                Err(_) => discard(&kept),
            }
            answers.push(named);
        }
        if let Some(invalidator) = self.invalidator.get() {
            let mut before = None;
            for (dir, name) in &reported {
                invalidator.name(*dir, name);
                if before.replace(*dir) != Some(*dir) {
                    invalidator.attributes(*dir);
                }
            }
        }
        answers
    }

    /// Removes the reserved files `ids`, which will not come. An unknown one is not of the pool.
    pub fn abandon(&self, copy: CopyId, ids: &[u64]) {
        for id in ids {
            if let Some(kept) = self.take_reservation(copy, *id) {
                // It may not have fitted: the branch tells its space anew.
                kept.staging.branch.distrust_space();
                discard(&kept);
            }
        }
    }

    fn take_reservation(&self, copy: CopyId, id: u64) -> Option<Reservation> {
        self.copies.lock().get_mut(&copy.0)?.reservations.remove(&id)
    }

    /// Ends the copy, also if its process is gone: uncommitted files are removed.
    pub fn end_copy(&self, copy: CopyId) {
        let ended = self.copies.lock().remove(&copy.0);
        drop(ended);
    }

    /// No copy goes on: the mount is gone.
    pub(crate) fn end_all_copies(&self) {
        let all: Vec<Copying> = self.copies.lock().drain().map(|(_, one)| one).collect();
        drop(all);
    }

    /// Files that are reserved and not committed.
    pub fn reservations(&self) -> usize {
        self.copies.lock().values().map(|copy| copy.reservations.len()).sum()
    }
}

impl Tree {
    fn name_staged(&self, pool: &Pool, of: &Reservation) -> Result<()> {
        let Reservation { id, staging, parent, name, size } = of;
        let branch = &staging.branch;
        if parent.name().is_none() && !parent.is_root() {
            return Err(OpError::MISSING);
        }
        let _create_guard = self.must_be_missing(pool, parent, name)?;
        let staged = staged(*id);
        // The branch's copy of the directory may have been removed with its last entry.
        let dir = self.skeleton(pool, parent, branch.ix)?;
        self.sync_renamed(pool, (parent, name), &[branch.ix]);
        let folder = staging.locked.dir.as_fd();
        if self.index.may_lack(pool.marked()) {
            let stat = branch.ask(|| branch.stat(folder, &staged))?;
            self.other_for_new(pool, branch, &stat, On::Name(folder, &staged));
        }
        let name_it = || sys::at::rename(folder, &staged, dir.as_fd(), name, RenameFlags::NOREPLACE);
        branch.ask(|| match name_it() {
            // The directory gives a project to what is made in it, and takes nothing of another one.
            Err(error) if error.errno == Errno::XDEV => {
                let file = sys::at::open(folder, &staged, OFlags::RDONLY, 0, branch.mounts)?;
                let dir = sys::at::reopen(dir.as_fd(), OFlags::RDONLY)?;
                // Where that is not the reason, the first error is the one to tell.
                inode_flags::put_into_project_of(dir.as_fd(), file.as_fd()).map_err(|_| error)?;
                name_it()
            }
            named => named,
        })?;
        branch.note_placed_beside(size.saturating_sub(branch.arrived(*id)));
        branch.note_made();
        parent.has_new(name);
        self.catalogue_name(pool, branch.ix, (parent, name));
        Ok(())
    }
}

fn discard(kept: &Reservation) {
    let staging = &kept.staging;
    let removed = staging.branch.ask(|| sys::at::unlink(staging.locked.dir.as_fd(), &staged(kept.id)));
    match removed {
        // It was never made.
        Err(error) if error.errno() == Errno::NOENT => {}
        Err(error) => {
            tracing::warn!(%error, branch = %staging.branch.path.display(), "bulk copy: partial file not removed; it goes when the copy ends")
        }
        Ok(()) => {}
    }
}
